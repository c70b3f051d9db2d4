"""Tunes one device: plans rounds, has them measured and ingested, trains a model, and puts it where the hook looks."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from diode_collectors.problems.search_space import SearchSpace
from diode_collectors.sweep.already import measured_in_warehouse
from diode_collectors.sweep.report import Estimate
from diode_integration.tuning import installing
from diode_integration.tuning.choosing import choose
from diode_integration.tuning.plan import Plan, Round, RunFolder, Stage, check_same
from diode_integration.tuning.running import CommandFailedError, Commands
from diode_store.console import print_note, progress
from diode_store.errors import DatasetError, DiodeError, ModelError
from diode_store.render import counted
from diode_store.urls import redact, sqlite_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from diode_collectors.problems.problem import SweepProblem
    from diode_collectors.sweep.devices import SweepDevice
    from diode_integration.tuning.plan import DeviceFolder
    from diode_integration.tuning.targets import Targets

_SAMPLE = 24
"""Configs of a template that are timed for each problem: many problems with few teach more than few with many."""
FEWEST_PROBLEMS = 10
"""``diode-train`` refuses fewer; its module needs torch."""
_ROUND_S = 180.0
_MOST_ROUNDS = 3
_SPARE = 1.5
"""How many times the problems that are estimated to fit into a round's budget are planned; the clock ends it."""
_LEAST_S = 1.0
"""A round with less left is over."""


@dataclass(frozen=True)
class TuneRequest:
    """What is asked for."""

    targets: Targets
    budget_s: float
    database: str
    from_scratch: bool = False
    """Whether the models and timings of other devices are left alone."""
    folds: int = 5

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        targets = {name: [str(each) for each in value] for name, value in asdict(self.targets).items()}
        options = {"budget": self.budget_s, "from_scratch": self.from_scratch, "database": redact(self.database)}
        return {**targets, **options}


class TuningJob:
    """One device model of this machine, of which there may be several GPUs."""

    def __init__(
        self, devices: Sequence[SweepDevice], request: TuneRequest, folder: DeviceFolder, cores: int | None = None
    ) -> None:
        """Tune ``devices``, which are alike; those of another machine are planned for with so many ``cores``."""
        self.devices = tuple(devices)
        self.hardware = devices[0].hardware
        self.request = request
        self.folder = folder
        self.is_cpu = devices[0].is_cpu
        self.space = SearchSpace("DEFAULT") if self.is_cpu else SearchSpace("SAMPLE", _SAMPLE)
        cores = cores or len(os.sched_getaffinity(0))
        self.estimate = Estimate(self.devices, self.space, include_tma=True, cores=cores)
        self._commands = Commands(request.database)

    def plan(self) -> Plan:
        """Return a new plan: so many rounds that choosing anew pays, one alone where no model says what to choose."""
        count = 1 if self.is_cpu else min(max(int(self.request.budget_s // _ROUND_S), 1), _MOST_ROUNDS)
        return Plan(self.request.to_plain(), [Round(self.request.budget_s / count) for _ in range(count)])

    def found(self, *, restart: bool) -> RunFolder:
        """Return the interrupted run, else a new one.

        Raises:
            SettingsError: the interrupted one has other options.
            DiodeError: its plan cannot be read.
        """
        unfinished = None if restart else self.folder.unfinished()
        if unfinished is None:
            return self.folder.begin(self.plan())
        check_same(unfinished.plan, self.request.to_plain())
        return unfinished

    def foreseen(self, *, restart: bool) -> dict[str, Any]:
        """Return what would be done, for a script or to be printed; nothing is written."""
        run = self.found(restart=restart)
        pool, done = self._pool(), self.measured()
        is_new = run.plan.rounds[0].problems is None
        left = [problem for problem in pool if problem.problem().key not in done]
        costs_s = [self.estimate.seconds([problem]) for problem in left]
        left_s = sum(each.budget_s - each.spent_s for each in run.plan.rounds if not each.is_measured)
        with progress("choosing problems"):
            chosen = [left[i] for i in choose(left, costs_s, left_s)] if left_s >= _LEAST_S else []
        return {
            "hardware": self.hardware.name,
            "devices": [device.name for device in self.devices],
            "cores": self.estimate.cores,
            "targets": len(pool),
            "measured_already": len(pool) - len(left),
            "rounds": [asdict(each) for each in run.plan.rounds],
            "budget_s": left_s,
            "problems": len(chosen),
            "choices": sum(map(self.estimate.choices, chosen)),
            "estimate_s": self.estimate.seconds(chosen),
            "model": str(installing.target(self.hardware)),
            "goes_on_with": None if is_new else run.path.name,
        }

    def _pool(self) -> list[SweepProblem]:
        return [problem for problem in self.request.targets.problems(self.devices[0]) if self.estimate.fits(problem)]

    def run(self, lock: int, *, restart: bool, captures: bool) -> dict[str, Any]:
        """Do all of it, or what an interrupted run left; return what a script would read.

        Args:
            lock: the descriptor of the device's lock, which the commands that are run inherit.
            restart: give an interrupted run up.
            captures: print no table, but return it.

        Raises:
            DiodeError: something failed; what was measured is kept, and the same command goes on.
        """
        self._commands = Commands(self.request.database, lock)
        run = self.found(restart=restart)
        if run.plan.rounds[0].problems is not None:
            print_note(f"going on with {run.path.name}")
        self._upgrade_if_new()
        for number, each in enumerate(run.plan.rounds, 1):
            if not each.is_measured:
                self._round(run, number, each)
        run.plan.stage = Stage.TRAINING
        run.save()
        return self._train(run, captures=captures)

    def _upgrade_if_new(self) -> None:
        if self._has_no_warehouse():
            self._commands.run("db", "upgrade")

    def _has_no_warehouse(self) -> bool:
        path = sqlite_path(self.request.database)
        return path is not None and not path.exists()

    # --- rounds

    def _round(self, run: RunFolder, number: int, each: Round) -> None:
        """Choose a round's problems unless they are chosen, measure them, and ingest the timings."""
        if each.problems is None:
            problems = self.choose(number, each, run.path / "interim.pt")
            if not problems:
                print_note("everything that is asked for is measured already")
            run.choose(number, problems)
        left_s = each.budget_s - each.spent_s
        if each.problems and left_s >= _LEAST_S:
            up_to = counted(each.problems, "problem")
            print_note(f"round {number} of {len(run.plan.rounds)}: up to {up_to} in {left_s:.0f} s")
            self._measure(run, number, each, left_s)
        self._ingest(run)
        each.is_measured = True
        run.save()

    def _measure(self, run: RunFolder, number: int, each: Round, left_s: float) -> None:
        def tick(seconds: float) -> None:
            each.spent_s += seconds
            run.save()

        report = self._commands.run(
            "collect",
            *("--shapeset", str(run.problems_file(number)), "--search-space", str(self.space)),
            *("--device", ",".join(device.name for device in self.devices), "--spool", str(run.spool)),
            *("--time-limit", f"{left_s:.0f}s", "--json"),
            captures=True,
            on_tick=tick,
        )
        each.measured, each.timings = report["measured"] + report["skipped"], report["timings"]
        print_note(
            f"{each.measured:,} problems measured, {counted(each.timings, 'timing')} in {report['seconds']:.0f} s"
        )

    def _ingest(self, run: RunFolder) -> None:
        if run.spool.exists():
            self._commands.run("ingest", "--once", "--spool", str(run.spool), "--json", captures=True)

    # --- choosing

    def choose(self, number: int, each: Round, interim: Path) -> list[SweepProblem]:
        """Return the problems of a round, the most telling first.

        Args:
            number: of the round, from 1.
            each: the round.
            interim: where a model of the rounds before is put, for what it is unsure of.
        """
        pool, done = self._pool(), self.measured()
        left = [problem for problem in pool if problem.problem().key not in done]
        if not left:
            return []
        costs_s = [self.estimate.seconds([problem]) for problem in left]
        known = [problem for problem in pool if problem.problem().key in done]
        counts = None if self.is_cpu else self._doubts(number, left, interim)
        with progress("choosing problems"):
            chosen = choose(left, costs_s, _SPARE * each.budget_s, counts=counts, measured=known)
        return [left[i] for i in chosen]

    def measured(self) -> set[bytes]:
        """Return the keys of the problems that the warehouse has of this device."""
        if self._has_no_warehouse():
            return set()
        key = self.hardware.key
        return {done.problem for done in measured_in_warehouse(self.request.database) if done.hardware == key}

    def _doubts(self, number: int, problems: Sequence[SweepProblem], interim: Path) -> NDArray[Any] | None:
        """Return how unsure models are: that of the rounds before, at first the shipped one; None without any."""
        from diode_integration.tuning.doubt import doubts
        from diode_trainer import artifact

        try:
            if number > 1:
                self._train_to(interim, folds=0)
                model = artifact.load(interim)
            elif self.request.from_scratch:
                return None
            else:
                model = artifact.load_shipped()
        except (CommandFailedError, ModelError):
            return None  # too little was measured to learn from, or there is no model
        return doubts(model, problems, self.hardware)

    # --- training

    def _train_to(self, path: Path, *, folds: int, captures: bool = True) -> Any:
        scratch = ("--warm-start", "none") if self.request.from_scratch else ()
        return self._commands.run(
            "train",
            *("--hardware", self.hardware.name, "--folds", str(folds)),
            *("--output", str(path), "--force", *scratch, *(("--json",) if captures else ())),
            captures=captures,
        )

    def _folds(self, run: RunFolder) -> int:
        """Return how many folds the model is judged by: none if there is too little to hold any out.

        Raises:
            DatasetError: there is too little to learn from; the run is over.
        """
        problems = len(self.measured())
        if problems < FEWEST_PROBLEMS:
            run.plan.stage = Stage.DONE
            run.save()
            raise DatasetError(
                f"{counted(problems, 'problem')} measured on {self.hardware.name}, and {FEWEST_PROBLEMS} are needed to"
                " learn from; run it again with a longer --budget, which adds to them"
            )
        if self.request.folds and problems * (1 - 1 / self.request.folds) < FEWEST_PROBLEMS:
            print_note(f"{problems} problems are too few to hold any out, so the model is not judged")
            return 0
        return self.request.folds

    def _train(self, run: RunFolder, *, captures: bool) -> dict[str, Any]:
        path, report = installing.target(self.hardware), None
        if "before" not in run.plan.extra:
            run.plan.extra["before"] = installing.sha256_of(path)
            run.save()
        before = run.plan.extra["before"]
        is_trained = installing.sha256_of(path) != before  # by a run that was interrupted right after
        kept = self.folder.path / "previous" / str(before)[:12] / path.name
        if not is_trained:
            if before is not None:
                kept = installing.keep_copy(path, self.folder.path / "previous")
            report = self._train_to(path, folds=self._folds(run), captures=captures)
        run.plan.sha256, run.plan.stage = installing.sha256_of(path), Stage.DONE
        run.save()
        return {
            "hardware": self.hardware.name,
            "model": str(path),
            "sha256": run.plan.sha256,
            "previous": None if before is None else str(kept),
            "rounds": [asdict(each) for each in run.plan.rounds],
            "training": report,
        }


def group_devices(devices: Sequence[SweepDevice]) -> list[list[SweepDevice]]:
    """Return devices by their model."""
    groups: dict[bytes, list[SweepDevice]] = {}
    for device in devices:
        groups.setdefault(device.hardware.key, []).append(device)
    if not groups:
        raise DiodeError("there is no device to tune")
    return list(groups.values())
