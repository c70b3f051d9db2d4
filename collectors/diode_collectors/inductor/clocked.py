"""Attach the timing of torch-diode's own clock to a choice; Inductor reports only one number for each choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_collectors.inductor.adapter import annotations_of
from diode_store.records import KernelConfig, Outcome, Timing, TimingMethod

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_ANNOTATION = "diode_clock"


@dataclass(frozen=True)
class Clocked:
    """The timing of one choice."""

    milliseconds: float
    """Time that Inductor got."""
    method: TimingMethod
    times_us: tuple[float, ...] = ()
    """Samples in microseconds; empty if the choice failed or its timing came from Inductor's cache."""
    is_estimate: bool = False
    outcome: Outcome = Outcome.OK

    def timing(self, config: KernelConfig) -> Timing | None:
        """Return the timing for a record; None without samples."""
        if self.outcome is not Outcome.OK:
            return Timing(config, None, self.outcome)
        if not self.times_us:
            return None
        low, middle, high = (float(us) for us in np.percentile(self.times_us, (10, 50, 90)))
        return Timing(config, middle, Outcome.OK, self.is_estimate, len(self.times_us), low, high)


def note(choice: Any, clocked: Clocked) -> None:
    """Attach a timing to a choice; do nothing if the choice takes no annotations."""
    found = annotations_of(choice)
    if isinstance(found, dict):
        found[_ANNOTATION] = clocked


def clocked_of(choice: Any, milliseconds: float) -> Clocked | None:
    """Return the timing behind a time that Inductor reports; None if another clock took it."""
    found = annotations_of(choice).get(_ANNOTATION)
    return found if isinstance(found, Clocked) and found.milliseconds == milliseconds else None


def method_of(timings: Mapping[Any, float]) -> TimingMethod | None:
    """Return the method behind all timings of an event; None if another clock took one of them."""
    methods = set(_methods(timings.items()))
    return methods.pop() if len(methods) == 1 else None


def _methods(timings: Iterable[tuple[Any, float]]) -> Iterable[TimingMethod | None]:
    for choice, milliseconds in timings:
        clocked = clocked_of(choice, milliseconds)
        yield None if clocked is None else clocked.method
