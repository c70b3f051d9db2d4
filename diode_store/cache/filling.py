"""Fill a file of the cache: add and drop measurements, and bring the summaries of their cases up to date.

The file is the recent one, or a new base, which gets all measurements of the warehouse or of the state before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from diode_store.cache.bench import as_table, insert
from diode_store.cache.cache import BASE, RECENT
from diode_store.cache.facts import IDS_AT_ONCE, TIMINGS_AT_ONCE, wanted
from diode_store.cache.layout import BYTES, FACTS, INT, TEXT
from diode_store.cache.tables import CASE_KEY, NOW, create, create_all
from diode_store.cache.worker import read_chunks
from diode_store.cache.world import World
from diode_store.values.batching import ROWS_PER_GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import duckdb
    from numpy.typing import NDArray

    from diode_store.cache.facts import Tables
    from diode_store.cache.source import WarehouseRows

FRESH = "fresh"
"""Name by which DuckDB attaches the base that is being written."""
_SUMMARIZED_AT_ONCE = 1_000_000
"""Timings of the cases that are summarized at once, which decides the memory that this takes."""
_ROWS_AT_ONCE = 4 * ROWS_PER_GROUP
"""Rows of an insert: DuckDB writes whole row groups once, and others again."""
_FEW = 1_000
_KEY_COLUMNS = {"id": INT, "uid": BYTES, "hardware_id": INT, "environment_id": INT, "problem_id": INT, "regime": TEXT}
_SAME_CASE = (
    "n.hardware_id = t.hardware_id AND n.environment_id = t.environment_id AND n.problem_id = t.problem_id "
    "AND n.regime IS NOT DISTINCT FROM t.regime"
)
_NEW_CASES = f"""
    CREATE OR REPLACE TEMP TABLE new_cases AS
    SELECT
        (row_number() OVER (ORDER BY {CASE_KEY}) + (SELECT coalesce(max(case_no), 0) FROM known_cases))::INTEGER
            AS case_no,
        {CASE_KEY}
    FROM (SELECT DISTINCT {CASE_KEY} FROM planned AS t ANTI JOIN known_cases AS n ON {_SAME_CASE})
"""
_ALL_CASES = f"""
    CREATE TEMP TABLE all_cases AS
    SELECT
        row_number() OVER (ORDER BY {CASE_KEY})::INTEGER AS case_no,
        {CASE_KEY},
        case_no AS old_no,
        (sum(timings) OVER (ORDER BY {CASE_KEY}) // {_SUMMARIZED_AT_ONCE})::INTEGER AS part
    FROM (SELECT case_no, {CASE_KEY}, sum(timing_count) AS timings FROM {NOW}.stored_measurements GROUP BY ALL)
"""
_COPY = """
    INSERT INTO {into}.{table}
    SELECT here.* REPLACE (part.case_no AS case_no)
    FROM {now}.stored_{table} AS here JOIN part ON part.old_no = here.case_no
    ORDER BY case_no, 1, 2
"""
_CHANGED_MARKS = f"""
    SELECT coalesce(old.id, new.id) AS id
    FROM old_marks AS old
    FULL JOIN {RECENT}.marks AS new USING (id)
    WHERE old.flags IS DISTINCT FROM new.flags OR old.superseded_by IS DISTINCT FROM new.superseded_by
"""


class Filling:
    """One change of a file; ``end`` works out what follows from the measurements."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, into: str, *, has_base: bool) -> None:
        """Prepare a change.

        Args:
            connection: from ``bench.opened``, with ``old_marks`` as they were and the state in the schema ``NOW``. The
                recent file has the small tables.
            into: ``RECENT``, or ``FRESH`` for a new base.
            has_base: whether a base is attached that stays.
        """
        self._connection = connection
        self._into = into
        self._has_base = has_base
        if into == FRESH:
            create_all(connection, FRESH)
        # Several threads would cut row groups where chunks end, and write these twice.
        connection.execute("SET threads = 1")
        self._world = World(connection)
        for table in ("touched (case_no INTEGER)", "gone (id BIGINT)", "added (id BIGINT)"):
            connection.execute(f"CREATE TEMP TABLE {table}")

    def drop(self, gone: NDArray[np.int64]) -> None:
        """Drop measurements, and note which cases the drops and the new marks touch."""
        run = self._connection.execute
        if len(gone):
            run("INSERT INTO gone SELECT unnest($1::BIGINT[])", [gone.tolist()])
        run(f"CREATE TEMP TABLE left_or_marked AS FROM gone UNION {_CHANGED_MARKS}")
        if not run("FROM left_or_marked LIMIT 1").fetchall():
            return
        # What counted before and does not any more; the marks are those of before.
        self._recount("FROM left_or_marked", "old_marks", -1)
        run(f"INSERT INTO touched SELECT case_no FROM {NOW}.stored_measurements SEMI JOIN left_or_marked USING (id)")
        if len(gone):
            for table, columns in FACTS.items():
                run(f"DELETE FROM {RECENT}.{table} WHERE {next(iter(columns))} IN (FROM gone)")
            if self._has_base:
                run(f"""
                    INSERT INTO {RECENT}.dropped
                    FROM gone SEMI JOIN {BASE}.measurements USING (id) ANTI JOIN {RECENT}.dropped USING (id)
                """)
        self._recount("FROM left_or_marked", f"{RECENT}.marks", 1)

    def add(
        self, source: WarehouseRows, missing: NDArray[np.int64], each: float, took: Callable[[int, int], None]
    ) -> None:
        """Copy measurements from the warehouse in the order of their cases.

        Args:
            source: the warehouse.
            missing: ids of the measurements.
            each: estimate of the timings of a measurement.
            took: called with the numbers of measurements and timings of each chunk.
        """
        plan = self._plan(source, missing)
        ids = plan["id"].to_numpy()
        size = max(1, min(IDS_AT_ONCE, int(TIMINGS_AT_ONCE / each)))
        chunks = [ids[start : start + size] for start in range(0, len(ids), size)]
        plan = plan.sort_by("id").combine_chunks()
        waiting: Tables = {table: pa.table([]) for table in FACTS}
        for found in read_chunks(source, chunks, each * len(ids)):
            facts = _numbered(found, plan)
            took(facts["measurements"].num_rows, facts["timings"].num_rows)
            for table, rows in facts.items():
                together = pa.concat_tables([waiting[table], rows]) if waiting[table].num_rows else rows
                waiting[table] = self._insert(table, together, _ROWS_AT_ONCE)
        for table, rows in waiting.items():
            self._insert(table, rows, 1)

    def _plan(self, source: WarehouseRows, missing: NDArray[np.int64]) -> pa.Table:
        """Number the new cases; return the measurements in the order of their cases."""
        run = self._connection.execute
        run(create(_KEY_COLUMNS, "planned", "TEMP TABLE"))
        with source.snapshot():
            for start in range(0, len(missing), IDS_AT_ONCE):
                some = wanted(missing[start : start + IDS_AT_ONCE])
                names = ", ".join(_KEY_COLUMNS)
                sql = f"{some} SELECT {names} FROM wanted CROSS JOIN measurements WHERE id = wanted_id"
                insert(self._connection, "planned", _KEY_COLUMNS, source.batches(_KEY_COLUMNS, sql))
        run(_NEW_CASES)
        self._world.number("new_cases", f"{self._into}.known_cases")
        planned = (
            f"SELECT id, uid, case_no FROM planned AS t JOIN known_cases AS n ON {_SAME_CASE} ORDER BY case_no, id"
        )
        return self._connection.sql(planned).to_arrow_table()

    def _insert(self, table: str, rows: pa.Table, least: int) -> pa.Table:
        """Insert as many times ``least`` rows as there are; return the others."""
        count = rows.num_rows - rows.num_rows % least
        if not count:
            return rows
        with as_table(self._connection, "taken", rows.slice(0, count)):
            self._connection.execute(f"INSERT INTO {self._into}.{table} FROM taken")
            if table == "measurements":
                self._connection.execute("INSERT INTO added SELECT id FROM taken")
                self._connection.execute("INSERT INTO touched SELECT DISTINCT case_no FROM taken")
        return rows.slice(count)

    def copy(self) -> None:
        """Copy the state before, with new numbers of the cases in the order of their keys."""
        run = self._connection.execute
        run(_ALL_CASES)
        for (part,) in run("SELECT DISTINCT part FROM all_cases ORDER BY part").fetchall():
            run("CREATE OR REPLACE TEMP TABLE part AS SELECT old_no, case_no FROM all_cases WHERE part = $1", [part])
            for table in FACTS:
                run(_COPY.format(into=self._into, table=table, now=NOW))
        for table in (*FACTS, "known_cases"):
            shown = f"stored_{table}" if table in FACTS else table
            run(f"CREATE OR REPLACE VIEW {NOW}.{shown} AS FROM {self._into}.{table}")
        self._world.number("all_cases", f"{self._into}.known_cases")
        run("INSERT INTO touched SELECT case_no FROM all_cases")
        run(f"INSERT INTO added SELECT id FROM {self._into}.measurements")

    def renew(self) -> None:
        """Work out everything anew that follows from the measurements: cases and summaries. There is no base."""
        run = self._connection.execute
        run(f"CREATE TEMP TABLE all_cases AS FROM {RECENT}.known_cases")
        for name in ("known_cases", "covered"):
            run(f"DELETE FROM {RECENT}.{name}")
        self._world.number("all_cases", f"{RECENT}.known_cases")
        run("INSERT INTO touched SELECT case_no FROM all_cases")
        run(f"CREATE OR REPLACE TEMP TABLE added AS SELECT id FROM {RECENT}.measurements")

    def end(self) -> None:
        """Count the configs of the added measurements, and work out the summaries of the touched cases."""
        run = self._connection.execute
        if self._into == FRESH:
            run("RESET threads")
        self._world.hide()
        self._recount("FROM added", f"{RECENT}.marks", 1)
        run("CREATE OR REPLACE TEMP TABLE touched AS SELECT DISTINCT case_no FROM touched")
        run(f"DELETE FROM {self._into}.summaries WHERE case_no IN (FROM touched)")
        if self._has_base:
            run(f"""
                INSERT INTO {RECENT}.changed
                FROM touched WHERE case_no <= (SELECT max(case_no) FROM {BASE}.known_cases)
                EXCEPT FROM {RECENT}.changed
            """)
        for cases in self._parts():
            self._world.show(cases)
            self._world.summarize(f"{self._into}.summaries")

    def _parts(self) -> Iterator[NDArray[np.int32]]:
        """Yield the touched cases by the number of their timings."""
        found = self._connection.execute(f"""
            SELECT case_no, sum(timing_count)::BIGINT AS timings
            FROM {NOW}.stored_measurements SEMI JOIN touched USING (case_no)
            GROUP BY case_no ORDER BY case_no
        """).fetchnumpy()
        parts = np.cumsum(found["timings"]) // _SUMMARIZED_AT_ONCE
        for cases in np.split(found["case_no"], np.flatnonzero(np.diff(parts)) + 1):
            if len(cases):
                yield cases

    def _recount(self, ids: str, marks: str, weight: int) -> None:
        """Add to the counts of configs the measurements with these ids that ``marks`` does not supersede."""
        self._connection.execute(f"""
            CREATE OR REPLACE TEMP TABLE weights AS
            SELECT m.id AS measurement_id, {weight} AS weight, m.case_no
            FROM {NOW}.stored_measurements AS m
            SEMI JOIN ({ids}) USING (id)
            ANTI JOIN (FROM {marks} WHERE superseded_by IS NOT NULL) USING (id)
        """)
        cases = self._connection.execute("SELECT DISTINCT case_no FROM weights").fetchnumpy()["case_no"]
        if len(cases):
            # More cases do no harm, and a range is shorter than a list of many.
            self._world.show(cases if len(cases) < _FEW else np.arange(cases.min(), cases.max() + 1))
            self._world.count(f"{self._into}.covered")


def _numbered(facts: Tables, plan: pa.Table) -> Tables:
    """Return facts with the numbers of their cases, and the measurements with their counts.

    Args:
        facts: measurements with their timings and metrics.
        plan: ids of planned measurements in ascending order, with their uids and the numbers of their cases.
    """
    measurements, timings = facts["measurements"], facts["timings"]
    places = np.searchsorted(plan["id"].to_numpy(), measurements["id"].to_numpy())
    # Another measurement may have got the id after the plan was made; the next sync copies it.
    is_planned = pc.equal(plan["uid"].take(places), measurements["uid"])
    measurements, places = measurements.filter(is_planned), places[is_planned.to_numpy()]
    numbers = plan["case_no"].to_numpy()[places]

    ids = measurements["id"].to_numpy()
    of_timing = timings["measurement_id"].to_numpy()
    # The timings of a measurement follow each other.
    starts = np.flatnonzero(np.diff(of_timing, prepend=-1))
    order = np.argsort(ids)
    mine = np.searchsorted(ids, of_timing[starts], sorter=order)
    is_there = np.isin(of_timing[starts], ids)
    lengths = np.diff(starts, append=len(of_timing))
    if not is_there.all():
        timings = timings.filter(pa.array(np.repeat(is_there, lengths)))
        mine, lengths = mine[is_there], lengths[is_there]
        starts = np.cumsum(lengths) - lengths
    mine = order[mine]

    is_failed = pc.not_equal(timings["outcome"], "ok").to_numpy()
    for name, counts in (
        ("timing_count", lengths),
        ("failure_count", _sums(is_failed, starts)),
        ("estimate_count", _sums(timings["is_estimate"].to_numpy(), starts)),
    ):
        values = np.bincount(mine, counts, len(ids)).astype(np.int32)
        measurements = measurements.append_column(name, pa.array(values))
    at = measurements.column_names.index("timing_count")
    return {
        "measurements": measurements.add_column(at, "case_no", pa.array(numbers)),
        "timings": timings.append_column("case_no", pa.array(np.repeat(numbers[mine], lengths))),
        "metric_values": _with_cases(facts["metric_values"], ids, numbers),
    }


def _with_cases(values: pa.Table, ids: NDArray[np.int64], numbers: NDArray[np.int32]) -> pa.Table:
    """Return the metric values of the measurements ``ids``, with the numbers of their cases."""
    of_value = values["measurement_id"].to_numpy()
    is_there = np.isin(of_value, ids)
    if not is_there.all():
        values, of_value = values.filter(pa.array(is_there)), of_value[is_there]
    order = np.argsort(ids)
    return values.append_column("case_no", pa.array(numbers[order[np.searchsorted(ids, of_value, sorter=order)]]))


def _sums(flags: NDArray[np.bool_], starts: NDArray[np.intp]) -> NDArray[np.int64]:
    """Return the number of flags in each run."""
    before = np.concatenate([[0], np.cumsum(flags)])
    counts: NDArray[np.int64] = np.diff(before[starts], append=before[-1])
    return counts
