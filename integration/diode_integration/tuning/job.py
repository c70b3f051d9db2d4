"""Tunes one device: plans rounds, has them measured and ingested, trains a model, and puts it where the hook looks."""

from __future__ import annotations

import contextlib
import hashlib
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from diode_collectors.problems.search_space import GUIDED, SearchSpace
from diode_collectors.sweep.scratch import scratch_folder
from diode_integration.tuning import installing
from diode_integration.tuning.guiding import guide_by, guide_by_default
from diode_integration.tuning.plan import ROUND_PROBLEMS, Plan, Round, RunFolder, Stage, check_same
from diode_integration.tuning.pool import FEWEST_PROBLEMS, Pool
from diode_integration.tuning.running import CommandFailedError, Commands, Output
from diode_store.console import print_note, progress
from diode_store.errors import DatasetError, DiodeError, HardwareError, ModelError, NoWarehouseError
from diode_store.render import counted
from diode_store.urls import redact

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from diode_collectors.problems.guide import Guide
    from diode_collectors.problems.problem import SweepProblem
    from diode_collectors.problems.selection import ProblemRequest
    from diode_collectors.sweep.devices import SweepDevice
    from diode_integration.tuning.plan import DeviceFolder
    from diode_store.private_folder import PrivateFolder
    from diode_trainer.artifact import TimingModel

_SPARE = 1.5
"""How many times the problems that are estimated to fit into a round's budget are planned; the clock ends it."""
_PARTS_OF_ONE_FOLD = 5
"""A single fold holds out one part in so many."""
_MEMBERS = 12
"""Of a model that begins with nothing: of ten minutes twelve lose 0.87 to 0.92 times as much on the listed problems as
six, which take half the time to train (docs/models.md)."""
_LEAST_S = 1.0
"""A round with less left is over."""


@dataclass(frozen=True)
class TuneRequest:
    """What is asked for."""

    targets: ProblemRequest
    """Which products; none named are the standard set."""
    budget_s: float
    """For one model of device."""
    database: str
    from_scratch: bool = False
    """Whether the models and timings of other devices are left alone."""
    folds: int = 5
    device_models: int = 1
    """How many share the budget of the command."""
    script: str | None = None
    """The program that compiled those of the targets that are in its shape set."""
    left_out: tuple[SweepProblem, ...] = ()
    """Products that are not measured, in whichever dtype."""

    def to_plain(self, products: Iterable[bytes]) -> dict[str, Any]:
        """Return it as JSON has it, by the names of options; of the keys of the products that it comes to, a digest."""
        return {
            "products": _digest(products),
            "--from-script": self.script,
            "--leave-out": _digest(problem.problem().key for problem in self.left_out),
            "--budget": self.budget_s,
            "--from-scratch": self.from_scratch,
            "--database": redact(self.database),
        }


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
        self.pool = Pool(devices, request.targets, database=request.database, cores=cores, left_out=request.left_out)
        self._request = request.to_plain(self.pool.asked)
        self._commands = Commands(request.database)

    def plan(self) -> Plan:
        """Return a new plan."""
        return Plan(self._request, self.pool.rounds(self.request.budget_s))

    def found(self, *, restart: bool) -> RunFolder:
        """Return the interrupted run, else a new one.

        Raises:
            SettingsError: the interrupted one has other options.
            DiodeError: its plan cannot be read.
        """
        unfinished = None if restart else self.folder.unfinished()
        if unfinished is None:
            return self.folder.begin(self.plan())
        check_same(unfinished.plan, self._request)
        return unfinished

    def was_done(self) -> bool:
        """Whether the last run did all that is asked for now.

        Raises:
            DiodeError: its plan cannot be read.
        """
        last = self.folder.last()
        return last is not None and last.plan.stage is Stage.DONE and last.plan.request == self._request

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
        if self.request.left_out:
            print_note(f"{counted(self.pool.left_out, 'product')} left out")
            known = self.pool.measured(-math.inf) & {problem.problem().key for problem in self.request.left_out}
            if known:
                told = f"{counted(len(known), 'product')} of --leave-out"
                print_note(f"{told} measured before, which the model learns from; name another --database")
        self._upgrade_if_new()
        for spool in self.folder.spools():  # of runs that were given up, so that nothing is measured twice
            self._ingest(spool)
        with scratch_folder(len(self.devices)) as kept:
            for number, each in enumerate(run.plan.rounds, 1):
                if not each.is_measured:
                    self._round(run, number, each, kept)
                    each.is_measured = True
                    run.plan.pass_on(number)
                    run.save()
        return self._train(run, captures=captures)

    def _upgrade_if_new(self) -> None:
        from diode_store.warehouse.store import Store

        try:
            Store.open(self.request.database).close()
        except NoWarehouseError:
            self._commands.run("db", "upgrade", output=Output.DROP)

    # --- rounds

    def _round(self, run: RunFolder, number: int, each: Round, kept: PrivateFolder) -> None:
        """Choose a round's problems unless they are chosen, measure them, and ingest the timings."""
        if each.problems is None:
            problems, guide = self.choose(number, each, run.path / "interim.pt")
            if not problems and number == 1:
                print_note(f"what is asked for is measured already; {self._more_to_measure()}")
            run.choose(number, problems, guide)
        is_vendor = SearchSpace.parse(each.search_space).is_vendor
        # Starting a sweep counts as spent where that was interrupted, and takes longer than this round.
        left_s = each.budget_s if is_vendor else each.budget_s - each.spent_s
        if each.problems and left_s >= _LEAST_S:
            up_to, by = counted(each.problems, "problem"), ", by the vendor's kernels alone" if is_vendor else ""
            print_note(f"round {number} of {len(run.plan.rounds)}: up to {up_to} in {left_s:.0f} s{by}")
            self._measure(run, number, each, left_s, kept)
        self._ingest(run.spool)

    def _measure(self, run: RunFolder, number: int, each: Round, left_s: float, kept: PrivateFolder) -> None:
        """Measure a round's problems; kernels that they share are kept for the next round."""

        def tick(seconds: float) -> None:
            """Note how much of the budget is spent."""
            each.spent_s += seconds
            with contextlib.suppress(DiodeError):  # a full disk; what is measured is worth more than the clock
                run.save()

        guide, space = run.guide_file(number), SearchSpace.parse(each.search_space)
        if guide.exists():
            space = SearchSpace(GUIDED, space.sample)
        report = self._commands.run(
            "collect",
            *("--shapeset", str(run.problems_file(number)), "--search-space", str(space)),
            *(("--guide", str(guide)) if guide.exists() else ()),
            *(("--share-kernels", "--kernels", str(kept.path)) if self.pool.shares_kernels(space) else ()),
            *("--device", ",".join(device.name for device in self.devices), "--spool", str(run.spool)),
            *("--shard", "0/1"),  # of all, also where a launcher has many processes
            *("--time-limit", f"{left_s:.0f}s", "--json"),
            output=Output.JSON,
            on_tick=tick,
            locks=(kept.lock,),  # it may outlast this process by a moment, and its kernels must not go before it
        )
        each.measured, each.timings = report["measured"] + report["skipped"], report["timings"]
        problems, timings = counted(each.measured, "problem"), counted(each.timings, "timing")
        print_note(f"{problems} measured, {timings} in {report['seconds']:.0f} s")

    def _ingest(self, spool: Path) -> None:
        if spool.exists():
            self._commands.run("ingest", "--once", "--spool", str(spool), output=Output.DROP)

    # --- choosing

    def choose(self, number: int, each: Round, interim: Path) -> tuple[list[SweepProblem], Guide]:
        """Return the problems of a round, the most telling first, and the kernels that each begins with.

        Args:
            number: of the round, from 1.
            each: the round.
            interim: where a model of the rounds before is put.
        """
        space = SearchSpace.parse(each.search_space)
        known, left = self.pool.known_and_left(space)
        model = None if self.pool.is_cpu or space.is_vendor or not left else self._model(number, interim)
        if model is None:
            problems = self.pool.chosen(known, left, _SPARE * each.budget_s, space)
            return problems, guide_by_default(problems) if space.kind == GUIDED else {}
        from diode_integration.tuning.doubt import doubts

        counts = doubts(model, left, self.hardware)
        problems = self.pool.chosen(known, left, _SPARE * each.budget_s, space, counts)
        if not space.is_drawn:
            return problems, {}
        with progress("choosing kernels"):
            return problems, guide_by(
                model, problems, self.devices[0], space, shares_kernels=self.pool.shares_kernels(space)
            )

    def _model(self, number: int, interim: Path) -> TimingModel | None:
        """Return a model of what is measured, at first the shipped one; None without any.

        In a first round what is measured is of earlier runs, and counts where it is as much as a round brings.
        """
        from diode_trainer import artifact

        try:
            if number > 1 or len(self.pool.measured()) >= ROUND_PROBLEMS:
                self._train_to(interim, folds=0, output=Output.DROP)
                return artifact.load(interim)
            return None if self.request.from_scratch else artifact.load_shipped()
        except (CommandFailedError, ModelError):
            return None  # too little was measured to learn from, or there is no model

    # --- training

    def _members(self) -> int | None:
        """Return how many members a model of a GPU has that begins with nothing; None leaves the recipe's."""
        from diode_trainer.training import warm_start

        begins_with_nothing = self.request.from_scratch or warm_start.shipped_for((self.hardware,)) is None
        return _MEMBERS if begins_with_nothing and not self.pool.is_cpu else None

    def _train_to(
        self, path: Path, *, folds: int, output: Output, members: int | None = None, goes_on: bool = False
    ) -> Any:
        options = [
            *(("--warm-start", "none") if self.request.from_scratch or members else ()),
            *(("--members", str(members)) if members else ()),
            *(("--json",) if output is Output.JSON else ()),
            *(("--resume",) if goes_on else ()),
        ]
        what = ("--hardware", self.hardware.name, "--folds", str(folds), "--output", str(path), "--force")
        return self._commands.run("train", *what, *options, output=output)

    def _folds(self, run: RunFolder, problems: int) -> int:
        """Return how many folds the model is judged by: none if there is too little to hold any out.

        Raises:
            DatasetError: there is too little to learn from; the run is over.
        """
        if problems < FEWEST_PROBLEMS:
            run.plan.stage = Stage.DONE
            run.save()
            raise DatasetError(
                f"{counted(problems, 'problem')} measured on {self.hardware.name}, and {FEWEST_PROBLEMS} are needed to"
                f" learn from; {self._more(problems)}"
            )
        folds = min(self.request.folds, problems)
        if folds and problems * (1 - 1 / (folds if folds > 1 else _PARTS_OF_ONE_FOLD)) < FEWEST_PROBLEMS:
            print_note(f"{problems} problems are too few to hold any out, so the model is not judged")
            return 0
        return folds

    def enough_minutes(self, problems: int, left: Sequence[SweepProblem]) -> int | None:
        """Return the --budget, in whole minutes, that adds to so many problems what is missing to learn from.

        None if too few are left.
        """
        seconds = self.pool.enough_s(problems, left)
        # One to spare: a sweep may take longer than is estimated.
        return None if seconds is None else math.ceil(seconds * self.request.device_models / 60) + 1

    def _more(self, problems: int) -> str:
        """Return how to get as many problems as are needed."""
        _, left = self.pool.known_and_left(self.pool.space)
        minutes = self.enough_minutes(problems, left)
        if minutes is None:
            return "name more products"
        return f"run it again, with a --budget of {minutes}m, which adds to them"

    def _more_to_measure(self) -> str:
        if self.pool.is_named and not self.pool.is_cpu:
            return "name more products, or give a larger --budget, in which they are timed by more kernels"
        return "name more products to measure more"

    def _train(self, run: RunFolder, *, captures: bool) -> dict[str, Any]:
        from diode_trainer.training.checkpoints import are_left

        path, members = installing.target(self.hardware), self._members()
        folds = self._folds(run, len(self.pool.measured()))
        fits = {"folds": folds, "problems": len(self.pool.measured(-math.inf)), "members": members or 0}
        goes_on = run.plan.fits == fits and are_left(path)
        if run.plan.stage is Stage.MEASURING:  # afterwards the model that is there may be this run's
            if path.exists():
                run.plan.kept = str(installing.keep_copy(path, self.folder.path / "previous"))
            run.plan.stage = Stage.TRAINING
        run.plan.fits = fits
        run.save()
        output = Output.JSON if captures else Output.SHOW
        try:
            report = self._train_to(path, folds=folds, output=output, members=members, goes_on=goes_on)
        except CommandFailedError:
            run.plan.fits = None  # whatever it was, the next run begins these anew
            run.save()
            raise
        run.plan.stage = Stage.DONE
        run.save()
        return {
            "hardware": self.hardware.name,
            "model": str(path),
            "sha256": installing.sha256_of(path),
            "previous": run.plan.kept,
            "better_beginning": installing.better_beginning(path),
            "rounds": [asdict(each) for each in run.plan.rounds],
            "training": report,
        }


def _digest(keys: Iterable[bytes]) -> str:
    return hashlib.blake2b(b"".join(sorted(keys)), digest_size=8).hexdigest()


def left_to_do(jobs: Sequence[TuningJob]) -> list[TuningJob]:
    """Return what is left of the jobs of one command: without those that it has done, if it was interrupted in another.

    Raises:
        DiodeError: a plan cannot be read.
    """
    if not any(job.folder.unfinished() for job in jobs):
        return list(jobs)
    return [job for job in jobs if not job.was_done()]


def group_devices(devices: Sequence[SweepDevice]) -> list[list[SweepDevice]]:
    """Return devices by their model."""
    groups: dict[bytes, list[SweepDevice]] = {}
    for device in devices:
        groups.setdefault(device.hardware.key, []).append(device)
    names = [group[0].hardware.name for group in groups.values()]
    if len(set(names)) < len(names):
        named = ", ".join(device.name for device in devices)
        raise HardwareError(f"{named}: different devices have the same name; tune one with --device")
    if not groups:
        raise DiodeError("there is no device to tune")
    return list(groups.values())
