"""Runs other commands of torch-diode and programs, each in a process of its own, and stops them with itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from enum import Enum
from typing import IO, TYPE_CHECKING, Any

from diode_store.errors import DiodeError
from diode_store.settings import DATABASE_VARIABLE
from diode_store.stopping import StopSignal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_BEGINNING = """
import ctypes, os, signal, sys
parent = int(sys.argv.pop(1))
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: end with the process that asked
if os.getppid() != parent:
    sys.exit(1)
"""
_MAIN = """
from diode_store.cli import main
main()
"""
_POLL_S = 1.0
_PATIENCE_S = 60.0
"""How long a command that was told to stop may take to save what it has."""


class Output(Enum):
    """What becomes of the stdout of a command."""

    SHOW = "show"
    """It is that of this process."""
    JSON = "json"
    """It is read as JSON."""
    DROP = "drop"
    """Nobody reads it."""


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
        self,
        *arguments: str,
        output: Output = Output.SHOW,
        on_tick: Callable[[float], None] = lambda _seconds: None,
        locks: Sequence[int] = (),
    ) -> Any:
        """Run ``diode`` with these arguments until it ends.

        Args:
            arguments: the sub-command and its options.
            output: what becomes of its stdout.
            on_tick: called about once a second with the seconds that have passed since the last call.
            locks: descriptors of further locks that last as long as it does.

        Returns:
            What it printed, if that is JSON.

        Raises:
            CommandFailedError: it failed; what it said is on stderr.
            KeyboardInterrupt: Ctrl-C or SIGTERM; it was told, and has ended.
        """
        stdout = {Output.SHOW: None, Output.JSON: subprocess.PIPE, Output.DROP: subprocess.DEVNULL}[output]
        fds = (*self._fds, *locks)
        status, said = run_python(
            _MAIN, arguments, environment=self._environment, stdout=stdout, fds=fds, on_tick=on_tick
        )
        if status:
            raise CommandFailedError(
                f"`diode {arguments[0]}` failed, see above; mend that, and run the same command again to go on"
            )
        return json.loads(said) if output is Output.JSON else None


def run_python(
    program: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    stdout: IO[str] | int | None = None,
    fds: Sequence[int] = (),
    on_tick: Callable[[float], None] = lambda _seconds: None,
    is_ours: bool = True,
) -> tuple[int, str]:
    """Run Python source in a process that ends with this one; return its exit status and what it printed.

    Args:
        program: the source.
        arguments: what follows the first of its ``sys.argv``.
        environment: its variables.
        stdout: where it prints to, as ``subprocess.Popen`` takes it; what it prints is returned if that is a pipe.
        fds: descriptors that it inherits.
        on_tick: as of ``Commands.run``.
        is_ours: whether it looks after its own children; those of another program are told to stop, and ended, with it.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM; it was told, and has ended.
    """
    command = [sys.executable, "-c", _BEGINNING + program, str(os.getpid()), *arguments]
    with StopSignal() as stop:
        # In a group of its own, so that Ctrl-C reaches it once, through us; such a group may not read the terminal.
        process = subprocess.Popen(  # noqa: S603 - our own program
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            text=True,
            pass_fds=fds,
            process_group=0,
            env=environment,
        )
        try:
            said = _watch(process, stop, on_tick, is_ours=is_ours)
        except BaseException:
            _end(process, is_ours=is_ours)
            raise
        finally:
            if not is_ours:
                _tell_group(process, signal.SIGKILL)
        stop.check()
    return process.returncode, said


def _watch(process: subprocess.Popen[str], stop: StopSignal, on_tick: Callable[[float], None], *, is_ours: bool) -> str:
    """Wait until a process has ended, after it was told to if a signal came; return what it printed."""
    said, last, has_ended = "", time.monotonic(), False
    while not has_ended:
        with contextlib.suppress(subprocess.TimeoutExpired):
            said, _ = process.communicate(timeout=_POLL_S)
            has_ended = True
        now = time.monotonic()
        on_tick(now - last)
        last = now
        if stop.name is not None and not has_ended:
            _end(process, is_ours=is_ours)
    return said or ""


def _end(process: subprocess.Popen[str], *, is_ours: bool) -> None:
    """Tell a process to stop, and wait until it has."""
    if is_ours:
        process.send_signal(signal.SIGTERM)
    else:
        _tell_group(process, signal.SIGTERM)
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tell_group(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
