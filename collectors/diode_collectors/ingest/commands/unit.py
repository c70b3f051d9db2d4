"""Implement `diode-ingest unit`, which prints a systemd unit."""

from __future__ import annotations

from typing import Annotated

import typer

from diode_collectors.ingest.commands.settings_options import ConfigOption  # noqa: TC001 - Typer reads it when it runs
from diode_store.command_line.console import print_note


def unit(
    config: ConfigOption = None,
    user: Annotated[
        str | None, typer.Option("--user", metavar="NAME", help="The user that the daemon runs as.", show_default="you")
    ] = None,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the settings file that would be written; write nothing.")
    ] = False,
) -> None:
    """Print a systemd unit for the daemon.

    The unit holds the path of this diode-ingest. It lets the daemon write only the folders that the settings file
    names. If there is no settings file, this writes one with the user's defaults and makes its spool.

    Example: diode-ingest unit --user diode > /etc/systemd/system/diode-ingest.service
    """
    from diode_collectors.ingest.settings import load
    from diode_collectors.ingest.unit import (
        User,
        default_settings,
        obstacles,
        program_path,
        settings_text,
        unit_text,
        write_defaults,
    )
    from diode_store.system.settings import upgrade_command
    from diode_store.system.urls import sqlite_path

    owner = User.named(user)
    file = (config or owner.settings_file()).absolute()
    is_new = not file.exists()
    settings = default_settings(owner) if is_new else load({}, file)
    database = sqlite_path(settings.database)
    writes = [*settings.spool, *([database.absolute().parent] if database else [])]
    text = unit_text(program_path(), file, owner.name, writes)
    if is_new and dry_run:
        print_note(f"would write {file}:")
        typer.echo(settings_text(settings), err=True, nl=False)
    elif is_new:
        write_defaults(file, settings, owner)
        print_note(f"wrote {file}")
    if not (is_new and dry_run):
        for line in obstacles(owner, file, writes):
            print_note(line)
    if database and not database.exists():
        print_note(f"before the daemon starts, run {upgrade_command(settings.database)} as {owner.name}")
    typer.echo(text, nl=False)
