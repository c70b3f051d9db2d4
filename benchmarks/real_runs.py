"""Measurements of real runs of `diode tune`, to fit models to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import shipped_data

from diode_collectors.spool.reading import measurements_in
from diode_trainer.data.from_file import load_measurements

if TYPE_CHECKING:
    from diode_store.records import Measurement
    from diode_trainer.data.dataset import ExampleSet

DATA = Path(__file__).parent / "data"
DEVICE, H100 = "device", "H100"
"""Novelties: an H200 of which nothing is known, or an H100 with a known H200."""


@dataclass(frozen=True)
class RealRun:
    """Measurements of one run of `diode tune`."""

    file: Path
    minutes: tuple[float, ...]
    """Minutes of measuring after each round."""
    new: str = DEVICE
    """Novelty of the run, by the name of a world."""
    hours: tuple[time, time] = (time.min, time.max)
    """First and last time of day (UTC) of the measurements, for a file of several runs."""

    def whole(self) -> ExampleSet:
        """Return all measurements."""
        return self.until(self.minutes[-1])

    def until(self, minutes: float) -> ExampleSet:
        """Return the measurements of the first ``minutes``."""
        first, last = self.hours
        found = [m for m in _by_time(self.file) if m.measured_at is not None and first <= m.measured_at.time() <= last]
        rounds = list(dict.fromkeys(measurement.sweep_id for measurement in found))
        by_then = rounds[: 1 + self.minutes.index(minutes)]
        return load_measurements([m for m in found if m.sweep_id in by_then], str(self.file))


@cache
def _by_time(file: Path) -> list[Measurement]:
    return sorted(measurements_in(file), key=lambda measurement: measurement.measured_at)


_ON_H100 = shipped_data.DATASETS["h100-2026-11-tuned"]
REAL_RUNS = {
    "tuned": RealRun(DATA / "h200-2026-11-tuned-2-0000.seg", (3.3, 6.7, 10.0)),
    "kinds": RealRun(DATA / "h200-2026-11-kinds-0000.seg", (2.4, 6.2, 9.8)),
    "two GPUs": RealRun(DATA / "h200-2026-11-two-gpus-0000.seg", (3.4, 6.9, 10.3, 11.4, 12.5)),
    "two H100s": RealRun(_ON_H100, (3.7, 7.1, 10.7), H100, (time(10, 6), time(10, 21))),
    "two H100s again": RealRun(_ON_H100, (2.9, 5.6, 7.2), H100, (time(15, 27), time(15, 39))),
    "two H100s, 10m": RealRun(_ON_H100, (3.4, 6.8, 10.2), H100, (time(20, 3), time(20, 18))),
    "two H100s, 3m": RealRun(_ON_H100, (1.1, 2.1, 3.3), H100, (time(20, 20), time(20, 27))),
    "one H200, 10m": RealRun(DATA / "h200-2026-11-one-gpu-0000.seg", (4.6, 9.2, 10.1)),
    "one H200, 3m": RealRun(DATA / "h200-2026-11-one-gpu-three-minutes-0000.seg", (2.8, 3.1)),
    "one H200, 32 cores": RealRun(DATA / "h200-2026-11-one-gpu-32-cores-0000.seg", (3.1, 6.2, 9.4, 10.2)),
}
"""Runs by setup. On one H200: kernels of each problem's own (tuned), or shared ones (kinds). On two GPUs: layers that
share kernels. On two H100s: odd rows with their own kernels, then a standard set with realistic odd problems. One of
these ended in its third round (again), one took ten minutes, and one three minutes in three rounds; the last two have
problems in common. So have the three of one H200: two with 16 virtual cores, one with 32 and twelve lanes. Their last
round has vendor kernels only.
"""
