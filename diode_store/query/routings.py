"""One pick for all routings of a grouped product.

A compile does not know how long each group will be, so it asks for groups of equal size. A sweep may have timed the
same product with several skews. The pick is the kernel with the lowest mean time over them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from diode_store.ops import OPS
from diode_store.ops.inputs import without_skew
from diode_store.records import regime_group, regime_rank
from diode_store.timing.noise import slowest_tie_us

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import duckdb

    from diode_store.records import Problem

_SKEW = "skew"
_TIMES = """
SELECT problem_id, regime, config_id, runtime_us
FROM config_rank
WHERE hardware_id = $1 AND environment_id = $2 AND problem_id IN (SELECT unnest($3::BIGINT[]))
"""


@dataclass(frozen=True)
class TimedProblem:
    """A problem's fastest configs in one regime."""

    problem_id: int
    problem: Problem
    runtime_us: float
    regime: str | None
    ties: tuple[int, ...]
    """Ids of the fastest config and its tie set, the fastest first."""
    sigma: float
    """Relative scatter of the times."""


def over_routings(
    connection: duckdb.DuckDBPyConnection, hardware_id: int, environment_id: int, found: Iterable[TimedProblem]
) -> Iterator[TimedProblem]:
    """Yield the problems, with one in place of all routings of a grouped product, at the place of the first.

    Only configs that were timed with each routing count. If there is none, the routing with the least skew counts
    alone. Of routings in different regimes those nearest to deployment count.
    """
    rows = list(found)
    routings: defaultdict[bytes, list[TimedProblem]] = defaultdict(list)
    for row in rows:
        if is_grouped(row.problem):
            routings[without_skew(row.problem).key].append(row)
    several = [row.problem_id for same in routings.values() if len(same) > 1 for row in same]
    times = _times(connection, hardware_id, environment_id, several) if several else {}
    for row in rows:
        if not is_grouped(row.problem):
            yield row
        elif same := routings.pop(without_skew(row.problem).key, []):
            yield _merged(same, times)


def is_grouped(problem: Problem) -> bool:
    """Return whether a problem is a grouped product of an op that this version knows."""
    return problem.op in OPS and OPS[problem.op].is_grouped


def _times(
    connection: duckdb.DuckDBPyConnection, hardware_id: int, environment_id: int, problem_ids: Sequence[int]
) -> Mapping[tuple[int, str | None], dict[int, float]]:
    found: defaultdict[tuple[int, str | None], dict[int, float]] = defaultdict(dict)
    rows = connection.execute(_TIMES, [hardware_id, environment_id, sorted(problem_ids)]).fetchall()
    for problem_id, regime, config_id, runtime_us in rows:
        found[problem_id, regime][config_id] = runtime_us
    return found


def _merged(same: list[TimedProblem], times: Mapping[tuple[int, str | None], dict[int, float]]) -> TimedProblem:
    nearest = regime_group(min((row.regime for row in same), key=regime_rank))
    kept = sorted((row for row in same if regime_group(row.regime) == nearest), key=lambda row: _skew(row.problem))
    first = replace(kept[0], problem=without_skew(kept[0].problem))
    by_routing = [times.get((row.problem_id, row.regime), {}) for row in kept]
    timed_by_all = set.intersection(*(set(each) for each in by_routing))
    if len(kept) == 1 or not timed_by_all:
        return first
    means = {config: sum(each[config] for each in by_routing) / len(by_routing) for config in timed_by_all}
    order = sorted(means, key=lambda config: (means[config], config))
    best_us, sigma = means[order[0]], max(row.sigma for row in kept)
    limit_us = slowest_tie_us(best_us, sigma)
    ties = tuple(config for config in order if means[config] <= limit_us)
    return replace(first, runtime_us=best_us, ties=ties, sigma=sigma)


def _skew(problem: Problem) -> float:
    return float(dict(problem.scalars).get(_SKEW, 0))
