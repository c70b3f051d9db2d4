"""How unsure a model is of problems: how far apart its members are about the kernels that it finds best."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diode_integration.tuning.kernels import plain_template, rows_of
from diode_store.columns import ConfigColumns
from diode_store.inductor_default import default_configs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from diode_collectors.problems.problem import SweepProblem
    from diode_store.records import Hardware, ProblemShape
    from diode_trainer.artifact import TimingModel
    from diode_trainer.scoring import Scorer

_FLOOR = 0.1
"""What a problem counts of which the members are of one mind, as a share of what all count in the mean."""
_BEST = 5
"""The kernels among which the choice is."""


def doubts(model: TimingModel | Scorer, problems: Sequence[SweepProblem], hardware: Hardware) -> NDArray[np.float32]:
    """Return what each problem counts, shape (n,), 1 in the mean: more where the members are further apart.

    The kernels that are asked about are those of Inductor's DEFAULT list and the vendor's.
    """
    spread = np.array([_spread(model, problem.problem().shape, hardware) for problem in problems])
    mean = max(float(spread.mean()), 1e-9)
    return ((spread / mean + _FLOOR) / (1 + _FLOOR)).astype(np.float32)


def _spread(model: TimingModel | Scorer, shape: ProblemShape, hardware: Hardware) -> float:
    prediction = model.predict(shape, hardware, _kernels(shape), exact=True)
    logs = prediction.member_logs  # (E, f)
    if logs.size == 0:
        return 0.0
    best = np.argsort(logs.mean(0))[:_BEST]
    return float(logs[:, best].std(0).mean())


def _kernels(shape: ProblemShape) -> ConfigColumns:
    vendors = ("aten::addmm", "aten::bias_addmm") if shape.op == "addmm" else (f"aten::{shape.op}",)
    rows = rows_of(plain_template(shape.op), sorted(default_configs(shape)), shape)
    return ConfigColumns.from_rows([*((vendor, 0, 0, 0, 0, 0, 0, False) for vendor in vendors), *rows])
