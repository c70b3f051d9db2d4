"""Implement `diode-ingest run`, the daemon."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from diode_collectors.ingest import garbage
from diode_collectors.ingest.commands.settings_options import SettingsOptions, options_of
from diode_collectors.ingest.settings import SETTINGS
from diode_store.command_line.options import takes_options
from diode_store.errors import DatabaseError, SettingsError
from diode_store.system.urls import sqlite_path

if TYPE_CHECKING:
    import threading

    from diode_collectors.ingest.daemon import Observer, Reloaded
    from diode_collectors.ingest.settings import DaemonSettings
    from diode_store.warehouse.store import Store


@takes_options(options_of(*SETTINGS))
def run_(options: SettingsOptions) -> None:
    """Ingest until stopped.

    SIGTERM or Ctrl-C finishes the batch and exits with 0; a second one ends at once. SIGHUP reads the settings file
    again. While the database is unreachable the daemon retries, and nothing is lost. Logs go to stderr.

    Example: diode-ingest run --spool /var/spool/diode --listen 127.0.0.1:19464
    """
    from diode_collectors.ingest import daemon, signals
    from diode_collectors.ingest.monitoring import logs
    from diode_collectors.spool.spool import Spool
    from diode_store.command_line.diagnosis import on_a_network

    settings = options.load()
    logs.configure(settings.log_level, settings.log_format)
    for finding in on_a_network(sqlite_path(settings.database), settings.spool):
        logs.log(logging.getLogger(logs.LOGGER_NAME), logging.WARNING, "on_a_network", problem=str(finding))
    if settings.group:
        for spool in settings.spool:
            Spool(spool).share_with(settings.group)
    reload = daemon.Reload(_Reloading(settings, options).read)

    def work(stop: threading.Event) -> None:
        with ExitStack() as closing:
            with garbage.loading():
                check_address(settings.database)
                observers = _observers(settings, closing)
            with garbage.ingesting():
                opens = partial(open_store, settings.database)
                daemon.run_daemon(settings, opens, stop, observers=observers, reload=reload)

    signals.run_until_signalled(work, on_hangup=reload.asked.set)


def check_address(database: str) -> None:
    """Refuse a database that no retry can reach: an unsupported kind, or a kind without an installed driver.

    Raises:
        DatabaseError: the kind is unsupported, or its driver is not installed.
    """
    import diode_store.warehouse.store  # noqa: F401 - the first pass needs all of it
    from diode_store.warehouse.database import make_engine

    make_engine(database).dispose()


def open_store(database: str) -> Store:
    """Open the warehouse. SQLAlchemy loads slowly, so signals are handled before."""
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


class _Reloading:
    """Reads the settings again and holds the last valid ones."""

    def __init__(self, settings: DaemonSettings, options: SettingsOptions) -> None:
        self._current = settings
        self._options = options

    def read(self) -> Reloaded:
        """Return the new settings; those that need a restart stay as they were.

        Raises:
            SettingsError: they cannot be used.
        """
        from diode_collectors.ingest.daemon import Reloaded
        from diode_collectors.ingest.monitoring import logs

        before, after = self._current, self._options.load()
        differ = [name for name in SETTINGS if getattr(after, name) != getattr(before, name)]
        kept = tuple(name for name in differ if SETTINGS[name].needs_restart)
        after = replace(after, **{name: getattr(before, name) for name in kept})
        try:
            check_address(after.database)
        except DatabaseError as error:
            raise SettingsError(str(error)) from error
        self._current = after
        logs.configure(after.log_level, after.log_format)
        opens = partial(open_store, after.database) if after.database != before.database else None
        return Reloaded(after, opens, tuple(name for name in differ if name not in kept), kept)
