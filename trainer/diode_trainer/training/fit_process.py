"""Run a fit in a process of its own, and follow its epochs."""

from __future__ import annotations

from concurrent.futures import CancelledError
from typing import TYPE_CHECKING

from diode_store.errors import ModelError
from diode_store.processes.child import Child, ChildError

if TYPE_CHECKING:
    from diode_store.processes.parent import Parent, Say
    from diode_trainer.training.fit_task import FitTask, Heard
    from diode_trainer.training.train import Fit


class FitProcesses:
    """Runs fits in processes. Several threads may start them, and another thread may end all."""

    def __init__(self) -> None:
        self.are_ended = False
        self._running: set[Child] = set()

    def run(self, task: FitTask, on_epoch: Heard) -> tuple[Fit, float]:
        """Return the result of ``task.run``, called in a process.

        Raises:
            DiodeError: the fit failed.
            ModelError: its process died, for example because memory is short.
            CancelledError: all were ended.
        """
        try:
            with Child("diode_trainer.training.fit_process:serve") as child:
                self._running.add(child)
                if self.are_ended:  # ended before this process was in the list
                    raise CancelledError
                try:
                    fitted: tuple[Fit, float] = child.call(task, lambda epoch: on_epoch(*epoch))
                finally:
                    self._running.discard(child)
                return fitted
        except ChildError as error:
            if self.are_ended:
                raise CancelledError from None
            raise ModelError(f"the process of the fit {task.name!r} {error}; see above for what it said") from None

    def end(self) -> None:
        """End all processes, and report no more epochs."""
        self.are_ended = True
        for child in list(self._running):
            child.kill()


def serve(parent: Parent) -> None:
    """Run the fit that the parent sends."""
    parent.serve(_fit)


def _fit(task: FitTask, say: Say) -> tuple[Fit, float]:
    return task.run(lambda name, report: say((name, report)))
