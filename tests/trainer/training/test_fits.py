"""Several fits at a time: in threads and in processes of their own, to the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from synthetic import QUICK, learnable

from diode_store.errors import DatasetError, ModelError
from diode_trainer.data.tensors import pack
from diode_trainer.training import fits
from diode_trainer.training.fit_process import FitProcesses
from diode_trainer.training.fit_task import FitTask
from diode_trainer.training.fits import run_fits
from diode_trainer.training.train import Beginning, EpochReport, Fit
from lanes import long

if TYPE_CHECKING:
    from diode_trainer.training.recipe import Recipe

FEW = replace(QUICK, epochs=3)
ENDLESS = replace(QUICK, epochs=100_000, patience=0)


def tasks(recipe: Recipe = FEW, problems: int = 20, names: tuple[str, ...] = ("final", "fold 1")) -> list[FitTask]:
    """Return a fit to all problems, and others to all but some."""
    packed = pack(learnable(problems))
    rows = torch.arange(problems)
    return [FitTask(name, packed, rows[2 * i :], recipe, 7, "cpu", Beginning(), None) for i, name in enumerate(names)]


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each fit run in a process of its own, on however many cores."""
    monkeypatch.setattr(fits, "_LONG", 0)
    monkeypatch.setattr("os.cpu_count", lambda: 2)


def weights_of(found: list[tuple[Fit, float]]) -> list[dict[str, torch.Tensor]]:
    """Return the weights of fits, the scout's among them."""
    return [fitted.network.state_dict() for fitted, _ in found]


def are_running(parent: int) -> list[str]:
    """Return the command lines of the fits that a process has started, from /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            of = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if "fit_process" in command and of == parent:
            found.append(path.name)
    return found


def test_short_fits_have_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes less than a process needs to start runs in threads."""
    monkeypatch.setattr(FitProcesses, "run", None)
    assert len(run_fits(tasks(), lambda _fit, _report: None)) == 2
    assert 0 < tasks()[0].timings < fits._LONG
    assert tasks(replace(FEW, epochs=300_000))[0].timings > fits._LONG


@pytest.mark.long
def test_fits_in_processes_are_the_same(apart: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come to the same weights, and each of their epochs is heard of, the scout's too."""
    heard: list[tuple[str, EpochReport]] = []
    found = run_fits(tasks(), lambda fit, report: heard.append((fit, report)))
    told: list[tuple[str, EpochReport]] = []
    monkeypatch.setattr(FitProcesses, "run", lambda _self, task, heard: task.run(heard))
    expected = run_fits(tasks(), lambda fit, report: told.append((fit, report)))
    for one, other in zip(weights_of(found), weights_of(expected), strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert sorted(heard, key=str) == sorted(told, key=str)
    assert [fitted.history for fitted, _ in found] == [fitted.history for fitted, _ in expected]
    assert all(seconds > 0 for _, seconds in found)
    assert found[0][0].network.scout is not None
    assert are_running(os.getpid()) == []


@pytest.mark.long
def test_members_in_processes_of_their_own_are_the_same(apart: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One long fit is spread over the cores by members, and comes to the weights, losses and reports of one process."""
    recipe = replace(FEW, members=5, epochs=12, patience=5)
    alone, told = tasks(recipe, names=("fold 1",)), []
    (expected, _), heard = alone[0].run(lambda _fit, report: told.append(report)), []
    monkeypatch.setattr(fits, "_VERY_LONG", 0)
    ((found, seconds),) = run_fits(alone, lambda _fit, report: heard.append(report))
    assert found.network.members == 5
    for name, value in expected.network.state_dict().items():
        torch.testing.assert_close(found.network.state_dict()[name], value)
    assert [report.epoch for report in heard] == [report.epoch for report in told]
    for one, other in zip(heard, told, strict=True):
        assert one.member_training_losses == pytest.approx(other.member_training_losses)
    assert (found.epochs, seconds > 0) == (expected.epochs, True)
    assert found.validation_loss == pytest.approx(expected.validation_loss)
    assert are_running(os.getpid()) == []


@long
def test_each_member_keeps_its_losses_when_others_stop_between_validations(
    apart: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts whose patience ends in an epoch without a validation count by what was validated before."""
    monkeypatch.setattr(fits, "_VERY_LONG", 0)
    heard: list[EpochReport] = []
    recipe = replace(FEW, members=5, epochs=60, patience=2, learning_rate=0.05)
    ((found, _),) = run_fits(tasks(recipe, names=("fold 1",)), lambda _fit, report: heard.append(report))
    validated = [report for report in heard if report.member_validation_losses is not None]
    assert {len(report.member_validation_losses or ()) for report in validated} == {5}
    assert found.epochs < len(heard) < recipe.epochs


@long
def test_the_error_that_ends_fits_spread_over_processes(apart: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It arrives though the others, which it ends, are done first."""
    monkeypatch.setattr(fits, "_VERY_LONG", 0)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    spread = [replace(task, recipe=replace(task.recipe, members=4)) for task in tasks(ENDLESS)]
    bad = replace(spread[0], recipe=replace(spread[0].recipe, learning_rate=1e30), name="fold 2")
    with pytest.raises(ModelError, match="the fit diverged in epoch 1; lower --learning-rate"):
        run_fits([*spread, bad], lambda _fit, _report: None)
    assert are_running(os.getpid()) == []


@pytest.mark.long
def test_interrupted_fits_in_processes_end(apart: None) -> None:
    """Ctrl-C ends their processes at once, with what they are doing."""
    heard: list[str] = []

    def interrupt(fit: str, _report: EpochReport) -> None:
        heard.append(fit)
        if len(heard) == 3:
            assert are_running(os.getpid())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_fits(tasks(ENDLESS), interrupt)
    assert are_running(os.getpid()) == []


@long
def test_the_error_of_a_fit_in_a_process_arrives(apart: None) -> None:
    """It is the error that the fit would raise here, and the other fits end."""
    with pytest.raises(DatasetError, match="9 problems are too few to learn from, 10 needed"):
        run_fits([tasks(ENDLESS)[0], *tasks(problems=9)[:1]], lambda _fit, _report: None)
    with pytest.raises(ModelError, match="the fit diverged in epoch 1; lower --learning-rate"):
        run_fits(tasks(replace(FEW, learning_rate=1e30)), lambda _fit, _report: None)
    assert are_running(os.getpid()) == []


@long
def test_a_process_that_dies_is_told_of(apart: None) -> None:
    """As when memory is short; the other fits end."""

    def kill(fit: str, _report: EpochReport) -> None:
        if fit == "fold 1":
            for number in are_running(os.getpid()):
                os.kill(int(number), signal.SIGKILL)

    with pytest.raises(
        ModelError, match=r"the process of the fit '(final|fold 1)' was killed \(out of memory\?\); see above"
    ):
        run_fits(tasks(ENDLESS), kill)
    assert are_running(os.getpid()) == []


@long
def test_its_processes_end_with_a_killed_run(tmp_path: Path) -> None:
    """Nothing goes on for nobody."""
    (tmp_path / "run.py").write_text(
        "import os; os.cpu_count = lambda: 2\n"
        "from diode_trainer.training import fits; fits._LONG = 0\n"
        "from test_fits import ENDLESS, run_fits, tasks\n"
        "run_fits(tasks(ENDLESS), lambda fit, report: print(fit, flush=True))\n"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1]), *sys.path])
    run = subprocess.Popen(
        [sys.executable, str(tmp_path / "run.py")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
        text=True,
    )
    with run:
        assert run.stdout is not None
        awaited = {"final", "fold 1"}
        while awaited:  # whichever begins first, and however late the other does
            line = run.stdout.readline()
            assert line, f"it ended without a word of {awaited}"
            awaited.discard(line.strip())
        begun = are_running(run.pid)
        run.kill()
    assert len(begun) == 2
    until = time.monotonic() + 20
    while any(Path("/proc", number).exists() for number in begun):
        assert time.monotonic() < until
        time.sleep(0.05)
