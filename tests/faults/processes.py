"""Processes to kill: writers and daemons forked from a warm parent, and real ``diode-ingest`` commands."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from itertools import count
from pathlib import Path
from typing import Any, Self

from ordinary import AS_ORDINARY
from waiting import eventually

PROGRAM = Path(sys.executable).with_name("diode-ingest")
_SERVER = Path(__file__).with_name("fork_server.py")


def drained(spool: Path) -> bool:
    """Tell whether no segment is left in a spool, whether sealed or not."""
    return not any(path.suffix in {".seg", ".open"} for path in spool.iterdir())


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def readiness(port: int) -> tuple[int, str]:
    """Return what the daemon that listens there answers to ``/readyz``; status 0 when nobody does."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except urllib.error.URLError:
        return 0, ""


class ForkServer:
    """Starts writers and daemons in some milliseconds each; ends with all it has started."""

    def __init__(
        self, folder: Path, environment: dict[str, str] | None = None, *, ordinary: bool = False, umask: int = -1
    ) -> None:
        """Start it.

        Args:
            folder: where each process's log is kept.
            environment: adds to this process's.
            ordinary: take away root's power over files of any mode.
            umask: of all it starts.
        """
        as_ordinary = AS_ORDINARY if ordinary else ()
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._numbers = count()
        self._running: set[int] = set()
        path = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
        self._process: subprocess.Popen[str] = subprocess.Popen(
            [*as_ordinary, sys.executable, "-W", "error", _SERVER],
            umask=umask,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, **(environment or {})},
        )

    def _ask(self, request: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request, default=str), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def writer(self, spool: Path, run: int, *, crash_at: int | None = None, **options: float) -> Child:
        """Start a writer of the measurements ``uid_of(run, 0), ...``."""
        return self._start({"do": "write", "spool": spool, "run": run, "crash_at": crash_at, **options})

    def daemon(self, spool: Path, database: str, *args: object, crash_at: int | None = None) -> Child:
        """Start ``diode-ingest run``, less patient than it is to be with users."""
        hasty = ("--poll-interval", 0.02, "--backoff-first", 0.1, "--backoff-most", 0.4, "--min-free-bytes", 0)
        return self.ingest("run", "--spool", spool, "--database", database, *hasty, *args, crash_at=crash_at)

    def ingest(self, *args: object, crash_at: int | None = None) -> Child:
        """Start ``diode-ingest ARGS...``."""
        return self._start({"do": "ingest", "args": [str(arg) for arg in args], "crash_at": crash_at})

    def _start(self, request: dict[str, Any]) -> Child:
        log = self.folder / f"{next(self._numbers):05d}-{request['do']}.log"
        pid = self._ask({**request, "log": log})
        self._running.add(pid)
        return Child(self, pid, log)

    def wait(self, pid: int) -> int:
        """Wait for a child's end and return its exit status, negative for a signal."""
        self._running.discard(pid)
        return self._ask({"do": "wait", "pid": pid})

    def acknowledged(self) -> list[bytes]:
        """Return every uid that a writer was told is safe."""
        logs = "".join(log.read_text() for log in sorted(self.folder.glob("*-write.log")))
        return [bytes.fromhex(line) for line in logs.splitlines()]

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End everything that was started."""
        for pid in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self.wait(pid)
        self._process.communicate(timeout=30)


class Child:
    """A process that the fork server started."""

    def __init__(self, server: ForkServer, pid: int, log: Path) -> None:
        self.pid = pid
        self.log = log
        self._server = server

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def end(self, number: signal.Signals | None = None) -> int:
        """Send it a signal if one is given, wait for its end and return its exit status, negative for a signal."""
        if number is not None:
            self.send(number)
        return self._server.wait(self.pid)

    def says(self, text: str) -> int:
        """Return how often its log holds ``text``."""
        return self.log.read_text().count(text) if self.log.exists() else 0

    def says_more(self, text: str, **patience: float) -> None:
        """Wait until its log holds ``text`` once more than now."""
        before = self.says(text)
        eventually(lambda: self.says(text) > before, **patience)
