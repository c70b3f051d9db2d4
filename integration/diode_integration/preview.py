"""Previews of the hook's choices for matrix products on a device, which need not be here: nothing is built or run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from diode_collectors.inductor.attention import FEWEST_UNMASKED
from diode_integration.attention import fitting_of
from diode_integration.choices import DiodeInductorChoices
from diode_integration.decide.abstention import Unknown, why_vendor
from diode_integration.decide.alone import AloneModels
from diode_integration.decide.decision import ERROR, DecidedBy
from diode_integration.inductor.attention import as_if_cuda, why_not
from diode_integration.inductor.convolutions import candidates_of
from diode_integration.inductor.lowering import lower
from diode_integration.inductor.unranked import why_kept
from diode_integration.install import install
from diode_store.devices.capability import why_no_kernels
from diode_store.errors import ModelError
from diode_store.ops import OPS
from diode_store.ops.attending import BLOCK, MASK, USUAL_BLOCK
from diode_store.ops.inputs import without_skew
from diode_trainer.policy import ANY_RATIO, Mode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from diode_integration.decide.decision import Decision, PredictedConfig
    from diode_integration.decide.models import KnownModel, ModelSet
    from diode_store.records import Hardware, KernelConfig, Problem, ProblemShape
    from diode_trainer.covered import Standing

_AT_ONCE = 16
"""Number of products in one graph."""
_ELEMENTWISE = "Inductor multiplies element by element"
_REMEDY = "run `diode doctor`, and report it with the lines above if that finds nothing"


@dataclass(frozen=True)
class Preview:
    """Preview of one matrix product."""

    problem: Problem
    decision: Decision | None
    """Decision of the hook; None if Inductor does not ask the hook here."""
    ranked: tuple[PredictedConfig, ...] = ()
    """Kernels with the fastest predictions, the best vendor kernel, and the kernels to keep, fastest first. Empty if
    the model abstains.
    """
    top: int = 0
    """Number of kernels, from the first, that are the fastest of all."""
    why_not_asked: str = ""
    """Reason why Inductor does not ask the hook, if it is known beforehand."""

    @property
    def reason(self) -> str:
        """Reason for a person."""
        if self.decision is not None:
            return self.decision.reason
        if self.why_not_asked:
            return self.why_not_asked
        shape = self.problem.shape
        if shape.op == "bmm" and shape.k != 1:  # torch/_inductor/kernel/bmm.py, where M or N is 1
            return "Inductor lists the kernels of a batch of vectors on a GPU only"
        return _ELEMENTWISE


class Previewer:
    """Asks the hook about products on one device. An installed handler is uninstalled."""

    def __init__(
        self,
        hardware: Hardware,
        *,
        model_path: Path | str | None = None,
        mode: Mode | str | None = None,
        unknown: Unknown | str | None = None,
        top: int = 10,
    ) -> None:
        """Load the model.

        Args:
            hardware: the device.
            model_path: a checkpoint, or a model's name; None for the models that the hook would ask.
            mode: the hook's mode; None for DIODE_MODE, else the default.
            unknown: who chooses when the model abstains; None for DIODE_UNKNOWN, else the default.
            top: number of kernels to rank.

        Raises:
            DiodeError: an option or the model cannot be used.
        """
        common: dict[str, Any] = {"hardware": hardware, "observe": True, "enable_fallback": False}
        common |= {"picks": "", "spool": ""}
        self.hardware = hardware
        self._top = top
        self._deciding = DiodeInductorChoices(model_path, mode=mode, unknown=unknown, **common)
        if self._deciding.models is None:
            raise ModelError("there is no model")
        self.models: ModelSet = self._deciding.models
        self._ranking = DiodeInductorChoices(
            model=self.models.known, mode=Mode.TOP_K, top_k_configs=top, performance_threshold=ANY_RATIO, **common
        )
        self._ranking.policy = replace(self._ranking.policy, together=False)

    def asked(self, preview: Preview) -> KnownModel | None:
        """Return the model that ranked a product's kernels; if none did, the only model that could have."""
        sha256 = None if preview.decision is None else preview.decision.model_sha256
        known = self.models.known if OPS[preview.problem.op].has_matrices else self._alone.known
        only = known[0] if len(known) == 1 else None
        return next((model for model in known if model.sha256 == sha256), only)

    @property
    def _alone(self) -> AloneModels:
        return self._deciding.alone or AloneModels([])

    @property
    def standing(self) -> Standing:
        """Standing of the device with the model that knows it best."""
        return self.models.standing(self.hardware)

    @property
    def mode(self) -> Mode:
        """Mode of the hook."""
        return self._deciding.policy.mode

    def previews(self, problems: Sequence[Problem]) -> Iterator[Preview]:
        """Yield the previews of different problems, in their order.

        Raises:
            ModelError: the hook failed.
        """
        for start in range(0, len(problems), _AT_ONCE):
            part = problems[start : start + _AT_ONCE]
            reasons = [self._why_not_asked(problem) for problem in part]
            products = [problem for problem, why in zip(part, reasons, strict=True) if why is None]
            asked = [without_skew(problem) for problem in products if OPS[problem.op].has_matrices]
            decided, ranked = _asked(self._deciding, asked), _asked(self._ranking, asked)
            for problem, why in zip(part, reasons, strict=True):
                if why is None and not OPS[problem.op].has_matrices:
                    yield self._of_alone(problem)
                elif why is not None:
                    yield Preview(problem, None, why_not_asked=why)
                else:
                    shape = without_skew(problem).shape
                    yield self._preview(problem, decided.get(shape), ranked.get(shape))

    def _why_not_asked(self, problem: Problem) -> str | None:
        """Return why Inductor does not ask the hook about a product on the device; None if it does."""
        why = why_no_kernels(problem.op, self.hardware)
        return _ELEMENTWISE if why is None and _is_elementwise(problem) else why

    def _preview(self, problem: Problem, decided: Decision | None, ranked: Decision | None) -> Preview:
        if decided is None:
            return Preview(problem, None)
        if decided.abstained:
            return Preview(problem, self._as_chosen(decided))
        by_time = sorted(
            dict.fromkeys((*(ranked.chosen if ranked else ()), *decided.chosen)),
            key=lambda each: each.predicted_us or 0.0,
        )
        return Preview(problem, decided, tuple(by_time), min(self._top, decided.candidates))

    def _of_alone(self, problem: Problem) -> Preview:
        default, others = self._of_attention(problem) if OPS[problem.op].is_attention else _of_convolution(problem)
        picked = self._alone.choose(problem, self.hardware, default, others)
        fastest, decision = picked.fastest(self._top), picked.decision
        why = why_kept(self._deciding.unknown, self.models, self.hardware) if OPS[problem.op].vendors else None
        if picked.config is None and why is not None:
            decision = replace(decision, decided_by=DecidedBy.VENDOR, reason=f"{decision.reason}; {why}")
        ranked = dict.fromkeys((*fastest, *decision.chosen))
        top = min(self._top, len(fastest))
        return Preview(problem, replace(decision, observed=True), tuple(ranked), top)

    def _of_attention(self, problem: Problem) -> tuple[KernelConfig | None, list[KernelConfig]]:
        """Return the config of a plain compile, None if it does not fit, and those to choose from."""
        shape = problem.shape
        block = int(shape.dimension(BLOCK, USUAL_BLOCK)) if shape.dimension(MASK) else FEWEST_UNMASKED
        listed = as_if_cuda(shape, self.hardware)
        usable = [each for each in listed if why_not(each, problem.op, block, block) is None]
        return listed[0] if listed[0] in usable else None, fitting_of(problem, usable)

    def _as_chosen(self, decision: Decision) -> Decision:
        """Return an abstention as if the hook did not only observe."""
        reason = decision.reason.partition(":")[0]
        why = why_vendor(self._deciding.unknown, reason, decision.problem, self.hardware)
        if why is None:
            return decision
        return replace(decision, decided_by=DecidedBy.VENDOR, reason=f"{decision.reason}; {why}")


def _of_convolution(problem: Problem) -> tuple[KernelConfig, list[KernelConfig]]:
    vendor, *others = candidates_of(problem)
    return vendor, others


def _is_elementwise(problem: Problem) -> bool:
    """Return whether Inductor multiplies elements, without a matrix product (torch/_inductor/decomposition.py)."""
    shape = problem.shape
    op = OPS[shape.op]
    return shape.k == 1 and op.decomposes and (op.is_batched or (shape.m != 1 and shape.n != 1))


def _asked(handler: DiodeInductorChoices, problems: Sequence[Problem]) -> dict[ProblemShape, Decision]:
    """Have Inductor lower the products, and return each decision of the hook.

    Raises:
        ModelError: the hook failed; inside a compile it would go on.
    """
    handler.reset_stats()
    for tf32 in (False, True):
        some = [problem for problem in problems if problem.shape.tf32 is tf32]
        if some:
            with install(handler):
                lower(some, tf32=tf32)
    for decision in handler.decisions():
        if decision.reason.startswith(ERROR):
            raise ModelError(f"{decision.op} cannot be ranked: {decision.reason}; {_REMEDY}")
    found = {decision.problem.shape: decision for decision in handler.decisions() if decision.problem is not None}
    failed = next((decision for decision in handler.decisions() if decision.problem is None), None)
    return found if failed is None else {**{problem.shape: failed for problem in problems}, **found}
