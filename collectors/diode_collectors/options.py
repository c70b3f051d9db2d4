"""Options that several of the collectors' commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diode_store.settings import Settings


def _default_spool() -> Path:
    return Settings.from_environment().spool_dir


SpoolOption = Annotated[
    Path,
    typer.Option(
        "--spool",
        metavar="DIR",
        envvar="DIODE_SPOOL",
        help="The spool: the folder where collectors leave their records.",
        default_factory=_default_spool,
        show_default="spool in your data folder",
    ),
]
"""``--spool``, else ``DIODE_SPOOL``, else the user's own spool. Takes no default in the signature."""
