"""Tuning of one device model: plan rounds, measure and ingest them, train a model, and install it for the hook."""

from __future__ import annotations

import contextlib
import hashlib
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from diode_collectors.problems.search_space import GUIDED, SearchSpace
from diode_collectors.sweep.scratch import scratch_folder
from diode_store.command_line.console import print_note, progress
from diode_store.command_line.render import counted
from diode_store.errors import DatasetError, DiodeError, HardwareError, ModelError, NoWarehouseError
from diode_store.system.urls import redact
from diode_trainer.data.dataset import LEARNED_ALONE
from diode_tuning import installing, pinning
from diode_tuning.guiding import guide_by, guide_by_default
from diode_tuning.plan import ROUND_PROBLEMS, Plan, Round, RunFolder, Stage, check_same
from diode_tuning.pool import FEWEST_PROBLEMS, Pool, folds_for
from diode_tuning.running import CommandFailedError, Commands, Output

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from diode_collectors.problems.guide import Guide
    from diode_collectors.problems.problem import SweepProblem
    from diode_collectors.problems.selection import ProblemRequest
    from diode_collectors.sweep.devices import SweepDevice
    from diode_store.system.private_folder import PrivateFolder
    from diode_trainer.artifact import TimingModel
    from diode_tuning.plan import DeviceFolder

_SPARE = 1.5
"""Planned problems per problem that is estimated to fit into a round's budget. The clock ends the round."""
_MEMBERS = 12
"""Ensemble members of a model that starts from nothing. More members lose less here and take longer to train; see
docs/results/tune-runs.md.
"""
_LEAST_S = 1.0
"""A round with fewer seconds left is over."""


@dataclass(frozen=True)
class TuneRequest:
    """A request to `diode tune`."""

    targets: ProblemRequest
    """Problems to tune for; the standard set if none are named."""
    budget_s: float
    """Seconds to measure one device model."""
    database: str
    from_scratch: bool = False
    """Leave the models and timings of other devices alone."""
    folds: int = 5
    device_models: int = 1
    """Number of device models that share the budget of the command."""
    script: str | None = None
    """Program that compiled the targets in its shape set."""
    left_out: tuple[SweepProblem, ...] = ()
    """Products not to measure, in any dtype."""

    def to_plain(self, products: Iterable[bytes]) -> dict[str, Any]:
        """Return the request as JSON values by option, with a digest of the keys of the products."""
        return {
            "products": _digest(products),
            "--from-script": self.script,
            "--leave-out": _digest(problem.problem().key for problem in self.left_out),
            "--budget": self.budget_s,
            "--from-scratch": self.from_scratch,
            "--database": redact(self.database),
        }


class TuningJob:
    """The tuning of one device model of this machine, which may have several such GPUs."""

    def __init__(
        self, devices: Sequence[SweepDevice], request: TuneRequest, folder: DeviceFolder, cores: int | None = None
    ) -> None:
        """Tune ``devices`` of one model. ``cores`` is given to plan for another machine."""
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
            SettingsError: the interrupted run has other options.
            DiodeError: the plan of the interrupted run cannot be read.
        """
        unfinished = None if restart else self.folder.unfinished()
        if unfinished is None:
            return self.folder.begin(self.plan())
        check_same(unfinished.plan, self._request)
        return unfinished

    def was_done(self) -> bool:
        """Return whether the last run did all that is asked for now.

        Raises:
            DiodeError: the last run's plan cannot be read.
        """
        last = self.folder.last()
        return last is not None and last.plan.stage is Stage.DONE and last.plan.request == self._request

    def run(self, lock: int, *, restart: bool, captures: bool) -> dict[str, Any]:
        """Do the whole job, or the rest of an interrupted run, and return a report as JSON values.

        Args:
            lock: Descriptor of the device's lock, which the commands inherit.
            restart: Give up an interrupted run.
            captures: Return the training report instead of printing its table.

        Raises:
            DiodeError: a step failed. Measured timings are kept, and the same command goes on.
        """
        self._commands = Commands(self.request.database, lock)
        run = self.found(restart=restart)
        if run.plan.rounds[0].problems is not None:
            print_note(f"continuing {run.path.name}")
        if self.request.left_out:
            print_note(f"{counted(self.pool.left_out, 'problem')} left out")
            known = self.pool.measured(-math.inf) & {problem.problem().key for problem in self.request.left_out}
            if known:
                told = f"{counted(len(known), 'product')} of --leave-out"
                print_note(
                    f"the warehouse has {told}, and the model learns from them; name another --database to avoid that"
                )
        self._upgrade_if_new()
        for spool in self.folder.spools():  # includes given-up runs, so that nothing is measured twice
            self._ingest(spool)
        with scratch_folder(len(self.devices)) as kept:
            for number, each in enumerate(run.plan.rounds, 1):
                if not each.is_measured:
                    self._round(run, number, each, kept)
                    each.is_measured = True
                    run.plan.pass_on(number)
                    run.save()
        pinned = self._pin(captures=captures)
        trained = self._train(run, captures=captures) if self.pool.problems else self._trained(run, None)
        return {**trained, **pinned}

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
            before = sum(earlier.is_pinned for earlier in run.plan.rounds[: number - 1])
            problems, guide = self.choose(number - before, each, run.path / "interim.pt")
            if not problems and each is run.plan.rounds[0]:
                what = "convolutions and calls of attention" if each.is_pinned else "products"
                print_note(f"all requested {what} are measured; {self._more_to_measure()}")
            run.choose(number, problems, guide)
        is_vendor = SearchSpace.parse(each.search_space).is_vendor
        # An interruption during a sweep's start counts that start as spent, which may exceed this round's budget.
        left_s = each.budget_s if is_vendor else each.budget_s - each.spent_s
        if each.problems and left_s >= _LEAST_S:
            by = ", attention and convolutions" if each.is_pinned else ", with vendor kernels only" if is_vendor else ""
            up_to = counted(each.problems, "problem")
            print_note(f"round {number} of {len(run.plan.rounds)}: up to {up_to} in {left_s:.0f} s{by}")
            self._measure(run, number, each, left_s, kept)
        self._ingest(run.spool)

    def _measure(self, run: RunFolder, number: int, each: Round, left_s: float, kept: PrivateFolder) -> None:
        """Measure a round's problems, and keep the kernels that they share for the next round."""

        def tick(seconds: float) -> None:
            """Add to the time that the round has spent."""
            each.spent_s += seconds
            with contextlib.suppress(DiodeError):  # perhaps a full disk; the sweep goes on without the clock
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
            *("--shard", "0/1"),  # all problems, even under a launcher of many processes
            *("--time-limit", f"{left_s:.0f}s", "--json"),
            output=Output.JSON,
            on_tick=tick,
            locks=(kept.lock,),  # the command may briefly outlive this process, and needs its kernels
        )
        each.measured, each.timings = report["measured"] + report["skipped"], report["timings"]
        problems, timings = counted(each.measured, "problem"), counted(each.timings, "timing")
        print_note(f"{problems} measured, {timings} in {report['seconds']:.0f} s")

    def _ingest(self, spool: Path) -> None:
        if spool.exists():
            self._commands.run("ingest", "--once", "--spool", str(spool), output=Output.DROP)

    # --- choosing

    def choose(self, number: int, each: Round, interim: Path) -> tuple[list[SweepProblem], Guide]:
        """Return the problems of a round, the most informative first, and the kernels that each begins with.

        Args:
            number: Number of the round, from 1, among those of products.
            each: The round.
            interim: Path for a model of the rounds before.
        """
        space = SearchSpace.parse(each.search_space)
        known, left = self.pool.known_and_left(space, is_pinned=each.is_pinned)
        if each.is_pinned:
            return left, {}
        model = None if self.pool.is_cpu or space.is_vendor or not left else self._model(number, interim)
        if model is None:
            problems = self.pool.chosen(known, left, _SPARE * each.budget_s, space)
            return problems, guide_by_default(problems) if space.kind == GUIDED else {}
        from diode_tuning.doubt import doubts

        counts = doubts(model, left, self.hardware)
        problems = self.pool.chosen(known, left, _SPARE * each.budget_s, space, counts)
        if not space.is_drawn:
            return problems, {}
        with progress("choosing kernels"):
            return problems, guide_by(
                model, problems, self.devices[0], space, shares_kernels=self.pool.shares_kernels(space)
            )

    def _model(self, number: int, interim: Path) -> TimingModel | None:
        """Return a model of the measured problems, at first the shipped model; None without any.

        In a first round the measured problems come from earlier runs. They count if there are as many as a round
        brings.
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
        """Return the number of ensemble members for a GPU's model from nothing; None for the recipe's default."""
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
            *(() if goes_on else ("--restart",)),
        ]
        what = ("--hardware", self.hardware.name, "--folds", str(folds), "--output", str(path), "--force")
        return self._commands.run("train", *what, *options, output=output)

    def _folds(self, run: RunFolder, problems: int) -> int:
        """Return the number of folds to evaluate the model by: none if there are too few problems to hold any out.

        Raises:
            DatasetError: there are too few problems to learn from. The run is over.
        """
        if problems < FEWEST_PROBLEMS:
            run.plan.stage = Stage.DONE
            run.save()
            raise DatasetError(
                f"{counted(problems, 'problem')} measured on {self.hardware.name}, but training needs"
                f" {FEWEST_PROBLEMS}; {self._more(problems)}"
            )
        return folds_for(problems, self.request.folds)

    def enough_minutes(self, problems: int, left: Sequence[SweepProblem]) -> int | None:
        """Return the --budget, in minutes, that adds the problems missing to learn from; None if too few are left."""
        seconds = self.pool.enough_s(problems, left)
        # One minute to spare: a sweep may take longer than estimated.
        return None if seconds is None else math.ceil(seconds * self.request.device_models / 60) + 1

    def _more(self, problems: int) -> str:
        """Return advice on how to get enough problems."""
        _, left = self.pool.known_and_left(self.pool.space)
        minutes = self.enough_minutes(problems, left)
        if minutes is None:
            return "name more products"
        return f"run the command again with --budget {minutes}m to add more"

    def _more_to_measure(self) -> str:
        if self.pool.is_named and not self.pool.is_cpu:
            return "name more products, or give a larger --budget to time more of their kernels"
        return "name more products to measure more"

    def _train(self, run: RunFolder, *, captures: bool) -> dict[str, Any]:
        from diode_trainer.training.checkpoints import are_left

        path, members = installing.target(self.hardware), self._members()
        folds = self._folds(run, len(self.pool.measured()))
        fits = {"folds": folds, "problems": len(self.pool.measured(-math.inf)), "members": members or 0}
        goes_on = run.plan.fits == fits and are_left(path)
        if run.plan.stage is Stage.MEASURING:  # in later stages the model may be this run's own
            if path.exists():
                run.plan.kept = str(installing.keep_copy(path, self.folder.path / "previous"))
            run.plan.stage = Stage.TRAINING
        run.plan.fits = fits
        run.save()
        output = Output.JSON if captures else Output.SHOW
        try:
            report = self._train_to(path, folds=folds, output=output, members=members, goes_on=goes_on)
        except CommandFailedError:
            run.plan.fits = None  # the next run begins the fits anew
            run.save()
            raise
        return self._trained(run, path, report)

    def _trained(self, run: RunFolder, path: Path | None, training: Any = None) -> dict[str, Any]:
        """End a run, and return its report; ``path`` is that of the model of products, if there is one."""
        run.plan.stage = Stage.DONE
        run.save()
        return {
            "hardware": self.hardware.name,
            "model": None if path is None else str(path),
            "sha256": None if path is None else installing.sha256_of(path),
            "previous": run.plan.kept,
            "better_beginning": None if path is None else installing.better_beginning(path),
            "rounds": [asdict(each) for each in run.plan.rounds],
            "training": training,
        }

    def _pin(self, *, captures: bool) -> dict[str, Any]:
        """Put the measured convolutions and calls of attention to use, and return what was made of them."""
        if not self.pool.pinned:
            return {"picks": None, "other_models": []}
        picks = pinning.write_picks(self.request.database, self.devices[0], LEARNED_ALONE)
        if picks is None:
            ops = dict.fromkeys(problem.op for problem in self.pool.pinned.values())
            print_note(f"no fastest kernel was found for {', '.join(ops)}; give a larger --budget")
        else:
            print_note(f"{picks['file']}: {counted(picks['picks'], 'pick')}")
        output, previous = Output.DROP if captures else Output.SHOW, self.folder.path / "previous"
        models = pinning.train_alone(self._commands, self.pool, self.request.folds, output, previous)
        return {"picks": picks, "other_models": models}


def _digest(keys: Iterable[bytes]) -> str:
    return hashlib.blake2b(b"".join(sorted(keys)), digest_size=8).hexdigest()


def left_to_do(jobs: Sequence[TuningJob]) -> list[TuningJob]:
    """Return the jobs of one command that remain: after an interruption, all but those already done.

    Raises:
        DiodeError: a plan cannot be read.
    """
    if not any(job.folder.unfinished() for job in jobs):
        return list(jobs)
    return [job for job in jobs if not job.was_done()]


def group_devices(devices: Sequence[SweepDevice]) -> list[list[SweepDevice]]:
    """Return devices grouped by their model."""
    groups: dict[bytes, list[SweepDevice]] = {}
    for device in devices:
        groups.setdefault(device.hardware.key, []).append(device)
    names = [group[0].hardware.name for group in groups.values()]
    if len(set(names)) < len(names):
        named = ", ".join(device.name for device in devices)
        raise HardwareError(f"{named}: different devices have the same name; select one with --device")
    if not groups:
        raise DiodeError("no device to tune: this machine has no GPU that --device selects")
    return list(groups.values())
