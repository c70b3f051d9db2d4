"""Baseline of the nearest measured problem: try the configs that were fast on it."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from diode_trainer.judging.baselines.contest import config_keys, needs_training
from diode_trainer.judging.metrics import eligible

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from diode_trainer.data.dataset import Examples
    from diode_trainer.judging.baselines.contest import ConfigKey, Floats

_OF_A_KIND = frozenset({"scaling", "fast_accum", "out_dtype", "b_dtype", "bias", "form"})
"""Named dimensions that near problems share."""
_KEPT = 256
"""Number of training problems whose times are cached."""


def nearest_problem(train: Sequence[Examples], test: Sequence[Examples], /, *, vendor: bool) -> Iterable[Floats]:
    """Rank configs by their times on the nearest training problem; configs without a time there are never tried.

    The distance is Euclidean in the logarithms of B, M, N and K. Problems of the same device, op, dtype, layout and
    kind of scaling and grouping come first; without any, those of the same device, op and dtype. Problems without a
    common config are passed over.

    Raises:
        LeftOutError: there is no training problem.
    """
    needs_training(train)
    known = _Known(train, vendor=vendor)
    for example in test:
        keys = config_keys(example)
        times = (np.array([there.get(key, np.inf) for key in keys]) for there in known.near(example))
        nothing = np.full(len(keys), np.inf)
        yield next((found for found in times if np.isfinite(found[eligible(example, vendor=vendor)]).any()), nothing)


class _Known:
    """Training problems, to search for near ones."""

    def __init__(self, train: Sequence[Examples], *, vendor: bool) -> None:
        self._places: dict[Hashable, list[int]] = defaultdict(list)
        for place, example in enumerate(train):
            for kind in _kinds(example):
                self._places[kind].append(place)
        self._logs = np.array([_log_sizes(example) for example in train])

        @lru_cache(_KEPT)
        def times(place: int) -> dict[ConfigKey, float]:
            counts = eligible(train[place], vendor=vendor)
            timed = zip(config_keys(train[place]), train[place].runtime_us.tolist(), counts, strict=True)
            return {key: runtime for key, runtime, counted in timed if counted}

        self._times = times

    def near(self, example: Examples) -> Iterator[dict[ConfigKey, float]]:
        """Yield times by config, from the nearest problem to the farthest."""
        for kind in _kinds(example):
            places = np.array(self._places.get(kind, []), dtype=np.intp)
            distances = np.linalg.norm(self._logs[places] - _log_sizes(example), axis=1)
            for place in places[np.argsort(distances, kind="stable")]:
                yield self._times(int(place))


def _kinds(example: Examples) -> tuple[Hashable, Hashable]:
    """Return the keys that comparable problems share: the strict one, and the one to fall back on."""
    shape = example.shape
    loose = (example.hardware.key, shape.op, shape.arithmetic)
    named = tuple((name, value) for name, value in shape.dimensions if name in _OF_A_KIND)
    return (*loose, shape.layout, named), loose


def _log_sizes(example: Examples) -> Floats:
    shape = example.shape
    return np.log2(np.array([shape.b, shape.m, shape.n, shape.k], dtype=np.float64))
