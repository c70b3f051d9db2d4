"""A real daemon for tests, and what can be asked of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Self

from daemon_samples import PROGRAM

from waiting import eventually

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping

ANY_PORT = ("--listen", "127.0.0.1:0")


def has_open(process: subprocess.Popen[str], path: Path) -> bool:
    """Tell whether a process has a file open."""
    with contextlib.suppress(FileNotFoundError):
        return path in {fd.readlink() for fd in Path(f"/proc/{process.pid}/fd").iterdir()}
    return False


class Daemon:
    """A real `diode-ingest run`; use it as a context manager where a test may fail before its end."""

    def __init__(
        self,
        directory: Path | None,
        database: Path | str | None,
        *options: object,
        env: Mapping[str, str] | None = None,
        started: str = "event=started",
    ) -> None:
        command: list[object] = [PROGRAM, "run", "--poll-interval", "0.02", *options]
        command += ["--spool", directory] if directory else []
        command += ["--database", database] if database else []
        self.process: subprocess.Popen[str] = subprocess.Popen(
            [str(part) for part in command], stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
        )
        self.log: list[str] = []
        self.address = ""
        self.wait_for(started)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()

    def wait_for(self, text: str) -> str:
        """Read the log until ``text`` shows, and return its line."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if text in line:
                return line
        raise AssertionError(f"{text} never came: {self.log}")

    def wait_until_it_works(self, database: Path) -> None:
        """Wait until it has opened the warehouse."""
        eventually(lambda: has_open(self.process, database))

    def end(self, *signals: signal.Signals) -> int:
        """Send signals, wait for the end and return the exit status."""
        for number in signals:
            self.process.send_signal(number)
            time.sleep(0.3 if len(signals) > 1 else 0)
        assert self.process.stderr is not None
        self.log += self.process.stderr.read().splitlines()
        self.process.stderr.close()
        return self.process.wait(timeout=30)

    def get(self, path: str) -> tuple[int, str]:
        """Ask it over HTTP; return status and body. It must have been started with ``--listen 127.0.0.1:0``."""
        if not self.address:
            (line,) = [line for line in self.log if "event=listening" in line]
            self.address = line.rpartition("address=")[2].strip()
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metrics(self) -> dict[str, float]:
        """Return what /metrics shows, by name and labels as they are written there."""
        lines = [line for line in self.get("/metrics")[1].splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
