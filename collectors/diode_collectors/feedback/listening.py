"""Listen to Inductor's autotuner and make a record of each matrix product and each fused kernel that it times.

A feedback saver runs inside the user's compile: an exception would abort the compile, and a wait would slow it down.
The listener therefore only makes a record, hands it on, and counts failures.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from diode_collectors.feedback.coverage import Coverage, CoverageLedger, Fate, inside_a_choice
from diode_collectors.feedback.fused import measurement_of_fused
from diode_collectors.feedback.offered import ChoiceList, OfferedChoices
from diode_collectors.feedback.records import ReplayDetector, measurement_from_feedback
from diode_collectors.inductor.fused_timings import FusedListener
from diode_store.ops import OPS
from diode_store.values import safely
from diode_store.values.safely import in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from diode_collectors.inductor.fused_timings import FusedTimings
    from diode_store.records import Measurement

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FeedbackStats:
    """Counts of the events so far."""

    events: int = 0
    """Autotuning events that Inductor reported, and searches over the configs of fused kernels."""
    recorded: int = 0
    """Events made into records. Records that were not dropped are stored or on their way."""
    timings: int = 0
    """Timings in these records."""
    replays: int = 0
    """Records whose timings came back from Inductor's cache."""
    unsupported: int = 0
    """Events of other ops than matrix products."""
    failed: int = 0
    """Events that could not be made into a record."""
    fused: int = 0
    """Records of fused kernels among these; a kernel that coordinate descent tunes too has two."""
    dropped: int = 0
    """Records lost because the queue or the spool was full or could not be written."""


class AutotuningListener:
    """Hands on a record of every matrix product and fused kernel that Inductor autotunes in this process.

    Pass ``take``, or override it. ``take`` runs in the compiling thread and must not block. An exception of ``take``
    counts as a failure and goes no further. Use the listener as a context manager, or call ``start`` and ``stop``; it
    can be started again.
    """

    def __init__(self, take: Callable[[Measurement], None] | None = None, *, hears_fused: bool = True) -> None:
        """Prepare to listen, and to call ``take`` with each record; with ``hears_fused`` also with fused kernels."""
        self._given_take = take
        self._fused = FusedListener(self._on_fused, self._not_recorded) if hears_fused else None
        self._saver = self._on_feedback  # one bound method: removing goes by identity
        self._offered = OfferedChoices(self._on_offer)
        self._ledger = CoverageLedger()
        self._replays: ReplayDetector | None = None
        self._silent = 0
        self._pid = os.getpid()
        self._stats = FeedbackStats()
        self._stats_lock = threading.Lock()
        self._once = safely.Once(log)

    @property
    def stats(self) -> FeedbackStats:
        """Counts of the events so far."""
        return self._stats

    def coverage(self) -> Coverage:
        """Counts of the matrix products compiled while this listened, by fate."""
        silent = self._silent + (self._replays.silent if self._replays is not None else 0)
        return self._ledger.coverage(dropped=self.stats.dropped, silent=silent)

    def start(self) -> None:
        """Start to listen; do nothing if it listens already."""
        from torch._inductor.select_algorithm import add_feedback_saver

        if self._replays is not None:
            return
        self._pid = os.getpid()
        self._replays = ReplayDetector()
        self._ledger.begin()
        self._offered.register()
        add_feedback_saver(self._saver)
        if self._fused is not None:
            self._fused.start()

    def stop(self) -> None:
        """Stop listening and log the coverage, as a warning if it is incomplete.

        Do nothing before ``start``, and nothing in a forked child, which has no threads and may hold locks forever.
        """
        from torch._inductor.select_algorithm import get_algorithm_selector_cache

        if self._replays is None or os.getpid() != self._pid:
            return
        cache = get_algorithm_selector_cache()
        # A new list: a compile may be iterating over the old one, and savers of others stay.
        cache.feedback_saver_fns = [saver for saver in cache.feedback_saver_fns if saver is not self._saver]
        self._offered.unregister()
        if self._fused is not None:
            self._fused.stop()
        self._ledger.end()
        self._silent += self._replays.silent
        self._replays = None
        self.finish()
        covered = self.coverage()
        # Python shows warnings even without a logging setup, so an incomplete collection is noticed.
        safely.log(log, logging.INFO if covered.is_complete else logging.WARNING, str(covered))

    def finish(self) -> None:
        """Finish the records that were taken; called after listening has stopped."""

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    def take(self, measurement: Measurement) -> None:
        """Hand a record on. Runs in the compiling thread."""
        if self._given_take is not None:
            self._given_take(measurement)

    def drop(self, reason: str) -> None:
        """Count a record as lost, and log the reason once."""
        self._count(dropped=1)
        self.say_once(f"autotuning records are dropped: {reason}")

    def say_once(self, message: str) -> None:
        """Log a warning unless one with the same text up to the first colon was logged before. Never raises."""
        self._once.log(message.partition(":")[0], message)

    def _on_feedback(
        self, timings: Any = None, name: Any = None, input_nodes: Any = (), choices: Any = (), *_: Any, **__: Any
    ) -> None:
        """Take one event. Some versions of torch pass more arguments than others."""
        if os.getpid() != self._pid:  # a forked child was not asked to collect, and it has none of our threads
            return
        try:
            self._count(events=1)
            if name not in OPS:
                self._count(unsupported=1)
                return
            self._hear(timings, name, input_nodes, choices)
        except Exception as error:  # noqa: BLE001 - an exception here would abort the user's compile
            self._count(failed=1)
            self.say_once(f"could not record an autotuning event of {in_words(name)}: {in_words(error)}")

    def _on_fused(self, timings: FusedTimings) -> None:
        """Take the times of one search over a fused kernel's configs."""
        if os.getpid() != self._pid:
            return
        self._count(events=1)
        measurement = measurement_of_fused(timings)
        self.take(measurement)
        self._count(recorded=1, fused=1, timings=len(measurement.timings))

    def _not_recorded(self, error: Exception) -> None:
        """Count a fused kernel that could not be recorded."""
        self._count(failed=1)
        self.say_once(f"could not record a fused kernel: {in_words(error)}")

    def _hear(self, timings: Any, name: str, input_nodes: Any, choices: Any) -> None:
        is_replay = self._replays is not None and self._replays.is_replay()
        offer, fate = None, Fate.FAILED
        try:
            offer = self._offered.of(timings)
            lost = offer.lost(timings) if offer is not None else ()
            measurement = measurement_from_feedback(timings, name, input_nodes, choices, lost=lost, is_replay=is_replay)
            self.take(measurement)
            fate = Fate.REPLAYED if is_replay else Fate.RECORDED
        finally:
            self._ledger.heard(offer, fate)
        self._count(recorded=1, timings=len(measurement.timings), replays=int(is_replay))

    def _on_offer(self, choices: Sequence[Any], offer: ChoiceList) -> None:
        """Note the choices that Inductor is about to time."""
        if os.getpid() != self._pid:
            return
        if self._replays is not None and not inside_a_choice():
            self._replays.look()
        self._ledger.offered(choices, offer)

    def _count(self, **steps: int) -> None:
        with self._stats_lock:
            self._stats = replace(self._stats, **{name: getattr(self._stats, name) + n for name, n in steps.items()})
