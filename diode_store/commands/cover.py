"""Kernels that together serve many problems, for a build that cannot have a kernel for every problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_WITHIN = 1.05


class CoverRow(NamedTuple):
    """One kernel of a cover, in the order of choice; the figures describe the cover up to this kernel."""

    hardware: str
    kernel: str
    config_id: int
    serves: int
    """Number of problems for which this kernel is the fastest of the cover."""
    regret: float
    """Geometric mean over problems: the time of the cover's fastest kernel divided by the best time of all kernels."""
    within_5pct: float
    """Share of problems for which the cover has a kernel within 5% of the fastest."""


def cover(connection: Any, sql: str, values: Mapping[str, object], kernels: int) -> list[CoverRow]:
    """Return the ``kernels`` kernels that leave the lowest mean loss, chosen greedily.

    A greedy choice is within 1 - 1/e of the best possible gain (Nemhauser, Wolsey and Fisher, 1978). If no kernel of
    the cover was timed on a problem, the problem counts as slow as its slowest timed kernel.

    Args:
        connection: over the cache.
        sql: a SELECT of hardware, problem, config_id, kernel and slowdown.
        values: its parameters.
        kernels: maximum number of kernels.
    """
    found = connection.execute(sql, dict(values)).fetchnumpy()
    if not len(found["config_id"]):
        return []
    problems, of_problem = np.unique(found["problem"], return_inverse=True)
    configs, first, of_config = np.unique(found["config_id"], return_index=True, return_inverse=True)
    losses = np.log(np.asarray(found["slowdown"], dtype=np.float64))
    left = np.zeros(len(problems))
    np.maximum.at(left, of_problem, losses)
    server = np.full(len(problems), -1)
    rows = []
    for _ in range(min(kernels, len(configs))):
        chosen = _most_gain(left, losses, of_problem, of_config)
        mine = of_config == chosen
        served = of_problem[mine][losses[mine] <= left[of_problem[mine]]]
        left[of_problem[mine]] = np.minimum(left[of_problem[mine]], losses[mine])
        server[served] = chosen
        place = first[chosen]
        rows.append(
            CoverRow(
                str(found["hardware"][place]),
                str(found["kernel"][place]),
                int(configs[chosen]),
                int((server == chosen).sum()),
                float(np.exp(left.mean())),
                float((left <= np.log(_WITHIN)).mean()),
            )
        )
    return rows


def _most_gain(
    left: NDArray[np.float64], losses: NDArray[np.float64], of_problem: NDArray[np.intp], of_config: NDArray[np.intp]
) -> int:
    """Return the config that lowers the sum of losses most; of equals, the one that serves most problems."""
    gains = np.bincount(of_config, weights=np.maximum(left[of_problem] - losses, 0.0))
    served = np.bincount(of_config, weights=losses <= left[of_problem])
    return int(np.lexsort((-served, -gains))[0])
