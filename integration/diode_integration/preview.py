"""What the hook would choose for matrix products on a device, which need not be there: nothing is built or run."""

from __future__ import annotations

import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config
from torch._subclasses.fake_tensor import FakeTensorMode

from diode_integration import final
from diode_integration.choices import DiodeInductorChoices
from diode_integration.install import install
from diode_integration.policy import Mode
from diode_integration.stats import DecidedBy
from diode_integration.unknown import Unknown, why_vendor
from diode_store.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from diode_integration.predictor import Model
    from diode_integration.stats import Decision, PredictedConfig
    from diode_store.records import Hardware, Problem

_AT_ONCE = 64
"""Products in one graph."""
_ANY_RATIO = 1e9
_QUIET = {"autotune_num_choices_displayed": 0, "max_autotune_report_choices_stats": False}
_SETTINGS = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "ATEN", "fx_graph_cache": False}


@dataclass(frozen=True)
class Preview:
    """What would become of one matrix product."""

    problem: Problem
    decision: Decision | None
    """What the hook would leave to Inductor; None where Inductor makes something else of the product."""
    ranked: tuple[PredictedConfig, ...] = ()
    """The kernels that are predicted fastest, with the vendor's best; none where the model abstains."""
    otherwise: DecidedBy | None = None
    """Who would choose where the model abstains."""


class Previewer:
    """Asks the hook about products on one device."""

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
            model_path: a checkpoint, or a model's name; when None the one that the hook would take.
            mode: as of the hook; when None what DIODE_MODE says, else its default.
            unknown: as of the hook; when None what DIODE_UNKNOWN says, else its default.
            top: how many kernels are ranked.

        Raises:
            DiodeError: an option or the model cannot be used.
        """
        common: dict[str, Any] = {"hardware": hardware, "observe": True, "enable_fallback": False}
        common |= {"picks": "", "spool": ""}
        self.hardware = hardware
        self._deciding = DiodeInductorChoices(model_path, mode=mode, unknown=unknown, **common)
        if self._deciding.model is None:
            raise ModelError("there is no model")
        self.model: Model = self._deciding.model
        self._ranking = DiodeInductorChoices(
            model=self.model, mode=Mode.TOP_K, top_k_configs=top, performance_threshold=_ANY_RATIO, **common
        )

    @property
    def mode(self) -> Mode:
        """The mode that is asked about."""
        return self._deciding.policy.mode

    def previews(self, problems: Sequence[Problem]) -> Iterator[Preview]:
        """Yield what would become of different problems, in their order."""
        for start in range(0, len(problems), _AT_ONCE):
            part = problems[start : start + _AT_ONCE]
            decided, ranked = _asked(self._deciding, part), _asked(self._ranking, part)
            for problem in part:
                found, listed = decided.get(problem.key), ranked.get(problem.key)
                by_time = sorted(listed.chosen, key=lambda each: each.predicted_us or 0.0) if listed else ()
                yield Preview(problem, found, tuple(by_time), self._otherwise(found))

    def _otherwise(self, decision: Decision | None) -> DecidedBy | None:
        if decision is None or not decision.abstained:
            return None
        reason = decision.reason.partition(":")[0]
        kept = why_vendor(self._deciding.unknown, reason, decision.problem, self.hardware)
        return DecidedBy.STOCK if kept is None else DecidedBy.VENDOR


def _asked(handler: DiodeInductorChoices, problems: Sequence[Problem]) -> dict[bytes, Decision]:
    """Have Inductor lower the products, and return what the hook decided, by the problems' keys."""
    handler.reset_stats()
    for tf32 in (False, True):
        some = [problem for problem in problems if problem.shape.tf32 is tf32]
        if some:
            _lower(handler, some, tf32=tf32)
    return {decision.problem.key: decision for decision in handler.decisions() if decision.problem is not None}


def _lower(handler: DiodeInductorChoices, problems: Sequence[Problem], *, tf32: bool) -> None:
    """Compile the products as one graph of tensors that have sizes and no values; what comes of it cannot be run."""
    graph = torch.fx.Graph()
    operands: list[torch.Tensor] = []
    products = []
    with _pretending(handler, tf32=tf32):
        from torch._inductor import compile_fx  # torch 2.10 and 2.11 warn at the import

        for problem in problems:
            of_op = _operands(problem)
            nodes = tuple(graph.placeholder(f"operand_{len(operands) + place}") for place in range(len(of_op)))
            operands += of_op
            products.append(graph.call_function(getattr(torch, problem.op), nodes))
        graph.output(tuple(products))
        compile_fx.compile_fx(torch.fx.GraphModule({}, graph), operands)


@contextmanager
def _pretending(handler: DiodeInductorChoices, *, tf32: bool) -> Iterator[None]:
    """Have the handler asked in compiles that take the first of each op's choices and time none."""
    before = torch.backends.cuda.matmul.allow_tf32
    fake = FakeTensorMode()
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # what Inductor says of a compile is not about the answer
        stack.callback(setattr, torch.backends.cuda.matmul, "allow_tf32", before)
        torch.backends.cuda.matmul.allow_tf32 = tf32
        stack.enter_context(inductor_config.patch({**_SETTINGS, **_known(_QUIET)}))
        stack.enter_context(install(handler))
        stack.enter_context(final.taking_the_first())
        stack.enter_context(fake)
        stack.enter_context(tracing(TracingContext(fake)))
        stack.enter_context(torch.no_grad())
        yield


def _known(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if hasattr(inductor_config, name)}


def _operands(problem: Problem) -> list[torch.Tensor]:
    return [torch.empty_strided(spec.size, spec.stride, dtype=getattr(torch, spec.dtype)) for spec in problem.inputs]
