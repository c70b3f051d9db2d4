"""`import torch_diode`: models in by importing, and never an import that fails."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from diode_integration import install
from diode_store.resources import trained_models_dir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

    from conftest import SaveModel
    from diode_integration.base import IntegrationRegistry

SHIPPED = any(trained_models_dir().rglob("*.pt"))


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


@pytest.fixture
def torch_diode(
    monkeypatch: pytest.MonkeyPatch, registered: IntegrationRegistry, models_folder: Path
) -> Iterator[ModuleType]:
    """Return the package, imported without its effect."""
    monkeypatch.setenv("DIODE_DISABLE", "1")
    sys.modules.pop("torch_diode", None)
    import torch_diode

    yield torch_diode
    torch_diode.uninstall()
    sys.modules.pop("torch_diode", None)


@pytest.mark.skipif(not SHIPPED, reason="no model is shipped yet")
def test_import_installs_the_shipped_model() -> None:
    """After the import, in a fresh process, the handler with the shipped model is every thread's."""
    finished = run(
        "import warnings; warnings.simplefilter('error', UserWarning)\n"
        "import torch_diode\n"
        "from torch._inductor.virtualized import V\n"
        "print(*torch_diode.get_integration_status().values())\n"
        "print(V.choices.uuid().split('/')[0], torch_diode.get_stats()['total_calls'])\n"
        "torch_diode.uninstall()\n"
        "print(type(V.choices).__name__, torch_diode.get_stats())\n"
    )
    assert finished.stderr == ""
    state, hooked, stock = finished.stdout.splitlines()
    assert state.startswith("engaged ")
    assert (hooked, stock) == ("torch-diode 0", "InductorChoices {}")


def test_disabled_import_does_nothing() -> None:
    """With DIODE_DISABLE=1 the import installs nothing and does not even load Inductor."""
    code = "import sys, torch_diode; print('torch' in sys.modules, 'diode_integration' in sys.modules)"
    finished = run(code, DIODE_DISABLE="1")
    assert (finished.stdout, finished.stderr) == ("False False\n", "")


@pytest.mark.parametrize("value", ["", "0"])
def test_only_one_disables(value: str) -> None:
    """Any other value of DIODE_DISABLE leaves the import its effect."""
    finished = run("import torch_diode; print(torch_diode.get_integration_status() != {})", DIODE_DISABLE=value)
    assert finished.stdout == "True\n"


def test_import_survives_what_it_cannot_use() -> None:
    """When Inductor cannot be imported, the import of torch_diode warns in one line and goes on."""
    finished = run(
        "import sys\nsys.modules['torch._inductor.choices'] = None\nimport torch_diode\nprint('still running')\n"
    )
    assert (finished.returncode, finished.stdout) == (0, "still running\n")
    assert finished.stderr.count("TorchDiodeWarning: torch-diode chooses no kernels: ") == 1


def test_install_takes_the_shipped_model(torch_diode: ModuleType, save_model: SaveModel) -> None:
    """What the import does installs the handler and says that a model chooses now."""
    save_model("v1")
    assert torch_diode.install() is True
    handler = install.installed()
    assert handler is not None
    assert handler.model is not None
    assert handler.model.card.name == "v1"
    assert torch_diode.get_stats()["total_calls"] == 0


def test_install_twice_is_harmless(torch_diode: ModuleType, save_model: SaveModel) -> None:
    """Installing again leaves one handler, which one uninstall removes."""
    save_model("v1")
    assert [torch_diode.install(), torch_diode.install()] == [True, True]
    torch_diode.uninstall()
    assert install.installed() is None
    assert torch_diode.get_stats() == {}


def test_install_without_a_model_warns(torch_diode: ModuleType) -> None:
    """Without a model there is one warning, which says why, and nothing is installed."""
    with pytest.warns(torch_diode.TorchDiodeWarning, match="chooses no kernels: .*there is no model for") as warned:
        assert torch_diode.install() is False
    assert len(warned) == 1
    assert install.installed() is None


def test_install_without_the_hook_warns(
    torch_diode: ModuleType, save_model: SaveModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a torch without the hook there is a warning that says which torch it takes."""
    save_model("v1")
    monkeypatch.setattr(install, "InductorChoices", object)
    with pytest.warns(torch_diode.TorchDiodeWarning, match=r"needs torch 2\.10 or later"):
        assert torch_diode.install() is False
