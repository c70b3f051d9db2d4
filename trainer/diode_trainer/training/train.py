"""Fit a network to examples, with early stopping, the same every time for the same seed.

Every member of a network is fitted to all training problems but a part of its own, by which it is judged while it
learns. So each problem is learned from by all members but at most one, and none is lost to validation.
"""

from __future__ import annotations

import contextlib
import copy
import math
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from diode_store.errors import DatasetError, ModelError, first_line
from diode_store.render import counted
from diode_trainer.data.dataset import FEW
from diode_trainer.data.tensors import Packed, normalise
from diode_trainer.models import TimingNetwork, model_class
from diode_trainer.training.losses import (
    Goals,
    Ranking,
    expected_regret,
    goal_shares,
    listwise,
    regression,
    regrets,
    row_sums,
    weights,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

FEWEST_PROBLEMS = 10
"""Below this many problems nothing can be learned that would be worth keeping."""
_PARTS = 10
"""A member is judged by a tenth of the problems, or less if there are more members."""


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of a fit."""

    model_type: str = "deep"
    hidden_layer_widths: tuple[int, ...] | None = None
    """The model type's own unless given."""
    members: int | None = None
    """Likewise."""
    epochs: int = 60
    batch_size: int = 16
    """Problems, each with all of its configs, in one step."""
    learning_rate: float = 4e-3
    """Peak; it rises over the first tenth of the steps and falls along a cosine."""
    weight_decay: float = 0.02
    patience: int = 20
    """Epochs without improvement on the held-out problems after which to stop; 0 means never."""
    temperature: float = 0.08
    listwise_weight: float = 0.5
    """Weight of ranking all configs."""
    triton_listwise_weight: float = 0.5
    """Weight of ranking the configs that are not the vendor's among themselves."""
    regret_temperature: float = 0.05
    """How far behind a config may be predicted and still be picked, in log runtime."""
    regret_weight: float = 0.4
    """Weight of what a pick is expected to lose, of all configs and again of those that are not the vendor's."""
    huber_delta: float = 0.2
    estimate_weight: float = 0.2
    """How much an estimate counts in the regression, against a median."""
    vendor_weight: float = 5.0
    """How much a vendor's config counts in the regression: there is one for dozens of others."""
    averaging: float = 0.99
    """Decay of the moving average of the weights, which is what is kept."""


_WARM_UP = 0.1
_BETAS = (0.9, 0.98)
_VALIDATE_EVERY = 5
"""Epochs."""
_VALIDATION_BATCH = 64
"""Problems whose hidden layers are in memory at once."""


@dataclass(frozen=True)
class EpochReport:
    """What a fit reports after each epoch."""

    epoch: int
    """From 1."""
    epochs: int
    training_loss: float
    validation_loss: float | None
    """None in epochs after which nothing was validated."""
    member_training_losses: tuple[float, ...] = ()
    """Of each member; ``training_loss`` is their mean."""
    member_validation_losses: tuple[float, ...] | None = None
    """Of each member, each on the problems that it does not learn from; ``validation_loss`` is over all of them."""


@dataclass(frozen=True)
class Fit:
    """A fitted network and how it came about."""

    network: TimingNetwork
    epochs: int
    """The epoch that was kept."""
    validation_loss: float
    history: tuple[EpochReport, ...] = field(default=(), repr=False)


@dataclass(frozen=True, eq=False)
class Beginning:
    """What a fit begins with; unless told otherwise with drawn weights, and every problem once an epoch."""

    network: TimingNetwork | None = None
    """Whose weights and normalisation it begins with; it stays as it is."""
    repeats: Tensor | None = None
    """(m,) how often an epoch learns from each problem; it also counts so often in validation."""

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that it is, by name."""
        repeats = {} if self.repeats is None else {"repeats": self.repeats}
        return repeats if self.network is None else {**self.network.state_dict(), **repeats}


class Keeper(Protocol):
    """Keeps the state of a fit while it learns; ``checkpoints.Checkpoint`` does, on disk."""

    def start(self) -> dict[str, Any] | None:
        """Return the state to go on from, or None to start from the beginning."""

    def is_due(self) -> bool:
        """Whether the last state that was kept is so old that another should be."""

    def save(self, state: dict[str, Any]) -> None:
        """Keep a state in place of the last."""


def fit(
    packed: Packed,
    recipe: Recipe,
    *,
    seed: int = 42,
    device: str = "cpu",
    on_epoch: Callable[[EpochReport], None] | None = None,
    checkpoint: Keeper | None = None,
    threads: int = 1,
    beginning: Beginning = Beginning(),
) -> Fit:
    """Fit a network to every problem of ``packed``.

    On a CPU, equal arguments give equal weights, also when the fit goes on from a checkpoint; ``on_epoch`` then hears
    of the earlier epochs first. The random state of the caller is left alone.

    Raises:
        DatasetError: too few problems.
        ModelError: an unknown model type, or the loss is no longer a finite number.
    """
    if len(packed) < FEWEST_PROBLEMS:
        few = f"{counted(len(packed), 'problem')} {'is' if len(packed) == 1 else 'are'} too few to learn from"
        raise DatasetError(f"{few}, {FEWEST_PROBLEMS} needed; {FEW}")
    with limited_threads(threads):
        return _Fitting(packed, recipe, seed, device, beginning).run(on_epoch or (lambda _: None), checkpoint)


@contextlib.contextmanager
def limited_threads(threads: int = 1) -> Iterator[None]:
    """Let each operation use one thread, or ``threads``.

    Two cores that wait for each other take twice as long when anything else runs, and sums of one thread come out the
    same on every machine. Several fits at a time use the other cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def predict(network: TimingNetwork, packed: Packed) -> Tensor:
    """Return the mean over members of log(runtime / roofline), shape (r,)."""
    problems = torch.arange(len(packed), device=packed.count.device)
    with torch.inference_mode():
        parts = [packed[some] for some in torch.split(problems, _VALIDATION_BATCH)]
        return torch.cat(
            [network(*network.normalised(p.problem, p.config), p.problem_of).mean(0) for p in parts],
        )


class _Fitting:
    """The state of one fit."""

    def __init__(self, packed: Packed, recipe: Recipe, seed: int, device: str, beginning: Beginning) -> None:
        self.recipe = recipe
        self.generator = torch.Generator().manual_seed(seed)
        network = _network(packed, recipe, self.generator) if beginning.network is None else _again(beginning.network)
        self.network = network.to(device)
        self.average = copy.deepcopy(self.network).requires_grad_(requires_grad=False)
        """What is kept: the moving average of the weights."""
        moved = packed.to(device)
        problem, config = network.normalised(moved.problem, moved.config)
        self.packed = replace(moved, problem=problem, config=config)
        self.goals = _goals(moved, recipe)
        self.learns = _parts(len(packed), network.members, self.generator).to(device)  # (E, m)
        self.held_out = torch.nonzero(~self.learns.all(0)).flatten()
        self.parameters: list[Tensor] = list(self.network.parameters())
        self.averages: list[Tensor] = list(self.average.parameters())
        self.optimiser = torch.optim.AdamW(
            self.parameters, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, betas=_BETAS, fused=True
        )
        self.step = 0
        repeats = torch.ones(len(packed), dtype=torch.int64) if beginning.repeats is None else beginning.repeats
        self.judges = ~self.learns * repeats.to(device)
        """How often a problem counts where a member is judged, shape (E, m)."""
        self.turns = torch.repeat_interleave(repeats)
        """The problems of an epoch."""
        self.steps = math.ceil(len(self.turns) / recipe.batch_size) * recipe.epochs
        self.best = Fit(self.average, 0, math.inf)
        self.history: list[EpochReport] = []

    def run(self, on_epoch: Callable[[EpochReport], None], checkpoint: Keeper | None = None) -> Fit:
        if checkpoint is not None and (state := checkpoint.start()) is not None:
            self._restore(state)
            for report in self.history:
                on_epoch(report)
        while not self._is_over():
            report = self._epoch(len(self.history) + 1)
            on_epoch(report)
            if checkpoint is not None and (self._is_over() or checkpoint.is_due()):
                checkpoint.save(self._state())
        network = self.best.network.cpu().requires_grad_(requires_grad=False).eval()
        return replace(self.best, network=network, history=tuple(self.history))

    def _is_over(self) -> bool:
        done, kept = len(self.history), self.best.epochs
        return done == self.recipe.epochs or bool(self.recipe.patience and kept and done - kept >= self.recipe.patience)

    def _epoch(self, epoch: int) -> EpochReport:
        """Learn from all problems once, keep what is the best so far, and return how it went."""
        order = self.turns[torch.randperm(len(self.turns), generator=self.generator)]
        training = torch.stack([self._learn(rows) for rows in torch.split(order, self.recipe.batch_size)]).mean(0)
        validates = epoch == self.recipe.epochs or epoch % _VALIDATE_EVERY == 0
        validation, of_members = self._validate() if validates else (None, None)
        report = EpochReport(
            epoch, self.recipe.epochs, float(training.mean()), validation, tuple(training.tolist()), of_members
        )
        if not math.isfinite(report.training_loss + (validation or 0.0)):
            raise ModelError(f"the fit diverged in epoch {epoch}; lower --learning-rate")
        self.history.append(report)
        if validation is not None and validation < self.best.validation_loss:
            self.best = Fit(copy.deepcopy(self.average), epoch, validation)
        return report

    def _state(self) -> dict[str, Any]:
        """Return everything that the rest of the fit depends on, as tensors and plain values."""
        return {
            "network": self.network.state_dict(),
            "average": self.average.state_dict(),
            "best": self.best.network.state_dict(),
            "kept": (self.best.epochs, self.best.validation_loss),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
            "step": self.step,
            "history": [asdict(report) for report in self.history],
        }

    def _restore(self, state: dict[str, Any]) -> None:
        """Go on from what ``_state`` returned.

        Raises:
            ModelError: it was returned by another version of this.
        """
        try:
            self._load(state)
        except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
            raise ModelError(
                f"the checkpoint of the interrupted fit is of another torch-diode ({first_line(error)}); leave out"
                " --resume to start from the beginning"
            ) from None

    def _load(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.average.load_state_dict(state["average"])
        self.best = Fit(copy.deepcopy(self.average), *state["kept"])
        self.best.network.load_state_dict(state["best"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.generator.set_state(state["generator"])
        self.step = state["step"]
        self.history = [EpochReport(**report) for report in state["history"]]

    def _learn(self, rows: Tensor) -> Tensor:
        """Take one step on the problems at ``rows`` and return the mean loss of each member, shape (E,)."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.recipe.learning_rate * _schedule(self.step / self.steps)
        learns = self.learns[:, rows]
        loss = self._loss_of(self.network, rows)  # (E, b)
        # Members are independent, so their losses are summed: each gets the gradient it would get alone.
        losses = (loss * learns).sum(1) / max(len(rows), 1)
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(losses.sum())
        self.optimiser.step()
        self.step += 1
        decay = min(self.recipe.averaging, self.step / (self.step + 10))
        with torch.no_grad():
            torch._foreach_lerp_(self.averages, self.parameters, 1 - decay)
        return losses.detach()

    def _loss_of(self, network: TimingNetwork, problems: Tensor) -> Tensor:
        """Return the loss of each member on each of ``problems``, shape (E, b)."""
        goals = self.goals.take(self.packed.rows_of(problems))
        return _loss(network, self.packed[problems], goals, self.recipe)

    def _validate(self) -> tuple[float, tuple[float, ...]]:
        """Return the mean loss of the averaged members on the problems that they do not learn from; and each one's."""
        losses, counts = torch.zeros(2, self.network.members, dtype=torch.float64, device=self.held_out.device)
        with torch.inference_mode():
            for rows in torch.split(self.held_out, _VALIDATION_BATCH):
                judged = self.judges[:, rows]
                losses += (self._loss_of(self.average, rows) * judged).sum(1)
                counts += judged.sum(1)
        return float(losses.sum() / counts.sum()), tuple((losses / counts).tolist())


def _again(network: TimingNetwork) -> TimingNetwork:
    """Return a copy of a fitted network that can learn; its scout, which knows the old one, is left out."""
    copied = copy.deepcopy(network).requires_grad_(requires_grad=True).train()
    copied.scout = None
    return copied


def _network(packed: Packed, recipe: Recipe, generator: torch.Generator) -> TimingNetwork:
    kind = model_class(recipe.model_type)
    # What the constructor draws from the global generator is drawn again.
    with torch.random.fork_rng(devices=[]):
        network = kind(packed.problem.shape[1], packed.config.shape[1], recipe.hidden_layer_widths, recipe.members)
    network.initialise(generator)
    normalise(network, packed)
    with torch.no_grad():
        network.out_bias.fill_(float(packed.target.mean()))
    return network


def _parts(problems: int, members: int, generator: torch.Generator) -> Tensor:
    """Return which problems each member learns from, shape (E, m): all but a part of its own."""
    parts = max(members, _PARTS)
    part = torch.randperm(problems, generator=generator) % parts
    return part.unsqueeze(0) != torch.arange(members).unsqueeze(1)


def _goals(packed: Packed, recipe: Recipe) -> Goals:
    problem_of, problems, target = packed.problem_of, len(packed), packed.target
    weight = torch.where(packed.estimate, recipe.estimate_weight, 1.0)
    weight = weight * torch.where(packed.vendor, recipe.vendor_weight, 1.0)
    return Goals(
        weights(weight, problem_of, problems),
        tuple(
            Ranking(
                counted,
                goal_shares(target, counted, problem_of, problems, recipe.temperature),
                regrets(target, counted, problem_of, problems),
            )
            for counted in (torch.ones_like(packed.vendor), ~packed.vendor)
        ),
    )


def _loss(network: TimingNetwork, packed: Packed, goals: Goals, recipe: Recipe) -> Tensor:
    """Return the loss of each member on each problem, shape (E, b)."""
    problem_of, problems = packed.problem_of, len(packed)
    predicted = network(packed.problem, packed.config, problem_of)
    loss = regression(predicted, packed.target, goals.weight, recipe.huber_delta)
    importances = (recipe.listwise_weight, recipe.triton_listwise_weight)
    for importance, goal in zip(importances, goals.rankings, strict=True):
        if importance:
            loss = loss + importance * listwise(predicted, goal, problem_of, problems, recipe.temperature)
        if recipe.regret_weight:
            lost = expected_regret(predicted, goal, problem_of, problems, recipe.regret_temperature)
            loss = loss + recipe.regret_weight * lost
    return row_sums(loss, problem_of, problems)


def _schedule(done: float) -> float:
    """Return the share of the peak learning rate after ``done`` (0 to 1) of all steps."""
    if done < _WARM_UP:
        return done / _WARM_UP + 1e-3
    return 0.5 * (1 + math.cos(math.pi * (done - _WARM_UP) / (1 - _WARM_UP))) + 1e-3
