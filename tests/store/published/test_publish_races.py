"""Several publishers at once, and publishers that are killed: nothing is lost, and nothing is there twice."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from published_rows import there, wanted

from diode_store.query import analytics
from diode_store.query.publish import publish
from lanes import sizes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import MakeMeasurement
    from diode_store.warehouse.store import Store

# Publishes again and again with a few timings in each commit, so that a kill or another publisher hits any step.
_WORK = """
import os, sys
from diode_store.delta.table import compact, open_table
from diode_store.query import publish as publishing
database, table, cache, rounds = sys.argv[1:]
os.environ["DIODE_CACHE"] = cache
publishing.TIMINGS_A_COMMIT = 7
publishing._UIDS_A_COMMIT = 2
print("ready", flush=True)
for number in range(int(rounds)):
    publishing.publish(database, table)
    if number % 3 == 2:
        try:
            compact(open_table(table), dry_run=False)
        except publishing.PublishedTableError:
            pass
"""
_READ = """
import sys
from diode_store.cache import published, change
from diode_store.cache.cache import cache_of
from diode_store.cache.sync import sync
print("ready", flush=True)
sync(sys.argv[1], cache_of(sys.argv[1]))
"""
# An S3 server with a bucket.
_SERVER = """
import time
import boto3
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
_, port = server.get_host_and_port()
access = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", **access).create_bucket(Bucket="fleet")
print(port, flush=True)
time.sleep(3600)
"""


class Place:
    """A place for a table: a folder, or a bucket of an object store."""

    def __init__(self, url: str, options: dict[str, str] | None = None) -> None:
        self.url = url
        self.options = options

    def rows(self) -> list[tuple[str, ...]]:
        """Return every row of the table."""
        return there(self.url, self.options)


@pytest.fixture(params=["bucket", "folder"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Yield a folder, or a bucket of moto's S3 server."""
    if request.param == "folder":
        yield Place(str(tmp_path / "table"))
        return
    # In a process of its own: delta-rs keeps Python's lock while it waits for an answer.
    command = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        options = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.stdout.readline().strip()}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
        for name, value in options.items():
            monkeypatch.setenv(name, value)
        yield Place("s3://fleet/all/timings", options)
        server.kill()


def start(database: str, place: Place, cache: Path, rounds: int) -> subprocess.Popen[str]:
    """Start a publisher, and return it when it begins."""
    process = subprocess.Popen(
        [sys.executable, "-c", _WORK, database, place.url, str(cache), str(rounds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()
    return process


def change(store: Store, chance: random.Random, number: int, make_measurement: MakeMeasurement) -> None:
    """Add, mark or delete some measurements."""
    store.write([make_measurement(3 * number + each) for each in range(3)])
    with store.engine.begin() as connection:
        ids = [row[0] for row in connection.exec_driver_sql("SELECT id FROM measurements")]
        if chance.random() < 0.5:
            chosen = chance.choice(ids)
            connection.exec_driver_sql("UPDATE measurements SET flags = ? WHERE id = ?", (f"f{number}", chosen))
        if chance.random() < 0.4:
            gone = chance.choice(ids)
            connection.exec_driver_sql("DELETE FROM timings WHERE measurement_id = ?", (gone,))
            connection.exec_driver_sql("DELETE FROM measurements WHERE id = ?", (gone,))


@pytest.mark.quick(1)
@pytest.mark.parametrize("publishers", [2, 4])
def test_machines_publish_one_warehouse_at_once(
    store: Store, database_url: str, place: Place, make_measurement: MakeMeasurement, tmp_path: Path, publishers: int
) -> None:
    """Each has a cache of its own; the warehouse changes meanwhile."""
    chance = random.Random(publishers)  # noqa: S311 - no secret
    change(store, chance, 0, make_measurement)
    running = [start(database_url, place, tmp_path / f"cache {each}", 3) for each in range(publishers)]
    for number in range(1, 6):
        change(store, chance, number, make_measurement)
        time.sleep(0.2)
    for process in running:
        _, errors = process.communicate()
        assert (process.returncode, errors) == (0, "")
    publish(database_url, place.url)
    assert place.rows() == wanted(database_url)


@pytest.mark.quick(1)
@pytest.mark.parametrize("kills", sizes(2, 100))
def test_killed_at_any_point(
    store: Store, database_url: str, place: Place, make_measurement: MakeMeasurement, tmp_path: Path, kills: int
) -> None:
    """The commits of a killed publisher are there once; the next publication adds the rest."""
    chance = random.Random(kills)  # noqa: S311 - no secret
    for number in range(kills):
        change(store, chance, number, make_measurement)
        process = start(database_url, place, tmp_path / "cache", 50)
        time.sleep(chance.uniform(0, 0.6))
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
        assert process.returncode == -signal.SIGKILL, errors
        if number % 4 == 1:
            found = place.rows()
            assert len(found) == len(set(found))
            publish(database_url, place.url)
            assert place.rows() == wanted(database_url)
    publish(database_url, place.url)
    assert place.rows() == wanted(database_url)


@pytest.mark.quick(1)
@pytest.mark.parametrize("kills", sizes(2, 60))
def test_readers_killed_at_any_point(
    store: Store, database_url: str, make_measurement: MakeMeasurement, tmp_path: Path, kills: int
) -> None:
    """After a kill, files of the table are replaced; the next reader has the right timings all the same."""
    table = str(tmp_path / "table")
    chance = random.Random(kills)  # noqa: S311 - no secret
    for number in range(kills):
        change(store, chance, number, make_measurement)
        publish(database_url, table)
        process = subprocess.Popen(
            [sys.executable, "-c", _READ, table], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()
        time.sleep(chance.uniform(0, 0.25))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if number % 2:
            DeltaTable(table).optimize.compact()
        if number % 3:
            assert in_views(table) == in_views(database_url)


def in_views(url: str) -> list[str]:
    """Return every timing with its config, as the views show it."""
    with closing(analytics.connect(url)) as connection:
        sql = "SELECT measurement_uid, template, block_m, block_n, num_warps, runtime_us, flags FROM observations"
        return sorted(map(repr, connection.execute(sql).fetchall()))
