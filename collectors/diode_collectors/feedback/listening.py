"""Listens to Inductor's autotuner and makes a record of each matrix product that it times.

A saver runs inside the user's compile, which an exception would abort and a wait would slow down. A listener does
neither: it turns the event into a record, hands that on, and counts whatever goes wrong.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from diode_collectors.feedback.coverage import Coverage, CoverageLedger, Fate, inside_a_choice
from diode_collectors.feedback.offered import ChoiceList, OfferedChoices
from diode_collectors.feedback.records import ReplayDetector, measurement_from_feedback
from diode_store import safely
from diode_store.records import MATMUL_OPERANDS
from diode_store.safely import in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from diode_store.records import Measurement

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FeedbackStats:
    """What became of the events so far."""

    events: int = 0
    """Autotuning events that Inductor reported."""
    recorded: int = 0
    """Events made into records; those not dropped are where they should be or on their way."""
    timings: int = 0
    """Timings in these records."""
    replays: int = 0
    """Records whose timings came back from Inductor's cache."""
    unsupported: int = 0
    """Events of other ops than matrix products."""
    failed: int = 0
    """Events that could not be made into a record."""
    dropped: int = 0
    """Records lost because the queue or the spool was full or could not be written."""


class AutotuningListener:
    """Hands on a record of every matrix product that Inductor autotunes in this process, while it listens.

    Give it ``take``, or derive from it and override ``take``. That runs in the compiling thread: it must not block,
    and what it raises is counted as a failure and goes no further. Use it as a context manager, or call ``start``
    and ``stop``; it may be started again after it was stopped.
    """

    def __init__(self, take: Callable[[Measurement], None] | None = None) -> None:
        """Prepare to listen, and to call ``take`` with each record."""
        self._given_take = take
        self._saver = self._on_feedback  # one bound method: removing goes by identity
        self._offered = OfferedChoices(self._on_offer)
        self._ledger = CoverageLedger()
        self._replays: ReplayDetector | None = None
        self._silent = 0
        self._pid = os.getpid()
        self._stats = FeedbackStats()
        self._stats_lock = threading.Lock()
        self._said: set[str] = set()

    @property
    def stats(self) -> FeedbackStats:
        """What became of the events so far."""
        return self._stats

    def coverage(self) -> Coverage:
        """Return what became of the matrix products that were compiled while this listened."""
        silent = self._silent + (self._replays.silent if self._replays is not None else 0)
        return self._ledger.coverage(dropped=self.stats.dropped, silent=silent)

    def start(self) -> None:
        """Begin to listen. Starting twice is harmless."""
        from torch._inductor.select_algorithm import add_feedback_saver

        if self._replays is not None:
            return
        self._pid = os.getpid()
        self._replays = ReplayDetector()
        self._ledger.begin()
        self._offered.register()
        add_feedback_saver(self._saver)

    def stop(self) -> None:
        """Listen no more, and log what was covered: as a warning if something was not observed, else as information.

        Stopping twice, or what never started, is harmless.
        In a forked child nothing was started: there are none of our threads to wait for, and locks may be held.
        """
        from torch._inductor.select_algorithm import get_algorithm_selector_cache

        if self._replays is None or os.getpid() != self._pid:
            return
        cache = get_algorithm_selector_cache()
        # A new list: a saver may be running over the old one, and others' savers are none of our business.
        cache.feedback_saver_fns = [saver for saver in cache.feedback_saver_fns if saver is not self._saver]
        self._offered.unregister()
        self._ledger.end()
        self._silent += self._replays.silent
        self._replays = None
        self.finish()
        covered = self.coverage()
        # Python shows warnings even where logging is not set up, so an incomplete collection is noticed.
        safely.log(log, logging.INFO if covered.is_complete else logging.WARNING, str(covered))

    def finish(self) -> None:
        """Finish what was taken; called once it has stopped listening."""

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
        """Hand a record on, as the user asked. Runs in the compiling thread."""
        if self._given_take is not None:
            self._given_take(measurement)

    def drop(self, reason: str) -> None:
        """Count a record as lost, and log the reason once."""
        self._count(dropped=1)
        self.say_once(f"autotuning records are dropped: {reason}")

    def say_once(self, message: str) -> None:
        """Log a warning, unless one that begins likewise (up to the first colon) was logged before; never raise."""
        kind = message.partition(":")[0]
        if kind not in self._said:
            self._said.add(kind)
            safely.log(log, logging.WARNING, f"{message} (logged once)")

    def _on_feedback(
        self, timings: Any = None, name: Any = None, input_nodes: Any = (), choices: Any = (), *_: Any, **__: Any
    ) -> None:
        """Take one event; torch passes more arguments in some versions than in others."""
        if os.getpid() != self._pid:  # a forked child was not asked to collect, and it has none of our threads
            return
        try:
            self._count(events=1)
            if name not in MATMUL_OPERANDS:
                self._count(unsupported=1)
                return
            self._hear(timings, name, input_nodes, choices)
        except Exception as error:  # noqa: BLE001 - an exception here would abort the user's compile
            self._count(failed=1)
            self.say_once(f"could not record an autotuning event of {in_words(name)}: {in_words(error)}")

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
        """Take note of what Inductor is about to choose from."""
        if os.getpid() != self._pid:
            return
        if self._replays is not None and not inside_a_choice():
            self._replays.look()
        self._ledger.offered(choices, offer)

    def _count(self, **steps: int) -> None:
        with self._stats_lock:
            self._stats = replace(self._stats, **{name: getattr(self._stats, name) + n for name, n in steps.items()})
