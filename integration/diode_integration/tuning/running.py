"""Runs other commands of torch-diode, each in a process of its own, and stops them with itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from diode_store.errors import DiodeError
from diode_store.settings import DATABASE_VARIABLE
from diode_store.stopping import StopSignal

if TYPE_CHECKING:
    from collections.abc import Callable

_PROGRAM = """
import ctypes, os, signal, sys
parent = int(sys.argv.pop(1))
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: end with the process that asked
if os.getppid() == parent:
    from diode_store.cli import main
    main()
"""
_POLL_S = 1.0
_PATIENCE_S = 60.0
"""How long a command that was told to stop may take to save what it has."""


class CommandFailedError(DiodeError):
    """A command ended with an error, which it has printed."""


class Commands:
    """Runs commands, one at a time."""

    def __init__(self, database: str | None = None, lock: int | None = None) -> None:
        """Have them use ``database``, and inherit ``lock``, the descriptor of a lock that lasts as long as they do."""
        # By the environment, as an address with a password would be seen on a command line.
        self._environment = dict(os.environ) if database is None else {**os.environ, DATABASE_VARIABLE: database}
        self._fds = () if lock is None else (lock,)

    def run(
        self, *arguments: str, captures: bool = False, on_tick: Callable[[float], None] = lambda _seconds: None
    ) -> Any:
        """Run ``diode`` with these arguments until it ends.

        Args:
            arguments: the sub-command and its options.
            captures: take its output, which is JSON, instead of passing it on.
            on_tick: called about once a second with the seconds that have passed since the last call.

        Returns:
            What it printed, if that was captured.

        Raises:
            CommandFailedError: it failed; what it said is on stderr.
            KeyboardInterrupt: Ctrl-C or SIGTERM; it was told, and has ended.
        """
        command = [sys.executable, "-c", _PROGRAM, str(os.getpid()), *arguments]
        output = subprocess.PIPE if captures else None
        with StopSignal() as stop:
            # In a group of its own, so that Ctrl-C reaches it once, through us.
            process = subprocess.Popen(  # noqa: S603 - our own program
                command, stdout=output, text=True, pass_fds=self._fds, process_group=0, env=self._environment
            )
            said, last = "", time.monotonic()
            while True:
                try:
                    said, _ = process.communicate(timeout=_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    now = time.monotonic()
                    on_tick(now - last)
                    last = now
                    if stop.name is not None:
                        _end(process)
            on_tick(time.monotonic() - last)
            stop.check()
        if process.returncode:
            raise CommandFailedError(
                f"`diode {arguments[0]}` failed, see above; mend that, and run the same command again to go on"
            )
        return json.loads(said) if captures else None


def _end(process: subprocess.Popen[str]) -> None:
    """Tell a process to stop, and wait until it has."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
