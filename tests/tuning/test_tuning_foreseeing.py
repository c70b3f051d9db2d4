"""What a dry run of tuning says of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import samples
from diode_collectors.problems.selection import ProblemRequest
from diode_collectors.spool.writer import SpoolWriter
from diode_collectors.sweep.devices import device_elsewhere
from diode_store.records import Source
from diode_store.warehouse.store import Store
from diode_tuning.foreseeing import foresee
from diode_tuning.job import TuneRequest, TuningJob
from diode_tuning.plan import DeviceFolder

if TYPE_CHECKING:
    from pathlib import Path

    from diode_store.records import Measurement

H200 = device_elsewhere("h200")[0]
FOUR = "that makes 4 problems, but training needs 10; "


def job(
    folder: Path, budget_s: float, *, database: str = "absent.db", models: int = 1, named: bool = False
) -> TuningJob:
    """Return a job of an H200 with 16 cores."""
    targets = ProblemRequest(shapes=("mm:64x64x64",) if named else ())
    request = TuneRequest(targets, budget_s, database, device_models=models)
    return TuningJob([H200], request, DeviceFolder(folder / "runs"), 16)


def measured(job: TuningJob, count: int, search_space: str = "GUIDED:12") -> list[Measurement]:
    """Return measurements of the first problems of a job."""
    problems = [problem.problem() for problem in job.pool.problems.values()][:count]
    return [
        samples.measurement(i, hardware=H200.hardware, problem=problem, search_space=search_space, source=Source.SWEEP)
        for i, problem in enumerate(problems, 1)
    ]


def too_few(job: TuningJob) -> str | None:
    """Return what a dry run says of too few problems."""
    found = foresee(job, restart=False)
    return found["too_few"]


@pytest.mark.long
def test_a_budget_that_is_too_small(tmp_path: Path) -> None:
    """The remedy is for the whole command, which divides its budget among models of device."""
    assert too_few(job(tmp_path, 1.0)) == f"{FOUR}give --budget 2m"
    assert too_few(job(tmp_path, 1.0, models=30)) == f"{FOUR}give --budget 3m"
    assert too_few(job(tmp_path, 60.0)) is None


def test_too_few_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No budget is enough where there are not ten."""
    monkeypatch.setattr("diode_tuning.pool.companions", lambda *_: [])
    said = "that makes 1 problem, but training needs 10; name more products"
    assert too_few(job(tmp_path, 60.0, named=True)) == said


@pytest.mark.long
@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("count", "space", "is_enough"),
    [(6, "GUIDED:12", True), (5, "GUIDED:12", False), (6, "VENDOR", False)],
)
def test_what_is_measured_counts(database_url: str, tmp_path: Path, count: int, space: str, *, is_enough: bool) -> None:
    """Four more make ten; those of the vendor's kernels alone teach too little."""
    again = job(tmp_path, 1.0, database=database_url)
    with Store.open(database_url) as store:
        store.write(measured(again, count, space))
    assert (too_few(again) is None) is is_enough


@pytest.mark.long
def test_an_interrupted_run(tmp_path: Path) -> None:
    """What its sweep has left in the spool counts, though it is not ingested; its budget cannot be another."""
    tuning = job(tmp_path, 1.0)
    run = tuning.folder.begin(tuning.plan())
    run.choose(1, [*tuning.pool.problems.values()][:4], {})
    assert too_few(job(tmp_path, 1.0)) == f"{FOUR}let the run end, then give --budget 2m"
    with SpoolWriter(run.spool) as writer:
        for measurement in measured(tuning, 9):
            writer.append(measurement)
    found = foresee(job(tmp_path, 1.0), restart=False)
    assert (found["measured_already"], found["too_few"]) == (9, None)
