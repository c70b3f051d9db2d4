"""Compare estimated and logged seconds of sweeps: the bundled deployed ones of one H200 with 16 cores.

    python benchmarks/bench_sweep_costs.py

`diode-collect --dry-run` and `diode tune` plan by this estimate. The ratio is estimated over logged seconds.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from typing import TYPE_CHECKING

import shipped_data

from diode_collectors.problems.choices import cpu_seconds, slowness_of
from diode_collectors.sweep.devices import CORES_ELSEWHERE
from diode_store.command_line.console import print_rows

if TYPE_CHECKING:
    from diode_store.records import Measurement


def main() -> int:
    """Print for each sweep the seconds from its first problem to its last, and the estimate."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    sweeps: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    for measurement in shipped_data.measurements_of(shipped_data.H200):
        if measurement.timing_method.regime in shipped_data.DEPLOYED:
            sweeps[measurement.sweep_id or "", measurement.search_space or ""].append(measurement)
    rows = []
    for (_, space), of in sweeps.items():
        times = sorted(measurement.measured_at for measurement in of)
        logged_s = (times[-1] - times[0]).total_seconds() * len(of) / max(len(of) - 1, 1)
        slowness = [slowness_of(measurement.problem.shape) for measurement in of]
        said_s = sum(map(_seconds, of, slowness)) / CORES_ELSEWHERE
        choices = sum(len(measurement.timings) for measurement in of)
        name = f"{space}{', slow ops' if max(slowness) > 1 else ''}"
        rows.append((name, len(of), choices, f"{logged_s:.0f}", f"{said_s:.0f}", f"{said_s / logged_s:.2f}"))
    print_rows(("sweep", "problems", "choices", "s logged", "s said", "ratio"), rows)
    return 0


def _seconds(measurement: Measurement, slowness: float) -> float:
    return cpu_seconds(len(measurement.timings), slowness=slowness)


if __name__ == "__main__":
    sys.exit(main())
