"""Fixtures of the hook's tests: real artifacts in a folder of models."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

import pytest
import torch

from diode_integration import base, registry
from diode_trainer import artifact, catalogue
from diode_trainer.features import CONFIG_FEATURES, FEATURE_VERSION, PROBLEM_FEATURES
from diode_trainer.models import MatmulTimingModel
from stand_ins import DOMAIN, card_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType


class SaveModel(Protocol):
    """Saves an untrained model and its card under a folder of models."""

    def __call__(self, name: str = "v1", **card: Any) -> Path:
        """Return the checkpoint."""


@pytest.fixture
def models_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder that is taken for the one of the shipped models."""
    folder = tmp_path / "trained_models"
    folder.mkdir()
    for module in (base, catalogue, registry):
        monkeypatch.setattr(module, "trained_models_dir", lambda: folder)
    return folder


@pytest.fixture
def save_model(models_folder: Path) -> SaveModel:
    """Return a function that saves real artifacts; equal names give equal weights."""

    def save(name: str = "v1", **card: Any) -> Path:
        torch.manual_seed(sum(name.encode()))
        network = MatmulTimingModel(len(PROBLEM_FEATURES), len(CONFIG_FEATURES), (8,))
        path = models_folder / "matmul_kernel_runtime_prediction" / f"{name}.pt"
        blank = card_of(DOMAIN)
        fields = {**vars(blank), "name": name, "feature_version": FEATURE_VERSION, **card}
        artifact.save(path, network, type(blank)(**fields))
        return path

    return save


@pytest.fixture
def registered() -> Iterator[base.IntegrationRegistry]:
    """Return the process's registry of integrations, empty, and empty it again."""
    base._registry._entries.clear()
    yield base._registry
    base.withdraw_all()
    base._registry._entries.clear()


@pytest.fixture
def torch_diode(
    monkeypatch: pytest.MonkeyPatch, registered: base.IntegrationRegistry, models_folder: Path
) -> Iterator[ModuleType]:
    """Return the package, imported without its effect; the folder of models is empty."""
    monkeypatch.setenv("DIODE_DISABLE", "1")
    sys.modules.pop("torch_diode", None)
    import torch_diode

    yield torch_diode
    torch_diode.uninstall()
    sys.modules.pop("torch_diode", None)


@pytest.fixture(autouse=True)
def _leaves_no_handler() -> Iterator[None]:
    """Check that a test leaves Inductor as it was; the next one would be told that a user's class is replaced."""
    yield
    from torch._inductor import config

    entry = config._config["inductor_choices_class"]
    assert (entry.default, config.inductor_choices_class) == (None, None)
