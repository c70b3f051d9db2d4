"""Choice of the kernels to time for a problem, half of them because a model predicts them fastest.

A model picks the kernel with the lowest of many predictions, which tends to be an underestimate. Timing a model's own
first choices shows the next model these errors. Without a model the kernels come from Inductor's DEFAULT list, which
experts wrote.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np

from diode_collectors.problems.choices import can_use_tma, exhaustive_configs
from diode_collectors.problems.kinds import kernel_kind
from diode_collectors.problems.search_space import drawn_place
from diode_store.candidates.columns import ConfigColumns
from diode_store.candidates.default_space import default_configs
from diode_store.candidates.operands import has_whole_rows
from diode_store.ops import OPS
from diode_tuning.kernels import rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from diode_collectors.problems.guide import Guide
    from diode_collectors.problems.kinds import Kind
    from diode_collectors.problems.problem import SweepProblem
    from diode_collectors.problems.search_space import SearchSpace
    from diode_collectors.sweep.devices import SweepDevice
    from diode_store.candidates.default_space import GemmConfig
    from diode_trainer.artifact import TimingModel

_TMA = "triton::mm_persistent_tma"
_LOOKED_AT = 4
"""Number of a problem's fastest kernels to consider for each one to take."""


def guide_by(
    model: TimingModel,
    problems: Sequence[SweepProblem],
    device: SweepDevice,
    space: SearchSpace,
    *,
    shares_kernels: bool = False,
) -> Guide:
    """Return, for each problem and template, the half of a sample that a model predicts fastest.

    If problems share kernels, a problem gets its fastest kernel. Its others are those that most problems of its kind
    have among their fastest. Ops outside the standard set get no guide: a sweep draws their kernels.
    """
    problems = [problem for problem in problems if problem.entry.is_standard]
    found: dict[bytes, dict[str, list[GemmConfig]]] = defaultdict(dict)
    for is_tma, size in ((False, (space.sample or 0) // 2), (True, space.tma_sample // 2)):
        kinds: dict[tuple[str, Kind | bytes], dict[bytes, list[GemmConfig]]] = defaultdict(dict)
        for problem in problems if size else ():
            if not is_tma or (device.has_tma and can_use_tma(problem)):
                record, template = problem.problem(), _TMA if is_tma else OPS[problem.op].template
                kind = kernel_kind(record.shape) if shares_kernels and has_whole_rows(problem) else record.key
                kinds[template, kind][record.key] = _ranked(model, problem, template, device)[: _LOOKED_AT * size]
        for (template, _), ranks in kinds.items():
            for key, configs in _in_common(ranks, size).items():
                found[key][template] = configs
    return dict(found)


def _in_common(ranks: Mapping[bytes, Sequence[GemmConfig]], size: int) -> dict[bytes, list[GemmConfig]]:
    """Return ``size`` configs for each problem: its fastest, then those of its others that most problems have."""
    votes = Counter(config for configs in ranks.values() for config in configs)

    def most_first(configs: Sequence[GemmConfig]) -> list[GemmConfig]:
        return [*configs[:1], *sorted(configs[1:], key=lambda config: -votes[config])]

    return {key: most_first(configs)[:size] for key, configs in ranks.items()}


def guide_by_default(problems: Sequence[SweepProblem]) -> Guide:
    """Return, for each problem, the configs of Inductor's DEFAULT list for its template.

    Their order is drawn, and is the same for all problems of a kind that may share kernels. A sweep takes the first
    ones that its device can run.
    """
    found: dict[bytes, dict[str, list[GemmConfig]]] = {}
    for problem in (problem for problem in problems if problem.entry.is_standard):
        record = problem.problem()
        of = kernel_kind(record.shape) if has_whole_rows(problem) else record.key
        places = {config: drawn_place((of, *config)) for config in default_configs(record.shape)}
        found[record.key] = {OPS[problem.op].template: sorted(places, key=places.__getitem__)}
    return found


def _ranked(model: TimingModel, problem: SweepProblem, template: str, device: SweepDevice) -> list[GemmConfig]:
    """Return the configs of a template, the fastest predicted first, each kernel once."""
    shape, shared_memory_bytes = problem.problem().shape, device.hardware.shared_memory_per_block_bytes
    configs = exhaustive_configs(problem, shared_memory_bytes=shared_memory_bytes, tma=template == _TMA)
    prediction = model.predict(shape, device.hardware, ConfigColumns.from_rows(rows_of(template, configs, shape)))
    predicted = prediction.without_repeats().runtime_us
    return [configs[i] for i in np.argsort(predicted, kind="stable") if np.isfinite(predicted[i])]
