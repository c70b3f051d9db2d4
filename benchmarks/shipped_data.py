"""Bundled measurements by data set. Benchmarks use the first one, so that figures can be compared over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_collectors.spool.reading import measurements_in
from diode_collectors.spool.spool import Spool
from diode_store.system.resources import bundled_data_dir
from diode_store.warehouse import migrate
from diode_store.warehouse.database import make_engine

if TYPE_CHECKING:
    import argparse

    from diode_store.records import Measurement

FIRST = "h200-2026-11"
H200 = "NVIDIA H200"
DEPLOYED = frozenset({"graph", "read_flush"})
"""Regimes of today's measurements."""
DATASETS = {path.stem.rpartition("-")[0]: path for path in Spool(bundled_data_dir()).sealed()}


def measurements(datasets: list[str] | None = None) -> list[Measurement]:
    """Return the measurements of data sets, by default of the first."""
    return [measurement for name in datasets or [FIRST] for measurement in measurements_in(DATASETS[name])]


def measurements_of(device: str) -> list[Measurement]:
    """Return the measurements of all data sets of a device; a data set has one device."""
    names = [name for name, path in DATASETS.items() if next(iter(measurements_in(path))).hardware.name == device]
    return measurements(names)


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that names data sets."""
    told = f"a bundled data set, repeatable; {FIRST} unless given"
    parser.add_argument("--dataset", choices=sorted(DATASETS), action="append", help=told)


def make_warehouse(url: str) -> None:
    """Make an empty warehouse, or upgrade the one at ``url``."""
    engine = make_engine(url)
    migrate.upgrade(engine)
    engine.dispose()
