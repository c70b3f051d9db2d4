"""Work out the summaries of some cases.

A world has the tables that ``base.sql`` names, with the measurements and timings of these cases alone. The definitions
of the summaries run over it unchanged. So a summary is the same whether a sync works out one case or all of them.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from diode_store.cache.layout import FACTS, SNAPSHOTS
from diode_store.cache.tables import STORED, create
from diode_store.records import Hardware
from diode_store.views.roofline_sql import hardware_table, peaks_of
from diode_store.views.view_files import base_statements, definition
from diode_store.warehouse import record_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import duckdb
    import pyarrow as pa

_BOUNDS = "b.flops, b.bytes_moved, b.peak_tflops, b.peak_gb_per_s, b.roofline_us, b.certain_us, b.least_us"
# The bounds of new cases need not wait for all problems times all devices.
_NUMBERED = """
    INSERT INTO {target}
    SELECT n.case_no, n.hardware_id, n.environment_id, n.problem_id, n.regime, {bounds}
    FROM {cases} AS n
    LEFT JOIN bounds AS b ON b.hardware_id = n.hardware_id AND b.problem_id = n.problem_id
    ORDER BY n.case_no
"""

_TAKE = """
    INSERT INTO stored_measurements
    SELECT t.*, n.case_no, coalesce(c.timings, 0), coalesce(c.failures, 0), coalesce(c.estimates, 0)
    FROM taken_measurements AS t
    JOIN known_cases AS n
        ON n.hardware_id = t.hardware_id AND n.environment_id = t.environment_id AND n.problem_id = t.problem_id
        AND n.regime IS NOT DISTINCT FROM t.regime
    LEFT JOIN (
        SELECT
            measurement_id,
            count(*) AS timings,
            count(*) FILTER (outcome <> 'ok') AS failures,
            count(*) FILTER (is_estimate) AS estimates
        FROM taken_timings
        GROUP BY measurement_id
    ) AS c ON c.measurement_id = t.id
"""
_TAKE_TIMINGS = """
    INSERT INTO stored_timings
    SELECT t.*, m.case_no FROM taken_timings AS t JOIN stored_measurements AS m ON m.id = t.measurement_id
"""


def make_hardware(connection: duckdb.DuckDBPyConnection, select: str) -> None:
    """Make the table ``hardware`` with the peaks of each device, from a SELECT of the devices."""
    connection.execute(hardware_table(select, _devices(connection, select)))


def peaks(connection: duckdb.DuckDBPyConnection, select: str) -> dict[int, tuple[str, ...]]:
    """Return the peaks of devices by their ids, from a SELECT of the devices."""
    return {number: tuple(peaks_of(device)) for number, device in _devices(connection, select)}


def _devices(connection: duckdb.DuckDBPyConnection, select: str) -> list[tuple[int, Hardware]]:
    columns = ", ".join(record_fields.HARDWARE)
    rows = connection.execute(f"SELECT id, {columns} FROM ({select})").fetchall()
    return [(number, Hardware(**dict(zip(record_fields.HARDWARE, row, strict=True)))) for number, *row in rows]


def make_stored(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the tables of facts, which are empty."""
    for table in FACTS:
        connection.execute(create(STORED[table], f"stored_{table}", "TEMP TABLE"))


class World:
    """The tables of some cases, in the memory of a connection."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, small: str, cases: str) -> None:
        """Make the tables beside ``stored_measurements`` and ``stored_timings``, which are there.

        Args:
            connection: a connection that has no tables of these names.
            small: the attached file with the small tables.
            cases: SELECT of all numbered cases.
        """
        self._connection = connection
        make_hardware(connection, f"FROM {small}.hardware")
        for name in SNAPSHOTS:
            if name != "hardware":
                connection.execute(f"CREATE VIEW {name} AS FROM {small}.{name}")
        connection.execute(f"CREATE VIEW known_cases AS {cases}")
        connection.execute("CREATE TEMP TABLE weights (measurement_id BIGINT, weight INTEGER)")
        for statements in base_statements():
            connection.execute(statements)

    def clear(self) -> None:
        """Empty the tables."""
        for name in ("stored_measurements", "stored_timings", "weights"):
            self._connection.execute(f"TRUNCATE {name}")

    def take(
        self, facts: Iterable[tuple[str, pa.RecordBatch]], new_cases: Callable[[], None] = lambda: None
    ) -> tuple[int, int]:
        """Fill the tables from a warehouse; return the numbers of measurements and timings.

        Args:
            facts: batches of measurements and timings, with their table.
            new_cases: numbers the cases of the measurements, which have the name ``taken_measurements`` meanwhile.
        """
        from diode_store.cache.arrow_rows import tables_of
        from diode_store.cache.bench import as_table, value

        found = tables_of(facts)
        self.clear()
        with ExitStack() as stack:
            for table, rows in found.items():
                stack.enter_context(as_table(self._connection, f"taken_{table}", rows))
            new_cases()
            self._connection.execute(_TAKE)
            self._connection.execute(_TAKE_TIMINGS)
        counts = ("stored_measurements", "stored_timings")
        measurements, timings = (value(self._connection, f"SELECT count(*) FROM {name}") for name in counts)
        return measurements, timings

    def store(self, into: str) -> None:
        """Add the measurements and timings to the tables of a file, sorted."""
        self._connection.execute(f"INSERT INTO {into}.measurements FROM stored_measurements ORDER BY case_no, id")
        order = "case_no, measurement_id, config_id"
        self._connection.execute(f"INSERT INTO {into}.timings FROM stored_timings ORDER BY {order}")

    def number(self, cases: str, target: str) -> None:
        """Write the numbered cases of a table to another one, with their bounds."""
        self._connection.execute(_NUMBERED.format(target=target, cases=cases, bounds=_BOUNDS))

    def summarize(self, into: str) -> None:
        """Add the summaries of the world's cases to a table."""
        self._connection.execute(f"INSERT INTO {into} {definition('summaries')}")

    def count(self, table: str) -> None:
        """Add the configs of the measurements in ``weights`` to a table of counts."""
        self._connection.execute(f"INSERT INTO {table} {definition('covered')}")
