"""A check for the packages of the explorer's extra."""

from __future__ import annotations

from importlib.util import find_spec

from diode_store.errors import SettingsError


def check_installed(*packages: str) -> None:
    """Check that packages of the extra ``web`` are installed.

    Raises:
        SettingsError: some are missing.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise SettingsError(f"{', '.join(missing)} {are} not installed; run pip install 'torch-diode[web]'")
