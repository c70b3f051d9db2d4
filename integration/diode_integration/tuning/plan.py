"""A tuning run on disk: what was asked, which problems each round measures, and how far it is.

Each device has a folder of runs. What is planned is written before it is measured, so that a run that was interrupted
goes on with the same problems.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from diode_collectors.problems.guide import write_guide
from diode_collectors.problems.shapesets import as_text
from diode_collectors.spool.reading import SEGMENT_SUFFIXES
from diode_store.errors import DiodeError, SettingsError, first_line
from diode_store.files import try_lock, write_durably

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from diode_collectors.problems.guide import Guide
    from diode_collectors.problems.problem import SweepProblem

ROUND_PROBLEMS = 1000
"""How many problems are expected of each of several rounds at least; two H100s timed some two thirds of what was
expected, one H200 with 16 virtual cores half. Where there was nothing to begin with, they timed 805 problems in three
rounds of a minute, and a model of them lost 5.3 and 3.6% on problems listed and held back. Of the 911 that one round of
three minutes times, whose kernels no model of a few hundred problems picks, it lost 3.6 and 3.1% (docs/models.md)."""
_MOST_ROUNDS = 3
"""Each starts a sweep and fits a model, a minute and a half in all. Replayed, six were no better than three."""
_PLAN, _LOCK = "plan.json", "lock"
_VERSION = 2
_WAIT_S = 20.0
"""How long to wait for the processes of a run that was killed to end."""


class Stage(StrEnum):
    """How far a run is."""

    MEASURING = "measuring"
    TRAINING = "training"
    DONE = "done"


@dataclass
class Round:
    """Some problems that are measured before the next ones are chosen."""

    budget_s: float
    search_space: str
    """By which configs they are timed; a sample is guided where a model has picked some."""
    problems: int | None = None
    """How many are planned, more than the budget will do; None: not yet chosen."""
    spent_s: float = 0.0
    measured: int = 0
    timings: int = 0
    is_measured: bool = False
    """Whether its timings are in the warehouse."""


@dataclass
class Plan:
    """A run."""

    request: dict[str, Any]
    """What was asked for; an interrupted run goes on only for the same."""
    rounds: list[Round]
    stage: Stage = Stage.MEASURING
    kept: str | None = None
    """Where the model is that was there before, if there was one; known once it trains."""
    fits: dict[str, int] | None = None
    """How many folds of how many problems it trains on, once it does, and while those fits can be gone on with."""

    def pass_on(self, number: int) -> None:
        """Give what a round, from 1, has left of its budget to those after it, by what they have."""
        done, later = self.rounds[number - 1], self.rounds[number:]
        left_s, all_s = max(done.budget_s - done.spent_s, 0.0), sum(each.budget_s for each in later)
        for each in later if all_s > 0 else ():
            each.budget_s += left_s * each.budget_s / all_s


def split(budget_s: float, search_space: str, problems: float) -> list[Round]:
    """Return so many equal rounds that choosing anew pays, where so many ``problems`` are expected in all."""
    count = min(max(int(problems // ROUND_PROBLEMS), 1), _MOST_ROUNDS)
    return [Round(budget_s / count, search_space) for _ in range(count)]


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path, self.plan = path, plan

    @property
    def spool(self) -> Path:
        """Where its sweeps leave their records; no daemon reads it."""
        return self.path / "spool"

    def problems_file(self, number: int) -> Path:
        """Return the list of problems of a round, from 1."""
        return self.path / f"round-{number}.txt"

    def guide_file(self, number: int) -> Path:
        """Return where a round, from 1, has its guide, if it has one."""
        return self.path / f"round-{number}.guide.json"

    def choose(self, number: int, problems: Sequence[SweepProblem], guide: Guide | None = None) -> None:
        """Keep which problems a round measures, in this order, and the kernels that it begins with."""
        if guide:
            with _made(self.guide_file(number)) as path:
                write_guide(path, guide)
        write(self.problems_file(number), as_text(problems))
        self.plan.rounds[number - 1].problems = len(problems)
        self.save()

    def save(self) -> None:
        """Keep how far it is.

        Raises:
            DiodeError: it cannot be written.
        """
        write(self.path / _PLAN, json.dumps({"version": _VERSION, **asdict(self.plan)}, indent=2) + "\n")


class DeviceFolder:
    """The runs for one device."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def runs(self) -> list[Path]:
        """Return the folders of its runs, oldest first."""
        return sorted(path.parent for path in self.path.glob(f"run-*/{_PLAN}"))

    def spools(self) -> list[Path]:
        """Return where the sweeps of all runs left their records, as far as these were not fetched."""
        spools = sorted(self.path.glob("run-*/spool"))
        return [spool for spool in spools if any(file.suffix in SEGMENT_SUFFIXES for file in spool.iterdir())]

    def last(self) -> RunFolder | None:
        """Return the last run, if there is any.

        Raises:
            DiodeError: its plan cannot be read.
        """
        runs = self.runs()
        return _read(runs[-1]) if runs else None

    def unfinished(self) -> RunFolder | None:
        """Return the run that was interrupted, if the last one was.

        Raises:
            DiodeError: its plan cannot be read.
        """
        last = self.last()
        return None if last is None or last.plan.stage is Stage.DONE else last

    def begin(self, plan: Plan) -> RunFolder:
        """Make a run; nothing of it is on disk yet."""
        runs = self.runs()
        number = 1 + (int(runs[-1].name.rpartition("-")[2]) if runs else 0)
        return RunFolder(self.path / f"run-{number:04d}", plan)

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the device's lock, whose descriptor is yielded: a process that inherits it holds it too.

        Raises:
            DiodeError: another process keeps it, or the folder cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / _LOCK).open("ab")
        except OSError as error:
            raise DiodeError(f"{self.path}: cannot be written ({error.strerror or error})") from None
        with file:
            until = time.monotonic() + _WAIT_S
            while not try_lock(file.fileno()):
                if time.monotonic() > until:
                    raise DiodeError(f"{self.path}: another diode tune is at work on this device; wait for it")
                time.sleep(0.2)
            yield file.fileno()


def check_same(found: Plan, request: dict[str, Any]) -> None:
    """Check that an interrupted run is what is asked for, as far as that is known.

    Raises:
        SettingsError: it has other options.
    """
    changed = [name for name in request if found.request.get(name) != request[name]]
    if "--from-script" in changed:  # which is why the products are others
        changed = [name for name in changed if name != "products"]
    if changed:
        names = " and ".join({"products": "list of products"}.get(name, name) for name in changed)
        raise SettingsError(
            f"an interrupted run has another {names}; repeat its options to go on, or give --restart to plan anew"
            " (what is measured stays)"
        )


def _read(path: Path) -> RunFolder:
    try:
        content = json.loads((path / _PLAN).read_text())
        _check_version(content.pop("version"))
        rounds = [Round(**found) for found in content.pop("rounds")]
        plan = Plan(rounds=rounds, stage=Stage(content.pop("stage")), **content)
        _check(plan)
        return RunFolder(path, plan)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DiodeError(f"{path / _PLAN}: cannot be read ({first_line(error)}); give --restart to plan anew") from None


def _check_version(version: object) -> None:
    if version != _VERSION:
        raise ValueError(f"it is of version {version}, and this torch-diode writes {_VERSION}")


def _check(plan: Plan) -> None:
    numbers = [number for each in plan.rounds for number in (each.budget_s, each.spent_s, each.problems or 0)]
    is_plan = isinstance(plan.request, dict) and plan.rounds
    if not is_plan or not all(isinstance(number, (int, float)) for number in numbers):
        raise ValueError("it is no plan")


def write(path: Path, text: str) -> None:
    """Write a file, durably, and make its folder.

    Raises:
        DiodeError: it cannot be written.
    """
    with _made(path):
        write_durably({path: text.encode()})


@contextlib.contextmanager
def _made(path: Path) -> Iterator[Path]:
    """Make the folder of a file that is written within.

    Raises:
        DiodeError: it cannot be.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield path
    except OSError as error:
        raise DiodeError(f"{path}: cannot be written ({error.strerror or error}); make room") from None
