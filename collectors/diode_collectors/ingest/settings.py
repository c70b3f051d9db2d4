"""The settings of ``diode-ingest``: a TOML file, the environment over it, and the command line over both."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from diode_store.errors import SettingsError
from diode_store.settings import APP_NAME, LOG_LEVELS, Settings
from diode_store.urls import has_password, is_url, sqlite_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FILE_NAME = "diode-ingest.toml"
CONFIG_VARIABLE = "DIODE_CONFIG"
LOG_FORMATS = ("text", "json")
OFF = "off"
MIB = 2**20
_MOST_PORT = 65535
_MOST_S = 1e9
_FOLDERS = "a folder or a list of folders"
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}(?:%[A-Za-z0-9._-]+)?\]")
_OTHERS = 0o077


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return it as it is written in settings."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


DEFAULT_LISTEN = Address("127.0.0.1", 19464)


@dataclass(frozen=True)
class DaemonSettings:
    """Every setting of ``diode-ingest``; the names are the keys of the file."""

    database: str
    """The warehouse: a URL, or the path of an SQLite file."""
    spool: tuple[Path, ...]
    """The spools."""
    group: str | None = None
    """The group that shares the spools; None for a spool of one user."""
    poll_interval_s: float = 1.0
    """Longest time from one look into a spool to the next; a change of the folder is seen sooner."""
    backoff_first_s: float = 0.5
    """Longest wait after the first failure; it doubles with each further one."""
    backoff_most_s: float = 30.0
    """Longest wait at all."""
    listen: Address | None = DEFAULT_LISTEN
    """Where health, readiness and metrics are served; None for nowhere."""
    hang_after_s: float = 300.0
    """After how long without a sign of life the daemon counts as hung."""
    min_free_bytes: int = 512 * MIB
    """How much must be free on the file systems of the warehouse and the spools."""
    quarantine_bytes: int = 256 * MIB
    """How large a quarantine may grow."""
    log_level: str = "INFO"
    """From which level upwards is logged."""
    log_format: str = "text"
    """``text`` (key=value) or ``json`` (an object a line)."""


def default_config() -> Path:
    """Return the settings file that is read when none is named; it need not exist."""
    from platformdirs import user_config_path

    return user_config_path(APP_NAME) / FILE_NAME


def file_read(config: Path | None) -> Path | None:
    """Return the settings file that ``load`` reads: ``config``, else the user's own, if there is one."""
    if config is not None:
        return config
    own = default_config()
    try:
        return own if own.is_file() else None
    except PermissionError:  # HOME is still that of another user, as under `setpriv`; what is in there is not ours
        return None


def load(given: Mapping[str, object], config: Path | None) -> DaemonSettings:
    """Return the settings: what is ``given``, else what the file says, else the defaults.

    Args:
        given: setting → value from the command line or the environment.
        config: the file; the user's own, if there is one, when None.

    Raises:
        SettingsError: a value cannot be used; the message names where it stands.
    """
    values: dict[str, Any] = _defaults()
    file = file_read(config)
    if file is not None:
        values.update(read(file))
    values.update({name: parse(name, value, f"the setting {name}") for name, value in given.items()})
    settings = DaemonSettings(**values)
    if settings.backoff_first_s > settings.backoff_most_s:
        raise SettingsError(
            f"backoff_first_s ({settings.backoff_first_s:g}) must not be above backoff_most_s "
            f"({settings.backoff_most_s:g}); change one of them"
        )
    return settings


def read(path: Path) -> dict[str, Any]:
    """Return the settings in a file.

    Raises:
        SettingsError: it cannot be read, or something in it makes no sense; the message names file and key.
    """
    import tomllib

    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            found = tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}; name another file with --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: this is not TOML: {error}") from error
    values = {name: parse(name, value, f"{path}: {name}") for name, value in _known(path, found).items()}
    if has_password(values.get("database", "")) and mode & _OTHERS:
        raise SettingsError(
            f"{path}: database holds a password, and others may read the file; run `chmod 600 {path}`, or put the "
            "password in ~/.pgpass"
        )
    return values


def parse(name: str, value: object, where: str) -> Any:
    """Return ``value`` as the setting ``name`` has it.

    Args:
        name: the setting.
        value: from a file, the environment or the command line.
        where: how a message calls it.

    Raises:
        SettingsError: it makes no sense.
    """
    try:
        return _PARSERS[name](value)
    except ValueError as error:
        shown = "" if name == "database" else f", not {value!r}"
        raise SettingsError(f"{where} must be {error}{shown}") from None


def _defaults() -> dict[str, Any]:
    settings = Settings.from_environment({})
    return {"database": settings.database_url, "spool": (settings.spool_dir,)}


def _known(path: Path, found: dict[str, object]) -> dict[str, object]:
    names = [field.name for field in fields(DaemonSettings)]
    for name in found:
        if name not in names:
            raise SettingsError(f"{path}: there is no setting {name!r}; there are {', '.join(names)}")
    return found


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("a text")
    return value


def _database(value: object) -> str:
    from diode_store.errors import DatabaseError

    try:
        text = _text(value)
        path = sqlite_path(text)
    except (ValueError, RuntimeError, DatabaseError):  # RuntimeError: the home of a user who does not exist
        raise ValueError("a URL, or the path of an SQLite file") from None
    return text if path is None or is_url(text) else str(path)


def _folders(value: object) -> tuple[Path, ...]:
    folders = tuple(_folder(each) for each in (value if isinstance(value, list | tuple) else [value]))
    if not folders:
        raise ValueError(_FOLDERS)
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ValueError("folders that are not the same one twice")
    return folders


def _folder(value: object) -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError(_FOLDERS)
    try:
        return Path(value).expanduser()
    except RuntimeError:  # the home of a user who does not exist
        raise ValueError(_FOLDERS) from None


def _seconds(least: float) -> Callable[[object], float]:
    def parsed(value: object) -> float:
        # A bool is an int to Python; "not a number" fails both comparisons.
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= _MOST_S:
            raise ValueError(f"seconds, from {least:g} to {_MOST_S:g}")
        return float(value)

    return parsed


def _bytes(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("a whole number of bytes")
    return value


def _address(value: object) -> Address | None:
    if value == OFF:
        return None
    host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not (colon and _HOST.fullmatch(host) and port.isascii() and port.isdigit() and int(port) <= _MOST_PORT):
        raise ValueError(f'HOST:PORT, such as "{DEFAULT_LISTEN}", or "{OFF}"')
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


def _one_of(choices: tuple[str, ...], fold: Callable[[str], str]) -> Callable[[object], str]:
    def parsed(value: object) -> str:
        if not isinstance(value, str) or fold(value) not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return fold(value)

    return parsed


_PARSERS: dict[str, Callable[[object], Any]] = {
    "database": _database,
    "spool": _folders,
    "group": _text,
    "poll_interval_s": _seconds(0.01),
    "backoff_first_s": _seconds(0.01),
    "backoff_most_s": _seconds(0.01),
    "listen": _address,
    "hang_after_s": _seconds(1),
    "min_free_bytes": _bytes,
    "quarantine_bytes": _bytes,
    "log_level": _one_of(LOG_LEVELS, str.upper),
    "log_format": _one_of(LOG_FORMATS, str.lower),
}
