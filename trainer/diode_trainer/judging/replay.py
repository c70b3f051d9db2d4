"""Replay the hook's modes on measured problems: number of benchmarks, and loss after them.

Inductor takes the fastest measured config that a mode keeps, or the only one without a benchmark. The hook's own
``policy.select`` decides what is kept.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_store.candidates.operands import has_whole_rows
from diode_store.errors import DatasetError
from diode_trainer.data.splits import holding_out
from diode_trainer.judging.as_compiled import predict_as_compiled
from diode_trainer.judging.metrics import NOTHING_TO_JUDGE, Regret, judgeable
from diode_trainer.launch import compile_seconds, takes_too_long
from diode_trainer.policy import Mode, Spread, select
from diode_trainer.uncertainty import FEWEST_MEMBERS, WITHIN

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from diode_store.records import Hardware
    from diode_trainer.artifact import TimingModel
    from diode_trainer.card import Calibration
    from diode_trainer.data.dataset import Examples, ExampleSet
    from diode_trainer.policy import Policy
    from diode_trainer.scoring import Prediction

LONG = 128
"""Number of kernels from which a measured list counts as long: nearly all that Inductor lists, not a sample."""
ROWS = ("whole rows", "odd rows")
LISTS = ("samples", "long lists")


@dataclass(frozen=True)
class Replayed:
    """Result of a mode on one problem."""

    benchmarks: int
    """Number of kernels that Inductor would time; 0 if one is kept alone."""
    loss: float
    """Natural logarithm of the regret of the final choice."""
    first_loss: float
    """Natural logarithm of the regret of the fastest prediction."""
    p_within_2pct: float | None
    """Predicted probability that the fastest prediction is within 2% of the best; None without a calibration."""
    is_odd: bool
    """True if the rows of an operand are not a multiple of 16 bytes."""
    length: int
    """Number of distinct kernels that were measured."""
    device: str
    """Name of the measured device."""

    @property
    def kind(self) -> str:
        """Alignment and length of the list, in words."""
        return f"{ROWS[self.is_odd]}, {LISTS[self.length >= LONG]}"


@dataclass(frozen=True)
class Replay:
    """Results of a mode on several problems."""

    problems: int
    benchmarks: float
    """Mean number of timed kernels."""
    kept_alone: float
    """Share of problems with one kept kernel."""
    regret: Regret
    """Regret after the benchmarks."""
    said: float | None
    """Mean predicted probability that the first kernel is within 2% of the best; None if the model has none."""
    seen: float
    """Share of problems whose first kernel is within 2% of the best."""

    @classmethod
    def of(cls, replayed: Sequence[Replayed]) -> Replay:
        """Summarize problems.

        Raises:
            DatasetError: there is no problem.
        """
        if not replayed:
            raise DatasetError(NOTHING_TO_JUDGE)
        loss = np.array([one.loss for one in replayed])
        said = [one.p_within_2pct for one in replayed if one.p_within_2pct is not None]
        return cls(
            problems=len(replayed),
            benchmarks=float(np.mean([one.benchmarks for one in replayed])),
            kept_alone=float(np.mean([one.benchmarks == 0 for one in replayed])),
            regret=Regret(*(float(np.exp(value)) for value in (loss.mean(), np.percentile(loss, 95), loss.max()))),
            said=float(np.mean(said)) if len(said) == len(replayed) else None,
            seen=float(np.mean([one.first_loss <= WITHIN for one in replayed])),
        )

    def to_plain(self) -> dict[str, Any]:
        """Return the results as JSON has them."""
        return asdict(self)


def by_kind(replayed: Sequence[Replayed]) -> dict[str, Replay]:
    """Summarize the problems of each alignment and length of list."""
    kinds = [f"{rows}, {lists}" for rows in ROWS for lists in LISTS]
    parts = {kind: [one for one in replayed if one.kind == kind] for kind in kinds}
    return {kind: Replay.of(some) for kind, some in parts.items() if some}


def by_device(replayed: Sequence[Replayed]) -> dict[str, Replay]:
    """Summarize the problems of each device, if there are several."""
    devices = sorted({one.device for one in replayed})
    parts = {device: [one for one in replayed if one.device == device] for device in devices}
    return {device: Replay.of(some) for device, some in parts.items()} if len(parts) > 1 else {}


def replay_model(
    model: TimingModel,
    dataset: ExampleSet,
    policy: Policy,
    *,
    unseen: bool = False,
    families: Collection[str] = (),
    on_problem: Callable[[], None] = lambda: None,
) -> tuple[Replayed, ...]:
    """Replay a stored model on the problems that the hook would ask it about, each on its device.

    Args:
        model: model to replay.
        dataset: measured problems; those outside its domain, and those that cannot be judged, are left out.
        policy: rule for keeping candidates.
        unseen: leave out problems in the model's training data.
        families: judge by the problems of these families only; by all if empty.
        on_problem: called after each problem, at most ``len(dataset)`` times.

    Raises:
        DatasetError: no problem is left.
    """
    some = dataset.subset(holding_out(dataset, families).test) if families else dataset
    if not any(map(judgeable, some)):
        raise DatasetError(NOTHING_TO_JUDGE)
    alike: dict[tuple[Hardware, str], list[Examples]] = {}
    for example in some:
        alike.setdefault((example.hardware, example.shape.op), []).append(example)
    found = tuple(
        one
        for (hardware, op), examples in alike.items()
        for one in _replay_on(model, hardware, op, examples, policy, unseen=unseen, on_problem=on_problem)
    )
    if not found:
        seen = "outside the model's domain or it was trained on them" if unseen else "outside the model's domain"
        raise DatasetError(f"the problems are {seen}, so the hook would ask it about none; give others with --dataset")
    return found


def _replay_on(
    model: TimingModel,
    hardware: Hardware,
    op: str,
    examples: Sequence[Examples],
    policy: Policy,
    *,
    unseen: bool,
    on_problem: Callable[[], None],
) -> tuple[Replayed, ...]:
    """Replay a model on the problems of an op on one device, with the hook's rules for near devices."""
    card = model.card
    calibration, is_near = card.calibration_on(hardware, op), card.domain.standing(hardware, op).is_near
    if is_near and policy.mode is Mode.ZERO:
        return ()  # the hook asks near models only if it may benchmark
    asked = [
        example
        for example in examples
        if judgeable(example)
        and not (unseen and model.was_trained_on(example.shape))
        and not any(card.domain.misses(example.shape, hardware, near=True))
    ]
    predictions = []
    for each in asked:
        predictions.append(predict_as_compiled(model, each))
        on_problem()
    return replay(asked, predictions, calibration, policy, is_near=is_near)


def replay(
    examples: Sequence[Examples],
    predictions: Sequence[Prediction],
    calibration: Calibration | None,
    policy: Policy,
    *,
    is_near: bool = False,
) -> tuple[Replayed, ...]:
    """Replay a policy on all judgeable problems.

    Args:
        examples: measured problems.
        predictions: predictions for each.
        calibration: calibration of the members' spread; None if unknown.
        policy: rule for keeping candidates.
        is_near: True if the device is only near to those that the model knows, so that ``Policy.near`` decides.
    """
    pairs = zip(examples, predictions, strict=True)
    return tuple(
        _replayed(example, said, calibration, policy, is_near=is_near)
        for example, said in pairs
        if judgeable(example) and np.isfinite(said.runtime_us[example.ran]).any()
    )


def _replayed(
    example: Examples, prediction: Prediction, calibration: Calibration | None, policy: Policy, *, is_near: bool
) -> Replayed:
    ran = example.ran
    compile_s = compile_seconds(example.shape, example.columns)
    if compile_s is not None:
        too_long = takes_too_long(compile_s, np.where(ran, prediction.runtime_us, np.inf))
        prediction = prediction.shifted(np.where(too_long, np.inf, 0.0))
    distinct = prediction.without_repeats(ran)
    predicted = np.where(ran, distinct.runtime_us, np.inf)
    is_odd, length = not has_whole_rows(example.shape), int(np.isfinite(predicted).sum())
    fitted = None if calibration is None else calibration.at(is_odd=is_odd, length=length)
    spread = _spread(distinct, predicted, fitted, compile_s)
    kept = select(predicted, example.is_vendor, policy.near(spread) if is_near else policy, spread)
    lost = np.log(example.runtime_us / example.runtime_us[ran].min())
    indices = list(kept.indices)
    return Replayed(
        benchmarks=len(indices) if len(indices) > 1 else 0,
        loss=float(lost[indices].min()),
        first_loss=float(lost[predicted.argmin()]),
        p_within_2pct=kept.p_within_2pct,
        is_odd=is_odd,
        length=length,
        device=example.hardware.name,
    )


def _spread(
    distinct: Prediction,
    predicted: NDArray[np.float64],
    calibration: Calibration | None,
    compile_s: NDArray[np.float32] | None,
) -> Spread | None:
    """Return the members' predictions for the measured configs; None if they did not all score the first."""
    scored = np.isfinite(predicted[distinct.finalists])
    if len(distinct.member_logs) < FEWEST_MEMBERS or predicted.argmin() not in distinct.finalists[scored]:
        return None
    finalists = distinct.finalists[scored]
    seconds = None if compile_s is None else compile_s[finalists]
    return Spread(finalists, distinct.member_logs[:, scored], calibration, compile_s=seconds)
