"""Which kernels of a problem are timed because a model believes them fast: what it would choose has to be seen.

A model takes the kernel that it predicts fastest, and of a thousand predictions the lowest is one that is too low. So
half of what is timed are a model's own first choices, from which the next one learns where it was wrong. Where there is
no model yet they are drawn from Inductor's DEFAULT list, which is by people who have seen what is fast.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np

from diode_collectors.problems.choices import can_use_tma, exhaustive_configs
from diode_collectors.problems.kinds import has_whole_rows, kernel_kind
from diode_collectors.problems.search_space import drawn_place
from diode_integration.tuning.kernels import plain_template, rows_of
from diode_store.columns import ConfigColumns
from diode_store.inductor_default import default_configs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from diode_collectors.problems.guide import Guide
    from diode_collectors.problems.kinds import Kind
    from diode_collectors.problems.problem import SweepProblem
    from diode_collectors.problems.search_space import SearchSpace
    from diode_collectors.sweep.devices import SweepDevice
    from diode_store.inductor_default import GemmConfig
    from diode_trainer.artifact import TimingModel

_TMA = "triton::mm_persistent_tma"
_LOOKED_AT = 4
"""How many times as many of a problem's fastest are looked at as are taken."""


def guide_by(
    model: TimingModel,
    problems: Sequence[SweepProblem],
    device: SweepDevice,
    space: SearchSpace,
    *,
    shares_kernels: bool = False,
) -> Guide:
    """Return, for each problem and template, the half of a sample that a model predicts fastest.

    Where problems share kernels these are its fastest, and of the next ones those that most others of its kind have
    among theirs.
    """
    found: dict[bytes, dict[str, list[GemmConfig]]] = defaultdict(dict)
    for is_tma, size in ((False, (space.sample or 0) // 2), (True, space.tma_sample // 2)):
        kinds: dict[tuple[str, Kind | bytes], dict[bytes, list[GemmConfig]]] = defaultdict(dict)
        for problem in problems if size else ():
            if not is_tma or (device.has_tma and can_use_tma(problem)):
                record, template = problem.problem(), _TMA if is_tma else plain_template(problem.op)
                kind = kernel_kind(record.shape) if shares_kernels and has_whole_rows(problem) else record.key
                kinds[template, kind][record.key] = _ranked(model, problem, template, device)[: _LOOKED_AT * size]
        for (template, _), ranks in kinds.items():
            for key, configs in _in_common(ranks, size).items():
                found[key][template] = configs
    return dict(found)


def _in_common(ranks: Mapping[bytes, Sequence[GemmConfig]], size: int) -> dict[bytes, list[GemmConfig]]:
    """Return ``size`` configs of each problem's: its fastest, and of the next those that most problems have."""
    votes = Counter(config for configs in ranks.values() for config in configs)

    def most_first(configs: Sequence[GemmConfig]) -> list[GemmConfig]:
        return [*configs[:1], *sorted(configs[1:], key=lambda config: -votes[config])]

    return {key: most_first(configs)[:size] for key, configs in ranks.items()}


def guide_by_default(problems: Sequence[SweepProblem]) -> Guide:
    """Return, for each problem, the configs that Inductor's DEFAULT list has for its template.

    Their order is drawn, the same for all problems of a kind that may share kernels; a sweep takes the first that its
    device can run.
    """
    found: dict[bytes, dict[str, list[GemmConfig]]] = {}
    for problem in problems:
        record = problem.problem()
        of = kernel_kind(record.shape) if has_whole_rows(problem) else record.key
        places = {config: drawn_place((of, *config)) for config in default_configs(record.shape)}
        found[record.key] = {plain_template(problem.op): sorted(places, key=places.__getitem__)}
    return found


def _ranked(model: TimingModel, problem: SweepProblem, template: str, device: SweepDevice) -> list[GemmConfig]:
    """Return the configs of a template, those first that a model predicts fastest, each kernel once."""
    shape, shared_memory_bytes = problem.problem().shape, device.hardware.shared_memory_per_block_bytes
    configs = exhaustive_configs(problem, shared_memory_bytes=shared_memory_bytes, tma=template == _TMA)
    prediction = model.predict(shape, device.hardware, ConfigColumns.from_rows(rows_of(template, configs, shape)))
    predicted = prediction.without_repeats().runtime_us
    return [configs[i] for i in np.argsort(predicted, kind="stable") if np.isfinite(predicted[i])]
