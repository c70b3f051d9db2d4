"""Print a systemd unit for the daemon: the command."""

from __future__ import annotations

from typing import Annotated

import typer

from diode_collectors.ingest.commands.settings_options import ConfigOption  # noqa: TC001 - Typer reads it when it runs
from diode_store.console import print_note


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

    With the path of this diode-ingest, and the folders of the settings file as the only ones it may write. Without a
    settings file, one with the user's defaults is written, and its spool is made.

    Example: diode-ingest unit --user diode > /etc/systemd/system/diode-ingest.service
    """
    from diode_collectors.ingest.settings import load
    from diode_collectors.ingest.unit import (
        User,
        default_settings,
        program_path,
        settings_text,
        unit_text,
        write_defaults,
    )
    from diode_store.settings import upgrade_command
    from diode_store.urls import sqlite_path

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
    if database and not database.exists():
        print_note(f"before the daemon starts, run {upgrade_command(settings.database)} as {owner.name}")
    typer.echo(text, nl=False)
