"""Fork while a collector's queue is full and its writer is held up; say how the child ended and what the parent kept.

python feedback_fork.py SPOOL
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from diode_collectors.feedback.collector import FeedbackCollector
from samples import measurement

CHILD_SECONDS = 30


def main(spool: str) -> None:
    """Collect, fork, and wait for the child, which an alarm ends if nothing else does."""
    collector = FeedbackCollector(spool, queue_records=1)
    held_up, go_on = threading.Event(), threading.Event()
    append = collector._background.spool.append

    def slow(record: Any) -> None:
        held_up.set()
        go_on.wait()
        append(record)

    collector._background.spool.append = slow  # type: ignore[method-assign]
    collector.start()
    collector.take(measurement())
    held_up.wait()
    for number in (1, 2):
        collector.take(measurement(number))
    with collector._background.gate:  # as if another thread were at it
        child = os.fork()
    if child == 0:
        signal.alarm(CHILD_SECONDS)
        collector._saver({}, "mm", [], [])
        sys.exit(collector.stats.events)  # through atexit, which stops the collector
    _, status = os.waitpid(child, 0)
    ended = os.waitstatus_to_exitcode(status)
    go_on.set()
    collector.stop()
    sys.stdout.write(f"child ended with {ended}\ndropped {collector.stats.dropped}\n")


if __name__ == "__main__":
    main(sys.argv[1])
