"""The jobs of one command: one for each model of GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from diode_collectors.problems.selection import ProblemRequest
from diode_collectors.sweep.devices import device_elsewhere
from diode_integration.tuning.job import TuneRequest, TuningJob, left_to_do
from diode_integration.tuning.plan import DeviceFolder, Stage

if TYPE_CHECKING:
    from pathlib import Path

DEVICES = device_elsewhere("h200")[0], device_elsewhere("l40s")[0]


@pytest.fixture
def jobs(tmp_path: Path) -> list[TuningJob]:
    """Return jobs for two models of GPU that were never begun."""
    return made(tmp_path, 60.0)


def made(folder: Path, budget_s: float) -> list[TuningJob]:
    """Return jobs for two models of GPU."""
    request = TuneRequest(ProblemRequest(shapes=("mm:64x64x64",)), budget_s, str(folder / "absent.db"))
    return [TuningJob([device], request, DeviceFolder(folder / device.hardware.name), 16) for device in DEVICES]


def end(job: TuningJob, stage: Stage) -> None:
    """Have a run of a job end in a stage."""
    run = job.folder.begin(job.plan())
    run.plan.stage = stage
    run.save()


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        (None, None, [0, 1]),
        (Stage.MEASURING, None, [0, 1]),
        (Stage.DONE, Stage.MEASURING, [1]),
        (Stage.DONE, Stage.TRAINING, [1]),
        (Stage.DONE, Stage.DONE, [0, 1]),
    ],
)
def test_what_was_done_before_an_interruption_is_not_done_again(
    jobs: list[TuningJob], first: Stage | None, second: Stage | None, left: list[int]
) -> None:
    """The command goes on where it was interrupted; one that was done as a whole is done anew, which adds."""
    for job, stage in zip(jobs, (first, second), strict=True):
        if stage is not None:
            end(job, stage)
    assert left_to_do(jobs) == [jobs[i] for i in left]


def test_what_was_done_of_another_command_is_done(tmp_path: Path, jobs: list[TuningJob]) -> None:
    """A run with other options does not stand for this one."""
    end(made(tmp_path, 30.0)[0], Stage.DONE)
    end(jobs[1], Stage.MEASURING)
    assert left_to_do(jobs) == jobs
