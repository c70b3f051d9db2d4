"""The products that a run chooses from, in which order, and by how many kernels each is timed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from diode_collectors.problems.search_space import SearchSpace
from diode_collectors.sweep.already import measured_in_warehouse
from diode_collectors.sweep.report import Estimate
from diode_integration.tuning.choosing import choose
from diode_integration.tuning.decided import decided_by_similar
from diode_integration.tuning.targets import companions, is_any_named, named_problems, standard_problems
from diode_store.console import progress
from diode_store.errors import NoWarehouseError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from numpy.typing import NDArray

    from diode_collectors.problems.problem import SweepProblem
    from diode_collectors.problems.selection import ProblemRequest
    from diode_collectors.sweep.devices import SweepDevice

SAMPLE = 24
"""Configs of a template that are timed for each problem: many problems with few teach more than few with many."""
FEWEST_PROBLEMS = 10
"""``diode-train`` refuses fewer; its module needs torch."""
_LARGER = (SearchSpace("EXHAUSTIVE"), *(SearchSpace("SAMPLE", size) for size in (192, 96, 48)))
"""What is timed instead, the first for which there is time, where few products are named."""
_COMPANY = 60
"""Fewer products that are named get companions of the standard set, up to so many; on a CPU as few as will do."""


class Pool:
    """What a model of one device is to be good at, and what is measured of it."""

    def __init__(
        self,
        devices: Sequence[SweepDevice],
        request: ProblemRequest,
        *,
        budget_s: float,
        database: str,
        cores: int | None = None,
        left_out: Collection[bytes] = (),
    ) -> None:
        """List the products.

        Args:
            devices: all of one model.
            request: which products; none named are the standard set.
            budget_s: how long they may be measured.
            database: the warehouse, which knows what is measured, and what a model of a similar device decided.
            cores: of the machine; of this one unless given.
            left_out: keys of products that are not measured.

        Raises:
            SettingsError: something cannot be understood, or nothing of it fits the device.
            SchemaError: the warehouse is of another revision.
            DatabaseError: it cannot be read.
        """
        self.devices = tuple(devices)
        self.is_cpu = devices[0].is_cpu
        self._hardware, self._database = devices[0].hardware, database
        self._cores = cores or len(os.sched_getaffinity(0))
        first, others = (_by_key(problems, left_out) for problems in self._targets(request))
        self.problems = first | others
        self._first = frozenset(first)
        is_named = is_any_named(request)
        self.asked = frozenset(first if is_named else others)
        """Keys of what was asked for."""
        if not self.asked:
            raise SettingsError(f"of what is asked for nothing fits into the memory of {self._hardware.name}")
        self.space, self.estimate = self._space(budget_s, is_named=is_named)

    def _targets(self, request: ProblemRequest) -> tuple[list[SweepProblem], list[SweepProblem]]:
        """Return what is measured first and what after it."""
        device = self.devices[0]
        if not is_any_named(request):
            return decided_by_similar(self._database, self._hardware), standard_problems(device, request.dtypes)
        named = named_problems(request, device)
        return named, companions(named, device, (FEWEST_PROBLEMS if self.is_cpu else _COMPANY) - len(named))

    def _space(self, budget_s: float, *, is_named: bool) -> tuple[SearchSpace, Estimate]:
        """Return which configs are timed, the more the fewer products are named, and what that takes."""
        usual = SearchSpace("DEFAULT") if self.is_cpu else SearchSpace("SAMPLE", SAMPLE)
        if is_named and not self.is_cpu:
            for space in _LARGER:
                estimate = self._estimate(space)
                if estimate.seconds(list(self.problems.values())) <= budget_s:
                    return space, estimate
        return usual, self._estimate(usual)

    def _estimate(self, space: SearchSpace) -> Estimate:
        return Estimate(self.devices, space, include_tma=True, cores=self._cores)

    def measured(self, size: float = 0.0) -> set[bytes]:
        """Return the keys of the problems that the warehouse has of this device, from search spaces of this size on."""
        try:
            found = measured_in_warehouse(self._database)
        except NoWarehouseError:
            return set()
        ours = (done for done in found if done.hardware == self._hardware.key)
        return {done.problem for done in ours if size == 0 or _size(done.search_space) >= size}

    def known_and_left(self) -> tuple[list[SweepProblem], list[SweepProblem]]:
        """Return the products that are measured on this device, by as many kernels as are timed now, and the others."""
        done = self.measured(self.space.size)
        known = [problem for key, problem in self.problems.items() if key in done]
        return known, [problem for key, problem in self.problems.items() if key not in done]

    def chosen(
        self,
        known: Sequence[SweepProblem],
        left: Sequence[SweepProblem],
        budget_s: float,
        counts: NDArray[np.float32] | None = None,
    ) -> list[SweepProblem]:
        """Return which of the problems that are left are measured in so many seconds, the most telling first.

        Args:
            known: what is measured.
            left: what is not; what was named or decided comes before the rest.
            budget_s: how long they may take.
            counts: how much each of them counts.
        """
        costs_s = {problem: self.estimate.seconds([problem]) for problem in left}
        is_first = np.array([problem.problem().key in self._first for problem in left], dtype=bool)
        found: list[SweepProblem] = []
        with progress("choosing problems"):
            for is_wanted in (is_first, ~is_first):
                some = [problem for problem, wanted in zip(left, is_wanted, strict=True) if wanted]
                left_s = budget_s - sum(costs_s[problem] for problem in found)
                if found and left_s <= 0:
                    break
                of_these = None if counts is None else counts[is_wanted]
                order = choose(
                    some, [costs_s[each] for each in some], left_s, counts=of_these, measured=[*known, *found]
                )
                found += [some[i] for i in order]
        return found


def _by_key(problems: Iterable[SweepProblem], left_out: Collection[bytes]) -> dict[bytes, SweepProblem]:
    return {key: problem for problem in problems if (key := problem.problem().key) not in left_out}


def _size(search_space: str) -> float:
    """Return the size of a search space as a record names it; 0 if it is unknown."""
    try:
        return SearchSpace.parse(search_space.partition(" ")[0]).size
    except SettingsError:
        return 0.0
