"""Run Python programs that print, and stop them with this process.

Unlike a ``Child``, such a program exchanges no messages, and its output is the user's. When this process dies, the
system sends it SIGTERM; so it can save its work, and runs without a thread of ours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import IO, TYPE_CHECKING

from diode_store.command_line.stopping import StopSignal

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
_POLL_S = 1.0
_PATIENCE_S = 60.0
"""Seconds that a stopped program may take to save its work."""


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
        arguments: its ``sys.argv`` without the first.
        environment: its variables.
        stdout: target of its stdout, as ``subprocess.Popen`` takes it; the output of a pipe is returned.
        fds: descriptors that it inherits.
        on_tick: called about once a second with the seconds since the last call.
        is_ours: True if it ends its own children. The children of another program are ended with it.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM came, and the program has ended.
    """
    command = [sys.executable, "-c", _BEGINNING + program, str(os.getpid()), *arguments]
    with StopSignal() as stop:
        # In its own group, so that Ctrl-C reaches it once, through us. Such a group may not read the terminal.
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
    """Wait until a process has ended, stop it if a signal comes, and return what it printed."""
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
    """Stop a process and wait for its end."""
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
