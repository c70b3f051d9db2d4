"""Problems that a run can choose from, their order, and the number of kernels to time for each."""

from __future__ import annotations

import contextlib
import itertools
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from diode_collectors.problems.search_space import GUIDED, SearchSpace
from diode_collectors.problems.selection import as_lowered
from diode_collectors.sweep.already import measured_in_spool, measured_in_warehouse
from diode_collectors.sweep.devices import check_can_be_timed
from diode_collectors.sweep.report import Estimate
from diode_store.command_line.console import print_note, progress
from diode_store.command_line.render import counted
from diode_store.errors import NoWarehouseError, SettingsError
from diode_store.ops import OPS
from diode_trainer.data.dataset import LEARNED_ALONE, NOT_LEARNED
from diode_tuning.choosing import choose
from diode_tuning.decided import decided_by_near
from diode_tuning.plan import Round, split
from diode_tuning.targets import companions, is_any_named, named_problems, standard_problems

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from diode_collectors.problems.problem import SweepProblem
    from diode_collectors.problems.selection import ProblemRequest
    from diode_collectors.sweep.already import DoneKey
    from diode_collectors.sweep.devices import SweepDevice

SAMPLE = 12
"""Configs of a template to time for each problem. Many problems with few configs teach more than few with many
(``benchmarks/bench_tune.py``).
"""
FEWEST_PROBLEMS = 10
"""Fewest problems that ``diode-train`` accepts. Repeated here because its module needs torch."""
_PARTS_OF_ONE_FOLD = 5
"""Number of parts, one of which a single fold holds out."""
_LARGER = (SearchSpace("EXHAUSTIVE"), *(SearchSpace("SAMPLE", size) for size in (192, 96, 48, 24)))
"""Larger search spaces for few named products. The first for which there is time is used."""
_COMPANY, _FEW = 60, 12
"""If fewer products are named, problems of the standard set join them up to this number. On a CPU, where each problem
takes long, the number is just above ``FEWEST_PROBLEMS``.
"""
_VENDOR = SearchSpace("VENDOR")
_VENDOR_SHARE = 0.08
"""Share of the budget for timing only the vendor kernels of further problems.

Nothing is compiled, so such a problem takes a fraction of a sampled one. The vendor chooses its kernels by rules that
sizes hardly foretell, so a model needs more of their times (docs/results/tune-runs.md).
"""
_LEAST_VENDOR_S = 5.0
"""Least seconds of that share: below this the start of a sweep would cost more than the share."""
_MARGIN = 1.3
"""Allowed ratio of the actual to the estimated time of a larger search space."""
SMALLEST = SearchSpace("SAMPLE", SAMPLE)
"""Search space of pinned problems if there is time for no larger one."""


class Pool:
    """Products that a device's model should be good at, problems to pin, and their measurements.

    No model of products learns attention and convolutions, so a picks file pins their fastest kernels.
    """

    def __init__(
        self,
        devices: Sequence[SweepDevice],
        request: ProblemRequest,
        *,
        database: str,
        cores: int | None = None,
        left_out: Collection[SweepProblem] = (),
    ) -> None:
        """List the products.

        Args:
            devices: Devices of one model.
            request: Products to tune for; the standard set if none are named.
            database: URL of the warehouse with the measurements and with decisions by a similar device's model.
            cores: Cores of the machine; of this machine by default.
            left_out: Products not to measure, in any dtype.

        Raises:
            SettingsError: the request cannot be understood, or nothing of it fits the device.
            HardwareError: the device has kernels to choose from for none of the named products.
            SchemaError: the warehouse has another revision.
            DatabaseError: the warehouse cannot be read.
        """
        self.devices = tuple(devices)
        self.is_cpu = devices[0].is_cpu
        self.is_named = is_any_named(request)
        self.space = SearchSpace("DEFAULT") if self.is_cpu else SearchSpace(GUIDED, SAMPLE)
        """Configs to time for a problem that is one of many."""
        self._hardware, self._database = devices[0].hardware, database
        self.cores = cores or len(os.sched_getaffinity(0))
        first, others, pinned = self._targets(request, left_out)
        self._first = {problem.problem().key: problem for problem in first}
        self.problems = self._first | {problem.problem().key: problem for problem in others}
        """Products by key."""
        self.pinned = {problem.problem().key: problem for problem in pinned}
        """Calls of flex attention and convolutions by key, as they were named."""
        asked = self._first | self.pinned if self.is_named else (problem.problem().key for problem in others)
        self.asked = frozenset(asked)
        """Keys of the requested problems."""

    def _targets(
        self, request: ProblemRequest, left_out: Collection[SweepProblem]
    ) -> tuple[list[SweepProblem], list[SweepProblem], list[SweepProblem]]:
        """Return the products to measure first, the products to measure after them, and the problems to pin.

        Raises:
            SettingsError: the request cannot be understood, or no problem is left.
            HardwareError: none of the problems would be timed.
        """
        device, out = self.devices[0], {_as_shape(problem) for problem in left_out}
        standard = standard_problems(device, request.dtypes) if not self.is_named else []
        asked = named_problems(request, device) if self.is_named else standard
        if not asked:
            raise SettingsError(
                f"no requested problem fits into the memory of {self._hardware.name}; name smaller ones"
            )
        kept = [problem for problem in asked if _as_shape(problem) not in out]
        if not kept:
            raise SettingsError("--leave-out has all requested problems; name more")
        # The sweep checks this too, but only after a plan is written that could only be given up.
        check_can_be_timed(kept, on_cpu=self.is_cpu)
        self.left_out = len(asked) - len(kept)
        if self.is_named:
            products = [problem for problem in kept if problem.op not in NOT_LEARNED]
            count = (_FEW if self.is_cpu else _COMPANY) - len(products)
            company = companions(products, device, count, lambda problem: _as_shape(problem) not in out)
            return products, company, self._with_a_choice(kept)
        decided = decided_by_near(self._database, self._hardware)
        return [each for each in decided if device.fits(each) and _as_shape(each) not in out], kept, []

    def _with_a_choice(self, problems: Sequence[SweepProblem]) -> list[SweepProblem]:
        """Return the problems to pin among ``problems``: those with more than one kernel.

        Raises:
            SettingsError: nothing is left.
        """
        pinned = [problem for problem in problems if problem.op in NOT_LEARNED]
        count = self.estimate(SMALLEST).choices
        found = [problem for problem in pinned if count(problem) > 1]
        why = "with a dilation, and for signals, there is the library's kernel alone"
        if not found and len(pinned) == len(problems):
            raise SettingsError(f"the requested convolutions leave nothing to choose: {why}; name others")
        if len(found) < len(pinned):
            print_note(f"{counted(len(pinned) - len(found), 'convolution')} left out: {why}")
        return found

    def rounds(self, budget_s: float) -> list[Round]:
        """Return the rounds of a run with this budget.

        Problems to pin come first. Few named products get a round of their own, with as many kernels as there is time
        for.
        """
        pinned = self._pinned_round(budget_s)
        if not self.problems:
            return pinned
        return [*pinned, *self._rounds_of_products(budget_s - sum(each.budget_s for each in pinned))]

    def _pinned_round(self, budget_s: float) -> list[Round]:
        """Return the round of the problems to pin; none without such problems.

        Its share of the budget is theirs of the named problems. The largest search space for which there is time is
        used, and what it leaves goes to the products.
        """
        if not self.pinned:
            return []
        share_s = budget_s * len(self.pinned) / len(self.asked)
        for space in (*_LARGER, SMALLEST):
            _, left = self.known_and_left(space, is_pinned=True)
            needed_s = _MARGIN * self.estimate(space).seconds(left)
            if needed_s <= share_s:
                return [Round(needed_s, str(space), is_pinned=True)]
        return [Round(share_s, str(SMALLEST), is_pinned=True)]

    def _rounds_of_products(self, budget_s: float) -> list[Round]:
        company = [problem for key, problem in self.problems.items() if key not in self._first]
        if self.is_named and not self.is_cpu:
            company_s = _MARGIN * self.estimate(self.space).seconds(company)
            for space in _LARGER:
                if _MARGIN * self.estimate(space).seconds([*self._first.values()]) <= budget_s - company_s:
                    named = Round(budget_s - company_s, str(space))
                    return [named, Round(company_s, str(self.space))] if company else [named]
        if self.is_cpu:
            return split(budget_s, str(self.space), 0.0)
        _, left = self.known_and_left(self.space)
        all_s = self.estimate(self.space).seconds(left)
        vendor_s = self._vendor_s(budget_s, all_s)
        # The whole budget counts here because ROUND_PROBLEMS was measured so.
        expected = len(left) * min(budget_s / all_s, 1.0) if left else 0.0
        rounds = split(budget_s - vendor_s, str(self.space), expected)
        return [*rounds, Round(vendor_s, str(_VENDOR))] if vendor_s else rounds

    def _vendor_s(self, budget_s: float, all_s: float) -> float:
        """Return the seconds for timing only vendor kernels; 0 if samples of all remaining problems, ``all_s``, fit."""
        vendor_s = _VENDOR_SHARE * budget_s
        is_worth_it = vendor_s >= _LEAST_VENDOR_S and all_s > budget_s - vendor_s
        return vendor_s if is_worth_it and self.known_and_left(_VENDOR)[1] else 0.0

    def estimate(self, space: SearchSpace) -> Estimate:
        """Return an estimate of the time to measure problems in a search space."""
        shares_kernels = self.shares_kernels(space)
        return Estimate(self.devices, space, include_tma=True, cores=self.cores, shares_kernels=shares_kernels)

    def done(self, spools: Iterable[Path] = ()) -> set[DoneKey]:
        """Return what the warehouse has measured, and what ``spools`` hold that is not ingested yet.

        Raises:
            SchemaError: the warehouse has another revision.
            DatabaseError: the warehouse cannot be read.
            SpoolError: a spool cannot be read.
        """
        found = {each for spool in spools for each in measured_in_spool(spool)}
        with contextlib.suppress(NoWarehouseError):
            found |= measured_in_warehouse(self._database)
        return found

    def measured(
        self, size: float = 0.0, done: set[DoneKey] | None = None, *, ops: Collection[str] | None = None
    ) -> set[bytes]:
        """Return the keys of the problems measured on this device in search spaces of at least a size.

        Problems with only vendor kernels timed do not count, unless ``size`` is at most that of ``VENDOR``.

        Args:
            size: Size of the smallest search space that counts.
            done: Measured problems; None asks the warehouse.
            ops: Ops that count; None for products.
        """
        found = self.done() if done is None else done
        wanted = (each for each in found if (each.op not in NOT_LEARNED if ops is None else each.op in ops))
        ours = (each for each in wanted if each.hardware == self._hardware.key)
        return {each.problem for each in ours if _size(each.search_space) >= size}

    def known_and_left(
        self, space: SearchSpace, done: set[DoneKey] | None = None, *, is_pinned: bool = False
    ) -> tuple[list[SweepProblem], list[SweepProblem]]:
        """Return the products measured on this device with the kernels of ``space``, and the remaining products.

        In a larger search space than usual, only named products remain.

        Args:
            space: Search space.
            done: Measured problems; None asks the warehouse.
            is_pinned: True for the problems to pin instead of the products.
        """
        if is_pinned:
            there = self._measured_here(space, done)
            known = [problem for key, problem in self.pinned.items() if key in there]
            return known, [problem for key, problem in self.pinned.items() if key not in there]
        measured = self.measured(space.size, done)
        wanted = self._first if space.size > self.space.size else self.problems
        known = [problem for key, problem in self.problems.items() if key in measured]
        return known, [problem for key, problem in wanted.items() if key not in measured]

    def _measured_here(self, space: SearchSpace, done: set[DoneKey] | None) -> set[bytes]:
        """Return the keys of the pinned problems measured in this software, to which picks are bound.

        A convolution has the same templates in every search space.
        """
        found = self.done() if done is None else done
        here = {each for each in found if each.environment == self.devices[0].environment.key}
        convolutions = [name for name in LEARNED_ALONE if OPS[name].is_convolution]
        others = [name for name in LEARNED_ALONE if name not in convolutions]
        return self.measured(0.0, here, ops=convolutions) | self.measured(space.size, here, ops=others)

    def enough_s(self, problems: int, left: Sequence[SweepProblem]) -> float | None:
        """Return the seconds to add the problems that are missing to learn from; None if too few are left."""
        missing = max(FEWEST_PROBLEMS - problems, 0)
        return None if len(left) < missing else self.estimate(self.space).seconds(left[:missing])

    def chosen(
        self,
        known: Sequence[SweepProblem],
        left: Sequence[SweepProblem],
        budget_s: float,
        space: SearchSpace,
        counts: NDArray[np.float32] | None = None,
    ) -> list[SweepProblem]:
        """Return the remaining problems to measure in a budget, the most informative first.

        Args:
            known: Measured problems.
            left: Remaining problems. Named or decided ones come before the rest.
            budget_s: Seconds for measuring.
            space: Configs to time.
            counts: Weights of the remaining problems.
        """
        estimate = self.estimate(space)
        is_first = np.array([problem.problem().key in self._first for problem in left], dtype=bool)
        found: list[SweepProblem] = []
        with progress("choosing problems"):
            for is_wanted in (is_first, ~is_first):
                some = [problem for problem, wanted in zip(left, is_wanted, strict=True) if wanted]
                left_s = budget_s - estimate.seconds(found)
                if found and left_s <= 0:
                    break
                of_these = None if counts is None else counts[is_wanted]
                costs_s = [estimate.seconds([problem]) for problem in some]
                order = choose(some, costs_s, left_s, counts=of_these, measured=[*known, *found])
                found += [some[i] for i in order]
        return found

    def in_time(self, problems: Sequence[SweepProblem], budget_s: float, space: SearchSpace) -> list[SweepProblem]:
        """Return the first problems, as many as a budget is estimated to time in a search space, at least one."""
        estimate = self.estimate(space)
        costs_s = itertools.accumulate(estimate.seconds([problem]) for problem in problems)
        ends = sum(cost_s <= budget_s for cost_s in costs_s)
        return list(problems[: max(ends, 1)])

    def shares_kernels(self, space: SearchSpace) -> bool:
        """Return whether problems share kernels: all but the few that are timed with many kernels."""
        return not self.is_cpu and space == self.space


def folds_for(problems: int, folds: int) -> int:
    """Return the number of folds to evaluate a model by: none, with a note, if there are too few to hold any out."""
    folds = min(folds, problems)
    if folds and problems * (1 - 1 / (folds if folds > 1 else _PARTS_OF_ONE_FOLD)) < FEWEST_PROBLEMS:
        print_note(f"{problems} problems are too few to hold any out, so the model is not evaluated")
        return 0
    return folds


def _as_shape(problem: SweepProblem) -> SweepProblem:
    """Return a problem as it is lowered, in one dtype for all; an op with dtypes of its own keeps them."""
    lowered = as_lowered(problem)
    return replace(lowered, dtype="bfloat16", allow_tf32=False) if lowered.entry.is_plain else lowered


def _size(search_space: str) -> float:
    """Return the size of a search space as a record names it; 0 if it is unknown."""
    try:
        return SearchSpace.parse(search_space.partition(" ")[0]).size
    except SettingsError:
        return 0.0
