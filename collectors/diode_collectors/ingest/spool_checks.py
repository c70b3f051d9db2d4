"""Checks of `diode doctor`: the spools, and the daemon that empties them."""

from __future__ import annotations

import http.client
import os
from pathlib import Path
from typing import TYPE_CHECKING

from diode_store.command_line.diagnosis import (
    Finding,
    ok,
    on_a_network,
    problem,
    problem_of,
    problem_of_settings,
    warning,
)
from diode_store.command_line.render import counted
from diode_store.errors import DatabaseError, DiodeError, SettingsError
from diode_store.system.files import barrier_to, real_path
from diode_store.system.settings import Settings, settings_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diode_collectors.ingest.settings import DaemonSettings
    from diode_collectors.spool.spool import SpoolStatus
    from diode_store.command_line.diagnosis import Setup
    from diode_store.system.urls import Address

_ANSWER_S = 3.0
_IDLE = "not running, and nothing waits"
_LOOKED_AT = ("database", "spool", "listen")


def check(setup: Setup) -> Iterator[Finding]:
    """Yield the state of each spool and of its daemon."""
    try:
        settings = _settings()
    except SettingsError as error:
        yield problem_of_settings(error)
        if settings_file() is None:  # the fault is in the environment
            return
        settings = _settings(Path(os.devnull))  # check the settings of the environment
    yield from on_a_network(None, settings.spool)
    for spool in settings.spool:
        yield from _check_spool(spool, settings)
    yield from _check_writers(settings)
    if setup.database is not None and _differ(settings.database, setup.database):
        text = "diode-ingest writes to another warehouse than the one looked at here"
        yield warning("daemon", text, "set DIODE_DATABASE_URL for both, or pass --database")


def _settings(config: Path | None = None) -> DaemonSettings:
    from diode_collectors.ingest.settings import SETTINGS, load

    named = {name: os.environ.get(SETTINGS[name].variable) for name in _LOOKED_AT}
    given: dict[str, object] = {name: value for name, value in named.items() if value}
    if named["spool"]:
        given["spool"] = named["spool"].split(os.pathsep)
    return load(given, config)


def _check_spool(spool: Path, settings: DaemonSettings) -> Iterator[Finding]:
    from diode_collectors.spool.spool import Spool

    if not spool.is_dir():
        yield _missing(spool)
        yield ok("daemon", _IDLE)
        return
    if not os.access(spool, os.R_OK | os.W_OK | os.X_OK):
        yield problem(
            "spool", f"{spool}: you may not read and write it", "check its owner and mode, or set DIODE_SPOOL"
        )
        return
    try:
        status = Spool(spool).status()
    except DiodeError as error:
        yield problem_of("spool", error)
        return
    yield ok("spool", f"{spool}: writable, {_backlog(status)}")
    yield from _troubles(status, settings)
    yield _daemon(status, settings.listen)


def _check_writers(settings: DaemonSettings) -> Iterator[Finding]:
    """Warn if collectors, which do not read the settings file, write where no daemon looks."""
    own = Settings.from_environment().spool_dir
    if real_path(own) in {real_path(spool) for spool in settings.spool}:
        return
    file = settings_file()
    remedy = f"set DIODE_SPOOL, or spool in {file}" if file else "set DIODE_SPOOL to one of its spools"
    yield warning("spool", f"collectors write to {own}, which diode-ingest does not empty", remedy)


def _missing(spool: Path) -> Finding:
    if spool.exists():
        return problem("spool", f"{spool}: not a folder", "move it away, or set DIODE_SPOOL")
    barrier = barrier_to(spool)
    if barrier is None:
        return ok("spool", f"{spool}: not there yet; the first collector creates it")
    return problem("spool", f"{spool}: cannot be created: {barrier}", "create it, or set DIODE_SPOOL")


def _backlog(status: SpoolStatus) -> str:
    if not status.segments:
        return "nothing waits"
    return (
        f"{counted(status.segments, 'segment')} waiting, {status.bytes:,} bytes, oldest {status.oldest_s or 0:,.0f} s"
    )


def _troubles(status: SpoolStatus, settings: DaemonSettings) -> Iterator[Finding]:
    from diode_collectors.ingest.guard import free_bytes
    from diode_collectors.spool.spool import QUARANTINE_NAME

    if status.quarantined:
        text = f"{counted(status.quarantined, 'file')} in {status.directory / QUARANTINE_NAME}"
        yield warning("spool", text, "see `diode-ingest status` for the reasons")
    yield from (problem_of("spool", line) for line in status.unreadable)
    free = free_bytes(status.directory)
    if free is not None and free < settings.min_free_bytes:
        yield problem("spool", f"{status.directory}: {free:,} bytes are free on its disk", "make room")


def _daemon(status: SpoolStatus, listen: Address | None) -> Finding:
    if status.ingest_pid is None:
        if status.segments:
            remedy = "start `diode-ingest run`, or run `diode-ingest --once`"
            return warning("daemon", f"not running, and {_backlog(status)}", remedy)
        return ok("daemon", _IDLE)
    running = f"running (pid {status.ingest_pid or 'unknown'})"
    if listen is None:
        return ok("daemon", f"{running}; it has no health address")
    try:
        code, said = _readiness(listen)
    except (OSError, http.client.HTTPException):
        return warning("daemon", f"{running}, but {listen} does not answer", "set DIODE_LISTEN to where it listens")
    if code == http.client.OK:
        return ok("daemon", f"{running}, ready at {listen}")
    return problem("daemon", f"{running}, but not ready: {said}", f"see its log, and http://{listen}/readyz")


def _readiness(listen: Address) -> tuple[int, str]:
    """Ask the daemon.

    Raises:
        OSError, HTTPException: it does not answer.
    """
    connection = http.client.HTTPConnection(listen.host, listen.port, timeout=_ANSWER_S)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        return answer.status, ", ".join(answer.read(4096).decode(errors="replace").splitlines())
    finally:
        connection.close()


def _differ(one: str, other: str) -> bool:
    from diode_store.system.urls import sqlite_path

    try:
        return (sqlite_path(one) or one) != (sqlite_path(other) or other)
    except DatabaseError:  # reported by the check of the warehouse
        return False
