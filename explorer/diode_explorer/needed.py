"""What the explorer's extra brings."""

from __future__ import annotations

from importlib.util import find_spec

from diode_store.errors import SettingsError


def check_installed(*packages: str) -> None:
    """Check that packages of the extra ``web`` are there.

    Raises:
        SettingsError: some are not.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise SettingsError(f"{', '.join(missing)}: not installed; pip install 'torch-diode[web]'")
