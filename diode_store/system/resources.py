"""Locate the files that ship with torch-diode: migrations, trained models, bundled measurements.

A wheel carries them inside the packages. An editable install copies them once and the copies go stale, so in a
checkout (recognized by its pyproject.toml) the checkout's own folders are used. Nothing here imports another package.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from diode_store.errors import DiodeError

_LEVELS_TO_CHECKOUT = 3


def migrations_dir() -> Path:
    """Return the folder with Alembic's ``env.py`` and ``versions/``.

    Raises:
        DiodeError: the installation is incomplete.
    """
    return _resource("diode_store", "_migrations", "migrations")


def trained_models_dir() -> Path:
    """Return the folder of the shipped models: ``<purpose>/<name>.pt`` with a ``.json`` card beside each.

    Raises:
        DiodeError: the installation is incomplete.
    """
    return _resource("diode_integration", "_trained_models", "trained_models")


def bundled_data_dir() -> Path:
    """Return the folder of the shipped measurements, sealed spool segments.

    Raises:
        DiodeError: the installation is incomplete.
    """
    return _resource("diode_collectors", "data", "collectors/diode_collectors/data")


def _resource(package: str, packaged: str, in_checkout: str) -> Path:
    home = _package_folder(package)
    if (home / packaged).is_dir():
        return home / packaged
    for parent in list(home.parents)[:_LEVELS_TO_CHECKOUT]:
        if (parent / "pyproject.toml").is_file() and (parent / in_checkout).is_dir():
            return parent / in_checkout
    raise DiodeError(f"{package}/{packaged} is not installed; reinstall torch-diode with `pip install torch-diode`")


def _package_folder(package: str) -> Path:
    """Return a top-level package's folder; finding it does not import it."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise DiodeError(f"{package} is not installed; reinstall torch-diode with `pip install torch-diode`")
    return Path(next(iter(spec.submodule_search_locations)))
