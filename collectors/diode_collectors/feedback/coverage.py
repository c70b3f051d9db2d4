"""Count the compiled matrix products by what became of them."""

from __future__ import annotations

import re
import threading
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from diode_collectors.inductor.adapter import annotations_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from diode_collectors.feedback.offered import ChoiceList


class Fate(StrEnum):
    """Fate of one matrix product; each member is a field of ``Coverage``."""

    RECORDED = "recorded"
    REPLAYED = "replayed"
    SINGLE_CHOICE = "single_choice"
    MAX_AUTOTUNE_OFF = "max_autotune_off"
    DETERMINISTIC = "deterministic"
    PIPELINED = "pipelined"
    DISTRIBUTED = "distributed"
    POINTWISE = "pointwise"
    NO_VALID_CHOICE = "no_valid_choice"
    UNFINISHED = "unfinished"
    FAILED = "failed"
    DROPPED = "dropped"
    UNEXPLAINED = "unexplained"


_IN_WORDS = {
    Fate.RECORDED: "recorded",
    Fate.REPLAYED: "replayed from Inductor's autotuning cache",
    Fate.SINGLE_CHOICE: "with one choice only",
    Fate.MAX_AUTOTUNE_OFF: "compiled without max-autotune",
    Fate.DETERMINISTIC: "not timed in deterministic mode",
    Fate.PIPELINED: "timed by pipelined autotuning, which reports nothing",
    Fate.DISTRIBUTED: "timed by another rank",
    Fate.POINTWISE: "made pointwise before the autotuner",
    Fate.NO_VALID_CHOICE: "without a choice that works",
    Fate.UNFINISHED: "in a compile that failed or goes on",
    Fate.FAILED: "that could not be recorded",
    Fate.DROPPED: "recorded but dropped",
    Fate.UNEXPLAINED: "unexplained",
}


@dataclass(frozen=True)
class Coverage:
    """Counts of the matrix products that Inductor compiled while a collector listened.

    ``total`` is the sum of all other counts except ``cached_graphs``.
    """

    total: int = 0
    recorded: int = 0
    replayed: int = 0
    """Recorded, but with timings that came back from Inductor's autotuning cache."""
    single_choice: int = 0
    """Products with one choice only."""
    max_autotune_off: int = 0
    deterministic: int = 0
    """``torch._inductor.config.deterministic`` takes a choice without timing it."""
    pipelined: int = 0
    """``torch._inductor.config.pipeline_max_autotune_gemm`` times in a subprocess and reports nothing."""
    distributed: int = 0
    """``torch._inductor.config.distributed_max_autotune_gemm`` had another rank time it."""
    pointwise: int = 0
    """Products that Inductor turned into pointwise arithmetic before choosing, such as those with a single row."""
    no_valid_choice: int = 0
    """Every choice failed, which ends the compile."""
    unfinished: int = 0
    """Products whose choices were offered but never timed: the compile failed or is still running."""
    failed: int = 0
    """Products that the autotuner reported but that could not be recorded or handed on."""
    dropped: int = 0
    """Records lost because the queue or the spool was full or could not be written."""
    unexplained: int = 0
    """Products that were lowered but never seen by the autotuner."""
    cached_graphs: int = 0
    """Graphs that came whole from Inductor's FX graph cache or AOTAutograd's cache.

    Nothing in them is lowered again, so their products cannot be counted.
    """

    @property
    def is_complete(self) -> bool:
        """True if every product was recorded or replayed and no graph came from a cache."""
        return self.recorded + self.replayed == self.total and not self.cached_graphs

    @property
    def reasons(self) -> dict[str, int]:
        """Counts that are not zero, keyed by a phrase for each fate."""
        return {words: count for fate, words in _IN_WORDS.items() if (count := getattr(self, fate))}

    def __str__(self) -> str:
        """Return the counts in one line."""
        line = f"matrix products compiled: {self.total}"
        if self.total:
            line += f" ({', '.join(f'{count} {words}' for words, count in self.reasons.items())})"
        if self.cached_graphs:
            graphs = "graph" if self.cached_graphs == 1 else "graphs"
            line += f"; not counted: those of {self.cached_graphs} {graphs} from the compile cache"
        return line


class CoverageLedger:
    """Counts the fates that a listener reports."""

    def __init__(self) -> None:
        """Start at zero."""
        self._fates: Counter[Fate] = Counter()
        self._lock = threading.Lock()
        self._watches: dict[str, CounterWatch] = {}
        self._before: Counter[str] = Counter()
        self._inside = 0
        self._plus = 0

    def begin(self) -> None:
        """Start to watch torch's counters."""
        self._watches = {
            "lowered": CounterWatch("aten_mm_info", lambda key: "grouped" not in key),
            "pointwise": CounterWatch("inductor", _POINTWISE.__contains__),
            "fx_hits": CounterWatch("inductor", "fxgraph_cache_hit".__eq__),
            "aot_hits": CounterWatch("aot_autograd", "autograd_cache_hit".__eq__),
        }

    def end(self) -> None:
        """Stop watching torch's counters and keep the counts."""
        self._before = self._counted()
        self._watches = {}

    def offered(self, choices: Sequence[Any], offer: ChoiceList) -> None:
        """Note a list of choices that the autotuner was given."""
        for watch in self._watches.values():
            watch.look()
        uids = [ktc.template.uid for choice in choices if (ktc := annotations_of(choice).get("ktc")) is not None]
        if not uids:  # Inductor's hook lists choices for matrix products only; others have lists of their own
            return
        with self._lock:
            if inside_a_choice():
                self._inside += 1
                return
            self._plus += "mm_plus_mm" in uids[0]
            self._move(offer, _fate_of_list(len(choices)))

    def heard(self, offer: ChoiceList | None, fate: Fate) -> None:
        """Note the fate of the list of choices behind an event, if that list was seen."""
        with self._lock:
            if offer is None:
                self._fates[fate] += 1
            elif offer.fate is not Fate.RECORDED:  # several events of one product: one record is enough
                self._move(offer, fate)

    def coverage(self, *, dropped: int = 0, silent: int = 0) -> Coverage:
        """Return the counts so far.

        Args:
            dropped: number of lost records.
            silent: number of benchmarks that Inductor did not report because all choices failed.
        """
        with self._lock:
            parts, counted = Counter(self._fates), self._counted()
            lowered = counted["lowered"] - self._inside + self._plus
        _shift(parts, Fate.RECORDED, Fate.DROPPED, dropped)
        _shift(parts, Fate.UNFINISHED, Fate.NO_VALID_CHOICE, silent)
        parts[Fate.UNEXPLAINED] = max(0, lowered - parts.total())
        parts[Fate.POINTWISE] = counted["pointwise"]
        named = {fate.value: parts[fate] for fate in Fate}
        return Coverage(total=parts.total(), cached_graphs=max(counted["fx_hits"], counted["aot_hits"]), **named)

    def _move(self, offer: ChoiceList, fate: Fate) -> None:
        if offer.fate is not None:
            self._fates[offer.fate] -= 1
        offer.fate = fate
        self._fates[fate] += 1

    def _counted(self) -> Counter[str]:
        return self._before + Counter({name: watch.moved() for name, watch in self._watches.items()})


class CounterWatch:
    """Measures how far some of torch's counters move, even when they are cleared meanwhile."""

    def __init__(self, group: str, wanted: Callable[[str], bool]) -> None:
        """Watch the counters of ``group`` whose name is ``wanted``."""
        self._group = group
        self._wanted = wanted
        self._seen: list[Any] = []
        self.look()
        self._before = self._sum()

    def look(self) -> None:
        """Notice cleared counters and keep their last values."""
        from torch._dynamo.utils import counters

        current = counters[self._group]
        if not self._seen or self._seen[-1] is not current:
            self._seen.append(current)

    def moved(self) -> int:
        """Return by how much the counters grew."""
        self.look()
        return max(0, self._sum() - self._before)

    def _sum(self) -> int:
        return sum(count for seen in self._seen for name, count in list(seen.items()) if self._wanted(name))


def inside_a_choice() -> bool:
    """Return True while Inductor lowers the inside of a choice, such as the graph of ``decompose_k``."""
    from torch._inductor.virtualized import V

    name = getattr(V.graph, "name", None)
    return isinstance(name, str) and _CHOICE_GRAPH.search(name) is not None


_POINTWISE = frozenset({"decompose_mm", "decompose_addmm", "decompose_bmm", "decompose_mm_pointwise"})
_CHOICE_GRAPH = re.compile(r"^benchmark_|(decompose_k|contiguous)_\w*mm_")


def _fate_of_list(choices: int) -> Fate:
    """Return the fate that Inductor's current settings give a list of this many choices."""
    from torch._inductor import config

    if choices == 1:
        if not (config.max_autotune or config.max_autotune_gemm):
            return Fate.MAX_AUTOTUNE_OFF
        return Fate.DISTRIBUTED if _is_distributed(config) else Fate.SINGLE_CHOICE
    if getattr(config, "deterministic", False):
        return Fate.DETERMINISTIC
    if getattr(config, "pipeline_max_autotune_gemm", False):  # torch 2.11+
        return Fate.PIPELINED
    return Fate.UNFINISHED


def _is_distributed(config: Any) -> bool:
    """Return True if ranks share the work; then another rank's choice comes back as the only one."""
    import torch.distributed

    asked = getattr(config, "distributed_max_autotune_gemm", False)
    return bool(asked and torch.distributed.is_available() and torch.distributed.is_initialized())


def _shift(parts: Counter[Fate], source: Fate, target: Fate, count: int) -> None:
    count = min(count, parts[source])
    parts[source] -= count
    parts[target] += count
