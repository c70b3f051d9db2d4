"""A fit in a process of its own: what starts it and hears of its epochs, and what runs there.

The process gets its task on stdin and answers on stdout, in messages of tensors and plain values, of which nothing can
run code. It ends with the one that asked: when nobody hears of an epoch any more, nothing of it is kept either.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from concurrent.futures import CancelledError
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any, cast

import torch

from diode_store import errors
from diode_store.errors import DiodeError, ModelError
from diode_trainer.training.fit_task import FitTask, network_from_plain, network_to_plain
from diode_trainer.training.train import EpochReport, Fit

if TYPE_CHECKING:
    from diode_trainer.training.fit_task import Heard

_LENGTH_BYTES = 8
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
                return _answer(process, task, on_epoch, threads)
            except (EOFError, BrokenPipeError):
                if self.are_ended:
                    raise CancelledError from None
                with contextlib.suppress(subprocess.TimeoutExpired):  # it may live, and have closed its pipe
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


def _answer(process: subprocess.Popen[bytes], task: FitTask, on_epoch: Heard, threads: int) -> tuple[Fit, float]:
    """Send a process its task, and hear it to the end."""
    with cast("IO[bytes]", process.stdin) as asked:
        _send(asked, {"task": task.to_plain(), "threads": threads})
    while True:
        said = _receive(cast("IO[bytes]", process.stdout))
        if "epoch" in said:
            on_epoch(said["fit"], EpochReport(**said["epoch"]))
        elif "error" in said:
            error: type[DiodeError] = getattr(errors, said["error"])
            raise error(said["message"])
        else:
            history = tuple(EpochReport(**report) for report in said["history"])
            network = network_from_plain(said["network"])
            return Fit(network, said["epochs"], said["validation_loss"], history), said["seconds"]


def _send(to: IO[bytes], message: dict[str, Any]) -> None:
    content = io.BytesIO()
    torch.save(message, content)
    to.write(content.getbuffer().nbytes.to_bytes(_LENGTH_BYTES, "big"))
    to.write(content.getbuffer())
    to.flush()


def _receive(of: IO[bytes]) -> dict[str, Any]:
    """Return the next message.

    Raises:
        EOFError: there is none, or not the whole of one.
    """
    length = int.from_bytes(of.read(_LENGTH_BYTES), "big")
    content = of.read(length)
    if not length or len(content) < length:
        raise EOFError
    message: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
    return message


def _how_it_ended(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def _work(answers: IO[bytes]) -> None:
    """Do what stdin says."""

    def heard(name: str, report: EpochReport) -> None:
        """Tell of an epoch."""
        _send(answers, {"fit": name, "epoch": asdict(report)})

    asked = _receive(sys.stdin.buffer)
    try:
        fitted, seconds = FitTask.from_plain(asked["task"]).run(heard, asked["threads"])
    except DiodeError as error:
        _send(answers, {"error": type(error).__name__, "message": str(error)})
        return
    told = {"epochs": fitted.epochs, "validation_loss": fitted.validation_loss, "seconds": seconds}
    history = [asdict(report) for report in fitted.history]
    _send(answers, {**told, "network": network_to_plain(fitted.network), "history": history})


def main() -> None:
    """Run a fit for the process that started this one."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    with contextlib.suppress(BrokenPipeError, EOFError):  # nobody asks or hears any more
        _work(answers)


if __name__ == "__main__":
    main()
