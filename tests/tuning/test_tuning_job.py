"""The jobs of one command: one for each model of GPU."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from diode_collectors.problems.selection import ProblemRequest
from diode_collectors.sweep.devices import device_elsewhere
from diode_collectors.sweep.scratch import scratch_folder
from diode_trainer import artifact
from diode_trainer.training.checkpoints import folder_beside
from diode_tuning import installing
from diode_tuning import job as job_module
from diode_tuning.job import TuneRequest, TuningJob, left_to_do
from diode_tuning.plan import DeviceFolder, Stage
from diode_tuning.pool import Pool
from diode_tuning.running import CommandFailedError

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
        (Stage.DONE, Stage.TRAINING, [1]),
        pytest.param(None, None, [0, 1], marks=pytest.mark.long),
        pytest.param(Stage.MEASURING, None, [0, 1], marks=pytest.mark.long),
        pytest.param(Stage.DONE, Stage.MEASURING, [1], marks=pytest.mark.long),
        pytest.param(Stage.DONE, Stage.DONE, [0, 1], marks=pytest.mark.long),
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


@pytest.mark.long
def test_what_was_done_of_another_command_is_done(tmp_path: Path, jobs: list[TuningJob]) -> None:
    """A run with other options does not stand for this one."""
    end(made(tmp_path, 30.0)[0], Stage.DONE)
    end(jobs[1], Stage.MEASURING)
    assert left_to_do(jobs) == jobs


class Sweeps:
    """Stands for all commands: of each sweep it notes what is in the folder of shared kernels, and adds one."""

    def __init__(self, *_: object) -> None:
        self.kernels: list[tuple[Path, int]] = []

    def run(self, *arguments: str, **_: Any) -> dict[str, int]:
        """Do what a sweep would do."""
        if arguments[0] == "collect":
            is_vendor = "VENDOR" in arguments  # which nothing is compiled for
            assert ("--share-kernels" in arguments) is not is_vendor
            if is_vendor:
                return {"measured": 12, "skipped": 0, "timings": 16, "seconds": 60.0}
            folder = Path(arguments[arguments.index("--kernels") + 1])
            self.kernels.append((folder, len(list(folder.iterdir()))))
            (folder / f"kernel-{len(self.kernels)}").touch()
        return {"measured": 12, "skipped": 0, "timings": 156, "seconds": 60}


@pytest.mark.long
def test_kernels_are_kept_from_round_to_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What problems of one round share serves those of the next; after the last it is gone."""
    sweeps = Sweeps()
    monkeypatch.setattr(job_module, "Commands", lambda *_: sweeps)
    monkeypatch.setattr(TuningJob, "_model", lambda *_: None)
    monkeypatch.setattr(TuningJob, "_train", lambda *_, **__: {})
    request = TuneRequest(ProblemRequest(), 600.0, str(tmp_path / "absent.db"))
    job = TuningJob([DEVICES[0]], request, DeviceFolder(tmp_path / "runs"), 16)
    job.run(0, restart=False, captures=True)
    (folder, _), _ = sweeps.kernels
    assert sweeps.kernels == [(folder, 0), (folder, 1)]
    assert not folder.exists()


@pytest.mark.quick(1)
@pytest.mark.parametrize(("number", "measured", "is_asked"), [(1, 999, False), (1, 1000, True), (2, 12, True)])
def test_a_first_round_is_chosen_by_what_earlier_runs_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, measured: int, *, is_asked: bool
) -> None:
    """If that is as much as a round brings: else many short runs would all begin with nothing."""
    asked: list[Path] = []
    monkeypatch.setattr(Pool, "measured", lambda *_: set(range(measured)))
    monkeypatch.setattr(TuningJob, "_train_to", lambda _, path, **__: asked.append(path))
    monkeypatch.setattr(artifact, "load", lambda path: path)
    request = TuneRequest(ProblemRequest(), 120.0, str(tmp_path / "absent.db"), from_scratch=True)
    job = TuningJob([DEVICES[0]], request, DeviceFolder(tmp_path / "runs"), 16)
    interim = tmp_path / "interim.pt"
    assert job._model(number, interim) == (interim if is_asked else None)
    assert asked == [interim] * is_asked


@pytest.mark.long
def test_the_vendors_kernels_are_timed_of_further_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that no earlier round measures, which no model chooses, by kernels that nobody lists."""
    done = Pool([DEVICES[0]], ProblemRequest(), database=str(tmp_path / "absent.db"), cores=16)
    measured = set(list(done.problems)[:1000])
    monkeypatch.setattr(Pool, "measured", lambda *_: measured)
    job = TuningJob(
        [DEVICES[0]], TuneRequest(ProblemRequest(), 180.0, "absent.db"), DeviceFolder(tmp_path / "runs"), 16
    )
    *_, last = job.plan().rounds
    problems, guide = job.choose(2, last, tmp_path / "interim.pt")
    assert (last.search_space, guide, (tmp_path / "interim.pt").exists()) == ("VENDOR", {}, False)
    assert 300 < len(problems) < 700
    assert not measured & {problem.problem().key for problem in problems}


@pytest.mark.long
@pytest.mark.parametrize(("device", "from_scratch", "members"), [(0, False, "12"), (1, False, None), (1, True, "12")])
def test_a_model_that_begins_with_nothing_has_twelve_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: int, members: str | None, *, from_scratch: bool
) -> None:
    """One that begins with the shipped model has as many as that; of an H200 there is none, as it knows that GPU."""
    training = Training(None)
    monkeypatch.setattr(installing, "target", lambda _hardware: tmp_path / "model.pt")
    monkeypatch.setattr(Pool, "measured", lambda *_: {bytes([number]) for number in range(50)})
    request = TuneRequest(ProblemRequest(), 60.0, str(tmp_path / "absent.db"), from_scratch)
    job = TuningJob([DEVICES[device]], request, DeviceFolder(tmp_path / "runs"), 16)
    monkeypatch.setattr(job, "_commands", training)
    job._train(job.found(restart=False), captures=True)
    assert training.members == [members]
    assert training.begins_with == ["none" if members else None]


class Training:
    """Stands for the command that trains: it begins fits, and is stopped in each one that it is told to."""

    def __init__(self, *ends: BaseException | None) -> None:
        self.ends = list(ends)
        self.resumed: list[bool] = []
        self.members: list[str | None] = []
        self.begins_with: list[str | None] = []

    def run(self, *arguments: str, **_: Any) -> None:
        """Note whether it goes on with what is there, and of how many members."""
        self.resumed.append("--restart" not in arguments)
        asked = dict(pairwise(arguments))
        self.members.append(asked.get("--members"))
        self.begins_with.append(asked.get("--warm-start"))
        unfinished = folder_beside(Path(arguments[arguments.index("--output") + 1]))
        unfinished.mkdir(exist_ok=True)
        (unfinished / "final.checkpoint").touch()
        if (end := self.ends.pop(0)) is not None:
            raise end


@pytest.mark.parametrize(
    ("end", "problems", "resumed"),
    [
        (KeyboardInterrupt(), 50, [False, True]),
        pytest.param(KeyboardInterrupt(), 51, [False, False], marks=pytest.mark.long),
        pytest.param(CommandFailedError("it failed"), 50, [False, False], marks=pytest.mark.long),
    ],
    ids=["interrupted", "other data", "failed"],
)
def test_training_goes_on(
    tmp_path: Path,
    jobs: list[TuningJob],
    monkeypatch: pytest.MonkeyPatch,
    end: BaseException,
    problems: int,
    resumed: list[bool],
) -> None:
    """With the fits that were interrupted, if they are of the same problems; not with those that failed."""
    measured = 50
    monkeypatch.setattr(installing, "target", lambda _hardware: tmp_path / "model.pt")
    monkeypatch.setattr(Pool, "measured", lambda *_: {bytes([number]) for number in range(measured)})
    job, training = jobs[0], Training(end, None)
    monkeypatch.setattr(job, "_commands", training)
    with pytest.raises(type(end)):
        job._train(job.found(restart=False), captures=True)
    measured = problems
    run = job.folder.unfinished()
    assert run is not None
    job._train(run, captures=True)
    assert (training.resumed, job.folder.unfinished()) == (resumed, None)


@pytest.mark.long
def test_a_round_by_the_vendors_kernels_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where starting its sweep was interrupted, which takes longer than the round has."""
    request = TuneRequest(ProblemRequest(), 180.0, str(tmp_path / "absent.db"))
    job = TuningJob([DEVICES[0]], request, DeviceFolder(tmp_path / "runs"), 16)
    run = job.found(restart=False)
    *_, last = run.plan.rounds
    last.problems, last.spent_s = 100, last.budget_s + 5
    given_s: list[float] = []
    monkeypatch.setattr(job, "_measure", lambda _run, _number, _each, left_s, _kept: given_s.append(left_s))
    with scratch_folder(1) as kept:
        job._round(run, len(run.plan.rounds), last, kept)
    assert given_s == [pytest.approx(0.08 * 180.0)]
