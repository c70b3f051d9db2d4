"""Functions that child processes of tests run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from diode_store.errors import QueryError
from samples import triton_config

if TYPE_CHECKING:
    from diode_store.kernels import KernelConfig
    from diode_store.processes.parent import Parent, Say


def serve(parent: Parent) -> None:
    """Do as the requests say."""
    parent.serve(_answer)


def echo(parent: Parent) -> None:
    """Return each message until one is None; leave a file when the parent is gone."""
    parent.on_gone = lambda: os._exit(7)
    while (message := parent.receive()) is not None:
        parent.send(message)


def clumsy(parent: Parent) -> None:
    """Fail while cleaning up when the parent is gone."""
    parent.on_gone = lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    parent.send("ready")
    try:
        time.sleep(600)
    finally:
        raise RuntimeError("a library does not like to be interrupted")


def stop_halfway(parent: Parent) -> None:
    """Stop in the middle of a message, whose first four bytes are its length."""
    os.write(parent._connection.fileno(), b"\x00\x00\x10\x00a part")
    time.sleep(600)


def _answer(request: str | tuple[str, KernelConfig], say: Say) -> object:  # noqa: C901 - one case a request
    if isinstance(request, tuple):
        return request[1] == triton_config(16)
    what, _, argument = request.partition(" ")
    print("this is no answer")  # noqa: T201 - a library may print
    match what:
        case "count":
            for number in range(int(argument)):
                say(number)
        case "sleep":
            say("asleep")
            time.sleep(float(argument))
        case "refuse":
            raise QueryError("refused\nin two lines")
        case "fail":
            raise ValueError("odd\nin two lines")
        case "exhaust":
            raise MemoryError
        case "signal":
            os.kill(os.getpid(), int(argument))
        case "exit":
            os._exit(int(argument))
        case "start":
            return subprocess.Popen(["/bin/sleep", "600"]).pid
        case "unknown":
            return lambda: None
        case "fork":
            return _forked()
    return os.getpid(), os.getpgrp(), sys.path, os.environ.get("DIODE_OF_A_TEST"), signal.getsignal(signal.SIGINT)


def _forked() -> int:
    pid = os.fork()
    if not pid:
        time.sleep(600)
    return pid
