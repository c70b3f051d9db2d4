"""Abstention: whether a model ranks a call's candidates, and who chooses if none does."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from diode_integration.decide import notices
from diode_store.errors import SettingsError
from diode_trainer.covered import nearest_first
from diode_trainer.features import roofline_us
from diode_trainer.policy import Mode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_integration.decide.models import KnownModel, ModelSet
    from diode_integration.decide.ranking import Predictor
    from diode_store.records import Hardware, Problem

_LAUNCH_BOUND_US = 4.0
"""Least time in microseconds that a device needs for a product, below which a launch takes about as long as the kernel.
A better kernel could gain one microsecond.
"""
FAILED = "failed"
"""Reason in a graph that is compiled again without the model; the hook then keeps the vendor kernel in any case."""
OVERFLOW = "overflow"
"""Reason if Triton's kernels would read memory outside the matrices; the hook then keeps the vendor kernel, too."""
_SURE_TO_RUN = frozenset({FAILED, OVERFLOW})
_NOT_FOR_THE_OP = frozenset({"hardware", "no_model", "multi_kernel"})
"""Reasons that do not depend on the op, and so do not tell how much tuning could gain."""


class Unknown(StrEnum):
    """Who chooses when the model abstains."""

    VENDOR = "vendor"
    """The hook keeps the vendor kernel alone, and Inductor benchmarks nothing."""
    STOCK = "stock"
    """Inductor tunes as it would without the hook."""
    AUTO = "auto"
    """The hook keeps the vendor kernel where tuning could gain little; on an unknown device Inductor always tunes."""


@dataclass(frozen=True)
class Abstention:
    """Reason why no model ranks the candidates of a call."""

    reason: str
    """One word, the end of the name of a ``fallback_`` statistic."""
    detail: str
    """A line for a person."""

    def __str__(self) -> str:
        """Return both."""
        return f"{self.reason}: {self.detail}"


class Asked(NamedTuple):
    """Predictor to ask about a call's candidates, with the product and the device to ask about."""

    predictor: Predictor
    problem: Problem
    hardware: Hardware


@dataclass(frozen=True)
class Question:
    """Facts about a call that decide whether a model ranks its candidates."""

    models: ModelSet | None
    why_no_model: str
    """Reason why there are no models; empty if there are some."""
    hardware: Hardware | None
    """Device; None if it cannot be identified."""
    device_type: str
    """Type of the device, such as ``cuda``."""
    problem: Problem | None
    """Matrix product at the hinted sizes; None if there is no name for it, or a size has no hint."""
    defect: tuple[str, str] | None = None
    """Reason and detail why ``problem`` is None, or why the predictions are of no use; None if all is well."""
    others: Sequence[Problem] = ()
    """Further products that the chosen kernel has to serve. A model that knows all of them comes first."""
    may_benchmark: bool = True
    """True if Inductor may benchmark. Models that are only near to knowing the device are asked only then."""
    is_second_try: bool = False
    """True if the graph failed with a kernel that was picked for it."""
    is_multi_kernel: bool = False
    """True if Inductor wants kernels for several hinted sizes."""
    overflows: bool = False
    """True if Triton's kernels of this torch would read memory outside the matrices."""


def who_ranks(question: Question) -> Asked | Abstention:
    """Return the predictor to ask about a call, or why there is none: the one place where the hook abstains.

    The hook asks the first model that knows the device and the product. If no model knows the device, it asks models
    that are near to knowing the device, the nearest first.
    """
    models, hardware, problem = question.models, question.hardware, question.problem
    checks = (
        (question.is_second_try, FAILED, "a kernel that was picked for this graph cannot be used"),
        (models is None, "no_model", question.why_no_model),
        (question.is_multi_kernel, "multi_kernel", "kernels for several hinted sizes at once are not ranked"),
        (hardware is None, "hardware", f"torch-diode cannot identify this {question.device_type} device"),
        (question.defect is not None, *(question.defect or ("", ""))),
        (question.overflows, OVERFLOW, "Triton's kernels of this torch would read memory outside the matrices"),
    )
    obstacle = next(((reason, detail) for holds, reason, detail in checks if holds), None)
    if obstacle is not None or models is None or hardware is None or problem is None:
        return Abstention(*obstacle or ("op", "torch-diode has no name for it"))
    asked, why_none = _models_for(problem.op, hardware, models, may_benchmark=question.may_benchmark)
    misses = [(model, model.miss(problem, hardware)) for model in asked]
    knowing = [model for model, miss in misses if miss is None]
    if (predictor := _first_usable(knowing, question.others, models, hardware)) is not None:
        return Asked(predictor, problem, hardware)
    missing = next(
        ((miss.reason, miss.detail) for _, miss in misses if miss is not None), ("no_model", models.why_none)
    )
    return Abstention("hardware", why_none) if why_none else Abstention(*missing)


def _models_for(op: str, hardware: Hardware, models: ModelSet, *, may_benchmark: bool) -> tuple[list[KnownModel], str]:
    """Return the models to ask about an op on a device in their order; if there are none, a line that says why."""
    standings = models.standings(hardware, op)
    asked = [model for standing, model in standings if standing.is_known]
    near = nearest_first(pair for pair in standings if pair[1].card.domain.knows_op(op))
    if asked and (not near or any(model.card.domain.knows_op(op) for model in asked)):
        return asked, ""
    if not near:
        return [], models.why_unknown(hardware, op)
    standing, knows_others = near[0][0], any(model.card.domain.covers(hardware) for model in models.known)
    if not may_benchmark:
        why = f"{op} on {hardware.name}: {standing.reason}" if knows_others else standing.reason
        what = "the model is not sure enough of such a device to choose without a benchmark, as zero mode does"
        return [], f"{why}; {what}"
    notices.say_near(hardware.name, standing, op if knows_others else "")
    return [model for _, model in near], ""


def _first_usable(
    knowing: list[KnownModel], others: Sequence[Problem], models: ModelSet, hardware: Hardware
) -> Predictor | None:
    """Return the predictor of the first model that can be loaded; models that know all of ``others`` come first."""
    if others:  # the stable sort keeps the order within both groups
        knowing.sort(key=lambda model: any(model.miss(other, hardware) for other in others))
    return next((found for model in knowing if (found := models.predictor(model)) is not None), None)


def parse_unknown(unknown: Unknown | str | None, mode: Mode) -> Unknown:
    """Return the setting; when None the mode's own: in zero mode "vendor", else "auto".

    Raises:
        SettingsError: there is no such setting.
    """
    if unknown is None:
        return Unknown.VENDOR if mode is Mode.ZERO else Unknown.AUTO
    try:
        return Unknown(unknown)
    except ValueError:
        raise SettingsError(f"unknown must be one of {', '.join(Unknown)}, not {unknown!r}") from None


def why_vendor(unknown: Unknown, reason: str, problem: Problem | None, hardware: Hardware | None) -> str | None:
    """Return why the hook keeps the vendor kernel alone after an abstention, or None if stock Inductor chooses.

    Args:
        unknown: the setting.
        reason: reason of the abstention, one word.
        problem: the matrix product; None if torch-diode has no name for it.
        hardware: the device; None if it cannot be identified.
    """
    if reason in _SURE_TO_RUN:
        return "it is sure to run"
    if unknown is not Unknown.AUTO:
        return "nothing else is asked for" if unknown is Unknown.VENDOR else None
    if reason in _NOT_FOR_THE_OP or problem is None or hardware is None:
        return None
    if roofline_us(problem.shape, hardware) < _LAUNCH_BOUND_US:
        return "it takes hardly longer than a launch"
    if problem.shape.arithmetic == "float32":
        return "float32 kernels without TF32 take long to compile and seldom win"
    return None
