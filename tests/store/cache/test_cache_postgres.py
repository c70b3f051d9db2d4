"""The cache of a warehouse in PostgreSQL: what is copied, when, and what it costs the server."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
import pytest
from cache_reading import ask, did, measurement_ids

from diode_store.cache import change, facts, filling
from diode_store.cache.cache import Cache, State
from diode_store.cache.opening import open_source
from diode_store.cache.source import digests
from diode_store.cache.sync import sync
from diode_store.errors import DatabaseError, SchemaError
from diode_store.query import analytics
from diode_store.warehouse.store import Store
from lanes import long
from samples import EVERY_FIELD

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import MakeMeasurement
    from postgres_server import PostgresServer

_EVERYTHING = "SELECT * EXCLUDE (ingested_at) FROM observations ORDER BY measurement_uid, config_id"


@pytest.fixture
def server_cache(tmp_path: Path) -> Cache:
    """Return the cache of the warehouse on the server."""
    return Cache(tmp_path / "server.cache")


@pytest.fixture
def connection(postgres_url: str) -> Iterator[psycopg.Connection]:
    """Return a plain connection to the warehouse, for what no store does."""
    with psycopg.connect(_libpq(postgres_url), autocommit=True) as opened:
        yield opened


def _libpq(url: str) -> str:
    return url.replace("+psycopg", "")


def _fill(url: str, numbers: range, make_measurement: MakeMeasurement) -> None:
    with Store.open(url) as store:
        store.write([make_measurement(number) for number in numbers])


@pytest.mark.long
def test_both_databases_give_the_same_cache(
    postgres_url: str, database_url: str, cache: Cache, server_cache: Cache, make_measurement: MakeMeasurement
) -> None:
    """Every column of every row is the same, bytes, times, flags and JSON included, NULLs too."""
    full = replace(make_measurement(7), **{**EVERY_FIELD, "uid": bytes(range(16)), "superseded_by": None})
    for url in (postgres_url, database_url):
        with Store.open(url) as store:
            store.write([*(make_measurement(number) for number in range(5)), full])
    assert did(sync(postgres_url, server_cache)) == did(sync(database_url, cache))
    assert ask(server_cache, _EVERYTHING) == ask(cache, _EVERYTHING)
    for table in ("hardware", "environments", "problems", "configs", "marks", "hardware_aliases"):
        described = f"SELECT column_name, column_type FROM (DESCRIBE {table})"  # noqa: S608 - our own names
        assert ask(server_cache, described) == ask(cache, described)
        rows = f"SELECT * FROM {table} ORDER BY ALL"  # noqa: S608 - our own names
        assert ask(server_cache, rows) == ask(cache, rows)


def test_a_transaction_that_commits_late_is_copied(
    postgres_url: str, server_cache: Cache, connection: psycopg.Connection, make_measurement: MakeMeasurement
) -> None:
    """Of two open transactions the one with the lower id commits last; a watermark would never copy it."""
    _fill(postgres_url, range(1), make_measurement)
    like_the_first = "SELECT %s, hardware_id, environment_id, problem_id, source, ingested_at, is_replay, choice_policy"
    insert = (
        "INSERT INTO measurements (uid, hardware_id, environment_id, problem_id, source, ingested_at, is_replay, "
        f"choice_policy) {like_the_first} FROM measurements ORDER BY id LIMIT 1 RETURNING id"
    )
    timing = (
        "INSERT INTO timings (measurement_id, config_id, runtime_us, outcome, is_estimate) "
        "VALUES (%s, 1, 2.5, 'ok', false)"
    )
    with psycopg.connect(_libpq(postgres_url)) as slow, psycopg.connect(_libpq(postgres_url)) as quick:
        ids = []
        for number, writer in enumerate((slow, quick)):
            row = writer.execute(insert, (bytes(15) + bytes([200 + number]),)).fetchone()
            assert row is not None
            ids.append(row[0])
            writer.execute(timing, row)
        assert ids[0] < ids[1]
        quick.commit()
        assert did(sync(postgres_url, server_cache)) == (2, 4, 0, None)
        assert ids[0] not in measurement_ids(server_cache)
        slow.commit()
        assert did(sync(postgres_url, server_cache)) == (1, 1, 0, None)
    assert measurement_ids(server_cache) == [1, *ids]
    assert did(sync(postgres_url, server_cache)) == (0, 0, 0, None)


def test_a_delete_and_an_insert_that_balance(
    postgres_url: str, server_cache: Cache, connection: psycopg.Connection, make_measurement: MakeMeasurement
) -> None:
    """The number of measurements, their highest id and the sum of their ids may all stay as they were."""
    _fill(postgres_url, range(5), make_measurement)
    connection.execute("UPDATE measurements SET id = 30 WHERE id = 2")
    connection.execute("UPDATE timings SET measurement_id = 30 WHERE measurement_id = 2")
    sync(postgres_url, server_cache)
    connection.execute("UPDATE measurements SET uid = decode(repeat('ff', 16), 'hex') WHERE id = 3")
    assert did(sync(postgres_url, server_cache)) == (1, 3, 1, None)
    assert len(measurement_ids(server_cache)) == 5
    assert did(sync(postgres_url, server_cache)) == (0, 0, 0, None)


def test_chunks_are_cut_between_measurements(
    postgres_url: str, server_cache: Cache, make_measurement: MakeMeasurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory stays flat because a chunk has a size; each measurement is whole, in the recent file and in a base."""
    monkeypatch.setattr(facts, "TIMINGS_AT_ONCE", 7)
    monkeypatch.setattr(filling, "TIMINGS_AT_ONCE", 7)
    _fill(postgres_url, range(20), make_measurement)
    counts = "SELECT count(*) FROM (SELECT measurement_id FROM timings GROUP BY 1 HAVING count(*) = 3)"
    for most_recent in (100, 10):
        monkeypatch.setattr(change, "MOST_RECENT", most_recent)
        report = sync(postgres_url, server_cache, rebuild=True)
        assert (report.added, report.added_timings, report.has_new_base) == (20, 60, most_recent == 10)
        assert ask(server_cache, counts) == [(20,)]


def test_nothing_stays_open(
    postgres_url: str, server_cache: Cache, connection: psycopg.Connection, make_measurement: MakeMeasurement
) -> None:
    """Between two chunks and after a sync no transaction holds back the server's cleaning up."""
    _fill(postgres_url, range(3), make_measurement)
    idle = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL"
    seen: list[int] = []

    def look(_timings: float) -> None:
        seen.extend(row[0] for row in connection.execute(f"{idle} AND pid <> pg_backend_pid()"))

    sync(postgres_url, server_cache, on_progress=look)
    look(0)
    assert seen == [0, 0]


def test_a_committed_row_is_seen_at_once(
    postgres_url: str, server_cache: Cache, make_measurement: MakeMeasurement
) -> None:
    """``connect`` syncs before it answers."""
    counts = []
    for number in range(3):
        _fill(postgres_url, range(number, number + 1), make_measurement)
        with closing(analytics.connect(postgres_url, server_cache.path)) as opened:
            counts += opened.execute("SELECT count(*) FROM observations").fetchall()
    assert counts == [(3,), (6,), (9,)]


def test_what_has_not_changed_has_the_same_digests(
    postgres_url: str, connection: psycopg.Connection, make_measurement: MakeMeasurement
) -> None:
    """Digests do not depend on the order in which the server happens to read."""
    _fill(postgres_url, range(30), make_measurement)
    found = []
    for _ in range(2):
        with open_source(postgres_url) as source, source.snapshot():
            found.append(digests(source, State()))
        connection.execute("UPDATE measurements SET host = host WHERE mod(id, 2) = 0")
    assert found[0] == found[1]


def test_no_password_in_an_error(postgres_server: PostgresServer, server_cache: Cache) -> None:
    """Neither a refused password nor a server that is away shows the password."""
    for url in (
        postgres_server.tcp_url("postgres", "wrong secret"),
        f"postgresql+psycopg://diode:wrong%20secret@127.0.0.1:{postgres_server.port + 1}/nowhere",
    ):
        with pytest.raises(DatabaseError) as raised:
            sync(url, server_cache)
        assert "secret" not in str(raised.value)
        assert "***" in str(raised.value)
        assert "\n" not in str(raised.value)


def test_a_server_without_a_warehouse(postgres_server: PostgresServer, server_cache: Cache) -> None:
    """An empty database is told from one that cannot be reached."""
    url = postgres_server.create_database("empty_for_the_cache")
    with pytest.raises(SchemaError, match="holds no warehouse yet; create it with"):
        sync(url, server_cache)


def test_without_the_driver(tmp_path: Path, postgres_server: PostgresServer) -> None:
    """Without the driver the message names what to install."""
    code = (
        "import sys; sys.modules['adbc_driver_postgresql'] = None\n"
        "from pathlib import Path\n"
        "from diode_store.cache.cache import Cache\n"
        "from diode_store.cache.sync import sync\n"
        f"sync({postgres_server.url('postgres')!r}, Cache(Path({str(tmp_path / 'x')!r})))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "copying from PostgreSQL needs ADBC; run `pip install torch-diode[postgres]`" in ended.stderr


@long
def test_a_cache_of_postgresql_stays_fresh_while_writers_write(
    postgres_url: str, server_cache: Cache, make_measurement: MakeMeasurement
) -> None:
    """Whatever a sync sees is whole, and the last one sees everything."""
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "import samples\n"
        "from diode_store.warehouse.store import Store\n"
        f"store = Store.open({postgres_url!r})\n"
        "start = int(sys.argv[1])\n"
        "for number in range(start, start + 60):\n"
        "    store.write([samples.measurement(number)])\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(start)]) for start in (0, 100, 200)]
    halves, deadline = [], time.monotonic() + 60
    while any(writer.poll() is None for writer in writers):
        assert time.monotonic() < deadline
        sync(postgres_url, server_cache)
        halves += ask(server_cache, "SELECT measurement_id FROM timings GROUP BY 1 HAVING count(*) <> 3")
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    sync(postgres_url, server_cache)
    assert halves == []
    assert len(measurement_ids(server_cache)) == 180
