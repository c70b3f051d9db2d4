"""Datasets from measurements outside a warehouse: files, or records in memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_store.candidates.columns import ConfigColumns
from diode_store.errors import DatasetError
from diode_store.ops import FUSED_OPS
from diode_store.records import STOCK_POLICY
from diode_store.timing.noise import noisiest
from diode_store.timing.plausible import without_implausible
from diode_trainer.data.dataset import LEARNED_ALONE, Examples, ExampleSet, canonical, with_unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from diode_store.records import KernelConfig, Measurement, Timing

    Select = Callable[[list[Measurement]], list[Measurement]]


def load_measurements(measurements: Iterable[Measurement], origin: str, select: Select | None = None) -> ExampleSet:
    """Merge ``measurements`` as the view ``training_examples`` does: one row per problem, regime and config.

    Args:
        measurements: the measurements.
        origin: where they are from, for errors.
        select: selects the usable ones; those of ops that one model learns together by default.

    Raises:
        DatasetError: no measurement is usable; the message begins with ``origin``.
    """
    usable, unknown = [], dict[bytes, str]()
    for m in measurements:
        if m.problem.is_unknown:
            unknown[m.problem.key] = m.problem.op
        elif m.problem.op in FUSED_OPS:
            continue
        elif _is_usable(m) and (kept := without_implausible(m)):
            usable.append(kept)
    if not usable:
        raise DatasetError(
            f"{origin}: holds no usable measurement (replays, flagged ones, impossible times and those filtered by a"
            f" hook do not count{', nor those of unknown ops' if unknown else ''})"
        )
    usable = [m for m in usable if m.problem.op not in LEARNED_ALONE] if select is None else select(usable)
    groups: dict[tuple[bytes, bytes, bytes, str | None], list[Measurement]] = defaultdict(list)
    for m in usable:
        groups[m.hardware.key, m.environment.key, m.problem.key, m.timing_method.regime].append(m)
    lineage = _lineage(usable) | with_unknown(Counter(unknown.values()))
    return ExampleSet(canonical(map(_merged, groups.values())), lineage)


def _is_usable(m: Measurement) -> bool:
    return not m.is_replay and not m.flags and m.superseded_by is None and m.choice_policy == STOCK_POLICY


def _merged(group: Sequence[Measurement]) -> Examples:
    timings: dict[KernelConfig, list[Timing]] = defaultdict(list)
    for measurement in group:
        for timing in measurement.timings:
            timings[timing.config].append(timing)
    configs = list(timings)
    typical = [_typical(seen) for seen in timings.values()]
    first = group[0]
    return Examples(
        hardware=first.hardware,
        environment=first.environment.key.hex(),
        shape=first.problem.shape,
        columns=ConfigColumns.from_configs(configs),
        runtime_us=np.array([runtime for runtime, _ in typical]),
        is_vendor=np.array([config.is_vendor for config in configs]),
        is_estimate=np.array([is_estimate for _, is_estimate in typical]),
        family=min((m.family for m in group if m.family is not None), default=None),
        regime=first.timing_method.regime,
        usual_sigmas=noisiest(m.timing_method for m in group),
    )


def _typical(seen: Sequence[Timing]) -> tuple[float, bool]:
    """Return the median of the measured medians; without any, the median of the estimates; without these, inf."""
    for is_estimate in (False, True):
        runtimes = [t.runtime_us for t in seen if t.runtime_us is not None and t.is_estimate is is_estimate]
        if runtimes:
            return median(runtimes), is_estimate
    return float("inf"), False


def _lineage(measurements: Sequence[Measurement]) -> dict[str, Any]:
    dates = sorted(m.measured_at for m in measurements if m.measured_at is not None)
    environments = {m.environment.key: m.environment for m in measurements}
    return {
        "measurements": len(measurements),
        "timings": sum(len(m.timings) for m in measurements),
        "measured_from": dates[0].isoformat() if dates else None,
        "measured_to": dates[-1].isoformat() if dates else None,
        "environments": [
            {"torch": e.torch, "triton": e.triton, "compute": e.compute, "driver": e.driver}
            for e in environments.values()
        ],
        "datasets": sorted({m.dataset for m in measurements if m.dataset}),
    }
