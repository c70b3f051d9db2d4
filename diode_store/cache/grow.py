"""Change a copy of the recent file: add and drop measurements, and bring the summaries of their cases up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_store.cache.bench import NOW, value
from diode_store.cache.cache import BASE, RECENT
from diode_store.cache.facts import TIMINGS_AT_ONCE
from diode_store.cache.tables import CASE_KEY
from diode_store.cache.world import World, make_stored

if TYPE_CHECKING:
    from collections.abc import Iterable

    import duckdb
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

_NEW_CASES = f"""
    CREATE OR REPLACE TEMP TABLE new_cases AS
    SELECT
        (row_number() OVER (ORDER BY {CASE_KEY}) + (SELECT coalesce(max(case_no), 0) FROM known_cases))::INTEGER
            AS case_no,
        {CASE_KEY}
    FROM (
        SELECT DISTINCT {CASE_KEY}
        FROM taken_measurements AS t
        ANTI JOIN known_cases AS n
            ON n.hardware_id = t.hardware_id AND n.environment_id = t.environment_id AND n.problem_id = t.problem_id
            AND n.regime IS NOT DISTINCT FROM t.regime
    )
"""
_CHANGED_MARKS = f"""
    SELECT coalesce(old.id, new.id) AS id
    FROM old_marks AS old
    FULL JOIN {RECENT}.marks AS new USING (id)
    WHERE old.flags IS DISTINCT FROM new.flags OR old.superseded_by IS DISTINCT FROM new.superseded_by
"""


class Growth:
    """One change of the recent file, from ``begin`` over any number of ``add`` to ``end``."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, *, has_base: bool) -> None:
        """Prepare a change of a recent file whose small tables are up to date.

        Args:
            connection: from ``bench.opened``, with ``old_marks`` as they were and the state in the schema ``NOW``.
            has_base: whether a base is attached.
        """
        self._connection = connection
        self._has_base = has_base
        make_stored(connection)
        self._world = World(connection, RECENT, f"FROM {NOW}.known_cases")
        for table in ("touched (case_no INTEGER)", "gone (id BIGINT)", "added (id BIGINT)"):
            connection.execute(f"CREATE TEMP TABLE {table}")

    def begin(self, gone: NDArray[np.int64]) -> None:
        """Drop measurements, and note which cases the drops and the new marks touch."""
        run = self._connection.execute
        if len(gone):
            run("INSERT INTO gone SELECT unnest($1::BIGINT[])", [gone.tolist()])
        # What counted before and does not any more; the marks are those of before.
        self._recount(f"FROM gone UNION SELECT id FROM ({_CHANGED_MARKS})", "old_marks", -1)
        run(f"""
            INSERT INTO touched
            SELECT case_no FROM {NOW}.stored_measurements
            WHERE id IN (FROM gone) OR id IN ({_CHANGED_MARKS})
        """)
        if len(gone):
            for table, key in (("measurements", "id"), ("timings", "measurement_id")):
                run(f"DELETE FROM {RECENT}.{table} WHERE {key} IN (FROM gone)")
            if self._has_base:
                run(f"""
                    INSERT INTO {RECENT}.dropped
                    FROM gone SEMI JOIN {BASE}.measurements USING (id) ANTI JOIN {RECENT}.dropped USING (id)
                """)
        self._recount(f"SELECT id FROM ({_CHANGED_MARKS})", f"{RECENT}.marks", 1)

    def add(self, facts: Iterable[tuple[str, pa.RecordBatch]]) -> tuple[int, int]:
        """Add measurements with their timings; return the number of each."""

        def number_cases() -> None:
            self._connection.execute(_NEW_CASES)
            self._world.number("new_cases", f"{RECENT}.known_cases")

        found = self._world.take(facts, number_cases)
        self._world.store(RECENT)
        for statement in (
            "INSERT INTO touched SELECT DISTINCT case_no FROM stored_measurements",
            "INSERT INTO weights SELECT id, 1 FROM numbered_measurements WHERE superseded_by IS NULL",
        ):
            self._connection.execute(statement)
        self._world.count(f"{RECENT}.covered")
        return found

    def renew(self) -> None:
        """Work out everything anew that follows from the measurements: cases and summaries. There is no base."""
        run = self._connection.execute
        run(f"CREATE TEMP TABLE all_cases AS FROM {RECENT}.known_cases")
        for name in ("known_cases", "covered"):
            run(f"DELETE FROM {RECENT}.{name}")
        self._world.number("all_cases", f"{RECENT}.known_cases")
        run("INSERT INTO touched SELECT case_no FROM all_cases")
        self._recount(f"SELECT id FROM {NOW}.stored_measurements", f"{RECENT}.marks", 1)

    def end(self) -> None:
        """Work out the summaries of the touched cases."""
        run = self._connection.execute
        run(f"""
            CREATE TEMP TABLE parts AS
            SELECT case_no, (sum(timings) OVER (ORDER BY case_no) // {TIMINGS_AT_ONCE})::INTEGER AS part
            FROM (
                SELECT t.case_no, coalesce(sum(m.timing_count), 0) AS timings
                FROM (SELECT DISTINCT case_no FROM touched) AS t
                LEFT JOIN {NOW}.stored_measurements AS m USING (case_no)
                GROUP BY t.case_no
            )
        """)
        run(f"DELETE FROM {RECENT}.summaries WHERE case_no IN (SELECT case_no FROM parts)")
        if self._has_base:
            run(f"""
                INSERT INTO {RECENT}.changed
                SELECT case_no FROM parts
                WHERE case_no <= (SELECT max(case_no) FROM {BASE}.known_cases)
                EXCEPT FROM {RECENT}.changed
            """)
        for (part,) in run("SELECT DISTINCT part FROM parts ORDER BY part").fetchall():
            self._world.clear()
            cases = [case for (case,) in run("SELECT case_no FROM parts WHERE part = $1", [part]).fetchall()]
            for name in ("stored_measurements", "stored_timings"):
                run(f"INSERT INTO {name} SELECT * FROM {NOW}.{name} WHERE case_no IN ({', '.join(map(str, cases))})")
            self._world.summarize(f"{RECENT}.summaries")

    def _recount(self, ids: str, marks: str, weight: int) -> None:
        """Add to the counts of configs the measurements with these ids that ``marks`` does not supersede."""
        run = self._connection.execute
        self._world.clear()
        run(f"CREATE OR REPLACE TEMP TABLE chosen AS SELECT DISTINCT id FROM ({ids})")
        if not value(self._connection, "SELECT count(*) FROM chosen"):
            return
        run(f"""
            INSERT INTO stored_measurements
            SELECT m.* FROM {NOW}.stored_measurements AS m SEMI JOIN chosen USING (id)
        """)
        run(f"""
            INSERT INTO stored_timings
            SELECT t.* FROM {NOW}.stored_timings AS t
            SEMI JOIN stored_measurements AS m ON m.id = t.measurement_id AND m.case_no = t.case_no
        """)
        run(f"""
            INSERT INTO weights
            SELECT id, {weight} FROM stored_measurements
            ANTI JOIN (FROM {marks} WHERE superseded_by IS NOT NULL) USING (id)
        """)
        self._world.count(f"{RECENT}.covered")
