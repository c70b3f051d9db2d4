"""A `diode serve` that runs, for tests that ask it over HTTP or in a browser."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

PROGRAM = Path(sys.executable).parent / "diode"
_PATIENCE_S = 30


@dataclass
class Answered:
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """Return the body as text."""
        return self.body.decode()


@dataclass
class Site:
    """A server that runs."""

    process: subprocess.Popen[str]
    port: int
    database: str
    said: IO[str]

    @property
    def address(self) -> str:
        """Return where it is, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """Return what it has said on stderr so far."""
        return _whole(self.said)

    def get(self, path: str, method: str = "GET", **headers: str) -> Answered:
        """Return what it answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_S)
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        found = Answered(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        connection.close()
        return found


def started(database: str, *options: str, **settings: str) -> Site:
    """Start a server, and return it once it says where it is and answers.

    Args:
        database: what it shows.
        options: of the command line; by default it takes a free port.
        settings: variables of its environment, which has no others of ours.
    """
    command = [str(PROGRAM), "serve", "--database", database, *(options or ("--listen", "127.0.0.1:0"))]
    said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the server
    process = subprocess.Popen(command, stderr=said, text=True, env=environment(**settings))
    ends = time.monotonic() + _PATIENCE_S
    while not (found := re.search(r"http://\S+:(\d+)/ shows", _whole(said))):
        assert process.poll() is None, _whole(said)
        assert time.monotonic() < ends, _whole(said)
        time.sleep(0.02)
    site = Site(process, int(found[1]), database, said)
    while not _answers(site):
        assert time.monotonic() < ends, site.log
        time.sleep(0.05)
    return site


def environment(**settings: str) -> dict[str, str]:
    """Return the variables of this process, without those of ours that whoever runs the tests has set, and these."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DIODE_")}
    return {**inherited, **settings}


def ended(site: Site, number: int = signal.SIGINT) -> None:
    """End a server, and look how it ended."""
    site.process.send_signal(number)
    site.process.wait(timeout=20)
    log = site.log
    site.said.close()
    expected = {signal.SIGINT: {0, 130}, signal.SIGTERM: {130}}[signal.Signals(number)]
    assert (site.process.returncode in expected, "Traceback" in log) == (True, False), (
        site.process.returncode,
        log[-2000:],
    )


def _whole(file: IO[str]) -> str:
    """Return a file that another process writes, without moving its end."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode()


def _answers(site: Site) -> bool:
    try:
        site.get("/live")
    except OSError:
        return False
    return True
