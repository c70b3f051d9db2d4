"""Which models the user prefers to all others, in a file beside them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from diode_store.errors import SettingsError, first_line
from diode_store.files import write_durably
from diode_trainer import catalogue

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_FILE = "defaults.json"
_REMEDY = "set them again with `diode models default NAME`, after removing the file"


def read_defaults(folder: Path) -> tuple[str, ...]:
    """Return the models preferred, as ``PURPOSE/NAME``, the one set last first; none without a file.

    Args:
        folder: of the user's models.

    Raises:
        SettingsError: the file cannot be read, or is none of this kind.
    """
    path = folder / _FILE
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: cannot read the default models ({first_line(error)}); {_REMEDY}") from None
    names = content.get("models") if isinstance(content, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SettingsError(f"{path}: not a list of default models; {_REMEDY}")
    return tuple(names)


def known_defaults() -> tuple[str, ...]:
    """Return the user's, as ``read_defaults`` does.

    Raises:
        SettingsError: likewise.
    """
    return read_defaults(catalogue.user_models_dir())


def write_defaults(folder: Path, names: Sequence[str]) -> None:
    """Replace the models preferred.

    Raises:
        SettingsError: the file cannot be written.
    """
    path = folder / _FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_durably({path: (json.dumps({"models": list(names)}, indent=2) + "\n").encode()}, mode=0o644)
    except OSError as error:
        raise SettingsError(f"{path}: cannot write the default models ({error.strerror or error})") from None
