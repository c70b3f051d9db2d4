from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from diode_store.errors import DiodeError
from diode_store.system import resources

CHECKOUT = Path(__file__).parents[2]


def test_resources_of_a_checkout() -> None:
    """In a checkout the checkout's own folders are used, not copies that go stale."""
    assert resources.migrations_dir() == CHECKOUT / "migrations"
    assert resources.trained_models_dir() == CHECKOUT / "trained_models"
    assert resources.bundled_data_dir() == CHECKOUT / "collectors" / "diode_collectors" / "data"


def test_packaged_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel's folder inside the package is used where there is one."""
    packaged = tmp_path / "some_package" / "_migrations"
    packaged.mkdir(parents=True)
    (tmp_path / "some_package" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert resources._resource("some_package", "_migrations", "migrations") == packaged


def test_incomplete_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package without its files, or none at all, is an installation to be repeated."""
    (tmp_path / "bare_package").mkdir()
    (tmp_path / "bare_package" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DiodeError, match="bare_package/_migrations is not installed; reinstall"):
        resources._resource("bare_package", "_migrations", "migrations")
    with pytest.raises(DiodeError, match="no_such_package is not installed; reinstall"):
        resources._resource("no_such_package", "_migrations", "migrations")


def test_other_packages_are_not_imported() -> None:
    """Finding the models does not import the package that has them, and with it torch."""
    code = (
        "import sys; from diode_store.system import resources; resources.trained_models_dir();"
        "resources.bundled_data_dir();"
        "print(*sorted({'torch', 'diode_integration', 'diode_collectors'} & set(sys.modules)))"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout.split() == []
