"""Report on the hook's work in this process, and on where the time of compiles went.

The seconds are PyTorch's own (``torch._dynamo.utils.compilation_time_metrics``). They cover every compile since the
process began or ``torch._dynamo.reset()`` was called, also compiles before the install. Parts that this torch does not
time are left out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from diode_integration.decide.decision import DecidedBy
from diode_integration.inductor.selector import cached_graphs, compile_seconds
from diode_store.command_line.render import counted, json_value, plain_table, problem_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from diode_integration.decide.decision import Decision

_COORDINATE_DESCENT = "CachingAutotuner.coordinate_descent_tuning"
_PARTS: Mapping[str, tuple[str, ...]] = {
    "compiling templates of GEMMs": ("_template_precompiling",),
    "benchmarking GEMMs": ("_template_autotuning",),
    "tuning pointwise and reduction kernels": ("CachingAutotuner.benchmark_all_configs",),
    "coordinate descent": (_COORDINATE_DESCENT,),
    "waiting for compiled kernels": ("async_compile.wait",),
}
"""Part → endings of the names of its metrics."""
_FUSED = {
    "fused_picked": "with a measured config",
    "fused_untuned": "left to Inductor's heuristics",
    "fused_stock": "as Inductor tunes them",
}
"""Count of the hook → how the configs of these fused kernels were chosen."""
_WHOLE = ("_compile.compile_inner", "backward._backward_impl")
"""Metrics of whole compiles, forward and backward."""
_AFTER_COMPILING = ("CachingAutotuner.benchmark_all_configs", _COORDINATE_DESCENT)
"""Metrics of the first call's work after the compile."""
_CHOSEN_BEFORE = "with the kernels chosen before; TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 compiles them again"
_MUCH = 0.5
"""Share of all seconds from which one part gets a remark."""


@dataclass(frozen=True)
class OpLine:
    """A distinct op with the decision, which is the same for all of its calls."""

    op: str
    """The op in short, such as ``mm bf16 16x4096x4096 nt`` (M x N x K)."""
    calls: int
    decided_by: DecidedBy
    picked: tuple[str, ...]
    """Kernels left to Inductor, fastest first; empty if neither the model nor a picks file decided."""
    predicted_us: float | None
    """Predicted time of the first of ``picked``; the measured time if a picks file decided."""
    vendor_us: float | None
    """Predicted time of the vendor kernel."""
    reason: str
    failure: str | None = None
    """Reason why the graph could not be compiled with the kept kernels; the hook then decided its ops again."""


@dataclass(frozen=True)
class Part:
    """A part of the seconds."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Report:
    """Return value of ``torch_diode.report()``; printed, it is a page of text."""

    ops: tuple[OpLine, ...]
    """Ops with the most calls first."""
    cached_graphs: int
    """Number of graphs from the compile cache, whose kernels were chosen before; ``ops`` does not have them."""
    failed_graphs: int
    """Number of graphs compiled again with the vendor kernels; ``ops`` has their first kernels as failed."""
    total_s: float
    """Seconds of all compiles, and of the tuning in first calls after them."""
    parts: tuple[Part, ...]
    """Parts of the seconds; some run beside others, so that the parts do not add up."""
    fused: Mapping[str, int]
    """Numbers of fused kernels by the choice of their configs, without zeros."""
    remark: str | None
    """Largest saving of time, if it is not the choice of GEMMs; else None."""

    def to_plain(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        plain: Any = json_value(self)
        return dict(plain)

    def __str__(self) -> str:
        """Return the report as text."""
        calls = Counter[str]()
        for line in self.ops:
            calls[line.decided_by] += line.calls if line.failure is None else 0
        by = ", ".join(f"{count:,} by {_CHOOSERS[DecidedBy(name)]}" for name, count in calls.most_common() if count)
        head = f"torch-diode: {counted(sum(calls.values()), 'op')} decided" + (f" ({by})" if by else "")
        if self.failed_graphs:
            head += f"; {counted(self.failed_graphs, 'graph')} compiled again with the vendor's kernels"
        blocks = [head]
        if self.cached_graphs:
            blocks.append(f"{counted(self.cached_graphs, 'graph')} from the compile cache, {_CHOSEN_BEFORE}")
        if self.fused:
            told = ", ".join(f"{count:,} {how}" for how, count in self.fused.items())
            blocks.append(f"{counted(sum(self.fused.values()), 'fused kernel')}: {told}")
        columns = ("op", "calls", "by", "kept", "predicted us", "vendor us", "why")
        rows = [
            (o.op, o.calls, o.decided_by, _kept(o.picked), _us(o.predicted_us), _us(o.vendor_us), _why(o))
            for o in self.ops
        ]
        seconds = [(part.name, f"{part.seconds:.1f} s") for part in self.parts]
        blocks += [plain_table(columns, rows)] if rows else []
        blocks += [f"{self.total_s:.1f} s of compiling, of that:", plain_table(*_headed(seconds))]
        return "\n".join([*blocks, self.remark] if self.remark else blocks)


class Recording(Protocol):
    """Parts of a handler that a report reads."""

    def decisions(self) -> list[Decision]:
        """Return the most recent decisions, oldest first."""

    def get_stats(self) -> dict[str, float]:
        """Return counts and seconds by name."""


_CHOOSERS = {
    DecidedBy.PICKS: "the picks file",
    DecidedBy.MODEL: "the model",
    DecidedBy.VENDOR: "keeping the vendor's kernel",
    DecidedBy.STOCK: "stock Inductor",
}


def make_report(handler: Recording | None) -> Report:
    """Return the report on ``handler``'s last 1,000 decisions; without a handler an empty one."""
    decisions = handler.decisions() if handler else []
    stats = handler.get_stats() if handler else {}
    return report_of(decisions, stats, compile_seconds(), cached_graphs())


def report_of(
    decisions: Iterable[Decision],
    stats: Mapping[str, float],
    metrics: Mapping[str, Sequence[float]],
    from_cache: int = 0,
) -> Report:
    """Return the report on decisions, with statistics of the hook, seconds by metric, and graphs from the cache."""
    seconds = {name: sum(values) for name, values in list(metrics.items())}  # other threads may be compiling
    total = sum(seconds.get(name, 0.0) for name in (*_WHOLE, *_AFTER_COMPILING))
    listing = stats.get("seconds_listing", 0.0)
    parts = [Part("listing candidates", listing), Part("ranking them", stats.get("seconds", 0.0) - listing)]
    if clocked := stats.get("seconds_clocked", 0.0):
        parts.append(Part("benchmarking GEMMs as deployed", clocked))
    for name, ends in _PARTS.items():
        found = [taken for metric, taken in seconds.items() if metric.endswith(ends)]
        if found:
            parts.append(Part(name, sum(found)))
    descent = seconds.get(_COORDINATE_DESCENT, 0.0)
    remark = None
    if total and descent > _MUCH * total:
        saves = '`options={"max_autotune_gemm": True}` leaves it out'
        remark = f"{descent:.0f} s of {total:.0f} are coordinate descent; {saves}"
    fused = {how: int(stats[name]) for name, how in _FUSED.items() if stats.get(name)}
    return Report(_lines(decisions), from_cache, int(stats.get("failed_graphs", 0)), total, tuple(parts), fused, remark)


def _lines(decisions: Iterable[Decision]) -> tuple[OpLine, ...]:
    calls: Counter[OpLine] = Counter()
    for decision in decisions:
        shape = decision.problem.shape if decision.problem else None
        first = decision.chosen[0] if decision.chosen else None
        line = OpLine(
            problem_text(shape) if shape else decision.op,
            0,
            decision.decided_by,
            tuple(choice.config.describe() for choice in decision.chosen),
            first.predicted_us if first else None,
            decision.vendor_us,
            decision.reason,
            decision.failure,
        )
        calls[line] += 1
    return tuple(OpLine(**{**vars(line), "calls": count}) for line, count in calls.most_common())


def _kept(picked: tuple[str, ...]) -> str | None:
    if not picked:
        return None
    return picked[0] + (f" and {len(picked) - 1} more" if len(picked) > 1 else "")


def _why(line: OpLine) -> str:
    return line.reason if line.failure is None else f"could not be compiled: {line.failure}"


def _us(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _headed(rows: list[tuple[str, str]]) -> tuple[tuple[str, str], list[tuple[str, str]]]:
    return ("part", "seconds"), rows
