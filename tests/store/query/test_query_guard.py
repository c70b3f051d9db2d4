"""What `diode query` refuses: everything that writes, and everything outside the cache."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest

from diode_store.cache.cache import Cache, cache_path
from diode_store.cache.sync import sync
from diode_store.devices.known import known_device
from diode_store.errors import QueryError
from diode_store.exchange.context import ImportContext
from diode_store.exchange.importing import import_files
from diode_store.query import analytics, results
from diode_store.warehouse.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def cache(_template_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """Return the cache of a warehouse with six real problems; no test can change it."""
    database = shutil.copy(_template_database, tmp_path_factory.mktemp("guard") / "warehouse.db")
    data = Path(__file__).parents[2] / "data" / "h200_excerpt.jsonl"
    with Store.open(str(database)) as store:
        import_files(store, [str(data)], ImportContext(hardware=known_device("h200")))
    found = Cache(cache_path(str(database)))
    sync(str(database), found)
    return found


@pytest.fixture(scope="module")
def opened(cache: Cache) -> Iterator[duckdb.DuckDBPyConnection]:
    """Return a connection to the cache."""
    with closing(analytics.open_cache(cache)) as connection:
        yield connection


@pytest.fixture
def connection(opened: duckdb.DuckDBPyConnection) -> Iterator[duckdb.DuckDBPyConnection]:
    """Return a connection to the cache that no other test has used."""
    with closing(opened.cursor()) as cursor:
        yield cursor


@pytest.fixture
def cache_file(cache: Cache) -> Path:
    """Return a file that the cache's views read."""
    return next(cache.path.glob("recent-*.duckdb"))


def refused(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """Run ``sql``, which must be refused, and return the message."""
    with pytest.raises(QueryError) as raised:
        list(results.run_query(connection, sql))
    message = str(raised.value)
    assert message
    assert "\n" not in message
    return message


@pytest.mark.quick(10)
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM observations",
        "select 1;",
        "-- why\nSELECT 1",
        "FROM observations",
        "TABLE observations",
        "VALUES (1), (2)",
        "WITH a AS (SELECT 1 AS x), b AS MATERIALIZED (SELECT x FROM a) SELECT * FROM b",
        "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < 3) SELECT * FROM r",
        "SELECT 1 UNION SELECT 2",
        "SELECT * FROM range(3)",
        "SELECT unnest([1, 2])",
        "SELECT * FROM unnest([1, 2])",
        "SELECT template, (SELECT max(runtime_us) FROM timings) FROM configs",
        "SELECT op FROM problems WHERE id IN (SELECT problem_id FROM measurements)",
        "SELECT template FROM configs QUALIFY row_number() OVER (ORDER BY id) = 1",
        "PIVOT (SELECT op, m FROM problems) ON op IN ('mm') USING sum(m)",
        "DESCRIBE fastest_configs",
        "SUMMARIZE SELECT runtime_us FROM timings",
        "SHOW TABLES",
        "EXPLAIN SELECT * FROM observations",
        "explain analyze SELECT 1",
        "EXPLAIN (FORMAT json) SELECT 1",
        "\n EXPLAIN -- what follows is DuckDB's to read\n SELECT 1",
    ],
)
def test_queries_run(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Whatever only reads the cache is answered."""
    assert list(results.run_query(connection, sql))


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("DELETE FROM timings", "DELETE"),
        ("UPDATE configs SET template = 'x'", "UPDATE"),
        ("INSERT INTO configs VALUES (1)", "INSERT"),
        ("MERGE INTO configs USING problems ON (true) WHEN MATCHED THEN DELETE", "MERGE INTO"),
        ("CREATE TABLE x AS SELECT 1", "CREATE"),
        ("CREATE VIEW x AS SELECT 1", "CREATE"),
        ("CREATE MACRO x() AS 1", "CREATE"),
        ("CREATE SECRET x (TYPE s3)", "CREATE"),
        ("DROP VIEW observations", "DROP"),
        ("ALTER TABLE x RENAME TO y", "ALTER"),
        ("COMMENT ON VIEW observations IS 'x'", "ALTER"),
        ("TRUNCATE timings", "DELETE"),
        ("COPY (SELECT 1) TO '/tmp/x.csv'", "COPY"),
        ("COPY configs FROM '/etc/passwd'", "COPY"),
        ("ATTACH '/tmp/x.db'", "ATTACH"),
        ("DETACH memory", "DETACH"),
        ("USE memory", "SET"),
        ("INSTALL sqlite", "LOAD"),
        ("LOAD sqlite", "LOAD"),
        ("EXPORT DATABASE '/tmp/x'", "EXPORT"),
        ("IMPORT DATABASE '/tmp/x'", "PRAGMA"),
        ("PRAGMA version", "PRAGMA"),
        ("PRAGMA add_parquet_key('k', '0123456789012345')", "PRAGMA"),
        ("SET enable_external_access = true", "SET"),
        ("RESET enable_external_access", "SET"),
        ("SET VARIABLE x = 1", "SET"),
        ("CALL pragma_version()", "CALL"),
        ("CHECKPOINT", "CALL"),
        ("VACUUM", "VACUUM"),
        ("ANALYZE", "VACUUM"),
        ("BEGIN", "TRANSACTION"),
        ("PREPARE p AS SELECT 1", "PREPARE"),
        ("EXECUTE p", "EXECUTE"),
        ("PIVOT problems ON op USING sum(m)", "MULTI"),
    ],
)
def test_statements_that_do_not_only_read(connection: duckdb.DuckDBPyConnection, sql: str, what: str) -> None:
    """Each kind is named and refused before anything of it runs."""
    assert refused(connection, sql) == f"queries are read-only: {what} is refused; use SELECT or EXPLAIN"


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("WITH a AS (DELETE FROM timings RETURNING *) SELECT * FROM a", "DELETE"),
        ("WITH a AS (INSERT INTO timings VALUES (1) RETURNING *) SELECT * FROM a", "INSERT"),
        ("WITH a AS (UPDATE timings SET runtime_us = 1 RETURNING *) SELECT * FROM a", "UPDATE"),
        ("WITH a AS (COPY timings TO '/tmp/x.csv') SELECT 1", "COPY"),
        ("SELECT * FROM (WITH a AS (DELETE FROM timings) SELECT 1)", "DELETE"),
        ("SELECT 1 WHERE 1 IN (WITH a AS (COPY timings TO '/tmp/x.csv') SELECT 1)", "COPY"),
        ("SELECT 1 UNION ALL (WITH a AS (DELETE FROM timings) SELECT 1)", "DELETE"),
        ("EXPLAIN WITH a AS (COPY timings TO '/tmp/x.csv') SELECT 1", "COPY"),
        ("EXPLAIN ANALYZE WITH a AS (DELETE FROM timings) SELECT 1", "DELETE"),
        ("DESCRIBE (WITH a AS (DELETE FROM timings) SELECT 1)", "DELETE"),
        ("FROM (WITH a AS (WITH b AS (DELETE FROM timings) SELECT 1) SELECT 1)", "DELETE"),
    ],
)
def test_writes_hidden_in_a_query(connection: duckdb.DuckDBPyConnection, sql: str, what: str) -> None:
    """DuckDB takes these for SELECTs; the tree shows what they hold."""
    assert refused(connection, sql) == f"queries are read-only: {what} inside a WITH is refused"


def test_a_copy_cannot_overwrite_the_cache(connection: duckdb.DuckDBPyConnection, cache_file: Path) -> None:
    """DuckDB itself would let a query write to the very files it may read."""
    before = cache_file.read_bytes()
    refused(connection, f"COPY (SELECT 1) TO '{cache_file}'")
    refused(connection, f"WITH a AS (COPY (SELECT 1) TO '{cache_file}') SELECT 1")
    refused(connection, f"EXPLAIN ANALYZE COPY (SELECT 1) TO '{cache_file}'")
    refused(connection, f"SELECT * FROM query('WITH a AS (COPY (SELECT 1) TO ''{cache_file}'') SELECT 1')")  # noqa: S608 - our own names
    copy = f"COPY (SELECT 1) TO '{cache_file}' (USE_TMP_FILE false)"
    refused(connection, f"/* /* */ explain select 1 -- */ explain analyze {copy}")
    refused(connection, f"-- x\rEXPLAIN ANALYZE {copy} /*\nexplain select 1 -- */")
    assert cache_file.read_bytes() == before
    assert [path.name for path in cache_file.parent.glob("*.duckdb*")] == [cache_file.name]


@pytest.mark.parametrize("sql", ["UPDATE EXTENSIONS", "SELECT '\ud800'"])
def test_statements_that_no_one_can_name(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """What DuckDB parses but its Python names lack, or no UTF-8 can hold, is refused like anything else."""
    assert refused(connection, sql).startswith("queries are read-only: this statement is not understood")


@pytest.mark.parametrize(
    "sql",
    [
        "EXPLAIN DELETE FROM timings",
        "EXPLAIN ANALYZE DELETE FROM timings",
        "EXPLAIN (ANALYZE, FORMAT json) DELETE FROM timings",
        "explain/**/analyze copy (select 1) to '/tmp/x.csv'",
        "EXPLAIN CREATE TABLE x AS SELECT 1",
    ],
)
def test_explaining_a_write(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """EXPLAIN ANALYZE runs what it explains, so only queries may be explained."""
    assert "explain" in refused(connection, sql).lower()


@pytest.mark.parametrize(
    "function",
    [
        "read_csv('/etc/passwd')",
        "read_csv_auto('/etc/passwd')",
        "read_text('/etc/passwd')",
        "read_blob('/etc/passwd')",
        "read_json('/etc/passwd')",
        "read_parquet('/etc/passwd')",
        "parquet_scan('/etc/passwd')",
        "parquet_metadata('/etc/passwd')",
        "read_duckdb('/etc/passwd')",
        "sniff_csv('/etc/passwd')",
        "glob('/etc/*')",
        "query('SELECT 1')",
        "query_table('timings')",
        "json_execute_serialized_sql('x')",
        "arrow_scan(1, 2, 3)",
        "pandas_scan(1)",
        "duckdb_settings()",
        "duckdb_secrets()",
        "checkpoint()",
        "enable_logging()",
        "sqlite_scan('/etc/passwd', 't')",
        "postgres_scan('host=x', 'public', 't')",
    ],
)
@pytest.mark.parametrize(
    "form",
    [
        "SELECT * FROM {}",
        "WITH x AS (SELECT * FROM {}) SELECT * FROM x",
        "SELECT (SELECT count(*) FROM {})",
        "SELECT 1 WHERE EXISTS (FROM {})",
        "SELECT * FROM timings, LATERAL (SELECT * FROM {})",
        "EXPLAIN ANALYZE SELECT * FROM {}",
    ],
)
def test_table_functions(connection: duckdb.DuckDBPyConnection, form: str, function: str) -> None:
    """Functions that read files, settings or SQL text are refused wherever they stand."""
    name = function.partition("(")[0]
    expected = f"queries are read-only and see the cache only: the table function {name}() is refused"
    assert refused(connection, form.format(function)) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM '/etc/passwd'",
        'SELECT * FROM "/etc/passwd"',
        "SELECT * FROM '/etc/*.csv'",
        "SELECT * FROM '/tmp/x.parquet'",
        "SELECT * FROM 'http://127.0.0.1:9/x.parquet'",
        "WITH a AS (FROM '/etc/passwd') FROM a",
        "SELECT getenv('HOME')",
        "SELECT read_text('/etc/passwd')",
        "SELECT content FROM read_text('/etc/hostname')",
    ],
)
def test_files_and_the_environment(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """No name of a file stands for a table outside the cache, and no function reads the environment."""
    refused(connection, sql)


@pytest.mark.parametrize(
    "sql", ["SELECT * FROM '/etc/passwd'", "SELECT * FROM read_text('/etc/passwd')", "SET threads = 1", "LOAD sqlite"]
)
def test_the_connection_itself_is_locked(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Also without the guard nothing outside is read and no setting changes."""
    with pytest.raises(duckdb.Error):
        connection.execute(sql)


def test_files_that_only_lie_in_the_cache(connection: duckdb.DuckDBPyConnection, cache_file: Path) -> None:
    """Other files in the folder are not read either."""
    (cache_file.parent / "secret.csv").write_text("a\n1\n")
    with pytest.raises(duckdb.Error):
        connection.execute(f"SELECT * FROM '{cache_file.parent}/secret.csv'")  # noqa: S608 - our own names


def test_variables_of_the_program_are_no_tables(connection: duckdb.DuckDBPyConnection) -> None:
    """DuckDB would look for tables among our local variables."""
    secret = duckdb.connect().sql("SELECT 'secret' AS word")
    assert "secret does not exist" in refused(connection, "SELECT * FROM secret")
    assert secret.fetchall() == [("secret",)]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("", "there is no statement"),
        ("-- nothing", "there is no statement"),
        ("SELECT 1; SELECT 2", "2 statements at once; give one"),
        ("SELECT 1; DROP VIEW observations", "2 statements at once; give one"),
        ("SELEC 1", "Parser Error: syntax error at or near"),
        ("SELECT runtime FROM timings", 'Candidate bindings: "runtime_us"'),
        ("SELECT * FROM observation", 'Did you mean "observations'),
        ("SELECT 1 / 'x'", "Conversion Error"),
        ("SELECT now()", "cast it, as in now()::TIMESTAMP"),
        ("SELECT $1", "Invalid Input Error"),
    ],
)
def test_mistakes_are_explained(connection: duckdb.DuckDBPyConnection, sql: str, expected: str) -> None:
    """DuckDB's own hint arrives, on one line."""
    assert expected in refused(connection, sql)


def test_rows_come_as_they_are_asked_for(connection: duckdb.DuckDBPyConnection) -> None:
    """A result of many rows is read in pieces."""
    result = results.run_query(connection, "SELECT range AS number FROM range(25_000)")
    assert result.columns == ("number",)
    assert [row[0] for row in result] == list(range(25_000))


def test_an_error_on_the_way(connection: duckdb.DuckDBPyConnection) -> None:
    """A query may fail after its first rows."""
    sql = "SELECT CASE WHEN range < 24000 THEN 1 ELSE error('too far') END FROM range(25_000)"
    assert "too far" in refused(connection, sql)


def test_a_query_can_follow_another(connection: duckdb.DuckDBPyConnection) -> None:
    """A result that was not read to its end does not block the next."""
    next(iter(results.run_query(connection, "SELECT * FROM range(100_000)")))
    assert list(results.run_query(connection, "SELECT 7")) == [(7,)]
