"""Log of one handler: counters, its most recent decisions, and which of them took effect."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from diode_integration.decide import notices
from diode_integration.decide.decision import DecidedBy, Decision
from diode_store.values import safely

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from diode_integration.decide.abstention import Abstention
    from diode_integration.decide.clock import Timed

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
    "clocked",
    "clocked_other",
    "clocked_by_prediction",
    "clock_failures",
    "fused_picked",
    "fused_untuned",
    "fused_stock",
    "failed_graphs",
    "decisions_recorded",
    "decisions_unrecorded",
    "decisions_dropped",
)
_TIMES = ("seconds", "seconds_listing", "seconds_clocked")


class Stats:
    """Counters by name and a bounded list of decisions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._decisions: deque[Decision] = deque(maxlen=_KEPT_DECISIONS)
        self._seconds = dict.fromkeys(_TIMES, 0.0)
        self.once = safely.Once(notices.log)

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

    def clocked(self, timed: Timed) -> None:
        """Count a benchmark by torch-diode's clock."""
        with self._lock:
            self._counts["clocked"] += 1
            self._counts["clocked_other"] += not timed.is_as_predicted
            self._counts["clocked_by_prediction"] += timed.is_by_prior
            self._seconds["seconds_clocked"] += timed.seconds

    def decide(self, decision: Decision, *, is_counted: bool = False) -> None:
        """Keep a decision, dropping the oldest when there are too many.

        An abstention may count as a fallback for the first word of its reason.
        """
        with self._lock:
            self._decisions.append(decision)
            if decision.abstained:
                self._counts[f"unknown_{decision.decided_by}"] += 1
                if is_counted:
                    self._counts[f"fallback_{decision.reason.partition(':')[0]}"] += 1
            elif decision.decided_by is DecidedBy.PICKS:
                self._counts["picked_from_file"] += 1
                self._counts["kept_alone"] += not decision.observed
            else:
                self._counts["model_selections"] += 1
            if decision.decided_by is DecidedBy.MODEL and not decision.observed:
                self._counts["configs_filtered"] += decision.candidates - len(decision.chosen)
                self._counts["configs_kept"] += len(decision.chosen)
                self._counts["kept_alone"] += len(decision.chosen) == 1

    def uncovered(self, name: str, choices: int) -> None:
        """Count an op that Inductor tunes by itself, and log the first of its kind."""
        self.count("uncovered")
        kind = name.rstrip("_0123456789")
        self.once.log(f"uncovered {kind}", f"Inductor tunes {kind} by itself: {choices} choices", logging.INFO)

    def mark_failed(self, failed: Collection[Decision], failure: str) -> None:
        """Mark some of the decisions as failed, with the reason."""
        ids = set(map(id, failed))
        with self._lock:
            marked = [replace(d, failure=failure) if id(d) in ids else d for d in self._decisions]
            self._decisions = deque(marked, maxlen=_KEPT_DECISIONS)

    def abstained(self, abstention: Abstention, device_type: str, chooser: DecidedBy) -> None:
        """Count an abstention; warn of an unknown GPU, unless the import did."""
        unknown_gpu = abstention.reason == "hardware" and device_type != "cpu"
        if unknown_gpu and notices.first_time():
            detail = f"{abstention}; {notices.REMEDY}"
            self.fallback(abstention.reason, detail, logging.WARNING, chooser=chooser)
        else:
            self.fallback(abstention.reason, str(abstention), logging.INFO, chooser=chooser)

    def fallback(
        self,
        reason: str,
        detail: str,
        level: int,
        error: Exception | None = None,
        chooser: DecidedBy = DecidedBy.STOCK,
    ) -> None:
        """Count a call in which the model did not decide, and log the reason the first time."""
        self.count(f"fallback_{reason}")
        what = "stock Inductor chooses" if chooser is DecidedBy.STOCK else "the vendor kernel is kept"
        self.once.log(reason, f"{what}: {detail}", level, error)

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


class Taker(Protocol):
    """Receiver of decisions."""

    def take(self, decision: Decision, decided_at: datetime) -> None:
        """Record one."""

    def say_once(self, message: str) -> None:
        """Log a warning, unless one with the same text up to the first colon was logged."""


class _Settled(NamedTuple):
    decision: Decision
    at: datetime


class Graphs:
    """Decisions on the graph that each thread compiles, until the graph is compiled or given up."""

    def __init__(self, stats: Stats, recorder: Taker | None, *forget: Callable[[], None]) -> None:
        """Count in ``stats``.

        Args:
            stats: the handler's statistics.
            recorder: receives decisions once their graph is compiled or given up, so that it knows which took effect.
            forget: functions that reset a thread's memory of its last graph.
        """
        self._stats = stats
        self._recorder = recorder
        self._forget = forget
        self._thread = threading.local()

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Compile a graph in this thread, perhaps during another graph's compile."""
        outer: list[_Settled] | None = getattr(self._thread, "settled", None)
        outer_has_template = self.has_template
        self._thread.has_template, self._thread.settled = False, []
        for forget in self._forget:
            forget()
        try:
            yield
        except BaseException as error:
            self._failed(safely.in_words(error))
            raise
        finally:
            settled, self._thread.settled = self._thread.settled, outer
            self._thread.has_template = outer_has_template
            for each in settled:
                self._hand_over(each)

    def settled(self, decision: Decision) -> None:
        """Keep a decision for its graph; outside a graph's compile it is recorded at once."""
        if decision.keeps_template:
            self.keeps_template()
        each = _Settled(decision, datetime.now(UTC))
        settled: list[_Settled] | None = getattr(self._thread, "settled", None)
        if settled is None:
            self._hand_over(each)
        else:
            settled.append(each)

    def _hand_over(self, each: _Settled) -> None:
        if self._recorder is None:
            return
        try:
            self._recorder.take(*each)
        except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
            self._stats.count("decisions_dropped")
            self._recorder.say_once(f"a decision is not recorded: {safely.in_words(error)}")

    def _failed(self, failure: str) -> None:
        """Mark this thread's decisions as failed with their graph."""
        new = [each.decision for each in self._thread.settled if each.decision.failure is None]
        self._stats.mark_failed(new, failure)
        self._thread.settled = [
            each if each.decision.failure else _Settled(replace(each.decision, failure=failure), each.at)
            for each in self._thread.settled
        ]

    @property
    def has_template(self) -> bool:
        """True if the hook kept a template, or one config of a fused kernel, for this thread's graph."""
        return getattr(self._thread, "has_template", False)

    def keeps_template(self) -> None:
        """Note that the hook kept one, whose failure would be the whole compile's."""
        self._thread.has_template = True

    @property
    def is_without_model(self) -> bool:
        """True if the hook has to keep the vendor kernels, whatever the model or a picks file says."""
        return getattr(self._thread, "is_without_model", False)

    @contextmanager
    def without_model(self, failure: str) -> Iterator[None]:
        """Compile this thread's graph again with the vendor kernels, since it failed with a picked kernel.

        The decisions of the first try took no effect. If the second try fails too, its decisions are forgotten.
        """
        first: list[_Settled] = self._thread.settled
        self._thread.is_without_model, self._thread.settled = True, []
        failed = [each._replace(decision=replace(each.decision, failure=failure)) for each in first]
        try:
            yield
        except BaseException:
            self._thread.settled = failed
            raise
        finally:
            self._thread.is_without_model = False
            self._stats.mark_failed([each.decision for each in first], failure)
        self._stats.count("failed_graphs")
        # The second try decided the other ops again.
        self._thread.settled[:0] = [each for each in failed if each.decision.keeps_template]
