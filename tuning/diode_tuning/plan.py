"""A tuning run on disk: the request, the problems of each round, and the progress.

Each device has a folder of runs. The plan is written before anything is measured, so that an interrupted run goes on
with the same problems.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diode_collectors.problems.guide import write_guide
from diode_collectors.problems.shapesets import as_text
from diode_collectors.spool.reading import SEGMENT_SUFFIXES
from diode_store.errors import DiodeError, SettingsError, first_line
from diode_store.system.files import entries_of, read_bounded, try_lock, write_durably

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from diode_collectors.problems.guide import Guide
    from diode_collectors.problems.problem import SweepProblem

ROUND_PROBLEMS = 1000
"""Least number of problems to expect in each of several rounds. Smaller rounds give models too poor to choose kernels
for the next one (docs/results/tune-runs.md).
"""
_MOST_ROUNDS = 3
"""Limit on the rounds of a run. Each round starts a sweep and fits a model. More rounds brought no better models."""
_PLAN, _LOCK = "plan.json", "lock"
_RUN = re.compile(r"run-\d+")
_VERSION = 3
_WAIT_S = 20.0
"""Seconds to wait for the processes of a killed run to end."""


class Stage(StrEnum):
    """Progress of a run."""

    MEASURING = "measuring"
    TRAINING = "training"
    DONE = "done"


@dataclass
class Round:
    """Problems to measure before the next ones are chosen."""

    budget_s: float
    search_space: str
    """Configs to time, as text. A sample is guided if a model has picked some."""
    is_pinned: bool = False
    """True if it measures what a picks file names afterwards, False if it measures what a model learns."""
    problems: int | None = None
    """Number of planned problems, more than fit into the budget; None before they are chosen."""
    spent_s: float = 0.0
    measured: int = 0
    timings: int = 0
    is_measured: bool = False
    """Set once the round's timings are in the warehouse."""


@dataclass
class Plan:
    """Plan and progress of a run."""

    request: dict[str, Any]
    """Request of the run. An interrupted run goes on only for the same request."""
    rounds: list[Round]
    stage: Stage = Stage.MEASURING
    kept: str | None = None
    """Path of the copy of the previous model, if there was one. Set when training starts."""
    fits: dict[str, int] | None = None
    """Folds, problems and members of the training, while its fits can be resumed; else None."""

    def pass_on(self, number: int) -> None:
        """Divide the unused budget of a round, counted from 1, among the later rounds in proportion to theirs."""
        done, later = self.rounds[number - 1], self.rounds[number:]
        left_s, all_s = max(done.budget_s - done.spent_s, 0.0), sum(each.budget_s for each in later)
        for each in later if all_s > 0 else ():
            each.budget_s += left_s * each.budget_s / all_s


def split(budget_s: float, search_space: str, problems: float) -> list[Round]:
    """Return equal rounds, as many as pay for choosing anew, where ``problems`` are expected in all."""
    count = min(max(int(problems // ROUND_PROBLEMS), 1), _MOST_ROUNDS)
    return [Round(budget_s / count, search_space) for _ in range(count)]


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path, self.plan = path, plan

    @property
    def spool(self) -> Path:
        """Folder to which the run's sweeps write records. No daemon reads it."""
        return self.path / "spool"

    def problems_file(self, number: int) -> Path:
        """Return the path of a round's list of problems; rounds count from 1."""
        return self.path / f"round-{number}.txt"

    def guide_file(self, number: int) -> Path:
        """Return the path of a round's guide, which need not exist; rounds count from 1."""
        return self.path / f"round-{number}.guide.json"

    def choose(self, number: int, problems: Sequence[SweepProblem], guide: Guide | None = None) -> None:
        """Save a round's problems, in the order to measure them, and the kernels to begin with."""
        if guide:
            with made(self.guide_file(number)) as path:
                write_guide(path, guide)
        write(self.problems_file(number), as_text(problems))
        self.plan.rounds[number - 1].problems = len(problems)
        self.save()

    def save(self) -> None:
        """Save the plan and progress.

        Raises:
            DiodeError: the plan cannot be written.
        """
        write(self.path / _PLAN, json.dumps({"version": _VERSION, **asdict(self.plan)}, indent=2) + "\n")


class DeviceFolder:
    """The folder of a device's runs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def runs(self) -> list[Path]:
        """Return the folders of runs with a plan, oldest first."""
        return [run for run in self._folders() if os.path.lexists(run / _PLAN)]

    def spools(self) -> list[Path]:
        """Return the spools of all runs that still hold records."""
        spools = [run / "spool" for run in self._folders()]
        return [spool for spool in spools if any(e.name.endswith(SEGMENT_SUFFIXES) for e, _ in entries_of(spool))]

    def _folders(self) -> list[Path]:
        """Return the folders of all runs, without links and files of such names."""
        found = (entry for entry, _ in entries_of(self.path) if entry.is_dir(follow_symlinks=False))
        return sorted(Path(entry.path) for entry in found if _RUN.fullmatch(entry.name))

    def last(self) -> RunFolder | None:
        """Return the last run, if there is any.

        Raises:
            DiodeError: the run's plan cannot be read.
        """
        runs = self.runs()
        return _read(runs[-1]) if runs else None

    def unfinished(self) -> RunFolder | None:
        """Return the last run if it was interrupted.

        Raises:
            DiodeError: the run's plan cannot be read.
        """
        last = self.last()
        return None if last is None or last.plan.stage is Stage.DONE else last

    def begin(self, plan: Plan) -> RunFolder:
        """Return a new run, of which nothing is on disk yet."""
        runs = self.runs()
        number = 1 + (int(runs[-1].name.rpartition("-")[2]) if runs else 0)
        return RunFolder(self.path / f"run-{number:04d}", plan)

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the device's lock and yield its descriptor. A process that inherits the descriptor holds the lock too.

        Raises:
            DiodeError: another process keeps the lock, or the folder cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / _LOCK).open("ab")
        except OSError as error:
            raise DiodeError(f"{self.path}: cannot be written ({error.strerror or error})") from None
        with file:
            until = time.monotonic() + _WAIT_S
            while not _is_locked(file.fileno()):
                if time.monotonic() > until:
                    raise DiodeError(f"{self.path}: another diode tune is running on this device; wait until it ends")
                time.sleep(0.2)
            yield file.fileno()


def _is_locked(file: int) -> bool:
    try:
        return try_lock(file)
    except OSError as error:
        raise DiodeError(f"{error.filename}: {error.strerror}; set XDG_DATA_HOME to a folder on a local disk") from None


def check_same(found: Plan, request: dict[str, Any]) -> None:
    """Check that an interrupted run has the given request, as far as ``request`` is known.

    Raises:
        SettingsError: the run has other options.
    """
    changed = [name for name in request if found.request.get(name) != request[name]]
    if "--from-script" in changed:  # which changes the products
        changed = [name for name in changed if name != "products"]
    if changed:
        names = " and ".join({"products": "list of products"}.get(name, name) for name in changed)
        raise SettingsError(
            f"the interrupted run has another {names}; repeat its options to continue, or give --restart to plan a"
            " new run (its timings stay)"
        )


def _read(path: Path) -> RunFolder:
    try:
        content = json.loads(read_bounded(path / _PLAN))
        _check_version(content.pop("version"))
        rounds = [Round(**found) for found in content.pop("rounds")]
        plan = Plan(rounds=rounds, stage=Stage(content.pop("stage")), **content)
        _check(plan)
        return RunFolder(path, plan)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DiodeError(
            f"{path / _PLAN}: cannot be read ({first_line(error)}); give --restart to plan a new run"
        ) from None


def _check_version(version: object) -> None:
    if version != _VERSION:
        raise ValueError(f"its version is {version}, and this torch-diode reads {_VERSION}")


def _check(plan: Plan) -> None:
    numbers = [number for each in plan.rounds for number in (each.budget_s, each.spent_s, each.problems or 0)]
    is_plan = isinstance(plan.request, dict) and plan.rounds
    if not is_plan or not all(isinstance(number, (int, float)) for number in numbers):
        raise ValueError("not a plan")


def write(path: Path, text: str) -> None:
    """Write a file durably, and make its folder.

    Raises:
        DiodeError: the file cannot be written.
    """
    with made(path):
        write_durably({path: text.encode()})


@contextlib.contextmanager
def made(path: Path) -> Iterator[Path]:
    """Make the folder of a file that is written in the block.

    Raises:
        DiodeError: the folder or the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield path
    except OSError as error:
        raise DiodeError(f"{path}: cannot be written ({error.strerror or error}); make room") from None
