"""What the hook would choose for matrix products on a device, which need not be there: nothing is built or run."""

from __future__ import annotations

import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config
from torch._subclasses.fake_tensor import FakeTensorMode

from diode_integration import final
from diode_integration.choices import DiodeInductorChoices
from diode_integration.install import install
from diode_integration.policy import ANY_RATIO, Mode
from diode_integration.stats import DecidedBy
from diode_integration.unknown import Unknown, why_vendor
from diode_store.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from diode_integration.model_set import KnownModel, ModelSet
    from diode_integration.stats import Decision, PredictedConfig
    from diode_store.records import Hardware, Problem, ProblemShape

_AT_ONCE = 16
"""Products in one graph."""
_LEFT_WHOLE = frozenset(getattr(torch.ops.aten, op).default for op in ("mm", "addmm", "bmm"))
"""Small ones of these Inductor takes apart on a CPU, which is what compiles here, but not on a GPU."""
_QUIET = {"autotune_num_choices_displayed": 0, "max_autotune_report_choices_stats": False}
_SETTINGS = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "ATEN", "fx_graph_cache": False}


@dataclass(frozen=True)
class Preview:
    """What would become of one matrix product."""

    problem: Problem
    decision: Decision | None
    """Who would decide, and what would be left to Inductor; None where Inductor does not ask the hook here."""
    ranked: tuple[PredictedConfig, ...] = ()
    """The kernels that are predicted fastest, the vendor's best, and what would be left; fastest first. None where the
    model abstains."""
    top: int = 0
    """How many of them, from the first, are the fastest of all."""

    @property
    def reason(self) -> str:
        """Why, for a person."""
        if self.decision is not None:
            return self.decision.reason
        shape = self.problem.shape
        if shape.op == "bmm" and shape.k != 1:  # torch/_inductor/kernel/bmm.py, where M or N is 1
            return "Inductor lists the kernels of a batch of vectors on a GPU only"
        return "Inductor multiplies element by element"


class Previewer:
    """Asks the hook about products on one device. A handler that is installed is not afterwards."""

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
            model_path: a checkpoint, or a model's name; when None those that the hook would ask.
            mode: as of the hook; when None what DIODE_MODE says, else its default.
            unknown: as of the hook; when None what DIODE_UNKNOWN says, else its default.
            top: how many kernels are ranked.

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
        """Return the model that ranked the kernels of a product; where none did, the only one that could have."""
        sha256 = None if preview.decision is None else preview.decision.model_sha256
        only = self.models.known[0] if len(self.models.known) == 1 else None
        return next((model for model in self.models.known if model.sha256 == sha256), only)

    @property
    def mode(self) -> Mode:
        """The mode that is asked about."""
        return self._deciding.policy.mode

    def previews(self, problems: Sequence[Problem]) -> Iterator[Preview]:
        """Yield what would become of different problems, in their order."""
        for start in range(0, len(problems), _AT_ONCE):
            part = problems[start : start + _AT_ONCE]
            asked = [problem for problem in part if not _is_elementwise(problem)]
            decided, ranked = _asked(self._deciding, asked), _asked(self._ranking, asked)
            for problem in part:
                yield self._preview(problem, decided.get(problem.shape), ranked.get(problem.shape))

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

    def _as_chosen(self, decision: Decision) -> Decision:
        """Return an abstention as it were if the hook did not only observe."""
        reason = decision.reason.partition(":")[0]
        why = why_vendor(self._deciding.unknown, reason, decision.problem, self.hardware)
        if why is None:
            return decision
        return replace(decision, decided_by=DecidedBy.VENDOR, reason=f"{decision.reason}; {why}")


def _is_elementwise(problem: Problem) -> bool:
    """Whether Inductor multiplies columns by rows, without a matrix product (torch/_inductor/decomposition.py)."""
    shape = problem.shape
    return shape.k == 1 and (shape.op == "bmm" or (shape.op in {"mm", "addmm"} and shape.m != 1 and shape.n != 1))


def _asked(handler: DiodeInductorChoices, problems: Sequence[Problem]) -> dict[ProblemShape, Decision]:
    """Have Inductor lower the products, and return what the hook decided of each."""
    handler.reset_stats()
    for tf32 in (False, True):
        some = [problem for problem in problems if problem.shape.tf32 is tf32]
        if some:
            _lower(handler, some, tf32=tf32)
    found = {decision.problem.shape: decision for decision in handler.decisions() if decision.problem is not None}
    failed = next((decision for decision in handler.decisions() if decision.problem is None), None)
    return found if failed is None else {**{problem.shape: failed for problem in problems}, **found}


def _lower(handler: DiodeInductorChoices, problems: Sequence[Problem], *, tf32: bool) -> None:
    """Compile the products as one graph of tensors that have sizes and no values; what comes of it cannot be run."""
    graph = torch.fx.Graph()
    operands: list[torch.Tensor] = []
    products = []
    with _pretending(handler, tf32=tf32):
        from torch._inductor import compile_fx  # torch 2.10 and 2.11 warn at the import
        from torch._inductor.decomposition import select_decomp_table

        for problem in problems:
            of_op = _operands(problem)
            nodes = tuple(graph.placeholder(f"operand_{len(operands) + place}") for place in range(len(of_op)))
            operands += of_op
            products.append(graph.call_function(getattr(torch, problem.op), nodes))
        graph.output(tuple(products))
        table = {op: how for op, how in select_decomp_table().items() if op not in _LEFT_WHOLE}
        compile_fx.compile_fx(torch.fx.GraphModule({}, graph), operands, decompositions=table)


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
