"""Run several fits at a time; long ones run in their own processes."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from diode_trainer.models import TimingNetwork
from diode_trainer.training import scout
from diode_trainer.training.fit_process import FitProcesses
from diode_trainer.training.history import FINAL
from diode_trainer.training.train import EpochReport, Fit, limited_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from diode_trainer.training.fit_task import FitTask, Heard

    FitHeard = Callable[[str, Fit, float], None]
    """Receives the name, the result and the seconds of a finished fit."""

_LONG = 1_000_000
"""Timings over all epochs from which a fit gets its own process. A process takes seconds of a core to start; threads of
one process wait for Python's lock between small operations.
"""
_VERY_LONG = 5 * _LONG
"""Timings over all epochs from which the members of one fit are spread over several processes."""
_MEMBERS_EACH = 2
"""Ensemble members that share a process. Members do not wait for each other, so on a busy machine a fit loses no more
than its share of the cores.
"""


def run_fits(
    tasks: Sequence[FitTask], on_epoch: Heard, on_fit: FitHeard = lambda _name, _fit, _seconds: None
) -> list[tuple[Fit, float]]:
    """Return the fits of ``tasks`` and their seconds; if one fails, or on Ctrl-C, all stop.

    The final fit also teaches its scout; folds are judged by the predictions of all members.

    Args:
        tasks: fits that share data and device.
        on_epoch: called from several threads after each epoch of a fit or of the scout.
        on_fit: called from this thread with the name, the result and the seconds of each finished fit.

    Raises:
        DatasetError: too few problems.
        ModelError: a fit diverged, its state cannot be kept, or its process died.
    """
    cores = (os.cpu_count() or 1) if tasks[0].device == "cpu" else 1
    at_once = min(cores, len(tasks))
    processes = FitProcesses()

    def heard(name: str, report: EpochReport) -> None:
        """Forward the report of an epoch; raise if another fit has failed."""
        on_epoch(name, report)
        if processes.are_ended:
            raise CancelledError

    def run(task: FitTask) -> tuple[Fit, float]:
        """Return a fit and its seconds; long fits run in their own processes."""
        if at_once < cores and task.timings >= _VERY_LONG:
            fitted, seconds = _run_parts(task.parts(_MEMBERS_EACH), processes, heard)
        elif at_once > 1 and task.timings >= _LONG:
            fitted, seconds = processes.run(task, heard)
        else:
            fitted, seconds = task.run(heard)
        return fitted, seconds + (_teach_scout(fitted, task, heard) if task.name == FINAL else 0.0)

    with limited_threads(), ThreadPoolExecutor(at_once) as pool:
        fits = {pool.submit(run, task): task.name for task in tasks}
        try:
            # In the order of completion, so that a failure is noticed while other fits run.
            for done in as_completed(fits):
                if not isinstance(done.exception(), CancelledError):  # a canceled fit ended because another failed
                    on_fit(fits[done], *done.result())
        except BaseException:
            processes.end()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [done.result() for done in fits]


def _run_parts(parts: Sequence[FitTask], processes: FitProcesses, on_epoch: Heard) -> tuple[Fit, float]:
    """Fit members in several processes; return the joined fit and the seconds of the slowest part."""
    together = _Together(len(parts), partial(on_epoch, parts[0].name))

    def run(number: int) -> tuple[Fit, float]:
        found = processes.run(parts[number], lambda _, report: together.hear(number, report))
        together.end(number)
        return found

    with ThreadPoolExecutor(len(parts)) as pool:
        running = [pool.submit(run, number) for number in range(len(parts))]
        try:
            for done in as_completed(running):
                done.result()
        except BaseException:
            processes.end()
            raise
    found = [done.result() for done in running]
    fits, seconds = zip(*found, strict=True)
    network = TimingNetwork.joined([fitted.network for fitted in fits]).requires_grad_(requires_grad=False).eval()
    shares = [fitted.network.members / network.members for fitted in fits]
    loss = sum(share * fitted.validation_loss for share, fitted in zip(shares, fits, strict=True))
    return Fit(network, max(fitted.epochs for fitted in fits), loss, tuple(together.history)), max(seconds)


class _Together:
    """Joins the reports of the parts of a fit; a stopped part keeps its last losses."""

    def __init__(self, parts: int, on_epoch: Callable[[EpochReport], None]) -> None:
        self.history: list[EpochReport] = []
        self._on_epoch = on_epoch
        self._heard: list[list[EpochReport]] = [[] for _ in range(parts)]
        self._is_over = [False] * parts
        self._lock = threading.Lock()

    def hear(self, part: int, report: EpochReport) -> None:
        """Take the report of a part, and forward each epoch that all parts have reached."""
        with self._lock:
            self._heard[part].append(report)
            self._pass_on()

    def end(self, part: int) -> None:
        """Stop waiting for a part."""
        with self._lock:
            self._is_over[part] = True
            self._pass_on()

    def _pass_on(self) -> None:
        while any(len(reports) > len(self.history) for reports in self._heard):
            epoch = len(self.history) + 1
            over = zip(self._heard, self._is_over, strict=True)
            if any(len(reports) < epoch and not is_over for reports, is_over in over):
                return
            self.history.append(_joined([reports[:epoch] for reports in self._heard]))
            self._on_epoch(self.history[-1])


def _joined(parts: Sequence[Sequence[EpochReport]]) -> EpochReport:
    """Join the reports of several parts into one report of all members."""
    reports = [part[-1] for part in parts]
    latest = max(reports, key=lambda report: report.epoch)
    training = tuple(loss for report in reports for loss in report.member_training_losses)
    joined = replace(latest, training_loss=sum(training) / len(training), member_training_losses=training)
    if latest.member_validation_losses is None:
        return joined
    validated = [[losses for report in part if (losses := report.member_validation_losses)] for part in parts]
    validation = tuple(loss for losses in validated for loss in losses[-1])
    mean = float(torch.tensor(validation, dtype=torch.float64).nanmean())
    return replace(joined, validation_loss=mean, member_validation_losses=validation)


def _teach_scout(fitted: Fit, task: FitTask, on_epoch: Heard) -> float:
    """Teach the scout of a fitted network; return the seconds taken."""
    started = time.perf_counter()
    learned = task.packed[task.rows]
    scout.teach_scout(
        fitted.network, learned, seed=task.seed, device=task.device, on_epoch=partial(on_epoch, scout.NAME)
    )
    return time.perf_counter() - started
