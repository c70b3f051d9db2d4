"""What the hook did: counters and the most recent decisions, safe to share between threads."""

from __future__ import annotations

import threading
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diode_store.records import KernelConfig, Problem

_KEPT_DECISIONS = 1000
_ALWAYS = ("total_calls", "passed_through", "model_selections", "configs_filtered", "configs_kept", "kept_alone")
_TIMES = ("seconds", "seconds_listing")


@dataclass(frozen=True)
class PredictedConfig:
    """A config and what the model predicts for it, in microseconds."""

    config: KernelConfig
    predicted_us: float


@dataclass(frozen=True)
class Decision:
    """What the hook chose for one matrix product, and why."""

    op: str
    problem: Problem | None
    """None when the inputs are no matrix product that torch-diode has a name for."""
    hardware: str
    candidates: int
    """How many the model ranked; 0 when it abstained."""
    chosen: tuple[PredictedConfig, ...]
    """What was left to Inductor, fastest predicted first; empty when the model abstained."""
    vendor_us: float | None
    """Best prediction for a vendor's kernel, in microseconds; None when none was offered."""
    reason: str
    observed: bool = False
    """Whether the choice was only recorded, and stock Inductor went on."""
    p_within_2pct: float | None = None
    """How likely the first of ``chosen`` is within 2% of the best candidate; None if the model cannot say."""

    @property
    def abstained(self) -> bool:
        """Whether the choice was left to stock Inductor, as there was no prediction."""
        return not self.chosen

    def describe(self) -> str:
        """Return one line for a person."""
        shape = self.problem.shape if self.problem else None
        size = f" {shape.arithmetic} B={shape.b} M={shape.m} N={shape.n} K={shape.k} {shape.layout}" if shape else ""
        what = f"{self.op}{size} on {self.hardware}"
        if self.abstained:
            return f"{what}: left to Inductor ({self.reason})"
        kept = ", ".join(f"{c.config.describe()} {c.predicted_us:.1f} us" for c in self.chosen)
        verb = "would keep" if self.observed else "kept"
        return f"{what}: {verb} {len(self.chosen)} of {self.candidates}: {kept} ({self.reason})"


class Stats:
    """Counters by name and a bounded list of decisions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._decisions: deque[Decision] = deque(maxlen=_KEPT_DECISIONS)
        self._seconds = dict.fromkeys(_TIMES, 0.0)

    def count(self, name: str) -> None:
        """Add one to a counter."""
        with self._lock:
            self._counts[name] += 1

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time that a block takes to ``name``, one of ``seconds`` and ``seconds_listing``."""
        started = perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self._seconds[name] += perf_counter() - started

    def decide(self, decision: Decision) -> None:
        """Keep a decision, dropping the oldest when there are too many."""
        with self._lock:
            self._decisions.append(decision)
            if not decision.abstained:
                self._counts["model_selections"] += 1
            if not decision.abstained and not decision.observed:
                self._counts["configs_filtered"] += decision.candidates - len(decision.chosen)
                self._counts["configs_kept"] += len(decision.chosen)
                self._counts["kept_alone"] += len(decision.chosen) == 1

    def snapshot(self) -> dict[str, float]:
        """Return every counter and time."""
        with self._lock:
            return {**dict.fromkeys(_ALWAYS, 0), **self._counts, **self._seconds}

    def reset(self) -> None:
        """Set every counter and time to 0 and forget the decisions."""
        with self._lock:
            self._counts.clear()
            self._decisions.clear()
            self._seconds = dict.fromkeys(_TIMES, 0.0)

    def decisions(self) -> list[Decision]:
        """Return the most recent decisions, oldest first."""
        with self._lock:
            return list(self._decisions)
