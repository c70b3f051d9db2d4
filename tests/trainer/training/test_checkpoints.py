from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
from synthetic import learnable

from diode_store.errors import ModelError
from diode_trainer import artifact
from diode_trainer.data.tensors import pack
from diode_trainer.jobs.workflow import fit_and_judge
from diode_trainer.training import checkpoints
from diode_trainer.training.checkpoints import folder_beside, try_lock, unfinished
from diode_trainer.training.recipe import Recipe
from diode_trainer.training.train import EpochReport, Fit, fit
from lanes import long

if TYPE_CHECKING:
    from conftest import RunCommand
    from diode_trainer.data.tensors import Packed

RECIPE = Recipe("deep", (16, 16), members=2, epochs=20, patience=6, learning_rate=0.05)


class PlugPulledError(Exception):
    """Somebody pulled the plug."""


@pytest.fixture(autouse=True)
def every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a checkpoint written after each epoch."""
    monkeypatch.setattr(checkpoints, "_SECONDS_BETWEEN", 0.0)


def interrupted(model: Path, packed: Packed, at: int, *, resume: bool = False) -> None:
    """Fit and pull the plug in epoch ``at``, before its checkpoint is written."""

    def interrupt(report: EpochReport) -> None:
        if report.epoch == at:
            raise PlugPulledError

    def run() -> None:
        with unfinished(model, resume=resume) as folder:
            checkpoint = folder.checkpoint("final", packed, RECIPE, 7, "cpu")
            fit(packed, RECIPE, seed=7, on_epoch=interrupt, checkpoint=checkpoint)

    with pytest.raises(PlugPulledError):
        run()


def resumed_before_the_model_was_written(model: Path, packed: Packed) -> None:
    """Go on to the end, and pull the plug then."""

    def run() -> None:
        with unfinished(model, resume=True) as folder:
            fit(packed, RECIPE, seed=7, checkpoint=folder.checkpoint("final", packed, RECIPE, 7, "cpu"))
            raise PlugPulledError

    with pytest.raises(PlugPulledError):
        run()


def resumed(model: Path, packed: Packed, recipe: Recipe = RECIPE, seed: int = 7) -> tuple[Fit, list[int]]:
    """Go on; return the fit and the epochs that were reported."""
    heard: list[int] = []
    with unfinished(model, resume=True) as folder:
        checkpoint = folder.checkpoint("final", packed, recipe, seed, "cpu")
        fitted = fit(packed, recipe, seed=seed, on_epoch=lambda r: heard.append(r.epoch), checkpoint=checkpoint)
    return fitted, heard


@pytest.mark.parametrize("at", [[2], [6], [4, 9, 11]], ids=str)
def test_a_resumed_fit_is_the_same_to_the_last_bit(tmp_path: Path, at: list[int]) -> None:
    """Interrupted once or often, before or after the first validation: the same weights and the same history."""
    packed = pack(learnable(20))
    expected = fit(packed, RECIPE, seed=7)
    for epoch in at:
        interrupted(tmp_path / "m.pt", packed, epoch, resume=True)
    found, heard = resumed(tmp_path / "m.pt", packed)
    assert (found.epochs, found.validation_loss) == (expected.epochs, expected.validation_loss)
    assert found.history == expected.history
    assert heard == [report.epoch for report in expected.history]
    state = found.network.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in expected.network.state_dict().items())


def test_a_fit_that_had_ended_is_not_fitted_again(tmp_path: Path) -> None:
    """Of several fits those that were done are taken from their checkpoints."""
    packed = pack(learnable(20))
    model = tmp_path / "m.pt"
    interrupted(model, packed, len(fit(packed, RECIPE, seed=7).history))
    resumed_before_the_model_was_written(model, packed)
    with unfinished(model, resume=True) as folder:
        checkpoint = folder.checkpoint("final", packed, RECIPE, 7, "cpu")
        before = checkpoint.seconds
        assert before > 0
        again = fit(packed, RECIPE, seed=7, checkpoint=checkpoint)
        assert checkpoint.seconds == before
    assert again.history == fit(packed, RECIPE, seed=7).history


def test_all_fits_of_an_evaluation_go_on(tmp_path: Path) -> None:
    """Interrupted between two of its epochs, an evaluation with folds ends as if it had not been."""
    dataset, model = learnable(24), tmp_path / "m.pt"
    recipe = replace(RECIPE, epochs=6, patience=0)
    expected = fit_and_judge(dataset, recipe, 2)
    epochs = 0

    def interrupt(_fit: str, _report: EpochReport) -> None:
        nonlocal epochs
        epochs += 1
        if epochs == 9:
            raise PlugPulledError

    with pytest.raises(PlugPulledError), unfinished(model, resume=False) as folder:
        fit_and_judge(dataset, recipe, 2, on_epoch=interrupt, unfinished=folder)
    with unfinished(model, resume=True) as folder:
        found = fit_and_judge(dataset, recipe, 2, unfinished=folder)
    assert found.fit.history == expected.fit.history
    assert found.evaluation is not None
    assert expected.evaluation is not None
    assert found.evaluation.to_plain() == expected.evaluation.to_plain()
    assert not folder_beside(model).exists()


@pytest.mark.parametrize(
    ("recipe", "seed", "problems", "difference"),
    [
        (replace(RECIPE, epochs=30), 7, 20, "epochs 20, not 30"),
        (replace(RECIPE, members=3, weight_decay=0.5), 7, 20, "members 2, not 3, weight_decay 0.02, not 0.5"),
        (RECIPE, 8, 20, "seed 7, not 8"),
        (RECIPE, 7, 21, "other data (--dataset, --split, --folds, filters)"),
    ],
    ids=["epochs", "two", "seed", "data"],
)
def test_a_checkpoint_of_another_fit_is_refused(
    tmp_path: Path, recipe: Recipe, seed: int, problems: int, difference: str
) -> None:
    """The line says in what they differ, and the checkpoint stays."""
    model = tmp_path / "m.pt"
    interrupted(model, pack(learnable(20)), 8)
    with pytest.raises(ModelError) as refused:
        resumed(model, pack(learnable(problems)), recipe, seed)
    path = tmp_path / "m.unfinished" / "final.checkpoint"
    assert str(refused.value) == (
        f"{path}: the interrupted fit had {difference}; repeat its options to continue; --restart starts"
        " from the beginning"
    )
    assert path.exists()


def test_other_times_are_other_data(tmp_path: Path) -> None:
    """A single time that differs is enough."""
    model, packed = tmp_path / "m.pt", pack(learnable(20))
    interrupted(model, packed, 8)
    target = packed.target.clone()
    target[17] += 1e-6
    with pytest.raises(ModelError, match=r"had other data \(--dataset, --split"):
        resumed(model, replace(packed, target=target))


class Trap:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        """Return what unpickling calls."""
        return os.mkdir, ("sprung",)


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "pickle", "another"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    """A cut or foreign file is one line with the remedy, and no code in it runs."""
    monkeypatch.chdir(tmp_path)
    model, packed = tmp_path / "m.pt", pack(learnable(20))
    interrupted(model, packed, 8)
    path = folder_beside(model) / "final.checkpoint"
    if damage == "another":
        torch.save({"weights": torch.zeros(3)}, path)
    else:
        whole = path.read_bytes()
        contents = {"cut": whole[: len(whole) // 2], "empty": b"", "text": b"epochs", "pickle": pickle.dumps(Trap())}
        path.write_bytes(contents[damage])
    with pytest.raises(ModelError) as refused:
        resumed(model, packed)
    assert str(refused.value).startswith(f"{path}: not a whole checkpoint of a fit (")
    assert str(refused.value).endswith("); --restart starts from the beginning")
    assert "\n" not in str(refused.value)
    assert not Path("sprung").exists()


@pytest.mark.parametrize(
    "changed", [{"optimiser": None}, {"network": {}}, {"history": [{"epochs": 3}]}, {"kept": (1,)}], ids=str
)
def test_a_checkpoint_of_another_torch_diode_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    """Also one that claims to be of the same fit, and keeps its state in another way, is one line with the remedy."""
    model, packed = tmp_path / "m.pt", pack(learnable(20))
    interrupted(model, packed, 8)
    path = folder_beside(model) / "final.checkpoint"
    content = torch.load(path, weights_only=True)
    torch.save({**content, "state": {**content["state"], **changed}}, path)
    with pytest.raises(ModelError) as refused:
        resumed(model, packed)
    assert str(refused.value).startswith("the checkpoint of the interrupted fit is of another version of torch-diode (")
    assert str(refused.value).endswith("); --restart starts from the beginning")
    assert "\n" not in str(refused.value)


def test_without_resume_a_fit_starts_from_the_beginning(tmp_path: Path) -> None:
    """What an interrupted run left does not count then, whatever it was of."""
    model = tmp_path / "m.pt"
    interrupted(model, pack(learnable(20)), 8)
    packed = pack(learnable(21))
    with unfinished(model, resume=False) as folder:
        found = fit(packed, RECIPE, seed=1, checkpoint=folder.checkpoint("final", packed, RECIPE, 1, "cpu"))
    assert found.history == fit(packed, RECIPE, seed=1).history
    assert not folder_beside(model).exists()


def test_two_runs_cannot_make_one_model(tmp_path: Path) -> None:
    """The second is told of the first."""
    model = tmp_path / "m.pt"
    with unfinished(model, resume=False), pytest.raises(ModelError) as refused, unfinished(model, resume=True):
        pass
    assert str(refused.value) == (
        f"{tmp_path / 'm.unfinished'}: another diode-train makes this model; wait for it, or give another --name"
    )


def test_a_failure_without_checkpoints_leaves_no_folder(tmp_path: Path) -> None:
    """When there was nothing to go on with, nothing lies about."""
    with pytest.raises(KeyError), unfinished(tmp_path / "m.pt", resume=True):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """A checkpoint that cannot be written ends the fit with the place and the reason."""
    packed = pack(learnable(20))
    with unfinished(tmp_path / "m.pt", resume=False) as folder:
        checkpoint = folder.checkpoint("final", packed, RECIPE, 7, "cpu")
        checkpoint.path = tmp_path / "gone" / "final.checkpoint"
        with pytest.raises(ModelError) as refused:
            fit(packed, RECIPE, seed=7, checkpoint=checkpoint)
    assert str(refused.value) == (
        f"{tmp_path}/gone/final.checkpoint: cannot write a checkpoint (No such file or directory); choose another"
        " --output"
    )


# --- the command

LONG = ("--hardware", "h200", "--folds", "1", "--num-epochs", "150", "--patience", "0", "--model-type", "base")


def start(folder: Path, *options: str, seconds: int = 0, apart: bool = False) -> subprocess.Popen[str]:
    """Start `diode-train` in a process of its own, which keeps its state every few seconds.

    ``apart``: each of its fits runs in another.
    """
    program = (
        "import os, sys; from diode_trainer.training import checkpoints, fits\n"
        "from diode_trainer.commands.train import main\n"
        f"if {apart}: fits._LONG = 0; os.cpu_count = lambda: 2\n"
        f"checkpoints._SECONDS_BETWEEN = {seconds}; main(sys.argv[1:])"
    )
    arguments = (*LONG, "--hidden-dim", "8", "--num-layers", "1", "--output", str(folder / "m.pt"), *options)
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.long
@pytest.mark.parametrize("apart", [False, pytest.param(True, marks=long)], ids=["threads", "processes"])
@pytest.mark.parametrize(
    "how", [signal.SIGKILL, *(pytest.param(number, marks=long) for number in (signal.SIGINT, signal.SIGTERM))]
)
def test_a_command_goes_on_after_it_was_ended(filled: str, tmp_path: Path, how: signal.Signals, *, apart: bool) -> None:
    """Killed or interrupted while it fits, the same command goes on, to the same bytes."""
    ended = start(tmp_path, apart=apart)
    path = tmp_path / "m.unfinished" / "final.checkpoint"
    while not path.exists():
        assert ended.poll() is None, ended.stderr and ended.stderr.read()
        time.sleep(0.01)
    ended.send_signal(how)
    said = ended.communicate()[1]
    assert ended.returncode == (-9 if how is signal.SIGKILL else 130)
    assert not (tmp_path / "m.pt").exists()
    assert how is signal.SIGKILL or said.endswith("interrupted; the same command continues from here\n")
    again = start(tmp_path, apart=apart)
    said = again.communicate()[1]
    assert again.returncode == 0, said
    assert "continuing an interrupted run, which needs the same options; --restart starts from the beginning\n" in said
    assert re.search(r"^fold 1: fitted in \d+ s, \d+ epochs kept\n", said, re.MULTILINE)
    whole = tmp_path / "whole"
    whole.mkdir()
    whole_run = start(whole)
    said = whole_run.communicate()[1]
    assert whole_run.returncode == 0, said
    assert (tmp_path / "m.pt").read_bytes() == (whole / "m.pt").read_bytes()
    assert not path.parent.exists()


@pytest.mark.long
def test_interrupted_before_there_is_a_checkpoint(filled: str, tmp_path: Path) -> None:
    """Ctrl-C as the first epochs run promises nothing, and leaves nothing."""
    ended = start(tmp_path, "--num-epochs", "100000", seconds=1000)
    assert ended.stderr is not None
    while "fitting" not in ended.stderr.readline():
        assert ended.poll() is None
    ended.send_signal(signal.SIGINT)
    said = ended.communicate()[1]
    assert ended.returncode == 130
    assert said.endswith("interrupted before the first checkpoint; nothing was kept\n")
    assert not (tmp_path / "m.unfinished").exists()


def stopped_at_the_lock(model: Path) -> None:
    """Begin a run that Ctrl-C ends as it takes the lock of its folder."""
    with (
        mock.patch.object(checkpoints, "try_lock", side_effect=[KeyboardInterrupt, mock.DEFAULT], wraps=try_lock),
        pytest.raises(KeyboardInterrupt),
        unfinished(model, resume=False),
    ):
        raise AssertionError


def test_interrupted_as_it_takes_the_lock(tmp_path: Path) -> None:
    """Nothing is left of a run that had not begun."""
    stopped_at_the_lock(tmp_path / "m.pt")
    assert list(tmp_path.iterdir()) == []


def test_interrupted_beside_another_process(tmp_path: Path) -> None:
    """The folder in which the other works stays."""
    model = tmp_path / "m.pt"
    with unfinished(model, resume=False):
        stopped_at_the_lock(model)
        assert folder_beside(model).exists()
    assert not folder_beside(model).exists()


def test_notes_about_what_is_left(filled: str, tmp_path: Path, diode: RunCommand) -> None:
    """The command says that it goes on, or that it deletes what is there when asked to."""
    quick = ("--hardware", "h200", "--folds", "0", "--num-epochs", "2", "--model-type", "base", "--force")
    train = ("train", *quick, "--output", str(tmp_path / "m.pt"))
    assert "interrupted" not in diode(*train).err
    interrupted(tmp_path / "m.pt", pack(learnable(20)), 8)
    refused = diode(*train)
    assert refused.code == 1
    assert "the interrupted fit had other data" in refused.err
    assert refused.err.endswith("; repeat its options to continue; --restart starts from the beginning\n")
    assert folder_beside(tmp_path / "m.pt").exists()
    result = diode(*train, "--restart")
    assert result.code == 0
    assert "deleting the checkpoints of an interrupted run\n" in result.err


def test_resume_is_no_part_of_the_recipe(filled: str, tmp_path: Path, diode: RunCommand) -> None:
    """The command on the card makes the model again; how its fit came about is not in it."""
    options = ("--hardware", "h200", "--folds", "0", "--num-epochs", "2", "--restart", "--json")
    result = diode("train", *options, "--output", str(tmp_path / "m.pt"))
    command = artifact.load(json.loads(result.out)["model"]).card.command
    assert "--num-epochs 2" in command
    assert "--restart" not in command
