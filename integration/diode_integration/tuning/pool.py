"""The products that a run chooses from, in which order, and by how many kernels each is timed."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from diode_collectors.problems.search_space import GUIDED, SearchSpace
from diode_collectors.problems.selection import as_lowered
from diode_collectors.sweep.already import measured_in_spool, measured_in_warehouse
from diode_collectors.sweep.devices import check_can_be_timed
from diode_collectors.sweep.report import Estimate
from diode_integration.tuning.choosing import choose
from diode_integration.tuning.decided import decided_by_similar
from diode_integration.tuning.plan import Round, split
from diode_integration.tuning.targets import companions, is_any_named, named_problems, standard_problems
from diode_store.console import progress
from diode_store.errors import NoWarehouseError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from diode_collectors.problems.problem import SweepProblem
    from diode_collectors.problems.selection import ProblemRequest
    from diode_collectors.sweep.already import DoneKey
    from diode_collectors.sweep.devices import SweepDevice

SAMPLE = 12
"""Configs of a template that are timed for each problem: many problems with few teach more than few with many.
Replayed, ten minutes with 12 lost 0.88 times as much as with 24, over 557 problems (``benchmarks/bench_tune.py``)."""
FEWEST_PROBLEMS = 10
"""``diode-train`` refuses fewer; its module needs torch."""
_LARGER = (SearchSpace("EXHAUSTIVE"), *(SearchSpace("SAMPLE", size) for size in (192, 96, 48, 24)))
"""What is timed instead, the first for which there is time, where few products are named."""
_COMPANY, _FEW = 60, 12
"""Fewer products that are named get companions of the standard set, up to so many; on a CPU, where each takes long, not
many more than are needed."""
_VENDOR = SearchSpace("VENDOR")
_VENDOR_SHARE = 0.08
"""Of the time, in which the vendor's kernels alone of further problems are timed. As nothing is compiled, that takes a
seventh of what a problem does by a sample. How fast they are is the vendor's own choice, which sizes hardly foretell: a
model of 607 problems that one H200 timed in three minutes lost 7.0% on the listed ones, as it took cuBLAS to be three
times as fast as it is on patch embeddings with rows of 8 bytes; with cuBLAS's times of 291 more it lost 4.9%."""
_LEAST_VENDOR_S = 5.0
"""Starting its sweep takes 15 s, so that a smaller share of the time is not worth it."""
_MARGIN = 1.3
"""How much longer than estimated a search space that is larger than usual may take."""


class Pool:
    """What a model of one device is to be good at, and what is measured of it."""

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
            devices: all of one model.
            request: which products; none named are the standard set.
            database: the warehouse, which knows what is measured, and what a model of a similar device decided.
            cores: of the machine; of this one unless given.
            left_out: products that are not measured, in whichever dtype.

        Raises:
            SettingsError: something cannot be understood, or nothing of it fits the device.
            HardwareError: on a CPU, nothing of what is named would be timed.
            SchemaError: the warehouse is of another revision.
            DatabaseError: it cannot be read.
        """
        self.devices = tuple(devices)
        self.is_cpu = devices[0].is_cpu
        self.is_named = is_any_named(request)
        self.space = SearchSpace("DEFAULT") if self.is_cpu else SearchSpace(GUIDED, SAMPLE)
        """By which configs a problem is timed that is one of many."""
        self._hardware, self._database = devices[0].hardware, database
        self.cores = cores or len(os.sched_getaffinity(0))
        first, others = self._targets(request, left_out)
        self._first = {problem.problem().key: problem for problem in first}
        self.problems = self._first | {problem.problem().key: problem for problem in others}
        self.asked = frozenset(self._first if self.is_named else (problem.problem().key for problem in others))
        """Keys of what was asked for."""

    def _targets(
        self, request: ProblemRequest, left_out: Collection[SweepProblem]
    ) -> tuple[list[SweepProblem], list[SweepProblem]]:
        """Return what is measured first and what after it.

        Raises:
            SettingsError: something cannot be understood, or nothing is left.
            HardwareError: nothing of it would be timed.
        """
        device, out = self.devices[0], {_as_shape(problem) for problem in left_out}
        standard = standard_problems(device, request.dtypes) if not self.is_named else []
        asked = named_problems(request, device) if self.is_named else standard
        if not asked:
            raise SettingsError(f"nothing that is asked for fits into the memory of {self._hardware.name}")
        kept = [problem for problem in asked if _as_shape(problem) not in out]
        if not kept:
            raise SettingsError("--leave-out has all that is asked for; name more products")
        # The sweep says so too, but then a plan is there that can only be given up.
        check_can_be_timed(kept, on_cpu=self.is_cpu)
        self.left_out = len(asked) - len(kept)
        if self.is_named:
            count = (_FEW if self.is_cpu else _COMPANY) - len(kept)
            return kept, companions(kept, device, count, lambda problem: _as_shape(problem) not in out)
        decided = decided_by_similar(self._database, self._hardware)
        return [each for each in decided if device.fits(each) and _as_shape(each) not in out], kept

    def rounds(self, budget_s: float) -> list[Round]:
        """Return what a run of so many seconds is divided into.

        Few products that are named get a round of their own, by as many kernels as there is time for.
        """
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
        # By the whole budget: what was measured of rounds was so.
        expected = len(left) * min(budget_s / all_s, 1.0) if left else 0.0
        rounds = split(budget_s - vendor_s, str(self.space), expected)
        return [*rounds, Round(vendor_s, str(_VENDOR))] if vendor_s else rounds

    def _vendor_s(self, budget_s: float, all_s: float) -> float:
        """Return how long the vendor's kernels alone are timed, where samples of all that is left take ``all_s``.

        Not at all where samples leave no problem for that.
        """
        vendor_s = _VENDOR_SHARE * budget_s
        is_worth_it = vendor_s >= _LEAST_VENDOR_S and all_s > budget_s - vendor_s
        return vendor_s if is_worth_it and self.known_and_left(_VENDOR)[1] else 0.0

    def estimate(self, space: SearchSpace) -> Estimate:
        """Return what it takes to time problems by the configs of a search space."""
        shares_kernels = self.shares_kernels(space)
        return Estimate(self.devices, space, include_tma=True, cores=self.cores, shares_kernels=shares_kernels)

    def done(self, spools: Iterable[Path] = ()) -> set[DoneKey]:
        """Return what the warehouse has, and ``spools``, whose records are not ingested yet.

        Raises:
            SchemaError: the warehouse is of another revision.
            DatabaseError: it cannot be read.
            SpoolError: nor can a spool.
        """
        found = {each for spool in spools for each in measured_in_spool(spool)}
        with contextlib.suppress(NoWarehouseError):
            found |= measured_in_warehouse(self._database)
        return found

    def measured(self, size: float = 0.0, done: set[DoneKey] | None = None) -> set[bytes]:
        """Return the keys of the problems that are measured on this device, from search spaces of this size on.

        Those of which only the vendor's kernels are timed do not count, unless ``size`` is that of ``VENDOR`` or less.

        Args:
            size: of the smallest search space that counts.
            done: what is measured; None asks the warehouse.
        """
        found = self.done() if done is None else done
        ours = (each for each in found if each.hardware == self._hardware.key)
        return {each.problem for each in ours if _size(each.search_space) >= size}

    def known_and_left(
        self, space: SearchSpace, done: set[DoneKey] | None = None
    ) -> tuple[list[SweepProblem], list[SweepProblem]]:
        """Return the products that are measured on this device, by as many kernels as ``space`` has, and the others.

        What is left of a larger search space than usual are only those that were named. ``done`` is what is
        measured; None asks the warehouse.
        """
        measured = self.measured(space.size, done)
        wanted = self._first if space.size > self.space.size else self.problems
        known = [problem for key, problem in self.problems.items() if key in measured]
        return known, [problem for key, problem in wanted.items() if key not in measured]

    def enough_s(self, problems: int, left: Sequence[SweepProblem]) -> float | None:
        """Return how long it takes to add to so many problems what is missing to learn from.

        None if too few are left.
        """
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
        """Return which of the problems that are left are measured in so many seconds, the most telling first.

        Args:
            known: what is measured.
            left: what is not; what was named or decided comes before the rest.
            budget_s: how long they may take.
            space: by which configs they are timed.
            counts: how much each of them counts.
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

    def shares_kernels(self, space: SearchSpace) -> bool:
        """Whether problems share kernels: not the few that are timed by many."""
        return not self.is_cpu and space == self.space


def _as_shape(problem: SweepProblem) -> SweepProblem:
    """Return a problem as it is lowered, whatever its dtype."""
    return replace(as_lowered(problem), dtype="bfloat16", allow_tf32=False)


def _size(search_space: str) -> float:
    """Return the size of a search space as a record names it; 0 if it is unknown."""
    try:
        return SearchSpace.parse(search_space.partition(" ")[0]).size
    except SettingsError:
        return 0.0
