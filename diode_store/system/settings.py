"""The folders and the warehouse that every command uses, and where each setting comes from."""

from __future__ import annotations

import contextlib
import os
import shlex
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from diode_store.errors import DatabaseError, SettingsError
from diode_store.system.files import bounded, expanded
from diode_store.system.urls import has_password, is_url, redact, sqlite_path

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

APP_NAME = "torch-diode"
DATABASE_VARIABLE = "DIODE_DATABASE_URL"
CONFIG_VARIABLE = "DIODE_CONFIG"
FILE_NAME = "diode-ingest.toml"
_OTHERS = 0o077


@dataclass(frozen=True)
class Settings:
    """The folders of torch-diode; ``default_database_url`` finds the warehouse."""

    spool_dir: Path
    """``DIODE_SPOOL``: folder in which collectors leave their records for ``diode-ingest``."""
    cache_dir: Path | None
    """``DIODE_CACHE``: folder of the cache that queries read; None means beside the database."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read ``environment`` (``os.environ`` unless given); an empty variable counts as unset.

        Raises:
            SettingsError: a variable has a value that cannot be used.
        """
        values = os.environ if environment is None else environment
        cache = values.get("DIODE_CACHE")
        return cls(
            spool_dir=_folder("DIODE_SPOOL", values.get("DIODE_SPOOL") or str(own_spool_dir(data_dir()))),
            cache_dir=_cache_dir(cache) if cache else None,
        )


def data_dir() -> Path:
    """Return the user's data folder for torch-diode; it need not exist yet."""
    from platformdirs import user_data_path

    return user_data_path(APP_NAME)


def default_database_url() -> str:
    """Return the address of the warehouse that every command uses unless ``--database`` names another one.

    ``DIODE_DATABASE_URL``, else ``database`` in the settings file, else an SQLite file in the user's data folder.

    Raises:
        SettingsError: the settings file cannot be read, or its ``database`` is not an address.
    """
    named = os.environ.get(DATABASE_VARIABLE)
    file = None if named else settings_file()
    found = read_settings_file(file).get("database") if file else None
    if named or found is None:
        return named or own_database_url()
    try:
        return database_address(found)
    except ValueError as error:
        raise SettingsError(f"{file}: database {error}") from None


def own_database_url() -> str:
    """Return the address of the SQLite file in the user's data folder."""
    return f"sqlite:///{own_database_file(data_dir())}"


def own_database_file(data: Path) -> Path:
    """Return the warehouse of the user with this data folder."""
    return data / "warehouse.db"


def own_spool_dir(data: Path) -> Path:
    """Return the spool of the user with this data folder."""
    return data / "spool"


def default_settings_file() -> Path:
    """Return the settings file that is read when none is named; it need not exist."""
    from platformdirs import user_config_path

    return user_config_path(APP_NAME) / FILE_NAME


def settings_file(named: Path | None = None) -> Path | None:
    """Return the settings file to read: ``named``, else that of ``DIODE_CONFIG``, else the user's own if it exists."""
    if named is not None:
        return named
    if variable := os.environ.get(CONFIG_VARIABLE):
        return expanded(variable, SettingsError)
    own = default_settings_file()
    try:
        return own if own.is_file() else None
    except PermissionError:  # HOME is still that of another user, as under `setpriv`; its content is not ours
        return None


def read_settings_file(path: Path) -> dict[str, object]:
    """Return what a settings file holds, unchecked but for its database's password.

    Raises:
        SettingsError: the file cannot be read, is not TOML, or holds a password and is readable by others.
    """
    import tomllib

    try:
        with path.open("rb") as file:
            is_open = others_may_read(file)
            found = tomllib.loads(bounded(file).decode())
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}; name another settings file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: this is not TOML: {error}") from error
    except RecursionError:
        raise SettingsError(f"{path}: this is nested too deep; write each setting as NAME = VALUE") from None
    if has_password(str(found.get("database", ""))) and is_open:
        raise SettingsError(
            f"{path}: database holds a password, and others may read the file; run `chmod 600 {path}`, or put the "
            "password in ~/.pgpass"
        )
    return found


def others_may_read(file: IO[Any]) -> bool:
    """Return whether the mode of an open file gives access to anyone but its owner."""
    return bool(os.fstat(file.fileno()).st_mode & _OTHERS)


def database_address(value: object) -> str:
    """Return the address of a warehouse as a settings file or an option has it, a path without a tilde.

    Raises:
        ValueError: ``value`` is no address; the message does not repeat it, because it may contain a password.
    """
    text = value if isinstance(value, str) and "\0" not in value else ""
    try:
        path = sqlite_path(text)
    except DatabaseError:
        raise ValueError("must be a URL, or the path of an SQLite file") from None
    return text if path is None or is_url(text) else str(path)


def upgrade_command(database: str) -> str:
    """Return the command, in backquotes, that creates or upgrades ``database``, an address fit for messages.

    The command names the database unless it would be used anyway.
    """
    used = ""
    with contextlib.suppress(SettingsError):
        used = default_database_url()
    is_used = database in (used, used.removeprefix("sqlite:///"))
    return f"`diode db upgrade{'' if is_used else database_option(database)}`"


def database_option(database: str) -> str:
    """Return the option that names ``database``, to append to a command in a message.

    The option is empty for an address with a hidden password: the command finds such an address in the environment.
    """
    return "" if "***" in database else f" --database {shlex.quote(database)}"


def _cache_dir(text: str) -> Path:
    if is_url(text):
        raise SettingsError(f"DIODE_CACHE: {redact(text)} is a URL; name a folder on this machine")
    return _folder("DIODE_CACHE", text)


def _folder(name: str, text: str) -> Path:
    return expanded(text, lambda said: SettingsError(f"{name}: {said}"))
