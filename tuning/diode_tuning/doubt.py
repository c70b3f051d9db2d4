"""Weights of problems by the disagreement of a model's ensemble members about the best kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diode_store.candidates.columns import ConfigColumns
from diode_store.candidates.default_space import default_configs
from diode_store.ops import OPS
from diode_tuning.kernels import rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from diode_collectors.problems.problem import SweepProblem
    from diode_store.records import Hardware, ProblemShape
    from diode_trainer.artifact import TimingModel
    from diode_trainer.scoring import Scorer

_FLOOR = 0.1
"""Weight of a problem on which all ensemble members agree, as a share of the mean weight."""
_BEST = 5
"""Number of best kernels over which the disagreement is averaged."""


def doubts(model: TimingModel | Scorer, problems: Sequence[SweepProblem], hardware: Hardware) -> NDArray[np.float32]:
    """Return a weight for each problem, shape (n,), with a mean of 1: larger where the ensemble members disagree more.

    The candidates are those of Inductor's DEFAULT list and the vendor's. Ops outside the standard set weigh 1.
    """
    is_standard = np.array([problem.entry.is_standard for problem in problems], dtype=bool)
    if not is_standard.any():
        return np.ones(len(problems), dtype=np.float32)
    asked = [problem.problem().shape for problem in problems if problem.entry.is_standard]
    known = np.array([_spread(model, shape, hardware) for shape in asked])
    mean = max(float(known.mean()), 1e-9)
    spread = np.full(len(problems), mean)
    spread[is_standard] = known
    return ((spread / mean + _FLOOR) / (1 + _FLOOR)).astype(np.float32)


def _spread(model: TimingModel | Scorer, shape: ProblemShape, hardware: Hardware) -> float:
    prediction = model.predict(shape, hardware, _kernels(shape), exact=True)
    logs = prediction.member_logs  # (E, f)
    if logs.size == 0:
        return 0.0
    best = np.argsort(logs.mean(0))[:_BEST]
    return float(logs[:, best].std(0).mean())


def _kernels(shape: ProblemShape) -> ConfigColumns:
    rows = rows_of(OPS[shape.op].template, sorted(default_configs(shape)), shape)
    return ConfigColumns.from_rows([*((vendor, 0, 0, 0, 0, 0, 0, False) for vendor in OPS[shape.op].vendors), *rows])
