"""What the hook did: counters and the most recent decisions, safe to share between threads."""

from __future__ import annotations

import threading
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from diode_integration.policy import Policy
    from diode_store.records import Hardware, KernelConfig, Problem

BY_SIMILAR = "; by a model of "
"""In the reason of a decision that a model of a similar device made, before the name of that device."""
_KEPT_DECISIONS = 1000
_ALWAYS = (
    "total_calls",
    "passed_through",
    "model_selections",
    "picked_from_file",
    "picks_missed",
    "unknown_vendor",
    "unknown_stock",
    "configs_filtered",
    "configs_kept",
    "kept_alone",
    "failed_graphs",
    "decisions_recorded",
    "decisions_unrecorded",
    "decisions_dropped",
)
_TIMES = ("seconds", "seconds_listing")


@dataclass(frozen=True)
class PredictedConfig:
    """A config and its time."""

    config: KernelConfig
    predicted_us: float | None
    """Microseconds: as the model predicts, or as a picks file has measured; None if that says none."""

    def describe(self) -> str:
        """Return both for a person."""
        return self.config.describe() + ("" if self.predicted_us is None else f" {self.predicted_us:.1f} us")


class DecidedBy(StrEnum):
    """Who decided on an op."""

    PICKS = "picks"
    """A picks file."""
    MODEL = "model"
    VENDOR = "vendor"
    """Nobody: the model is not believed here, and the vendor's kernel was kept alone."""
    STOCK = "stock"
    """Stock Inductor: the model is not believed here."""


@dataclass(frozen=True)
class Decision:
    """What the hook chose for one matrix product, and why."""

    op: str
    problem: Problem | None
    """None when the inputs are no matrix product that torch-diode has a name for."""
    hardware: str
    candidates: int
    """How many the model ranked, 0 when it abstained; of a picks file how many it names."""
    chosen: tuple[PredictedConfig, ...]
    """What was left to Inductor, fastest first; empty when the model abstained."""
    vendor_us: float | None
    """Best prediction for a vendor's kernel, in microseconds; None when none was offered."""
    reason: str
    observed: bool = False
    """Whether the choice was only recorded, and stock Inductor went on."""
    p_within_2pct: float | None = None
    """How likely the first of ``chosen`` is within 2% of the best candidate; None if the model cannot say."""
    decided_by: DecidedBy = DecidedBy.MODEL
    model_sha256: str | None = None
    """Of the model that decided; None where none did."""
    policy: Policy | None = None
    """What was applied, where it was not the handler's own."""
    picks_sha256: str | None = None
    """Of the picks file that decided; None where none did."""
    device: Hardware | None = None
    """What ``hardware`` names; None where it cannot be identified."""
    seconds: float = 0.0
    """What the hook took for it."""
    failure: str | None = None
    """Why the graph that it was made for could not be compiled, or was not compiled to its end; else None."""

    @property
    def abstained(self) -> bool:
        """Whether the model did not decide, as it is not believed here."""
        return self.decided_by in {DecidedBy.VENDOR, DecidedBy.STOCK}

    @property
    def keeps_template(self) -> bool:
        """Whether a template was left, which is compiled with the graph if it is taken, and may fail there."""
        return not self.observed and not all(choice.config.is_vendor for choice in self.chosen)

    def describe(self) -> str:
        """Return one line for a person."""
        shape = self.problem.shape if self.problem else None
        size = f" {shape.arithmetic} B={shape.b} M={shape.m} N={shape.n} K={shape.k} {shape.layout}" if shape else ""
        what = f"{self.op}{size} on {self.hardware}"
        failed = f"; the graph could not be compiled so: {self.failure}" if self.failure is not None else ""
        if self.abstained:
            kept = "the vendor's kernel is kept alone" if self.decided_by is DecidedBy.VENDOR else "left to Inductor"
            return f"{what}: {kept} ({self.reason}){failed}"
        kept = ", ".join(choice.describe() for choice in self.chosen)
        verb = "would keep" if self.observed else "kept"
        return f"{what}: {verb} {len(self.chosen)} of {self.candidates}: {kept} ({self.reason}){failed}"


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
            if decision.abstained:
                self._counts[f"unknown_{decision.decided_by}"] += 1
            elif decision.decided_by is DecidedBy.PICKS:
                self._counts["picked_from_file"] += 1
                self._counts["kept_alone"] += not decision.observed
            else:
                self._counts["model_selections"] += 1
            if decision.decided_by is DecidedBy.MODEL and not decision.observed:
                self._counts["configs_filtered"] += decision.candidates - len(decision.chosen)
                self._counts["configs_kept"] += len(decision.chosen)
                self._counts["kept_alone"] += len(decision.chosen) == 1

    def mark_failed(self, failed: Collection[Decision], failure: str) -> None:
        """Say of those of the decisions that are ``failed`` that they did not stand, and why."""
        ids = set(map(id, failed))
        with self._lock:
            marked = [replace(d, failure=failure) if id(d) in ids else d for d in self._decisions]
            self._decisions = deque(marked, maxlen=_KEPT_DECISIONS)

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
