"""Which kernels of a problem are timed because a model believes them fast: what it would choose has to be seen.

A model takes the kernel that it predicts fastest, and of a thousand predictions the lowest is one that is too low. So
half of what is timed are a model's own first choices, from which the next one learns where it was wrong. Where there is
no model yet they are drawn from Inductor's DEFAULT list, which is by people who have seen what is fast.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np

from diode_collectors.problems.choices import can_use_tma, exhaustive_configs
from diode_integration.tuning.kernels import plain_template, rows_of
from diode_store.columns import ConfigColumns
from diode_store.inductor_default import default_configs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_collectors.problems.guide import Guide
    from diode_collectors.problems.problem import SweepProblem
    from diode_collectors.problems.search_space import SearchSpace
    from diode_collectors.sweep.devices import SweepDevice
    from diode_store.inductor_default import GemmConfig
    from diode_trainer.artifact import TimingModel

_TMA = "triton::mm_persistent_tma"


def guide_by(model: TimingModel, problems: Sequence[SweepProblem], device: SweepDevice, space: SearchSpace) -> Guide:
    """Return, for each problem and template, the half of a sample that a model predicts fastest."""
    found: dict[bytes, dict[str, list[GemmConfig]]] = {}
    for problem in problems:
        sizes = {plain_template(problem.op): (space.sample or 0) // 2}
        if device.has_tma and can_use_tma(problem):
            sizes[_TMA] = space.tma_sample // 2
        found[problem.problem().key] = {
            template: _fastest(model, problem, template, device, size) for template, size in sizes.items() if size
        }
    return found


def guide_by_default(problems: Sequence[SweepProblem]) -> Guide:
    """Return, for each problem, the configs that Inductor's DEFAULT list has for its template.

    Their order is drawn, the same for a problem each time; a sweep takes the first that its device can run.
    """
    found: dict[bytes, dict[str, list[GemmConfig]]] = {}
    for problem in problems:
        record = problem.problem()
        listed = sorted(default_configs(record.shape))
        random.Random(record.key).shuffle(listed)  # noqa: S311 - no secret
        found[record.key] = {plain_template(problem.op): listed}
    return found


def _fastest(
    model: TimingModel, problem: SweepProblem, template: str, device: SweepDevice, size: int
) -> list[GemmConfig]:
    shape, shared_memory_bytes = problem.problem().shape, device.hardware.shared_memory_per_block_bytes
    configs = exhaustive_configs(problem, shared_memory_bytes=shared_memory_bytes, tma=template == _TMA)
    predicted = model.predict_us(shape, device.hardware, ConfigColumns.from_rows(rows_of(template, configs, shape)))
    return [configs[i] for i in np.argsort(predicted, kind="stable")[:size] if np.isfinite(predicted[i])]
