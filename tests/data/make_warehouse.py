"""Make the database file of a revision that is kept for the tests of migrations.

    python tests/data/make_warehouse.py warehouse-NNNN.db
    python tests/data/make_warehouse.py postgresql://...      # an empty database, for pg_dump

Run it before a new revision is added: it writes with whatever ``diode_store`` it finds. The file holds bundled
measurements and, after them, one of everything that a warehouse can hold: failures, estimates, replays, flagged and
superseded measurements, decisions, fields that are all given or all missing, fields of a later release, names in many
scripts, a tombstone, and a gap in the ids.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import samples
from decided import EVERY_FIELD, decision
from diode_collectors.spool.reading import measurements_in
from diode_store.candidates.names import kernel_config
from diode_store.records import Measurement, Outcome, Timing
from diode_store.system.resources import bundled_data_dir
from diode_store.warehouse.database import make_engine, write_transaction
from diode_store.warehouse.hardware import add_alias
from diode_store.warehouse.migrate import upgrade
from diode_store.warehouse.store import Store
from diode_store.warehouse.tombstones import bury

EVERY = 70
MOST_TIMINGS = 100
HOSTS = ("größe-7", "хост", "計算機-3", "معالج", "node \U0001f680", "a'b\"c;--", "tab\there", "line\nbreak", "")
LATER = datetime(2026, 12, 24, 23, 59, 59, 999_999, tzinfo=UTC)


def bundled() -> list[Measurement]:
    """Return some of the H200 measurements that ship, of every kind of problem, but none of the exhaustive ones."""
    h200 = (measurements_in(path) for path in sorted(bundled_data_dir().glob("h200-*.seg")))
    every = islice(chain.from_iterable(h200), 0, None, EVERY)
    return [measurement for measurement in every if len(measurement.timings) <= MOST_TIMINGS]


def unusual() -> list[Measurement]:
    """Return measurements that between them use every column and every outcome."""
    failed = tuple(
        Timing(samples.triton_config(16 << number), None, outcome)
        for number, outcome in enumerate(o for o in Outcome if o is not Outcome.OK)
    )
    timed = (
        Timing(kernel_config("mm", {}), 12.5, repeats=100, p10_us=12.25, p90_us=13.0),
        Timing(samples.triton_config(64), 0.1 + 0.2, is_estimate=True, repeats=1),
        Timing(samples.triton_config(128), 1e-3),
    )
    environment = replace(samples.ENVIRONMENT, torch="2.13.0+cu130", template_hashes={"triton::mm": "0f" * 32})
    found = [
        samples.measurement(1, **samples.EVERY_FIELD),
        samples.measurement(2, timings=failed),
        samples.measurement(3, timings=timed, measured_at=None),
        samples.measurement(4, hardware=samples.H100, environment=environment, dataset="años", licence="CC-BY-4.0"),
        samples.measurement(5, superseded_by=(6).to_bytes(16), problem=samples.matmul(512, 512, 512)),
        samples.measurement(6, measured_at=LATER, problem=samples.matmul(512, 512, 512)),
        samples.measurement(7, is_replay=True),
        samples.measurement(8, flags=("throttled",), problem=samples.as_tf32(samples.matmul(8, 8, 8, "float32"))),
        samples.measurement(9, hardware=replace(samples.H100_PCIE, l2_bytes=50 << 20, extra={"sku": "ä"})),
    ]
    # What a record of a later release says and this one has no column for.
    newer = {
        "timing_method": {"regime": "graph", "clock": "wall"},
        "family": "llama3-8b",
        "later": [1, {"still": "kept"}],
    }
    found.append(samples.measurement(10, extra=newer))
    return found + [samples.measurement(100 + number, host=host) for number, host in enumerate(HOSTS)]


def main(url: str) -> None:
    """Make the file, or fill the database."""
    engine = make_engine(url)
    upgrade(engine)
    with Store(engine) as store:
        store.write(bundled())
        store.write([samples.measurement(99), *unusual()])
        store.write([decision(1), decision(2, **EVERY_FIELD), replace(decision(3), kept=(), decided_by="stock")])
        with write_transaction(engine) as connection:
            add_alias(connection, "NVIDIA H200", "das große")
            add_alias(connection, "NVIDIA H100 PCIe", "pcie")
            connection.exec_driver_sql("DELETE FROM timings WHERE measurement_id = 1")
            connection.exec_driver_sql("DELETE FROM measurements WHERE id = 1")
            bury(connection, [3], "prune --replays")
    if engine.dialect.name == "sqlite":
        with closing(sqlite3.connect(url)) as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


if __name__ == "__main__":
    main(sys.argv[1])
