"""Work out the summaries of some cases.

A world has the tables that ``base.sql`` names, with the measurements and timings of these cases alone. The definitions
of the summaries run over it unchanged. So a summary is the same whether a sync works out one case or all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_store.cache.cache import RECENT
from diode_store.cache.layout import SNAPSHOTS
from diode_store.cache.tables import NOW, READ_AS
from diode_store.records import Hardware
from diode_store.views.roofline_sql import hardware_table, peaks_of
from diode_store.views.view_files import base_statements, definition
from diode_store.warehouse import record_fields

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    from numpy.typing import NDArray

_BOUNDS = "b.flops, b.bytes_moved, b.peak_tflops, b.peak_gb_per_s, b.roofline_us, b.certain_us, b.least_us"
_SUMMARIZED = ("measurements", "timings")
# The bounds of new cases need not wait for all problems times all devices.
_NUMBERED = """
    INSERT INTO {target}
    SELECT n.case_no, n.hardware_id, n.environment_id, n.problem_id, n.regime, {bounds}
    FROM {cases} AS n
    LEFT JOIN bounds AS b ON b.hardware_id = n.hardware_id AND b.problem_id = n.problem_id
    ORDER BY n.case_no
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


class World:
    """The tables of some cases of the state in the schema ``NOW``, in the memory of a connection."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Make the tables; the connection has none of these names, and a recent file with the small tables."""
        self._connection = connection
        make_hardware(connection, f"FROM {RECENT}.hardware")
        for name in SNAPSHOTS:
            if name != "hardware":
                connection.execute(f"CREATE VIEW {READ_AS.get(name, name)} AS FROM {RECENT}.{name}")
        connection.execute(f"CREATE VIEW stored_metric_values AS FROM {NOW}.stored_metric_values")
        connection.execute(f"CREATE VIEW known_cases AS FROM {NOW}.known_cases")
        self._shown: list[int] = []
        self._show(f"FROM {NOW}.stored_{{}} WHERE false")
        for statements in base_statements():
            connection.execute(statements)

    def show(self, cases: NDArray[np.int32]) -> None:
        """Show the measurements and timings of these cases; those that are shown already stay as they are."""
        if cases.tolist() == self._shown:
            return
        self._shown = cases.tolist()
        first, last = cases.min(), cases.max()
        if len(cases) > last - first:
            self._show(f"FROM {NOW}.stored_{{}} WHERE case_no BETWEEN {first:d} AND {last:d}")
            return
        # Once in memory: the summaries read the tables several times.
        run = self._connection.execute
        run("CREATE OR REPLACE TEMP TABLE shown AS SELECT unnest($1::INTEGER[]) AS case_no", [self._shown])
        for table in _SUMMARIZED:
            select = f"FROM {NOW}.stored_{table} SEMI JOIN shown USING (case_no)"
            run(f"CREATE OR REPLACE TEMP TABLE shown_{table} AS {select}")
        self._show("FROM shown_{}")

    def hide(self) -> None:
        """Have the next ``show`` read the tables again, which have changed."""
        self._shown = []

    def _show(self, select: str) -> None:
        for table in _SUMMARIZED:
            self._connection.execute(f"CREATE OR REPLACE TEMP VIEW stored_{table} AS {select.format(table)}")

    def number(self, cases: str, target: str) -> None:
        """Write the numbered cases of a table to another one, with their bounds."""
        self._connection.execute(_NUMBERED.format(target=target, cases=cases, bounds=_BOUNDS))

    def summarize(self, into: str) -> None:
        """Add the summaries of the world's cases to a table."""
        [(count,)] = self._connection.execute(
            f"CREATE OR REPLACE TEMP TABLE summarized AS {definition('summaries')}"
        ).fetchall()
        # After an insert of no rows, DuckDB 2.0 may not find rows that the transaction inserts later.
        if count:
            self._connection.execute(f"INSERT INTO {into} FROM summarized")

    def count(self, table: str) -> None:
        """Add the configs of the measurements in ``weights`` to a table of counts."""
        self._connection.execute(f"INSERT INTO {table} {definition('covered')}")
