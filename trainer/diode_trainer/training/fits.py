"""Runs several fits at a time, those that take long each in a process of its own."""

from __future__ import annotations

import os
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING

from diode_trainer.training.fit_process import FitProcesses
from diode_trainer.training.train import EpochReport, Fit, limited_threads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_trainer.training.fit_task import FitTask, Heard

_MANY_TIMINGS = 50_000
"""Fewer are fitted before a second thread would pay."""
_MOST_THREADS = 2
"""Two take half the time of one and come to the same bytes; more were not tried."""
_LONG = 300_000
"""Timings that a fit learns from in all of its epochs, if it is to have a process of its own, which takes a core 3 s to
start. In threads of one process fits wait for each other, as a step is a hundred small operations, and Python's lock is
held between these: six took 250 s on 32 cores, where one alone took 55 s."""


def run_fits(tasks: Sequence[FitTask], on_epoch: Heard) -> list[tuple[Fit, float]]:
    """Return the fits of ``tasks`` and their seconds. If one fails, or on Ctrl-C, all of them stop.

    Args:
        tasks: all of the same data and device.
        on_epoch: called after each epoch of each fit, from several threads.

    Raises:
        DatasetError: too few problems.
        ModelError: a fit diverged, its state cannot be kept, or its process died.
    """
    at_once, threads = _share_of_cores(tasks)
    if len(tasks) == 1:
        # Not in a thread of its own: OpenMP gives each thread that calls it a team, and puts them all to sleep between
        # operations as soon as there are more of them than cores, which takes twice as long.
        return [task.run(on_epoch, threads) for task in tasks]
    processes = FitProcesses()

    def heard(name: str, report: EpochReport) -> None:
        """Pass on what a fit reports, and end it if another has failed."""
        on_epoch(name, report)
        if processes.are_ended:
            raise CancelledError

    def run(task: FitTask) -> tuple[Fit, float]:
        """Return a fit and its seconds, from a process of its own if it takes long."""
        if at_once > 1 and task.timings >= _LONG:
            return processes.run(task, heard, threads)
        return task.run(heard, threads)

    with limited_threads(), ThreadPoolExecutor(at_once) as pool:
        fits = [pool.submit(run, task) for task in tasks]
        try:
            # In the order they end, so that a failure is seen while the others run.
            for done in as_completed(fits):
                done.result()
        except BaseException:
            processes.end()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [done.result() for done in fits]


def _share_of_cores(tasks: Sequence[FitTask]) -> tuple[int, int]:
    """Return how many of the fits run at a time, and by how many threads each."""
    cores = (os.cpu_count() or 1) if tasks[0].device == "cpu" else 1
    at_once, timings = min(cores, len(tasks)), len(tasks[0].packed.target)
    return at_once, min(cores // at_once, _MOST_THREADS) if timings >= _MANY_TIMINGS else 1
