"""The checks of `diode doctor`: how to write one, the list of checks, and a time limit for each.

Every component, and any other distribution, adds checks in the entry-point group ``diode.checks``::

    [project.entry-points."diode.checks"]
    spool = "diode_collectors.ingest.spool_checks:check"

The entry's object is a function. It takes a ``Setup``, yields a ``Finding`` for each thing it examined, and changes
nothing. A ``DiodeError`` that it raises becomes a problem; the end of the message is the remedy.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from diode_store.errors import DiodeError, first_line
from diode_store.system.files import unusable_path
from diode_store.system.mounts import network_file_system

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

GROUP = "diode.checks"
# What needs torch comes last: importing it takes seconds.
_ORDER = ("versions", "gpu", "warehouse", "spool", "torch", "models", "hook", "seams")


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    """It works, but not as it could."""
    PROBLEM = "problem"
    """Something does not work."""


@dataclass(frozen=True)
class Setup:
    """The installation to check."""

    database: str | None
    """The warehouse: a URL, or the path of an SQLite file; None if the settings that name it cannot be used."""


@dataclass(frozen=True)
class Finding:
    """One line of `diode doctor`."""

    subject: str
    """Name of the checked thing, in a word or two."""
    level: Level
    text: str
    """Description of the state."""
    remedy: str | None = None
    """Action to take; None if all is well."""

    def __str__(self) -> str:
        """Return the finding and its remedy in one line."""
        return f"{self.text}; {self.remedy}" if self.remedy else self.text


Check = Callable[[Setup], Iterator[Finding]]


def ok(subject: str, text: str) -> Finding:
    """Return a finding that needs no action."""
    return Finding(subject, Level.OK, text)


def warning(subject: str, text: str, remedy: str) -> Finding:
    """Return a finding of something that works, but not as it could."""
    return Finding(subject, Level.WARNING, text, remedy)


def problem(subject: str, text: str, remedy: str) -> Finding:
    """Return a finding of something that does not work."""
    return Finding(subject, Level.PROBLEM, text, remedy)


def problem_of(subject: str, error: DiodeError | str, otherwise: str = "see `diode --help`") -> Finding:
    """Return one of our errors as a problem; the remedy is what follows its last semicolon, else ``otherwise``."""
    text, _, remedy = str(error).rpartition("; ")
    return problem(subject, text or remedy, remedy if text else otherwise)


def problem_of_settings(error: DiodeError) -> Finding:
    """Return an error in the settings as a problem."""
    return problem_of("settings", error, "correct it in the settings file or the environment")


def checks() -> list[EntryPoint]:
    """Return all checks: ours, the quick ones first, then those of other distributions."""
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    own = [found.pop(name) for name in _ORDER if name in found]
    return [*own, *(found[name] for name in sorted(found))]


def findings(entry: EntryPoint, setup: Setup, limit_s: float) -> Iterator[Finding]:
    """Run a check in a thread and yield its findings as they come.

    Args:
        entry: the check.
        setup: the installation to check.
        limit_s: time to wait for each finding; then the check is abandoned and counts as a problem.
    """
    found: queue.SimpleQueue[Finding | None] = queue.SimpleQueue()
    # A daemon thread: one that hangs, in a driver say, must not keep the process from ending.
    threading.Thread(target=_run, args=(entry, setup, found), name=f"check-{entry.name}", daemon=True).start()
    try:
        while (finding := found.get(timeout=limit_s)) is not None:
            yield finding
    except queue.Empty:
        remedy = "find out what it waits for, or allow more time with --timeout"
        yield problem(entry.name, f"no answer within {limit_s:g} s", remedy)


def _run(entry: EntryPoint, setup: Setup, found: queue.SimpleQueue[Finding | None]) -> None:
    try:
        for finding in entry.load()(setup):
            found.put(finding)
    except DiodeError as error:
        found.put(problem_of(entry.name, error))
    except Exception as error:  # noqa: BLE001 - a check that fails is a finding too, and the others go on
        found.put(_failed(entry, error))
    finally:
        found.put(None)


def _failed(entry: EntryPoint, error: Exception) -> Finding:
    if isinstance(error, OSError) and (message := unusable_path(error)) is not None:
        return problem_of(entry.name, message)
    package = entry.dist.name if entry.dist else entry.module.partition(".")[0]
    text = f"the check failed: {type(error).__name__}: {first_line(error)}"
    return problem(entry.name, text, f"reinstall {package}; if that does not help, report it")


def on_a_network(database_file: Path | None, spools: Sequence[Path] = ()) -> Iterator[Finding]:
    """Yield a warning for an SQLite file and for each spool that is on a network's file system."""
    if database_file is not None and (kind := network_file_system(database_file)):
        text = f"{database_file}: on a network's file system ({kind}), where SQLite may lose or damage data"
        yield warning("warehouse", text, "set DIODE_DATABASE_URL to a file on a local disk, or to PostgreSQL")
    for spool in spools:
        if kind := network_file_system(spool):
            text = f"{spool}: on a network's file system ({kind}), where a lock may not hold on other machines"
            yield warning("spool", text, "set DIODE_SPOOL to a folder on a local disk")
