"""A fit in a process of its own: what starts it and hears of its epochs, and what runs there.

The process gets its task on stdin and answers on stdout, both pickled. It ends with the one that asked: when nobody
hears of an epoch any more, nothing of it is kept either.
"""

from __future__ import annotations

import contextlib
import os
import pickle  # between two processes of one run
import subprocess
import sys
from concurrent.futures import CancelledError
from typing import IO, TYPE_CHECKING, Any, cast

from diode_store.errors import DiodeError, ModelError

if TYPE_CHECKING:
    from diode_trainer.training.fit_task import FitTask, Heard
    from diode_trainer.training.train import EpochReport, Fit

_PATIENCE_S = 5.0
_PROGRAM = ("-m", "diode_trainer.training.fit_process")


class FitProcesses:
    """Processes that fit; threads may start them, and another end all."""

    def __init__(self) -> None:
        self.are_ended = False
        self._running: set[subprocess.Popen[bytes]] = set()

    def run(self, task: FitTask, on_epoch: Heard, threads: int) -> tuple[Fit, float]:
        """Return what ``task.run`` returns.

        Raises:
            DiodeError: the fit failed.
            ModelError: its process died, as when memory is short.
            CancelledError: all were ended.
        """
        # In a group of its own, so that Ctrl-C reaches only the process that has others to stop.
        try:
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, *_PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
            )
        except OSError as error:
            raise ModelError(f"no process for the fit {task.name!r} ({error.strerror or error})") from None
        self._running.add(process)
        with process:
            try:
                if self.are_ended:  # before it was among those that were killed
                    raise CancelledError
                return _answer(process, (task, threads), on_epoch)
            except (EOFError, BrokenPipeError, pickle.UnpicklingError):
                if self.are_ended:
                    raise CancelledError from None
                with contextlib.suppress(subprocess.TimeoutExpired):  # one that lives has said nonsense
                    process.wait(_PATIENCE_S)
                process.kill()
                raise ModelError(
                    f"the process of the fit {task.name!r} died ({_how_it_ended(process.wait())}); see above for what"
                    " it said"
                ) from None
            finally:
                process.kill()
                self._running.discard(process)

    def end(self) -> None:
        """End all of them, and let no more epochs be reported."""
        self.are_ended = True
        for process in list(self._running):
            process.kill()


def _answer(process: subprocess.Popen[bytes], task: tuple[FitTask, int], on_epoch: Heard) -> tuple[Fit, float]:
    """Send a process its task, and hear it to the end."""
    with cast("IO[bytes]", process.stdin) as asked:
        pickle.dump(task, asked, pickle.HIGHEST_PROTOCOL)
    while True:
        kind, *said = pickle.load(cast("IO[bytes]", process.stdout))  # noqa: S301 - our own process
        if kind == "epoch":
            on_epoch(*said)
        elif kind == "failed":
            raise said[0]
        else:
            fitted, seconds = said
            return fitted, seconds


def _how_it_ended(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def _work(answers: IO[bytes]) -> None:
    """Do what stdin says."""

    def say(*message: Any) -> None:
        pickle.dump(message, answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()

    def heard(name: str, report: EpochReport) -> None:
        say("epoch", name, report)

    task, threads = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started this one
    try:
        said = ("done", *task.run(heard, threads))
    except DiodeError as error:
        said = ("failed", error)
    say(*said)


def main() -> None:
    """Run a fit for the process that started this one."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    with contextlib.suppress(BrokenPipeError, EOFError, pickle.UnpicklingError):  # nobody asks or hears any more
        _work(answers)


if __name__ == "__main__":
    main()
