"""Expected times of grouped products whose routing is unknown.

A compile knows how many groups there are and how many rows they have together, but not how long each group is. So the
hook ranks kernels by their mean time over the routings of ``SKEWS``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from diode_store.ops import OPS
from diode_trainer.scoring import Prediction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from diode_store.records import ProblemShape

SKEWS = ((0.0, 0.5), (1.0, 0.5))
"""Skews of an unknown routing, with their weights. Groups are equal, as balanced training aims at, or their standard
deviation is their mean.
"""
SKEW = "skew"


def unrouted(shape: ProblemShape) -> ProblemShape:
    """Return the problem as a compile sees it: without the skew of its groups."""
    if not shape.dimensions:
        return shape
    return replace(shape, dimensions=tuple(pair for pair in shape.dimensions if pair[0] != SKEW))


def routings(shape: ProblemShape) -> tuple[tuple[ProblemShape, float], ...]:
    """Return the problems that a problem may turn out to be, with their weights; only itself if its skew is known."""
    is_open = shape.dimensions and OPS[shape.op].is_grouped and shape.dimension("total") and not shape.dimension(SKEW)
    if not is_open:
        return ((shape, 1.0),)
    return tuple((_with_skew(shape, skew), weight) for skew, weight in SKEWS)


def predict_unrouted(ask: Callable[[ProblemShape], Prediction], shape: ProblemShape) -> Prediction:
    """Predict the runtime of each config of a problem; of a grouped product without a skew, the expected one.

    Args:
        ask: predicts the configs of one problem.
        shape: problem.
    """
    each = routings(shape)
    if len(each) == 1:
        return ask(shape)
    return _expected([ask(routed) for routed, _ in each], [weight for _, weight in each])


def _with_skew(shape: ProblemShape, skew: float) -> ProblemShape:
    if not skew:
        return shape
    return replace(shape, dimensions=tuple(sorted((*shape.dimensions, (SKEW, skew)))))


def _expected(predictions: Sequence[Prediction], weights: Sequence[float]) -> Prediction:
    """Return the mean of predictions for the same n configs, of all and of each member."""
    runtime_us = np.average([each.runtime_us for each in predictions], axis=0, weights=weights)
    first = predictions[0]
    if not first.member_logs.size or any(not np.array_equal(each.finalists, first.finalists) for each in predictions):
        return Prediction.without_members(runtime_us, first.kernels)
    times = np.exp([each.member_logs for each in predictions], dtype=np.float64)
    member_logs = np.log(np.average(times, axis=0, weights=weights)).astype(np.float32)
    runtime_us[first.finalists] = np.exp(member_logs.mean(0, dtype=np.float64))
    return Prediction(runtime_us, first.finalists, member_logs, first.kernels)
