"""``diode models default`` and ``diode models rm``."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from diode_trainer import catalogue

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import RunCommand

PURPOSE = "matmul_kernel_runtime_prediction"


@pytest.fixture
def other(trained: Path) -> Path:
    """Return a second model of the user's, ``other``, beside ``quick``."""
    for path in (trained, trained.with_suffix(".json")):
        shutil.copy(path, path.with_name(f"other{path.suffix}"))
    return trained.with_name("other.pt")


def listed(diode: RunCommand) -> list[tuple[str, str | None]]:
    """Return the names that are listed, and what is said of defaults."""
    return [(row["name"], row["default"]) for row in json.loads(diode("models", "list", "--json").out)]


def test_a_default_is_asked_first(diode: RunCommand, trained: Path, other: Path) -> None:
    """The one set last comes first, in the list too; what is taken back no longer counts."""
    assert "no default model" in diode("models", "default").err
    for name, expected in (("quick", [f"{PURPOSE}/quick"]), ("other.pt", [f"{PURPOSE}/other", f"{PURPOSE}/quick"])):
        result = diode("models", "default", name, "--json")
        assert (result.code, json.loads(result.out)) == (0, expected)
    assert listed(diode) == [("other", "yes"), ("quick", "yes")]
    assert json.loads(diode("models", "default", f"{PURPOSE}/other", "--unset", "--json").out) == [f"{PURPOSE}/quick"]
    assert listed(diode) == [("quick", "yes"), ("other", None)]
    assert diode("models", "default", "--unset").code == 0
    assert catalogue.known_defaults() == ()


def test_a_default_that_is_gone_can_be_taken_back(diode: RunCommand, trained: Path) -> None:
    """Whoever removed the files by hand is not left with the name."""
    catalogue.write_defaults(catalogue.user_models_dir(), [f"{PURPOSE}/gone"])
    assert json.loads(diode("models", "default", "gone", "--unset", "--json").out) == []


@pytest.mark.parametrize("name", ["nope", "{alone}"], ids=["unknown", "elsewhere"])
def test_only_a_known_model_can_be_the_default(diode: RunCommand, trained: Path, tmp_path: Path, name: str) -> None:
    """Not an unknown one, and not one that lies elsewhere, which nothing would find."""
    alone = shutil.copy(trained, tmp_path / "alone.pt")
    result = diode("models", "default", name.format(alone=alone))
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "`diode models list`" in result.err or "known models: quick" in result.err
    assert catalogue.known_defaults() == ()


def test_damaged_defaults(diode: RunCommand, trained: Path) -> None:
    """Models are not listed in an order that the user did not ask for; --unset mends the file."""
    (catalogue.user_models_dir() / "defaults.json").write_text("{")
    result = diode("models", "list")
    assert (result.code, "cannot read the default models" in result.err) == (1, True)
    assert diode("models", "default", "--unset").code == 0
    assert listed(diode) == [("quick", None)]


def test_rm(diode: RunCommand, trained: Path, other: Path) -> None:
    """A model goes with its card, its history and its place among the defaults; the others stay."""
    diode("models", "default", "quick")
    dry = diode("models", "rm", "quick", "--dry-run")
    assert dry.code == 0
    assert dry.err.startswith(f"would remove quick: {trained}, {trained.with_suffix('.json')}, ")
    assert trained.exists()
    result = diode("models", "rm", "quick")
    assert (result.code, result.err) == (0, dry.err.replace("would remove", "removed"))
    assert sorted(path.name for path in trained.parent.iterdir()) == ["other.json", "other.pt"]
    assert catalogue.known_defaults() == ()


def test_rm_refuses_what_is_not_the_users(diode: RunCommand, trained: Path, shipped: Path) -> None:
    """A shipped model stays, an unknown one is an error; and of several names nothing is removed if one is wrong."""
    shutil.copytree(trained.parent, shipped / PURPOSE)
    (shipped / PURPOSE / "quick.pt").rename(shipped / PURPOSE / "ships.pt")
    for name, words in (("ships", "not one of your own models"), ("nope", "no model 'nope'")):
        result = diode("models", "rm", "quick", name)
        assert (result.code, words in result.err) == (1, True)
    assert trained.exists()


def test_rm_of_a_link_removes_the_link(diode: RunCommand, trained: Path, tmp_path: Path) -> None:
    """Also of one that leads nowhere; a folder is no model."""
    for name, target in (("linked", trained), ("broken", tmp_path / "gone.pt")):
        trained.with_name(f"{name}.pt").symlink_to(target)
        result = diode("models", "rm", name)
        assert (result.code, result.err.startswith(f"removed {name}: ")) == (0, True)
    assert trained.exists()
    trained.with_name("folder.pt").mkdir()
    result = diode("models", "rm", "folder")
    assert (result.code, "no model 'folder'" in result.err, result.err.count("\n")) == (1, True, 1)
    for other in (trained.with_suffix(".json"), catalogue.user_models_dir() / "defaults.json"):
        other.touch()
        assert diode("models", "rm", str(other)).code == 1
        assert other.exists()


def test_damaged_defaults_remove_nothing(diode: RunCommand, trained: Path) -> None:
    """They are read first."""
    (catalogue.user_models_dir() / "defaults.json").write_text("{")
    assert diode("models", "rm", "quick").code == 1
    assert trained.exists()
