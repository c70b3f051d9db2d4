"""What real runs of `diode tune` measured, to fit models to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from diode_collectors.spool.reading import measurements_in
from diode_trainer.data.from_file import load_measurements

if TYPE_CHECKING:
    from diode_trainer.data.dataset import ExampleSet

DATA = Path(__file__).parent / "data"
DEVICE, H100 = "device", "H100"
"""What is new: an H200 of which nothing is known, or an H100 where an H200 is known."""


@dataclass(frozen=True)
class RealRun:
    """What a run of `diode tune` measured."""

    file: Path
    minutes: tuple[float, ...]
    """Of measuring, after each of its rounds."""
    new: str = DEVICE
    """What was new to it, by the name of a world."""

    def whole(self) -> ExampleSet:
        """Return all that it measured."""
        return self.until(self.minutes[-1])

    def until(self, minutes: float) -> ExampleSet:
        """Return what it had measured by then."""
        found = sorted(measurements_in(self.file), key=lambda measurement: measurement.measured_at)
        rounds = list(dict.fromkeys(measurement.sweep_id for measurement in found))
        by_then = rounds[: 1 + self.minutes.index(minutes)]
        return load_measurements([m for m in found if m.sweep_id in by_then], str(self.file))


REAL_RUNS = {
    "tuned": RealRun(DATA / "h200-2026-11-tuned-2-0000.seg", (3.3, 6.7, 10.0)),
    "kinds": RealRun(DATA / "h200-2026-11-kinds-0000.seg", (2.4, 6.2, 9.8)),
    "two GPUs": RealRun(DATA / "h200-2026-11-two-gpus-0000.seg", (3.4, 6.9, 10.3, 11.4, 12.5)),
    "two H100s": RealRun(DATA / "h100-2026-11-two-gpus-0000.seg", (3.7, 7.1, 10.7), H100),
    "two H100s again": RealRun(DATA / "h100-2026-11-two-gpus-2-0000.seg", (2.9, 5.6, 7.2), H100),
    "two H100s, 10m": RealRun(DATA / "h100-2026-11-two-gpus-3-0000.seg", (3.4, 6.8, 10.2), H100),
    "two H100s, 3m": RealRun(DATA / "h100-2026-11-three-minutes-0000.seg", (1.1, 2.1, 3.3), H100),
    "one H200, 10m": RealRun(DATA / "h200-2026-11-one-gpu-0000.seg", (4.6, 9.2, 10.1)),
    "one H200, 3m": RealRun(DATA / "h200-2026-11-one-gpu-three-minutes-0000.seg", (2.8, 3.1)),
    "one H200, 32 cores": RealRun(DATA / "h200-2026-11-one-gpu-32-cores-0000.seg", (3.1, 6.2, 9.4, 10.2)),
}
"""By how they were made: on one H200 with kernels of each problem's own (tuned) and with shared ones (kinds), on two
with layers that share kernels, on two H100s with odd rows that have their own, and with a standard set whose odd
problems have sizes, ops and layouts as models have them: ended in its third round (again), all of ten minutes, and
three minutes in three rounds. The last two of the H100s have problems in common, as have the three of one H200: two
with 16 virtual cores, and one with 32 and twelve lanes. Their last round is of the vendor's kernels alone."""
