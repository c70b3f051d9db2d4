"""Starts writers and daemons within milliseconds: loads what they need once, then forks for each.

A program for tests: reads one JSON request a line on stdin and answers each with a line on stdout. Writers load no
torch, and neither does this.

``{"do": "write", "log": FILE, "spool": DIR, "run": N, ...}`` starts a writer that appends measurements, syncs, and
then adds the acknowledged uids to its log. ``{"do": "ingest", "log": FILE, "args": [...]}`` starts
``diode-ingest ARGS...``. Both answer with the child's pid. ``crash_at`` makes the child kill itself with SIGKILL
when it has called the operating system or the database so many times, so that also the steps are hit that take no
time. ``{"do": "wait", "pid": N}`` answers with how it ended, as ``subprocess`` puts it.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import alembic  # noqa: F401 - nothing of what a daemon needs is loaded in the child
import sqlalchemy.dialects.sqlite  # noqa: F401 - likewise
from producing import produced, uid_of

import diode_collectors.ingest.daemon
import diode_collectors.ingest.monitoring.logs
import diode_collectors.ingest.validate  # noqa: F401 - likewise
import diode_store.warehouse.store  # noqa: F401 - likewise
from diode_collectors.ingest.commands import ingest as cli
from diode_collectors.spool.spool import SpoolWriter
from diode_store.errors import SpoolFullError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_SYSTEM_CALLS = {"open", "pwrite", "write", "fsync", "ftruncate", "flock", "rename", "replace", "unlink", "mkdir"}
_STEPS = frozenset({*_SYSTEM_CALLS, "execute", "executemany", "commit", "rollback"})


def main() -> None:
    """Serve until stdin ends."""
    assert "torch" not in sys.modules
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "wait":
            _, status = os.waitpid(request["pid"], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork() or _child(request)
        print(answer, flush=True)  # noqa: T201 - the answer


def _child(request: dict[str, Any]) -> NoReturn:
    """Do what is asked, and end without ever returning into the server's loop."""
    status = 1
    try:
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        null = os.open(os.devnull, os.O_RDWR)
        for fd, target in ((0, null), (1, null if request["do"] == "write" else log), (2, log)):
            os.dup2(target, fd)
        if request.get("crash_at"):
            _crash_at(request["crash_at"])
        if request["do"] == "write":
            _write(request, log)
            status = 0
        else:
            cli.main(request["args"])
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - the log is all there is of this child
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _write(request: dict[str, Any], log: int) -> None:
    """Append, sync and acknowledge; seal now and then."""
    writer = SpoolWriter(request["spool"], segment_bytes=request.get("segment_bytes", 60_000))
    numbers = itertools.count(request.get("first", 0))
    for batch in itertools.islice(itertools.count(1), request.get("batches")):
        uids = [uid_of(request["run"], next(numbers)) for _ in range(request.get("at_once", 3))]
        for uid in uids:
            _when_there_is_room(partial(writer.append, produced(uid)))
        _when_there_is_room(writer.sync)
        os.write(log, "".join(f"{uid.hex()}\n" for uid in uids).encode())
        if batch % 7 == 0:
            _when_there_is_room(writer.seal)
        time.sleep(request.get("pause_s", 0.0))
    writer.close()


def _when_there_is_room(step: Callable[[], None]) -> None:
    """Do something to a spool; while it is full, try again and again."""
    while True:
        try:
            step()
        except SpoolFullError:
            time.sleep(0.01)
        else:
            return


def _crash_at(step: int) -> None:
    """Kill this process before or after its ``step``-th call of the operating system or the database."""
    left = itertools.count(step - 1, -1)

    def on_call(_frame: FrameType, event: str, function: Any) -> None:
        if event not in {"c_call", "c_return"}:
            return
        is_step = function.__name__ in _STEPS and not isinstance(getattr(function, "__self__", None), str)
        if is_step and next(left) <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(on_call)
    sys.setprofile(on_call)


if __name__ == "__main__":
    main()
