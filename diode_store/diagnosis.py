"""The checks of `diode doctor`: how to write one, the list of them, and running each in bounded time.

Every component, and any other distribution, adds checks in the entry-point group ``diode.checks``::

    [project.entry-points."diode.checks"]
    spool = "diode_collectors.ingest.spool_checks:check"

The entry's object is a function that takes a ``Setup`` and yields a ``Finding`` for each thing it looked at. It only
reads. It may raise: a ``DiodeError`` becomes a problem with the remedy that its message ends with.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points

from diode_store.errors import DiodeError, first_line

GROUP = "diode.checks"
# What needs torch comes last: importing it takes seconds.
_ORDER = ("versions", "gpu", "warehouse", "spool", "torch", "models", "hook")


class Level(StrEnum):
    """How serious a finding is."""

    OK = "ok"
    WARNING = "warning"
    """It works, but not as it could."""
    PROBLEM = "problem"
    """Something does not work."""


@dataclass(frozen=True)
class Setup:
    """What is checked."""

    database: str | None
    """The warehouse: a URL, or the path of an SQLite file; None if the settings that name it cannot be used."""


@dataclass(frozen=True)
class Finding:
    """One line of `diode doctor`."""

    subject: str
    """What was looked at, in a word or two."""
    level: Level
    text: str
    """What was found."""
    remedy: str | None = None
    """What to do about it; None for what is ok."""


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
    """Return what is wrong with the settings as a problem."""
    return problem_of("settings", error, "correct it in the settings file or the environment")


def checks() -> list[EntryPoint]:
    """Return all checks: ours, the quick ones first, then those of other distributions."""
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    own = [found.pop(name) for name in _ORDER if name in found]
    return [*own, *(found[name] for name in sorted(found))]


def findings(entry: EntryPoint, setup: Setup, limit_s: float) -> Iterator[Finding]:
    """Run a check in a thread and yield what it finds, as it finds it.

    Args:
        entry: the check.
        setup: what to check.
        limit_s: how long to wait for each finding; then the check is left behind and counts as a problem.
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
        package = entry.dist.name if entry.dist else entry.module.partition(".")[0]
        text = f"the check failed: {type(error).__name__}: {first_line(error)}"
        found.put(problem(entry.name, text, f"reinstall {package}; if that does not help, report it"))
    finally:
        found.put(None)
