"""Declare the settings of ``diode-ingest``: a TOML file, the environment over it, and the command line over both.

Each setting is one field of ``DaemonSettings``. Options, variables, keys of the file, defaults, checks and the table in
docs/running.md follow from ``SETTINGS``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diode_store.errors import SettingsError
from diode_store.system.files import expanded, real_path
from diode_store.system.settings import (
    DATABASE_VARIABLE,
    Settings,
    database_address,
    own_database_url,
    read_settings_file,
    settings_file,
)
from diode_store.system.urls import Address, parse_address
from diode_store.values.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
LOG_FORMATS = ("text", "json")
OFF = "off"
_MOST_S = 1e9
_FOLDERS = "must be a folder or a list of folders"


DEFAULT_LISTEN = Address("127.0.0.1", 19464)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("must be text")
    return value


def _folders(value: object) -> tuple[Path, ...]:
    folders = tuple(_folder(each) for each in (value if isinstance(value, list | tuple) else [value]))
    if not folders:
        raise ValueError(_FOLDERS)
    if len({real_path(folder) for folder in folders}) < len(folders):
        raise ValueError("must be different folders")
    return folders


def _folder(value: object) -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError(_FOLDERS)
    return expanded(value, lambda _said: ValueError(f"{_FOLDERS}, of users who exist"))


def _seconds(least: float) -> Callable[[object], float]:
    def parsed(value: object) -> float:
        # To Python a bool is an int; "not a number" fails both comparisons.
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= _MOST_S:
            raise ValueError(f"must be seconds, from {least:g} to {_MOST_S:g}")
        return float(value)

    return parsed


def _bytes(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("must be a whole number of bytes")
    return value


def _address(value: object) -> Address | None:
    if value == OFF:
        return None
    address = parse_address(value) if isinstance(value, str) else None
    if address is None:
        raise ValueError(f'must be HOST:PORT, such as "{DEFAULT_LISTEN}", or "{OFF}"')
    return address


def _one_of(choices: tuple[str, ...], fold: Callable[[str], str]) -> Callable[[object], str]:
    def parsed(value: object) -> str:
        if not isinstance(value, str) or fold(value) not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return fold(value)

    return parsed


def _setting(
    parse: Callable[[object], Any],
    metavar: str,
    text: str,
    *,
    default_text: str | None = None,
    needs_restart: bool = False,
    **default: Any,
) -> Any:
    """Declare a setting: its parser, its placeholder and help text, and the text of its default."""
    how = {"parse": parse, "metavar": metavar, "text": text, "shown": default_text, "needs_restart": needs_restart}
    return field(**default, metadata=how)


@dataclass(frozen=True)
class DaemonSettings:
    """All settings of ``diode-ingest``; the field names are the keys of the file.

    Raises:
        SettingsError: two settings contradict each other.
    """

    database: str = _setting(
        database_address,
        "URL",
        "The warehouse: a URL, or the path of an SQLite file. A password is taken from the environment or a file of "
        "mode 0600, never from the command line.",
        default_factory=own_database_url,
        default_text="SQLite in your data folder",
    )
    spool: tuple[Path, ...] = _setting(
        _folders,
        "DIR",
        "A spool: the folder where collectors leave their records. Can be repeated; a list in the file, separated by "
        "`:` in the environment.",
        default_factory=lambda: (Settings.from_environment({}).spool_dir,),
        default_text="spool in your data folder",
        needs_restart=True,
    )
    group: str | None = _setting(
        _text,
        "NAME",
        "Share the spools with this group, so that many users write and one daemon ingests.",
        default=None,
        needs_restart=True,
    )
    poll_interval_s: float = _setting(
        _seconds(0.01),
        "SECONDS",
        "Longest time from one look into a spool to the next; a change of the folder is seen within 0.1 s.",
        default=1.0,
    )
    backoff_first_s: float = _setting(
        _seconds(0.01),
        "SECONDS",
        "Longest wait after the first failure; it doubles with each further one, and half of it is random.",
        default=0.5,
    )
    backoff_most_s: float = _setting(_seconds(0.01), "SECONDS", "Longest wait after any failure.", default=30.0)
    listen: Address | None = _setting(  # noqa: RUF009 - it is a field
        _address,
        "HOST:PORT",
        f"Where /healthz, /readyz and /metrics are served; `{OFF}` for nowhere.",
        default=DEFAULT_LISTEN,
        needs_restart=True,
    )
    hang_after_s: float = _setting(
        _seconds(1),
        "SECONDS",
        "Time without a sign of life after which /healthz reports a hang.",
        default=300.0,
        needs_restart=True,
    )
    min_free_bytes: int = _setting(
        _bytes,
        "BYTES",
        "Ingesting pauses while less is free on the warehouse's disk; less on a spool's disk is reported.",
        default=512 * MIB,
    )
    quarantine_bytes: int = _setting(
        _bytes,
        "BYTES",
        "Size of a quarantine above which its oldest damaged bytes are removed.",
        default=256 * MIB,
    )
    log_level: str = _setting(_one_of(LOG_LEVELS, str.upper), "LEVEL", "DEBUG, INFO, WARNING or ERROR.", default="INFO")
    log_format: str = _setting(
        _one_of(LOG_FORMATS, str.lower), "FORMAT", "text (key=value) or json (an object per line).", default="text"
    )

    def __post_init__(self) -> None:
        """Check settings that depend on each other."""
        if self.backoff_first_s > self.backoff_most_s:
            raise SettingsError(
                f"backoff_first_s ({self.backoff_first_s:g}) must not be above backoff_most_s "
                f"({self.backoff_most_s:g}); change one of them"
            )


@dataclass(frozen=True)
class Setting:
    """Properties of a setting, derived from its declaration."""

    name: str
    """Key in the file."""
    type_name: str
    metavar: str
    text: str
    """Effect of the setting, for help and documentation."""
    default: str
    """Default as text."""
    needs_restart: bool
    """True if SIGHUP does not change it."""
    _parse: Callable[[object], Any]

    @property
    def option(self) -> str:
        """Name of the option, without the unit."""
        return f"--{self.name.removesuffix('_s').replace('_', '-')}"

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return DATABASE_VARIABLE if self.name == "database" else f"DIODE_{self.name.upper()}"

    def parse(self, value: object) -> Any:
        """Return a value from a file, the environment or the command line as ``DaemonSettings`` holds it.

        Raises:
            ValueError: the value is invalid; the message says what is valid.
        """
        try:
            return self._parse(value)
        except ValueError as error:
            shown = "" if self.name == "database" else f", not {value!r}"
            raise ValueError(f"{error}{shown}") from None


def _default_text(value: object, shown: str | None) -> str:
    if shown is not None or value is None:
        return shown or "none"
    if isinstance(value, int):
        return f"{value}, {value // MIB} MiB"
    return f"{value:g}" if isinstance(value, float) else str(value)


SETTINGS = {
    each.name: Setting(
        each.name,
        str(each.type),
        each.metadata["metavar"],
        each.metadata["text"],
        _default_text(each.default, each.metadata["shown"]),
        each.metadata["needs_restart"],
        each.metadata["parse"],
    )
    for each in fields(DaemonSettings)
}
"""Every setting by name, in the order of the documentation."""


def load(given: Mapping[str, object], config: Path | None) -> DaemonSettings:
    """Return the settings: a ``given`` value comes first, then the file, then the default.

    Args:
        given: setting → value from the command line or the environment.
        config: the file; None for the one that ``settings_file`` finds.

    Raises:
        SettingsError: a value cannot be used; the message names its place.
    """
    file = settings_file(config)
    values = read(file) if file else {}
    return DaemonSettings(**{**values, **{name: _parsed(name, value, "") for name, value in given.items()}})


def read(path: Path) -> dict[str, Any]:
    """Return the settings in a file.

    Raises:
        SettingsError: the file cannot be read, or has an unknown key or an invalid value. The message names the file
            and the key.
    """
    found = read_settings_file(path)
    for name in found:
        if name not in SETTINGS:
            raise SettingsError(f"{path}: there is no setting {name!r}; there are {', '.join(SETTINGS)}")
    return {name: _parsed(name, value, f"{path}: ") for name, value in found.items()}


def _parsed(name: str, value: object, where: str) -> Any:
    try:
        return SETTINGS[name].parse(value)
    except ValueError as error:
        raise SettingsError(f"{where}{name} {error}") from None
