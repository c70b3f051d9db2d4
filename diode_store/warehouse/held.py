"""Search for measurements that come back in a format without uids, such as upstream's data sets."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from diode_store.kernels import INT_COLUMNS
from diode_store.records import Outcome
from diode_store.warehouse import schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from diode_store.records import Measurement

    _Times = Mapping[tuple[Any, ...], Sequence[float | None]]

_KERNEL = ("template", *INT_COLUMNS)
_SIZES = ("op", "dtype", "b", "m", "n", "k")
_DIGITS = 1e-12
"""Relative error that a time's way into another unit and back may leave."""


def held(connection: sa.Connection, measurements: Iterable[Measurement]) -> list[Measurement]:
    """Return the measurements whose every timing is in the warehouse, for the same device and the same sizes.

    Layouts, arguments beside a kernel's tile, and the measurements' other fields are not compared: a data set has none
    of them.
    """
    known: dict[tuple[Any, ...], _Times] = {}
    found = []
    for measurement in measurements:
        if not measurement.problem.is_known:
            continue
        shape = measurement.problem.shape
        place = (measurement.hardware.key, *(getattr(shape, name) for name in _SIZES))
        if place not in known:
            known[place] = _times(connection, place)
        if all(
            _is_among(timing.runtime_us, known[place].get(_kernel(timing.config), ())) for timing in measurement.timings
        ):
            found.append(measurement)
    return found


def _times(connection: sa.Connection, place: Sequence[Any]) -> _Times:
    """Return the times on a device of problems of some sizes, by kernel; None for a failure."""
    configs, timings = schema.configs.c, schema.timings.c
    key, *sizes = place
    query = (
        sa.select(*(configs[name] for name in _KERNEL), timings.runtime_us, timings.outcome)
        .select_from(schema.measurements)
        .join(schema.hardware, schema.hardware.c.id == schema.measurements.c.hardware_id)
        .join(schema.problems, schema.problems.c.id == schema.measurements.c.problem_id)
        .join(schema.timings, timings.measurement_id == schema.measurements.c.id)
        .join(schema.configs, configs.id == timings.config_id)
        .where(schema.hardware.c.key == key)
        .where(*(schema.problems.c[name] == value for name, value in zip(_SIZES, sizes, strict=True)))
    )
    found: dict[tuple[Any, ...], list[float | None]] = defaultdict(list)
    for *kernel, runtime_us, outcome in connection.execute(query):
        found[tuple(kernel)].append(runtime_us if outcome == Outcome.OK.value else None)
    return found


def _kernel(config: Any) -> tuple[Any, ...]:
    return tuple(getattr(config, name) for name in _KERNEL)


def _is_among(runtime_us: float | None, times: Iterable[float | None]) -> bool:
    if runtime_us is None:
        return None in times
    return any(us is not None and math.isclose(us, runtime_us, rel_tol=_DIGITS) for us in times)
