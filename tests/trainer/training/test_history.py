from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from synthetic import learnable
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from diode_store.errors import ModelError, SettingsError
from diode_trainer.jobs.naming import checked_name
from diode_trainer.jobs.workflow import fit_and_judge
from diode_trainer.training.history import (
    LossAfterEpoch,
    curves,
    histories_of,
    history_path,
    read_history,
    write_history,
)
from diode_trainer.training.recipe import Recipe
from diode_trainer.training.tensorboard import event_files
from diode_trainer.training.train import EpochReport, Fit

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import RunCommand

QUICK = ("--hardware", "h200", "--num-epochs", "6", "--hidden-dim", "8", "--num-layers", "1", "--folds", "2")


def test_history_lies_beside_the_model(filled: str, tmp_path: Path, diode: RunCommand) -> None:
    """Each fit has its curve, and each member; the figures are those of the fits."""
    result = diode("train", *QUICK, "--output", str(tmp_path / "m.pt"), "--json")
    assert json.loads(result.out)["history"] == str(tmp_path / "m.history.json")
    found = read_history(tmp_path / "m.pt")
    assert [history.fit for history in found] == ["final", "fold 1", "fold 2"]
    for history in found:
        assert [report.epoch for report in history.epochs] == [1, 2, 3, 4, 5, 6]
        assert [report.epoch for report in history.epochs if report.validation_loss is not None] == [5, 6]
        assert {len(report.member_training_losses) for report in history.epochs} == {6}
        assert history.epochs_kept in {5, 6}


def test_history_holds_the_fits() -> None:
    """What is kept is what the fits reported, the final one first."""
    result = fit_and_judge(learnable(20), Recipe("base", (8,), epochs=3), 2)
    assert result.evaluation is not None
    histories = histories_of(result.fit, result.evaluation.fits)
    assert [history.epochs for history in histories] == [
        result.fit.history,
        *(fitted.history for fitted in result.evaluation.fits),
    ]


def test_history_survives_its_file(tmp_path: Path) -> None:
    """Six digits of each loss are kept; a member that judges no problem has no loss."""
    reports = (
        EpochReport(1, 9, 1.23456789, None, (1.0, 2.0)),
        EpochReport(2, 9, 0.5, 0.25, (0.5, 0.5), (0.25, float("nan"))),
    )
    fitted = Fit(None, 2, 0.25, reports)  # type: ignore[arg-type]
    write_history(tmp_path / "m.pt", histories_of(fitted))
    (found,) = read_history(tmp_path / "m.pt")
    assert (found.fit, found.epochs_kept) == ("final", 2)
    assert found.epochs == (
        EpochReport(1, 9, 1.23457, None, (1.0, 2.0)),
        EpochReport(2, 9, 0.5, 0.25, (0.5, 0.5), (0.25, None)),  # type: ignore[arg-type]
    )


def test_curves_have_a_point_an_epoch() -> None:
    """With members, a curve for each of several; the only member's is that of the fit."""
    several = Fit(None, 1, 0.5, (EpochReport(1, 1, 2.0, 0.5, (1.0, 3.0), (0.25, 0.75)),))  # type: ignore[arg-type]
    alone = Fit(None, 1, 0.5, (EpochReport(1, 1, 2.0, None, (2.0,)),))  # type: ignore[arg-type]
    histories = histories_of(several, [alone])
    means = [LossAfterEpoch("final", None, 1, 2.0, 0.5), LossAfterEpoch("fold 1", None, 1, 2.0, None)]
    assert list(curves(histories)) == means
    assert list(curves(histories, members=True)) == [
        means[0],
        LossAfterEpoch("final", 1, 1, 1.0, 0.25),
        LossAfterEpoch("final", 2, 1, 3.0, 0.75),
        means[1],
    ]


def test_a_missing_history(tmp_path: Path) -> None:
    """Of a model without one, a line says so."""
    with pytest.raises(ModelError) as refused:
        read_history(tmp_path / "m.pt")
    assert str(refused.value) == (
        f"{tmp_path}/m.history.json: the model has no history; `diode-train` writes one with each model"
    )


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"version": 1, "fits": [{}]}', '{"version": 1, "fits": 3}', '{"version": 2, "fits": []}'],
)
def test_a_damaged_history(tmp_path: Path, content: str) -> None:
    """What is no history is said to be none, in one line."""
    history_path(tmp_path / "m.pt").write_text(content)
    with pytest.raises(ModelError, match=r"m\.history\.json: not a history of fits \(.+\); train again$"):
        read_history(tmp_path / "m.pt")


def test_a_model_cannot_be_called_as_a_history_is() -> None:
    """Its card would be the other model's history."""
    with pytest.raises(SettingsError, match=r"'m\.history' is not a valid model name; \.history is the ending"):
        checked_name("m.history")


# --- TensorBoard


def test_tensorboard_is_told_of_each_epoch(filled: str, tmp_path: Path, diode: RunCommand) -> None:
    """Asked for, each fit has event files with its losses and its members'."""
    result = diode("train", *QUICK, "--output", str(tmp_path / "m.pt"), "--tensorboard", str(tmp_path / "runs"))
    assert result.code == 0, result.err
    fits = {history.fit.replace(" ", "-"): history for history in read_history(tmp_path / "m.pt")}
    assert {folder.name for folder in (tmp_path / "runs" / "m").iterdir()} == set(fits)
    for name, history in fits.items():
        events = EventAccumulator(str(tmp_path / "runs" / "m" / name)).Reload()
        training = [(event.step, event.value) for event in events.Scalars("loss/training")]
        assert [step for step, _ in training] == [1, 2, 3, 4, 5, 6]
        assert [value for _, value in training] == pytest.approx([r.training_loss for r in history.epochs], rel=1e-5)
        assert [event.step for event in events.Scalars("loss/validation")] == [5, 6]
        assert [event.step for event in events.Scalars("validation loss of members/6")] == [5, 6]


def test_tensorboard_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package, one line says how to get it."""
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(SettingsError) as refused, event_files(tmp_path, "m"):
        pass
    assert str(refused.value) == ("--tensorboard needs the package tensorboard: pip install 'torch-diode[tensorboard]'")


def test_tensorboard_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """A file in the way is said in one line."""
    (tmp_path / "runs").write_text("")
    with (
        pytest.raises(SettingsError, match="runs/here: cannot write there"),
        event_files(tmp_path / "runs" / "here", "m"),
    ):
        pass


# --- pictures


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("name", "begins"), [("losses.png", b"\x89PNG"), ("losses.svg", b"<svg"), ("new/l.SVG", b"<svg")]
)
def test_history_is_drawn(filled: str, tmp_path: Path, diode: RunCommand, name: str, begins: bytes) -> None:
    """Asked for, the losses of each fit are a picture, in the format that its name says."""
    options = ("--output", str(tmp_path / "m.pt"), "--history-picture", str(tmp_path / name))
    result = diode("train", *QUICK, *options)
    assert result.code == 0, result.err
    assert f"picture: {tmp_path / name}\n" in result.err
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_a_stored_history_is_shown_and_drawn(filled: str, tmp_path: Path, diode: RunCommand) -> None:
    """`diode models history` has the losses that were kept, all of them for scripts, and a picture when asked."""
    diode("train", *QUICK, "--output", str(tmp_path / "m.pt"))
    result = diode("models", "history", str(tmp_path / "m.pt"), "--picture", str(tmp_path / "losses.svg"))
    assert result.code == 0, result.err
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[0] == ["fit", "epoch", "training_loss", "validation_loss"]
    assert [line[0] for line in lines[1:]] == ["final", "fold", "fold"]
    assert b"held out" in (tmp_path / "losses.svg").read_bytes()
    shown = json.loads(diode("models", "history", str(tmp_path / "m.pt"), "--json").out)
    assert len(shown) == 3 * 6 * (1 + 6)
    assert shown[0]["training_loss"] == read_history(tmp_path / "m.pt")[0].epochs[0].training_loss


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("losses.gif", "losses.gif: a picture ends in .png or .svg"),
        ("file/losses.png", "file is not a folder, so no pic"),
    ],
)
def test_a_picture_that_cannot_be_drawn(
    filled: str, tmp_path: Path, diode: RunCommand, name: str, message: str
) -> None:
    """It is refused before anything is fitted."""
    (tmp_path / "file").write_text("")
    options = ("--output", str(tmp_path / "m.pt"), "--history-picture", str(tmp_path / name))
    result = diode("train", *QUICK, *options)
    assert (result.code, result.out) == (1, "")
    assert message in result.err
    assert not (tmp_path / "m.pt").exists()
