"""Where things are and what is logged: one frozen ``Settings`` from the ``DIODE_*`` variables."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from diode_store.errors import SettingsError
from diode_store.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Mapping

APP_NAME = "torch-diode"
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@dataclass(frozen=True)
class Settings:
    """Every setting of torch-diode."""

    database_url: str
    """``DIODE_DATABASE_URL``: URL, or path of an SQLite file."""
    spool_dir: Path
    """``DIODE_SPOOL``: folder in which collectors leave their records for ``diode-ingest``."""
    lake_dir: Path | str | None
    """``DIODE_LAKE``: folder or URL of the Parquet copy that queries read; None means beside the database."""
    log_level: str
    """``DIODE_LOG_LEVEL``: one of ``LOG_LEVELS``."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read ``environment`` (``os.environ`` unless given); an empty variable counts as unset.

        Raises:
            SettingsError: a variable has a value that cannot be used.
        """
        values = os.environ if environment is None else environment
        lake = values.get("DIODE_LAKE")
        return cls(
            database_url=values.get("DIODE_DATABASE_URL") or default_database_url(),
            spool_dir=_folder("DIODE_SPOOL", values.get("DIODE_SPOOL") or str(data_dir() / "spool")),
            lake_dir=(lake if is_url(lake) else _folder("DIODE_LAKE", lake)) if lake else None,
            log_level=_log_level(values.get("DIODE_LOG_LEVEL") or "INFO"),
        )


def data_dir() -> Path:
    """Return the user's data folder for torch-diode; it need not exist yet."""
    from platformdirs import user_data_path

    return user_data_path(APP_NAME)


def default_database_url() -> str:
    """Return the address of the warehouse in the user's data folder."""
    return f"sqlite:///{data_dir() / 'warehouse.db'}"


def upgrade_command(database: str) -> str:
    """Return the command, in backquotes, that creates or upgrades ``database``, an address fit for messages.

    The command names the database unless it would be taken anyway.
    """
    taken = os.environ.get("DIODE_DATABASE_URL") or default_database_url()
    is_taken = database in (taken, taken.removeprefix("sqlite:///"))
    return f"`diode db upgrade{'' if is_taken else database_option(database)}`"


def database_option(database: str) -> str:
    """Return the option that names ``database``, an address fit for messages, behind a command that a message names.

    An address with a hidden password cannot be named: it stands in the environment, where the command finds it too.
    """
    return "" if "***" in database else f" --database {shlex.quote(database)}"


def _folder(name: str, text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise SettingsError(f"{name} names the home of a user who does not exist: {text!r}; give a path") from error


def _log_level(text: str) -> str:
    level = text.upper()
    if level not in LOG_LEVELS:
        raise SettingsError(f"DIODE_LOG_LEVEL must be one of {', '.join(LOG_LEVELS)}, not {text!r}")
    return level
