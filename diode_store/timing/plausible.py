"""Measured values that cannot be true: times that no device reaches, and clocks that are far off.

Such a timing stays in the warehouse. The views say why it is implausible and never rank it; no model learns from it.
``views/roofline_sql.py`` makes the same rules in SQL.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import gt
from typing import TYPE_CHECKING, NamedTuple

from diode_store.devices.descriptor import describe, is_described
from diode_store.ops import OPS
from diode_store.timing.roofline import roofline
from diode_store.values.units import US_PER_MS, US_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_store.records import Hardware, Measurement, Problem, Timing

LEAST_US = 0.3
"""Shortest believable time on any device, in microseconds."""
ROOFLINE_SHARE = 0.1
"""Share of the roofline below which no time is believed; caches and clocks above the published one explain the rest."""
UNITS = {"milliseconds": US_PER_MS, "seconds": US_PER_S}
"""Units that a time may have been stored in by mistake, and their microseconds."""
UNIT_SHARE = 0.5
"""Share of the roofline that a time in another unit must reach for a message to name that unit."""
UNIT_US = 1.0
"""The same limit in microseconds, for a device without a roofline."""
FIRST_MOMENT = datetime(2016, 1, 1, tzinfo=UTC)
"""Earliest believable time of a measurement: no PyTorch is older."""
CLOCK_TOLERANCE = timedelta(days=1)
"""Lead that a collector's clock may have over the warehouse's."""


class Bound(NamedTuple):
    """Least time of one problem on one device, in microseconds."""

    least_us: float
    """The shortest time that is believed."""
    roofline_us: float | None
    """None for a device of unknown peaks."""


@lru_cache(maxsize=10_000)
def bound_of(problem: Problem, hardware: Hardware) -> Bound:
    """Return the bound of ``problem`` on ``hardware``.

    An input that repeats itself, by a stride of 0, does not count as read: caches may hold all of it.
    """
    if not (is_described(hardware) and problem.is_known):
        return Bound(LEAST_US, None)
    first, second, _ = OPS[problem.op].operands
    repeats = any(0 in problem.inputs[position].stride for position in (first, second))
    us = roofline(problem.shape, describe(hardware), only_output=repeats).us
    return Bound(max(LEAST_US, ROOFLINE_SHARE * us), us)


def implausible(runtime_us: float | None, p10_us: float | None, p90_us: float | None, bound: Bound) -> str | None:
    """Return why a timing cannot be true, with the unit that it may be in; None for a plausible one."""
    if runtime_us is not None and runtime_us < bound.least_us:
        return _too_short(runtime_us, bound)
    if p10_us is not None and p90_us is not None and p10_us > p90_us:
        return f"p10 of {p10_us:.3g} us is above p90 of {p90_us:.3g} us"
    return None


def are_plausible(
    runtimes_us: Sequence[float | None], p10_us: Sequence[float | None], p90_us: Sequence[float | None], bound: Bound
) -> bool:
    """Return whether whole columns of timings are plausible, at the speed of C if all percentiles are known."""
    if min(filter(None, runtimes_us), default=bound.least_us) < bound.least_us:
        return False
    if p10_us.count(None) or p90_us.count(None):
        return not any(low > high for low, high in zip(p10_us, p90_us, strict=True) if low and high)
    return not any(map(gt, p10_us, p90_us))  # type: ignore[arg-type] # none is None


def plausible_timings(measurement: Measurement) -> tuple[Timing, ...]:
    """Return the timings of ``measurement`` that are believed."""
    bound = bound_of(measurement.problem, measurement.hardware)
    return tuple(
        each for each in measurement.timings if not implausible(each.runtime_us, each.p10_us, each.p90_us, bound)
    )


def without_implausible(measurement: Measurement) -> Measurement | None:
    """Return ``measurement`` without its implausible timings; None if it has no others."""
    kept = plausible_timings(measurement)
    if len(kept) == len(measurement.timings):
        return measurement
    return measurement.with_timings(kept) if kept else None


def clock_is_off(measured_at: datetime | None, now: datetime) -> bool:
    """Return whether a collector's clock was far off: before PyTorch, or ahead of ``now``."""
    return measured_at is not None and not FIRST_MOMENT <= measured_at <= now + CLOCK_TOLERANCE


def _too_short(runtime_us: float, bound: Bound) -> str:
    if bound.roofline_us is None or bound.least_us == LEAST_US:
        why = f"{runtime_us:.3g} us is under {LEAST_US} us, the shortest believable time"
    else:
        why = f"{runtime_us:.3g} us is under a tenth of the roofline, {bound.roofline_us:.3g} us"
    least = UNIT_US if bound.roofline_us is None else UNIT_SHARE * bound.roofline_us
    unit = next((name for name, factor in UNITS.items() if runtime_us * factor >= least), None)
    return f"{why}; it may be in {unit}" if unit else why
