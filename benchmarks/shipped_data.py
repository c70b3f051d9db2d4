"""The measurements that ship, by data set. Benchmarks use the first, so that figures can be compared over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_collectors.spool.reading import measurements_in
from diode_collectors.spool.spool import Spool
from diode_store.resources import bundled_data_dir

if TYPE_CHECKING:
    import argparse

    from diode_store.records import Measurement

FIRST = "h200-2026-11"
DEPLOYED = frozenset({"graph", "read_flush"})
"""The regimes that a problem is timed in today."""
DATASETS = {path.stem.rpartition("-")[0]: path for path in Spool(bundled_data_dir()).sealed()}


def measurements(datasets: list[str] | None = None) -> list[Measurement]:
    """Return the measurements of data sets, of the first unless others are named."""
    return [measurement for name in datasets or [FIRST] for measurement in measurements_in(DATASETS[name])]


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that names data sets."""
    told = f"a bundled data set, repeatable; {FIRST} unless given"
    parser.add_argument("--dataset", choices=sorted(DATASETS), action="append", help=told)
