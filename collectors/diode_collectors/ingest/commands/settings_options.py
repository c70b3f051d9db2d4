"""Derive the options of ``diode-ingest`` from the declarations of its settings."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diode_collectors.ingest.settings import SETTINGS, load
from diode_store.command_line.console import is_on_command_line, print_note
from diode_store.errors import DatabaseError, SettingsError
from diode_store.system.settings import CONFIG_VARIABLE, default_database_url, settings_file
from diode_store.system.urls import redact, refuse_password_on_command_line, sqlite_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from diode_collectors.ingest.settings import DaemonSettings, Setting

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        envvar=CONFIG_VARIABLE,
        help="The settings file (TOML). The environment overrides it, options override both.",
        show_default="diode-ingest.toml in your config folder, if there",
    ),
]
_KINDS = {"tuple[Path, ...]": list[Path], "float": float, "int": int}
"""Type of a setting → type that Typer converts to; str for any other."""


@dataclass(frozen=True)
class SettingsOptions:
    """Settings from the command line and the environment; None or empty for those not given."""

    config: ConfigOption = None

    def load(self) -> DaemonSettings:
        """Return all settings.

        Raises:
            SettingsError: the file, or two settings together, cannot be used.
        """
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name in SETTINGS}
        return load({name: value for name, value in given.items() if _is_given(value)}, self.config)

    def note_file(self, database: str | None = None) -> None:
        """Name the settings file on stderr, and ``database`` if other commands would use another one."""
        file = settings_file(self.config)
        if file is None or str(file) == os.devnull:  # /dev/null stands for no settings file
            return
        differs = database is not None and not _is_everybodys(database)
        print_note(f"settings from {file}{f'; the database is {redact(str(database))}' if differs else ''}")


def _is_everybodys(database: str) -> bool:
    """Return True if commands without a settings file or database use this one too."""
    try:
        default = default_database_url()
    except SettingsError:
        return False
    return database == default or sqlite_path(database) == sqlite_path(default) is not None


def options_of(*names: str) -> type[SettingsOptions]:
    """Return a class with fields for ``--config`` and the options of some settings."""
    declared = [(name, _option(SETTINGS[name]), field(default=None)) for name in names]
    return make_dataclass("SettingsOptions", declared, bases=(SettingsOptions,), frozen=True)


def _option(setting: Setting) -> Any:
    kind = _KINDS.get(setting.type_name, str)
    how = typer.Option(
        setting.option,
        metavar=setting.metavar,
        envvar=setting.variable,
        help=setting.text,
        show_default=setting.default,
        callback=_check(setting),
        readable=False,  # Typer must not refuse an unreadable folder: work on the others goes on
    )
    return Annotated[kind | None, how]


def _check(setting: Setting) -> Callable[[typer.Context, typer.CallbackParam, Any], Any]:
    """Return a check that refuses, as bad usage, an invalid value or one that shows a password to every user."""

    def check(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
        try:
            if setting.name == "database" and is_on_command_line(context, parameter.name or ""):
                refuse_password_on_command_line(value)
            if _is_given(value):
                setting.parse(value)
        except (ValueError, DatabaseError) as error:
            raise typer.BadParameter(str(error)) from error
        return value

    return check


def _is_given(value: object) -> bool:
    return value not in (None, [], ())
