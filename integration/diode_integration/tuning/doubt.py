"""How unsure a model is of problems: what its members think that the pick of all of them would lose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diode_store.columns import ConfigColumns
from diode_store.inductor_default import default_configs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from diode_collectors.problems.problem import SweepProblem
    from diode_store.records import Hardware, ProblemShape
    from diode_trainer.artifact import TimingModel

_FLOOR = 0.1
"""What a problem counts of which the members are of one mind, as a share of what all count in the mean."""
_GROUP_M = 8


def doubts(model: TimingModel, problems: Sequence[SweepProblem], hardware: Hardware) -> NDArray[np.float32]:
    """Return what each problem counts, shape (n,), 1 in the mean: more where the members disagree about the choice.

    The kernels that are asked about are those of Inductor's DEFAULT list and the vendor's.
    """
    lost = np.array([_disagreement(model, problem.problem().shape, hardware) for problem in problems])
    mean = max(float(lost.mean()), 1e-9)
    return ((lost / mean + _FLOOR) / (1 + _FLOOR)).astype(np.float32)


def _disagreement(model: TimingModel, shape: ProblemShape, hardware: Hardware) -> float:
    prediction = model.predict(shape, hardware, _kernels(shape), exact=True)
    logs = prediction.member_logs  # (E, f)
    if logs.size == 0:
        return 0.0
    pick = logs.mean(0).argmin()
    return float((logs[:, pick] - logs.min(1)).mean())


def _kernels(shape: ProblemShape) -> ConfigColumns:
    template = "triton::bmm" if shape.op in {"bmm", "baddbmm"} else "triton::mm"
    rows = [
        (template, c.block_m, c.block_n, c.block_k, _GROUP_M, c.num_stages, c.num_warps, shape.tf32)
        for c in sorted(default_configs(shape))
    ]
    return ConfigColumns.from_rows([(f"aten::{shape.op}", 0, 0, 0, 0, 0, 0, False), *rows])
