from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
import torch

from diode_store.errors import ModelError
from diode_trainer import artifact, catalogue
from diode_trainer.judging.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import RunCommand


def copy_model(source: Path, target: Path) -> Path:
    """Copy a checkpoint and its card; return the copy."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    shutil.copy(source.with_suffix(".json"), target.with_suffix(".json"))
    return target


# --- the catalogue


def test_models_are_found_by_name(trained: Path, shipped: Path) -> None:
    """A path, a name and PURPOSE/NAME all find a model; the user's hides the shipped one of its name."""
    copy_model(trained, shipped / trained.parent.name / "quick.pt")
    other = copy_model(trained, shipped / trained.parent.name / "other.pt")
    assert catalogue.find_model("quick") == trained
    assert catalogue.find_model("quick.pt") == trained
    assert catalogue.find_model("matmul_kernel_runtime_prediction/other") == other
    assert catalogue.find_model(str(other)) == other
    assert catalogue.list_models() == [trained, other, shipped / trained.parent.name / "quick.pt"]


def test_no_models() -> None:
    """Where there is none, the remedy is named."""
    assert catalogue.list_models() == []
    with pytest.raises(ModelError, match="known models: none; train one with `diode-train`"):
        catalogue.find_model("quick")


def test_ambiguous_name(trained: Path, shipped: Path) -> None:
    """One name for two purposes has to be told apart."""
    copy_model(trained, shipped / "another_purpose" / "quick.pt")
    with pytest.raises(ModelError, match="'quick' is the name of several models"):
        catalogue.find_model("quick")
    assert catalogue.find_model("another_purpose/quick").parent.name == "another_purpose"


# --- list and show


def test_list(diode: RunCommand, trained: Path) -> None:
    """Each model has a row with what a reader chooses by."""
    (row,) = json.loads(diode("models", "list", "--json").out)
    assert (row["name"], row["purpose"], row["type"]) == ("quick", "matmul_kernel_runtime_prediction", "base")
    assert (row["hardware"], row["problems"], row["path"]) == ("NVIDIA H200", 24, str(trained))


def test_list_goes_on_behind_a_bad_card(diode: RunCommand, trained: Path) -> None:
    """A model without a card is listed with what is wrong, and the others as ever."""
    lonely = trained.with_name("lonely.pt")
    shutil.copy(trained, lonely)
    result = diode("models", "list", "--json")
    rows = {row["name"]: row for row in json.loads(result.out)}
    assert result.code == 0
    assert (rows["lonely"]["hardware"], "card is missing" in rows["lonely"]["error"]) == (None, True)
    assert (rows["quick"]["hardware"], rows["quick"]["error"]) == ("NVIDIA H200", None)
    shown = diode("models", "list")
    assert "card is missing" not in shown.out
    assert shown.err.startswith("error: ")
    assert "lonely.json: the model's card is missing" in shown.err


def test_list_names_models_by_their_files(diode: RunCommand, trained: Path) -> None:
    """The name that is shown is one that commands take."""
    copy_model(trained, trained.with_name("renamed.pt"))
    rows = json.loads(diode("models", "list", "--json").out)
    assert [row["name"] for row in rows] == ["quick", "renamed"]


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("card", "reason"),
    [
        ("[]", "it holds a JSON list, not an object"),
        ("{}", "it has no 'domain'"),
        ('{"domain": 3}', "'int' object is not subscriptable"),
    ],
)
def test_a_card_that_is_none(diode: RunCommand, trained: Path, card: str, reason: str) -> None:
    """JSON that is no card is one line with the reason."""
    path = trained.with_suffix(".json")
    path.write_text(card)
    result = diode("models", "show", "quick")
    expected = f"error: {path}: not a model card ({reason}); train again with `diode-train`\n"
    assert (result.code, result.err) == (1, expected)


def test_list_of_nothing(diode: RunCommand) -> None:
    """Without models a person is told what to do, and a script gets an empty list."""
    assert "train one with `diode-train`" in diode("models", "list").err
    assert json.loads(diode("models", "list", "--json").out) == []


def test_show(diode: RunCommand, trained: Path) -> None:
    """The card, for a person."""
    result = diode("models", "show", "quick")
    assert result.code == 0, result.err
    shown = dict(line.split("  ", 1) for line in result.out.splitlines())
    assert shown["hardware"].strip() == "NVIDIA H200 (sm_90, 132 multiprocessors)"
    assert shown["ops"].strip() == "mm"
    assert shown["made with"].strip().startswith("diode-train --hardware h200 --folds 0 --split problem --name quick")


def test_show_json(diode: RunCommand, trained: Path) -> None:
    """The whole card, for a script."""
    shown = json.loads(diode("models", "show", str(trained), "--json").out)
    assert shown["sha256"] == artifact.load(trained).sha256
    assert shown["domain"]["ops"] == ["mm"]
    assert shown["path"] == str(trained)


def test_show_figures(diode: RunCommand, filled: str) -> None:
    """A model that was judged shows its regret, and on what it was judged."""
    quick = ("--num-epochs", "2", "--hidden-dim", "8", "--num-layers", "1")
    assert diode("train", "--hardware", "h200", "--folds", "2", "--name", "judged", *quick).code == 0
    out = diode("models", "show", "judged").out
    assert "regret, all_choices" in out
    assert "regret, triton_only" in out
    (evaluated,) = [line for line in out.splitlines() if line.startswith("evaluated")]
    assert evaluated.split(maxsplit=1)[1] == "2 folds, a problem in one of them"


def test_show_unknown(diode: RunCommand) -> None:
    """An unknown model is one line and exit status 1."""
    result = diode("models", "show", "none")
    assert (result.code, result.err.count("\n")) == (1, 1)


# --- verify


def test_verify(diode: RunCommand, trained: Path) -> None:
    """A whole model passes."""
    result = diode("models", "verify", "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out) == [{"name": "quick", "result": "ok", "path": str(trained)}]


def test_verify_fails_when_one_fails(diode: RunCommand, trained: Path) -> None:
    """One damaged model among whole ones: exit status 1, each with its own result."""
    bad = copy_model(trained, trained.with_name("bad.pt"))
    bad.write_bytes(bad.read_bytes()[:-20])
    result = diode("models", "verify", "--json")
    assert result.code == 1
    results = {row["name"]: row["result"] for row in json.loads(result.out)}
    assert results["quick"] == "ok"
    assert "damaged, or not the model of its card" in results["bad"]
    assert diode("models", "verify", "quick").code == 0
    assert diode("models", "verify", "bad").code == 1


def test_verify_asks_for_a_prediction(trained: Path) -> None:
    """A model that loads but predicts nonsense is found out."""
    loaded = artifact.load(trained)
    with torch.no_grad():
        loaded.network.out_bias.fill_(1e6)
    artifact.save(trained, loaded.network, loaded.card)
    found = verify(trained)
    assert found is not None
    assert "predicts" in found


def test_verify_of_a_bare_state_dict(trained: Path, tmp_path: Path) -> None:
    """A model without a card is asked about a usual problem."""
    torch.save(artifact.load(trained).network.state_dict(), tmp_path / "bare.pt")
    assert verify(tmp_path / "bare.pt") is None


def test_verify_of_nothing(diode: RunCommand) -> None:
    """Nothing to verify is no failure, and is said."""
    result = diode("models", "verify")
    assert (result.code, result.out) == (0, "")
    assert "no models yet" in result.err
