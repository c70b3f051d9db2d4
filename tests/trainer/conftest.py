"""Fixtures of the trainer's tests: a warehouse with something to learn, models, and the commands in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from saved_models import CARD, small_network
from synthetic import MM, learnable, measurement_of

from diode_trainer import artifact, catalogue
from diode_trainer.judging.baselines import trees

if TYPE_CHECKING:
    from conftest import RunCommand
    from diode_store.warehouse.store import Store
    from diode_trainer.models import TimingNetwork


@pytest.fixture
def filled(store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a warehouse with 24 learnable problems; commands use it unless told otherwise."""
    store.write(measurement_of(i, example) for i, example in enumerate(learnable(24)))
    monkeypatch.setenv("DIODE_DATABASE_URL", database_url)
    return database_url


@pytest.fixture(autouse=True)
def shipped(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder that is taken for the one of the shipped models."""
    folder = tmp_path_factory.mktemp("shipped")
    monkeypatch.setattr(catalogue, "trained_models_dir", lambda: folder)
    return folder


@pytest.fixture(autouse=True)
def _few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the baseline of boosted trees enough rounds for these problems; all take half of the commands' time."""
    monkeypatch.setattr(trees, "_ROUNDS", 40)


QUICK = ("--num-epochs", "5", "--hidden-dim", "8", "--num-layers", "1", "--model-type", "base")


@pytest.fixture
def trained(filled: str, diode: RunCommand) -> Path:
    """Return the checkpoint of a quickly trained model, called ``quick``."""
    result = diode("train", "--hardware", "h200", "--folds", "0", "--name", "quick", *QUICK, "--json")
    assert result.code == 0, result.err
    return Path(json.loads(result.out)["model"])


@pytest.fixture
def network() -> TimingNetwork:
    """Return a small network."""
    return small_network()


@pytest.fixture
def saved(network: TimingNetwork, tmp_path: Path) -> Path:
    """Return its checkpoint, saved with its card."""
    path = tmp_path / "small.pt"
    artifact.save(path, network, CARD, trained_on=[MM])
    return path
