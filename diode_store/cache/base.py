"""Write a new base: all measurements sorted by case, and their summaries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from diode_store.cache.arrow_rows import tables_of
from diode_store.cache.bench import NOW, as_table
from diode_store.cache.cache import RECENT
from diode_store.cache.facts import TIMINGS_AT_ONCE
from diode_store.cache.layout import FACTS
from diode_store.cache.tables import CASE_KEY, create_all
from diode_store.cache.world import World
from diode_store.values.batching import ROWS_PER_GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import duckdb
    from numpy.typing import NDArray

    from diode_store.cache.source import WarehouseRows

FRESH = "fresh"
"""Name by which DuckDB attaches the base that is being written."""
_ORDER = {"measurements": "case_no, id", "timings": "case_no, measurement_id, config_id"}
_SUMMARIZED_AT_ONCE = 1_000_000
"""Timings of the cases that are summarized at once, which decides the memory that this takes."""
_ROWS_AT_ONCE = 4 * ROWS_PER_GROUP
"""Rows of an insert: DuckDB writes whole row groups once, and others again."""


@dataclass(frozen=True)
class Plan:
    """All measurements of a warehouse in the order of their cases."""

    ids: NDArray[np.int64]
    numbers: NDArray[np.int32]
    """Number of the case of each measurement."""
    keys: list[tuple[Any, ...]]
    """Number and key of each case."""
    size: int
    """Measurements of a chunk, about."""

    @property
    def chunks(self) -> list[NDArray[np.int64]]:
        """The ids in chunks."""
        return [self.ids[start : start + self.size] for start in range(0, len(self.ids), self.size)]


def make_plan(source: WarehouseRows, timings_per_measurement: float) -> Plan:
    """Number the cases of a warehouse in the order of their keys."""
    regimes: dict[str | None, int] = {}
    rows = source.rows(f"SELECT id, {CASE_KEY} FROM measurements")
    found = np.array([(*row[:4], regimes.setdefault(row[4], len(regimes))) for row in rows], np.int64).reshape(-1, 5)
    names = sorted(regimes, key=lambda name: (name is None, name or ""))
    found[:, 4] = np.array([names.index(name) for name in regimes], np.int64)[found[:, 4]] if len(found) else 0
    found = found[np.lexsort(found.T[::-1][:4] if len(found) else found.T)]
    is_first = np.any(np.diff(found[:, 1:], axis=0, prepend=-1), axis=1)
    numbers = np.cumsum(is_first).astype(np.int32)
    keys = [(n, *map(int, key[:3]), names[key[3]]) for n, key in enumerate(found[is_first, 1:], 1)]
    return Plan(found[:, 0], numbers, keys, max(1, int(TIMINGS_AT_ONCE / timings_per_measurement)))


class Base:
    """A base that is being written. The attached recent file has the small tables."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Make the tables."""
        self._connection = connection
        create_all(connection, FRESH)

    def write_from_warehouse(
        self,
        plan: Plan,
        chunks: Iterable[Iterator[tuple[str, pa.RecordBatch]]],
        took: Callable[[int, int], None],
    ) -> None:
        """Write the facts of each chunk; call ``took`` with their numbers of measurements and timings."""
        columns = [list(column) for column in zip(*plan.keys, strict=True)]
        types = ("INTEGER", "BIGINT", "BIGINT", "BIGINT", "VARCHAR")
        values = ", ".join(
            f"unnest(${place}::{kind}[]) AS {name}"
            for place, (kind, name) in enumerate(zip(types, ("case_no", *CASE_KEY.split(", ")), strict=True), 1)
        )
        self._connection.execute(f"CREATE TEMP TABLE all_cases AS SELECT {values}", columns)
        waiting: dict[str, list[pa.Table]] = {table: [] for table in FACTS}
        for start, facts in zip(range(0, len(plan.ids), plan.size), chunks, strict=True):
            here = slice(start, start + plan.size)
            found = _numbered(facts, plan.ids[here], plan.numbers[here])
            took(*(table.num_rows for table in found.values()))
            for table, rows in found.items():
                waiting[table].append(rows)
                waiting[table] = self._insert(table, waiting[table], _ROWS_AT_ONCE)
        for table, rows in waiting.items():
            self._insert(table, rows, 1)
        self._summarize()

    def _insert(self, table: str, waiting: list[pa.Table], rows_at_once: int) -> list[pa.Table]:
        """Insert rows if there are enough; return those that still wait."""
        rows = sum(part.num_rows for part in waiting)
        if rows < rows_at_once:
            return waiting
        whole = pa.concat_tables(waiting)
        inserted = rows - rows % rows_at_once
        with as_table(self._connection, "waiting", whole.slice(0, inserted)):
            self._connection.execute(f"INSERT INTO {FRESH}.{table} FROM waiting ORDER BY {_ORDER[table]}")
        return [whole.slice(inserted)]

    def write_from_cache(self) -> None:
        """Write the state in the schema ``NOW``."""
        run = self._connection.execute
        run(f"""
            CREATE TEMP TABLE all_cases AS
            SELECT
                row_number() OVER (ORDER BY {CASE_KEY})::INTEGER AS case_no,
                {CASE_KEY},
                case_no AS old_no,
                (sum(timings) OVER (ORDER BY {CASE_KEY}) // {_SUMMARIZED_AT_ONCE})::INTEGER AS part
            FROM (SELECT case_no, {CASE_KEY}, sum(timing_count) AS timings FROM {NOW}.stored_measurements GROUP BY ALL)
        """)
        for (part,) in run("SELECT DISTINCT part FROM all_cases ORDER BY part").fetchall():
            run("CREATE OR REPLACE TEMP TABLE part AS SELECT old_no, case_no FROM all_cases WHERE part = $1", [part])
            for table, order in _ORDER.items():
                run(
                    f"""
                    INSERT INTO {FRESH}.{table}
                    SELECT here.* REPLACE (part.case_no AS case_no)
                    FROM {NOW}.stored_{table} AS here JOIN part ON part.old_no = here.case_no
                    ORDER BY {order}
                """
                )
        self._summarize()

    def _summarize(self) -> None:
        """Write what follows from the measurements, some cases at a time."""
        run = self._connection.execute
        run(f"CREATE VIEW stored_measurements AS FROM {FRESH}.measurements")
        run(f"CREATE VIEW stored_timings AS FROM {FRESH}.timings")
        world = World(self._connection, RECENT, f"FROM {FRESH}.known_cases")
        world.number("all_cases", f"{FRESH}.known_cases")
        for name in ("summaries", "covered"):
            run(f"CREATE TEMP TABLE all_{name} AS FROM {FRESH}.{name} LIMIT 0")
        parts = run(f"""
            SELECT min(case_no), max(case_no)
            FROM (
                SELECT case_no, sum(sum(timing_count)) OVER (ORDER BY case_no) // {_SUMMARIZED_AT_ONCE} AS part
                FROM {FRESH}.measurements
                GROUP BY case_no
            )
            GROUP BY part ORDER BY part
        """).fetchall()
        for first, last in parts:
            for table in FACTS:
                here = f"FROM {FRESH}.{table} WHERE case_no BETWEEN {first:d} AND {last:d}"
                run(f"CREATE OR REPLACE VIEW stored_{table} AS {here}")
            run("TRUNCATE weights")
            run("INSERT INTO weights SELECT id, 1 FROM numbered_measurements WHERE superseded_by IS NULL")
            world.summarize("all_summaries")
            world.count("all_covered")
        run(f"INSERT INTO {FRESH}.summaries FROM all_summaries ORDER BY case_no")
        run(f"INSERT INTO {FRESH}.covered SELECT * EXCLUDE (timings), sum(timings) FROM all_covered GROUP BY ALL")


def _numbered(
    facts: Iterable[tuple[str, pa.RecordBatch]], ids: NDArray[np.int64], numbers: NDArray[np.int32]
) -> dict[str, pa.Table]:
    """Return a chunk's facts with the numbers of their cases, and the measurements with their counts.

    Args:
        facts: batches of measurements and timings, with their table.
        ids: the measurements that were asked for; some may be gone.
        numbers: the case of each.
    """
    measurements, timings = tables_of(facts).values()
    order = np.argsort(ids)
    places = np.searchsorted(ids[order], timings["measurement_id"].to_numpy())
    if measurements.num_rows < len(ids):  # gone meanwhile, or left out for a wrong value
        is_there = np.isin(ids[order], measurements["id"].to_numpy())[places]
        timings, places = timings.filter(pa.array(is_there)), places[is_there]
    mine = np.searchsorted(ids[order], measurements["id"].to_numpy())
    columns: dict[str, NDArray[Any]] = {"case_no": numbers[order][mine]}
    failed = pc.not_equal(timings["outcome"], "ok").to_numpy()
    for name, weights in (
        ("timing_count", None),
        ("failure_count", failed),
        ("estimate_count", timings["is_estimate"].to_numpy()),
    ):
        columns[name] = np.bincount(places, weights, len(ids))[mine].astype(np.int32)
    for name, values in columns.items():
        measurements = measurements.append_column(name, pa.array(values, pa.int32()))
    numbered = timings.append_column("case_no", pa.array(numbers[order][places], pa.int32()))
    return {"measurements": measurements, "timings": numbered}
