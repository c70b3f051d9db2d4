"""Baseline of a fixed short list: benchmark its first k configs, and take the fastest."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np

from diode_trainer.judging.baselines.contest import config_keys, needs_training
from diode_trainer.judging.metrics import eligible

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from diode_trainer.data.dataset import Examples
    from diode_trainer.judging.baselines.contest import ConfigKey, Floats

_CANDIDATES = 512
"""Number of candidates for the list, by how many problems they were timed on."""
_LENGTH = 64
"""Length of the list; more than are tried, as not every config is available everywhere."""


def config_cover(train: Sequence[Examples], test: Sequence[Examples], /, *, vendor: bool) -> Iterable[Floats]:
    """Rank by a list of configs for each device, op and dtype, made from the training problems.

    The list grows greedily. Each step adds the config that brings the list's geometric mean over the training problems
    closest to the best. So every prefix is the list for a smaller k. Unavailable configs are passed over, and configs
    outside the list are never tried. A device, op and dtype without training problems uses a list made from all of
    them.

    Raises:
        LeftOutError: there is no training problem.
    """
    needs_training(train)
    groups: dict[Hashable, list[Examples]] = defaultdict(list)
    for example in train:
        groups[_kind(example)].append(example)
    lists = {kind: _cover(some, vendor=vendor) for kind, some in groups.items()}
    of_all: dict[ConfigKey, int] = {}
    for example in test:
        ranks = lists.get(_kind(example))
        if ranks is None:
            ranks = of_all = of_all or _cover(train, vendor=vendor)
        yield np.array([ranks.get(key, np.inf) for key in config_keys(example)])


def _kind(example: Examples) -> Hashable:
    return example.hardware.key, example.shape.op, example.shape.arithmetic


def _cover(train: Sequence[Examples], *, vendor: bool) -> dict[ConfigKey, int]:
    """Return the position of each config in the list."""
    behind, candidates = _behind(train, vendor=vendor)
    # Cost of a problem before a config of the list can run on it: that of a random config of its own.
    blind = np.array([logs.mean() if len(logs := row[np.isfinite(row)]) else 0.0 for row in behind])
    alone = np.where(np.isfinite(behind), behind, blind[:, None]).mean(0)
    best, chosen = np.full(len(behind), np.inf), list[int]()
    for _ in range(min(_LENGTH, len(candidates))):
        reached = np.minimum(best[:, None], behind)
        cost = np.where(np.isfinite(reached), reached, blind[:, None]).mean(0)
        cost[chosen] = np.inf
        # Ties go to the config that is better alone, which matters if the others are not available.
        chosen.append(int(np.lexsort((alone, cost))[0]))
        best = reached[:, chosen[-1]]
    return {candidates[place]: rank for rank, place in enumerate(chosen)}


def _behind(train: Sequence[Examples], *, vendor: bool) -> tuple[Floats, list[ConfigKey]]:
    """Return log(time / best) by problem and candidate (inf if it did not run), and the candidates."""
    timed = []
    for example in train:
        counted = eligible(example, vendor=vendor)
        if counted.any():
            logs = np.log(example.runtime_us[counted] / example.runtime_us[counted].min())
            keys = (key for key, counts in zip(config_keys(example), counted, strict=True) if counts)
            timed.append(dict(zip(keys, logs.tolist(), strict=True)))
    counts = Counter(key for row in timed for key in row)
    candidates = [key for key, _ in counts.most_common(_CANDIDATES)]
    place = {key: number for number, key in enumerate(candidates)}
    behind = np.full((len(timed), len(candidates)), np.inf)
    for row, logs_of in zip(behind, timed, strict=True):
        there = [key for key in logs_of if key in place]  # few of the candidates
        row[[place[key] for key in there]] = [logs_of[key] for key in there]
    return behind, candidates
