"""The systemd unit that ships, with an operator's own paths in it."""

from __future__ import annotations

import re
import sys
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from diode_store.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAME = "diode-ingest.service"
_PLAIN_PATH = re.compile(r"/[\w./+@=,-]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def unit_text(program: Path, config: Path, user: str, writes: Iterable[Path]) -> str:
    """Return the unit file.

    Args:
        program: ``diode-ingest`` itself.
        config: its settings file.
        user: whose process it is.
        writes: the folders it writes.

    Raises:
        SettingsError: a path or name that a unit file cannot hold as it is.
    """
    if not _USER.fullmatch(user):
        raise SettingsError(f"{user!r} is no user's name; name one with --user")
    folders = " ".join(_fit(path) for path in dict.fromkeys(writes))
    lines = {
        "User=": f"User={user}",
        "ExecStart=": f"ExecStart={_fit(program)} run --config {_fit(config)}",
        "ReadWritePaths=": f"ReadWritePaths={folders}",
    }
    template = files("diode_collectors.ingest").joinpath("systemd", _NAME).read_text(encoding="utf-8")
    text = [
        next((new for start, new in lines.items() if line.startswith(start)), line) for line in template.split("\n")
    ]
    return "\n".join(text)


def program_path() -> Path:
    """Return the path of the ``diode-ingest`` that belongs to this Python."""
    return Path(sys.executable).absolute().with_name("diode-ingest")


def _fit(path: Path) -> str:
    """Return ``path`` as a unit file has it; one with blanks, quotes or ``%`` would mean something else there."""
    text = str(path.expanduser().absolute())
    if not _PLAIN_PATH.fullmatch(text):
        raise SettingsError(f"{text}: a unit file cannot hold this path as it is; use one without blanks or signs")
    return text
