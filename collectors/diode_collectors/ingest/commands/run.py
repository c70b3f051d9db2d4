"""Ingest until told to stop: the daemon's command, and its systemd unit."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diode_collectors.ingest import garbage
from diode_collectors.ingest.commands import run_options as options  # noqa: TC001 - Typer reads it when it runs
from diode_collectors.ingest.settings import OFF, DaemonSettings, default_config, file_read, load, parse
from diode_store.console import print_note
from diode_store.errors import DatabaseError, SettingsError
from diode_store.urls import redact, refuse_password_on_command_line, sqlite_path

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping
    from pathlib import Path

    from diode_collectors.ingest.daemon import DaemonOptions, Observer, Reloaded
    from diode_store.warehouse.store import Store

FIXED = ("spool", "group", "listen", "hang_after_s")
"""Settings that SIGHUP does not change."""
SETTINGS = frozenset(field.name for field in fields(DaemonSettings))


def run_(  # noqa: PLR0913 - one argument an option
    context: typer.Context,
    *,
    config: options.ConfigOption = None,
    spool: options.SpoolsOption = None,
    database: options.DatabaseOption = None,
    group: options.GroupOption = None,
    poll_interval_s: options.PollIntervalOption = None,
    backoff_first_s: options.BackoffFirstOption = None,
    backoff_most_s: options.BackoffMostOption = None,
    listen: options.ListenOption = None,
    hang_after_s: options.HangAfterOption = None,
    min_free_bytes: options.MinFreeBytesOption = None,
    quarantine_bytes: options.QuarantineBytesOption = None,
    log_level: options.LogLevelOption = None,
    log_format: options.LogFormatOption = None,
    no_listen: options.NoListenOption = False,
) -> None:
    """Ingest until told to stop.

    SIGTERM or Ctrl-C finishes the batch and exits with 0, a second one ends at once; SIGHUP reads the settings file
    again. When the database is away it is tried again and again, and nothing is lost. Logs go to stderr.

    Example: diode-ingest run --spool /var/spool/diode --listen 127.0.0.1:19464
    """
    given = checked(context, {**locals(), "listen": OFF if no_listen else listen})
    _run(given, config)


def unit(
    config: options.ConfigOption = None,
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="Whose process the daemon is.")] = "diode",
) -> None:
    """Print a systemd unit for the daemon.

    With the path of this diode-ingest, and the folders of the settings file as the only ones it may write.

    Example: diode-ingest unit --user diode > /etc/systemd/system/diode-ingest.service
    """
    from diode_collectors.ingest.unit import program_path, unit_text

    settings = load({}, config)
    file = sqlite_path(settings.database)
    writes = [*settings.spool, *([file.absolute().parent] if file else [])]
    typer.echo(unit_text(program_path(), config or default_config(), user, writes), nl=False)


def checked(context: typer.Context, written: Mapping[str, object]) -> dict[str, object]:
    """Return the settings that stand on the command line or in the environment, as they were written.

    Raises:
        BadParameter: one makes no sense, or shows a password to everybody.
    """
    given = {name: value for name, value in written.items() if name in SETTINGS and value not in (None, [], ())}
    flags = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    source = context.get_parameter_source("database")
    try:
        if source is not None and source.name == "COMMANDLINE":
            refuse_password_on_command_line(str(given["database"]))
        for name, value in given.items():
            parse(name, value, flags[name])
    except (SettingsError, DatabaseError) as error:
        raise typer.BadParameter(str(error)) from error
    return given


def say_where_from(config: Path | None, database: str | None = None) -> None:
    """Say on stderr which settings file was read, if one was, and which ``database`` that leads to.

    Other commands do not read the file, so theirs may be another one.
    """
    file = file_read(config)
    if file is not None and str(file) != os.devnull:  # the empty file is how to do without one
        print_note(f"settings from {file}{f'; the database is {redact(database)}' if database else ''}")


def _run(given: Mapping[str, object], config: Path | None) -> None:
    from diode_collectors.ingest import daemon, signals
    from diode_collectors.ingest.monitoring import logs
    from diode_collectors.spool.spool import Spool

    settings = load(given, config)
    logs.configure(settings.log_level, settings.log_format)
    if settings.group:
        for spool in settings.spool:
            Spool(spool).share_with(settings.group)
    current = [settings]
    reload = daemon.Reload(partial(_reloaded, current, given, config))

    def work(stop: threading.Event) -> None:
        with ExitStack() as closing:
            with garbage.loading():
                check_address(settings.database)
                observers = _observers(settings, closing)
                options = _options(settings)
            with garbage.ingesting():
                opens = partial(open_store, settings.database)
                daemon.run_daemon(settings.spool, opens, stop, options=options, observers=observers, reload=reload)

    signals.run_until_signalled(work, on_hangup=reload.asked.set)


def check_address(database: str) -> None:
    """Refuse what waiting does not mend: a database of another kind, or one whose driver is not installed.

    Raises:
        DatabaseError: it is one of these.
    """
    import diode_store.warehouse.store  # noqa: F401 - the first pass needs all of it
    from diode_store.warehouse.database import make_engine

    make_engine(database).dispose()


def open_store(database: str) -> Store:
    """Open the warehouse; SQLAlchemy takes its time to load, so only once signals are waited for."""
    from diode_store.warehouse.store import Store

    return Store.open(database)


def _observers(settings: DaemonSettings, closing: ExitStack) -> list[Observer]:
    from diode_collectors.ingest.monitoring.daemon_log import LogObserver
    from diode_collectors.ingest.monitoring.health import Health
    from diode_collectors.ingest.monitoring.notify import Notifier, NotifyObserver

    observers: list[Observer] = []
    if settings.listen is not None:
        from diode_collectors.ingest.monitoring.metrics import Metrics
        from diode_collectors.ingest.monitoring.serving import StatusServer

        health = Health(settings.hang_after_s)
        metrics = Metrics(health)
        server = StatusServer(settings.listen, health, metrics, sqlite_path(settings.database))
        closing.callback(server.close)
        observers += [server, health, metrics]
    return [*observers, LogObserver(), NotifyObserver(Notifier())]


def _options(settings: DaemonSettings) -> DaemonOptions:
    from diode_collectors.ingest.daemon import DaemonOptions

    taken: dict[str, Any] = {
        field.name: getattr(settings, field.name) for field in fields(DaemonOptions) if field.name != "database_file"
    }
    return DaemonOptions(**taken, database_file=sqlite_path(settings.database))


def _reloaded(current: list[DaemonSettings], given: Mapping[str, object], config: Path | None) -> Reloaded:
    """Read the settings again and use what can be changed; ``current`` holds the last good ones.

    Raises:
        SettingsError: they are no good.
    """
    from dataclasses import replace

    from diode_collectors.ingest.daemon import Reloaded
    from diode_collectors.ingest.monitoring import logs

    before, after = current[0], load(given, config)
    differ = [field.name for field in fields(after) if getattr(after, field.name) != getattr(before, field.name)]
    kept = tuple(name for name in differ if name in FIXED)
    after = replace(after, **{name: getattr(before, name) for name in kept})
    try:
        check_address(after.database)
    except DatabaseError as error:
        raise SettingsError(str(error)) from error
    current[0] = after
    logs.configure(after.log_level, after.log_format)
    opens = partial(open_store, after.database) if after.database != before.database else None
    return Reloaded(_options(after), opens, tuple(name for name in differ if name not in FIXED), kept)
