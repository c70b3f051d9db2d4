"""``diode query --explain`` and ``--analyze``: the plan, and nothing that a query itself may not do."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from diode_store.errors import QueryError
from diode_store.query import analytics, results
from diode_store.query.plan import plan_json, plan_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import duckdb

    from conftest import MakeMeasurement, RunCommand
    from diode_store.warehouse.store import Store


@pytest.fixture
def connection(
    store: Store, database_url: str, make_measurement: MakeMeasurement
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Return a connection to the cache of one measurement."""
    store.write([make_measurement(1)])
    with closing(analytics.connect(database_url)) as opened:
        yield opened


def test_a_plan_reads_from_the_last_step_to_the_first(connection: duckdb.DuckDBPyConnection) -> None:
    """A line a step, indented below the one it feeds; conditions and sorting are named."""
    sql = "SELECT op FROM problems WHERE m % 2 = 1 ORDER BY op"
    lines = list(plan_lines(plan_json(connection, sql, analyze=False)))
    steps = [line.strip().split(",")[0] for line in lines]
    assert "order by" in steps[:-1]
    assert [len(line) - len(line.lstrip()) for line in lines] == [2 * i for i in range(len(lines))]
    assert any("m % 2" in line for line in lines)
    assert lines[-1].endswith(" rows")


def test_analyze_counts_rows_and_seconds(connection: duckdb.DuckDBPyConnection) -> None:
    """Each step says how many rows it gave and how long it took."""
    lines = list(plan_lines(plan_json(connection, "SELECT op FROM problems", analyze=True)))
    assert "1 rows, 0.0" in lines[-1]
    assert all(line.endswith(" s") for line in lines)


@pytest.mark.quick(3)
@pytest.mark.parametrize("analyze", [False, True])
@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM timings",
        "COPY (SELECT 1) TO '{}'",
        "WITH a AS (COPY (SELECT 1) TO '{}') SELECT 1",
        "SELECT 1; COPY (SELECT 1) TO '{}'",
        "/* */ COPY (SELECT 1) TO '{}'",
        "ANALYZE COPY (SELECT 1) TO '{}'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{}'",
        "-- x\rCOPY (SELECT 1) TO '{}'",
        "SELECT * FROM read_text('/etc/passwd')",
        "EXPLAIN SELECT 1",
        "explain analyze SELECT 1",
        "",
    ],
)
def test_a_plan_opens_no_hole(
    connection: duckdb.DuckDBPyConnection,
    tmp_path: Path,
    sql: str,
    analyze: bool,  # noqa: FBT001 - a parameter
) -> None:
    """Whatever may not be asked may not be explained either, and nothing of it runs."""
    target = tmp_path / "written.csv"
    with pytest.raises(QueryError) as raised:
        plan_json(connection, sql.format(target), analyze=analyze)
    assert "\n" not in str(raised.value)
    assert not target.exists()


def test_streams_read_only_too(connection: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    """A stream passes the same guard, gives rows in batches and takes values as parameters."""
    with pytest.raises(QueryError, match="read-only"):
        results.stream(connection, f"COPY (SELECT 1) TO '{tmp_path}/x'")
    reader = results.stream(connection, "SELECT range AS n FROM range(?)", [2500], rows_a_batch=1000)
    batches = list(reader)
    assert all(batch.num_rows <= 2048 for batch in batches)
    assert [n for batch in batches for n in batch.column("n").to_pylist()] == list(range(2500))


def test_the_command_prints_a_plan(connection: duckdb.DuckDBPyConnection, database_url: str, diode: RunCommand) -> None:
    """As lines, or with ``--json`` as DuckDB says it; as CSV it is refused."""
    query = ("query", "SELECT op FROM problems", "--database", database_url)
    shown = diode(*query, "--explain")
    assert shown.code == 0
    assert "about 1 rows" in shown.out
    assert diode(*query, "--analyze").out.rstrip().endswith(" s")
    assert isinstance(json.loads(diode(*query, "--explain", "--json").out), (dict, list))
    assert diode(*query, "--explain", "--csv").code == 2
