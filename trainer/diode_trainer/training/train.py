"""Fit a network to examples with early stopping, reproducibly for a seed.

Each ensemble member leaves out its own part of the training problems and is validated on that part. So every problem
is learned by all members but at most one, and no problem is lost to validation.
"""

from __future__ import annotations

import contextlib
import copy
import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from diode_store.command_line.render import counted
from diode_store.errors import DatasetError, ModelError, first_line
from diode_trainer.data.dataset import FEW
from diode_trainer.data.tensors import Packed, normalise
from diode_trainer.models import TimingNetwork, model_class
from diode_trainer.op_domain import has_own_domain
from diode_trainer.training.batches import Batch, ConfigLists
from diode_trainer.training.best import Best
from diode_trainer.training.losses import Goals, loss_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from diode_trainer.data.dataset import ExampleSet
    from diode_trainer.training.recipe import Recipe

START_ANEW = "--restart starts from the beginning"
"""Remedy for a checkpoint that a fit cannot resume from."""
FEWEST_PROBLEMS = 10
"""Fewest problems that a fit accepts."""
_PARTS = 10
"""Number of parts of the problems; more if there are more members. Each member is validated on one part."""


_WARM_UP = 0.1
_BETAS = (0.9, 0.98)
_VALIDATE_EVERY = 5
"""Epochs between validations."""
_VALIDATION_BATCH = 64
"""Problems whose hidden layers are in memory at once."""
_FEWEST_STEPS = 64
"""Fewest steps of an epoch, as long as a batch keeps ``_SMALLEST_BATCH`` problems."""
_SMALLEST_BATCH = 16
_REPEATS = 2
"""Times that an epoch has a problem of an op with a domain of its own, beside plain products."""


@dataclass(frozen=True)
class EpochReport:
    """Losses after one epoch of a fit."""

    epoch: int
    """Number of the epoch, from 1."""
    epochs: int
    training_loss: float
    validation_loss: float | None
    """Mean validation loss; None after epochs without validation."""
    member_training_losses: tuple[float, ...] = ()
    """Training loss of each member; ``training_loss`` is their mean."""
    member_validation_losses: tuple[float, ...] | None = None
    """Validation loss of each member on the problems that it left out; ``validation_loss`` is their mean."""


@dataclass(frozen=True)
class Fit:
    """Fitted network with its losses."""

    network: TimingNetwork
    epochs: int
    """Last epoch whose weights were kept for some member."""
    validation_loss: float
    """Mean over the members of their lowest validation losses."""
    history: tuple[EpochReport, ...] = field(default=(), repr=False)


@dataclass(frozen=True, eq=False)
class Beginning:
    """Start of a fit: by default random weights, and each problem once an epoch."""

    network: TimingNetwork | None = None
    """Network to start from. Not modified."""
    repeats: Tensor | None = None
    """(m,) how often each problem counts in an epoch and in validation."""

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name."""
        repeats = {} if self.repeats is None else {"repeats": self.repeats}
        return repeats if self.network is None else {**self.network.state_dict(), **repeats}


def op_repeats(dataset: ExampleSet) -> Tensor:
    """Return how often each problem counts in an epoch, shape (m,).

    Beside plain products the scaled, grouped, summed and int8 ones count twice, as they are few.
    """
    has_own = torch.tensor([has_own_domain(example.shape.op) for example in dataset], dtype=torch.bool)
    return torch.where(has_own & ~has_own.all(), _REPEATS, 1)


class Keeper(Protocol):
    """Keeps the state of a running fit, as ``checkpoints.Checkpoint`` does on disk."""

    def start(self) -> dict[str, Any] | None:
        """Return the state to resume from; None starts from the beginning."""

    def is_due(self) -> bool:
        """Return whether the last kept state is old enough to replace it."""

    def save(self, state: dict[str, Any]) -> None:
        """Replace the kept state."""


def fit(
    packed: Packed,
    recipe: Recipe,
    *,
    seed: int = 42,
    device: str = "cpu",
    on_epoch: Callable[[EpochReport], None] | None = None,
    checkpoint: Keeper | None = None,
    beginning: Beginning = Beginning(),
    members: slice = slice(None),
) -> Fit:
    """Fit a network to every problem of ``packed``.

    On a CPU equal arguments give equal weights, even if the fit resumes from a checkpoint. A resumed fit first reports
    its earlier epochs to ``on_epoch``. The global random state is not touched. Members learn independently: fitted
    alone, they get the same weights as in the whole ensemble.

    Raises:
        DatasetError: too few problems.
        ModelError: the model type is unknown, or the loss is not finite.
    """
    if len(packed) < FEWEST_PROBLEMS:
        few = f"{counted(len(packed), 'problem')} {'is' if len(packed) == 1 else 'are'} too few to learn from"
        raise DatasetError(f"{few}, {FEWEST_PROBLEMS} needed; {FEW}")
    with limited_threads():
        return _Fitting(packed, recipe, seed, device, beginning, members).run(on_epoch or (lambda _: None), checkpoint)


@contextlib.contextmanager
def limited_threads() -> Iterator[None]:
    """Let each operation use one thread.

    Threads that wait for each other slow down badly on a busy machine, and sums over one thread are the same
    everywhere. Other fits, and other members of the same fit, use the remaining cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
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
            [network(network.inputs(p.problem, p.config, p.problem_of)).mean(0) for p in parts],
        )


class _Drawn(NamedTuple):
    """Configs of all problems for one epoch."""

    table: Tensor
    """(m, c) by ``ConfigLists.draw``."""
    goals: Goals
    """Goals of all m problems."""


class _Fitting:
    """State of one fit."""

    def __init__(
        self, packed: Packed, recipe: Recipe, seed: int, device: str, beginning: Beginning, members: slice
    ) -> None:
        self.recipe, self.device = recipe, device
        self.generator = torch.Generator().manual_seed(seed)
        network = _network(packed, recipe, self.generator) if beginning.network is None else _again(beginning.network)
        learns = _parts(len(packed), network.members, self.generator)[members]
        self.network = network.of_members(members).to(device)
        self.average = copy.deepcopy(self.network).requires_grad_(requires_grad=False)
        """Moving average of the weights; it is validated and kept."""
        self.packed = packed.to(device)
        self.inputs = self.network.inputs(self.packed.problem, self.packed.config, self.packed.problem_of)
        self.lists = ConfigLists(packed, recipe.most_configs)
        self.validated = self._drawn()
        self.learns = learns.to(device)  # (E, m)
        self.held_out = torch.nonzero(~self.learns.all(0)).flatten()
        repeats = torch.ones(len(packed), dtype=torch.int64) if beginning.repeats is None else beginning.repeats
        self.judges = ~self.learns * repeats.to(device)
        """Number of times that each problem counts in the validation of each member, (E, m)."""
        self.turns = torch.repeat_interleave(repeats)
        """Problems of an epoch, with repeats."""
        self.batch_size = min(recipe.batch_size, max(len(self.turns) // _FEWEST_STEPS, _SMALLEST_BATCH))
        self.learning_rate = recipe.learning_rate * math.sqrt(self.batch_size / recipe.batch_size)
        self.parameters: list[Tensor] = list(self.network.parameters())
        self.averages: list[Tensor] = list(self.average.parameters())
        self.optimiser = torch.optim.AdamW(
            self.parameters, lr=self.learning_rate, weight_decay=recipe.weight_decay, betas=_BETAS, fused=True
        )
        self.step = 0
        self.steps = math.ceil(len(self.turns) / self.batch_size) * recipe.epochs
        self.best = Best.none_of(self.average)
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
        loss = float(torch.nanmean(self.best.losses))
        return Fit(network, int(self.best.epochs.max()), loss, tuple(self.history))

    def _is_over(self) -> bool:
        done = len(self.history)
        return done == self.recipe.epochs or bool(self.best.has_stopped(done, self.recipe.patience).all())

    def _epoch(self, epoch: int) -> EpochReport:
        """Learn from all problems once, keep the best members so far, and return the losses."""
        order = self.turns[torch.randperm(len(self.turns), generator=self.generator)]
        drawn = self._drawn()
        batches = torch.split(order.to(self.device), self.batch_size)
        training = torch.stack([self._learn(problems, drawn) for problems in batches])
        validates = epoch == self.recipe.epochs or epoch % _VALIDATE_EVERY == 0
        validation = self._validate() if validates else None
        of_members = training.mean(0)
        report = EpochReport(
            epoch,
            self.recipe.epochs,
            float(of_members.mean()),
            None if validation is None else float(torch.nanmean(validation)),
            tuple(of_members.tolist()),
            None if validation is None else tuple(validation.tolist()),
        )
        if not math.isfinite(report.training_loss + (report.validation_loss or 0.0)):
            raise ModelError(f"the fit diverged in epoch {epoch}; lower --learning-rate")
        if validation is not None:
            self.best.update(self.average, validation, epoch, self.recipe.patience)
        self.history.append(report)
        return report

    def _state(self) -> dict[str, Any]:
        """Return everything that the remaining epochs depend on, as tensors and plain values."""
        return {
            "network": self.network.state_dict(),
            "average": self.average.state_dict(),
            "best": self.best.network.state_dict(),
            "kept": (self.best.epochs, self.best.losses),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
            "step": self.step,
            "history": [asdict(report) for report in self.history],
        }

    def _restore(self, state: dict[str, Any]) -> None:
        """Resume from a result of ``_state``.

        Raises:
            ModelError: another version of torch-diode made the state.
        """
        try:
            self._load(state)
        except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
            raise ModelError(
                "the checkpoint of the interrupted fit is of another version of torch-diode"
                f" ({first_line(error)}); {START_ANEW}"
            ) from None

    def _load(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.average.load_state_dict(state["average"])
        self.best = Best(copy.deepcopy(self.average), *state["kept"])
        self.best.network.load_state_dict(state["best"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.generator.set_state(state["generator"])
        self.step = state["step"]
        self.history = [EpochReport(**report) for report in state["history"]]

    def _drawn(self) -> _Drawn:
        """Draw the configs of an epoch."""
        table = self.lists.draw(self.generator).to(self.device)
        return _Drawn(table, Goals.of_table(self.packed, table, self.recipe))

    def _learn(self, problems: Tensor, drawn: _Drawn) -> Tensor:
        """Take one step on ``problems``, (b,); return the mean loss of each member, (E,)."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning_rate * _schedule(self.step / self.steps)
        # Members are independent: the sum of their losses gives each the gradient it would get alone.
        losses = (self._loss(self.network, problems, drawn) * self.learns[:, problems]).sum(1) / len(problems)
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(losses.sum())
        self.optimiser.step()
        self.step += 1
        decay = min(self.recipe.averaging, self.step / (self.step + 10))
        with torch.no_grad():
            torch._foreach_lerp_(self.averages, self.parameters, 1 - decay)
        return losses.detach()

    def _loss(self, network: TimingNetwork, problems: Tensor, drawn: _Drawn) -> Tensor:
        """Return the loss of each member on each of ``problems``, shape (E, b)."""
        batch = Batch.of_table(drawn.table[problems])
        predicted = batch.rectangle(network(self.inputs[batch.rows]))
        return loss_of(predicted, drawn.goals.take(problems), self.recipe)

    def _validate(self) -> Tensor:
        """Return the mean loss of each averaged member on its validation problems, (E,); NaN without any."""
        losses, counts = torch.zeros(2, self.network.members, dtype=torch.float64, device=self.device)
        with torch.inference_mode():
            for rows in torch.split(self.held_out, _VALIDATION_BATCH):
                judged = self.judges[:, rows]
                losses += (self._loss(self.average, rows, self.validated) * judged).sum(1)
                counts += judged.sum(1)
        means: Tensor = losses / counts
        return means.cpu()


def _again(network: TimingNetwork) -> TimingNetwork:
    """Return a trainable copy of a fitted network, without the scout of the old weights."""
    copied = copy.deepcopy(network).requires_grad_(requires_grad=True).train()
    copied.scout = None
    return copied


def _network(packed: Packed, recipe: Recipe, generator: torch.Generator) -> TimingNetwork:
    kind = model_class(recipe.model_type)
    # The constructor draws from the global generator; these draws are replaced.
    with torch.random.fork_rng(devices=[]):
        network = kind(packed.problem.shape[1], packed.config.shape[1], recipe.hidden_layer_widths, recipe.members)
    network.initialise(generator)
    normalise(network, packed)
    with torch.no_grad():
        network.out_bias.fill_(float(packed.target.mean()))
    return network


def _parts(problems: int, members: int, generator: torch.Generator) -> Tensor:
    """Return the training problems of each member, (E, m) bool: all but one part."""
    parts = max(members, _PARTS)
    part = torch.randperm(problems, generator=generator) % parts
    return part.unsqueeze(0) != torch.arange(members).unsqueeze(1)


def _schedule(done: float) -> float:
    """Return the share of the peak learning rate after ``done`` (0 to 1) of all steps."""
    if done < _WARM_UP:
        return done / _WARM_UP + 1e-3
    return 0.5 * (1 + math.cos(math.pi * (done - _WARM_UP) / (1 - _WARM_UP))) + 1e-3
