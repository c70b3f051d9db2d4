"""Readers of a local lake keep the files of their state, however long they take and however they end."""

from __future__ import annotations

import errno
import fcntl
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from diode_store.lake import lake as lake_module
from diode_store.lake import readers as lake_readers
from diode_store.lake.compact import compact
from diode_store.lake.sync import sync
from diode_store.query import analytics
from lanes import long

OPEN_FILES = Path("/proc/self/fd")

if TYPE_CHECKING:
    from conftest import MakeMeasurement
    from diode_store.lake.lake import Lake
    from diode_store.warehouse.store import Store

_READ = """
import sys
from diode_store.query import analytics
connection = analytics.connect(sys.argv[1])
print(connection.execute("SELECT count(*) FROM observations").fetchall()[0][0], flush=True)
sys.stdin.readline()
print(connection.execute("SELECT count(*), max(runtime_us) FROM timings").fetchall()[0][0], flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing but readers keep a file."""
    monkeypatch.setattr(lake_module, "RETIREMENT_S", 0.0)


def start_reader(url: str) -> subprocess.Popen[str]:
    """Start a process that queries, waits for a line, queries again, and waits."""
    reader = subprocess.Popen(
        [sys.executable, "-c", _READ, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == "3\n"
    return reader


@pytest.mark.quick(1)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_another_process_reads(
    store: Store, database_url: str, lake: Lake, make_measurement: MakeMeasurement, number: signal.Signals
) -> None:
    """Its files stay while it runs, also those it opens only later, and go once it was ended, by kill -9 too."""
    store.write([make_measurement(1)])
    reader = start_reader(database_url)
    assert reader.stdin is not None
    assert reader.stdout is not None
    for more in range(2, 5):
        store.write([make_measurement(more)])
        sync(database_url, lake, rebuild=True)
    # Of the states in between nobody reads anything: only the first one and the present one are left.
    assert len(list(lake.path.glob("*-timings.parquet"))) == 2
    reader.stdin.write("\n")
    reader.stdin.flush()
    assert reader.stdout.readline() == "3\n"
    reader.send_signal(number)
    reader.communicate()
    compact(lake)
    manifest = lake.manifest()
    assert manifest is not None
    assert {path.name for path in lake.path.iterdir()} == {*manifest.files(), "manifest.json", "lock"}


def test_a_connection_that_is_forgotten(
    store: Store, database_url: str, lake: Lake, make_measurement: MakeMeasurement
) -> None:
    """Nobody need close a connection for its files to go."""
    store.write([make_measurement(1)])
    connection = analytics.connect(database_url)
    manifest = lake.manifest()
    assert manifest is not None
    assert lake_readers.held(lake.path) == [manifest.generation]
    del connection
    assert lake_readers.held(lake.path) == []


def test_two_readers_of_one_state(
    store: Store, database_url: str, lake: Lake, make_measurement: MakeMeasurement
) -> None:
    """The files stay until the last of them has ended."""
    store.write([make_measurement(1)])
    first, second = analytics.connect(database_url), analytics.connect(database_url)
    sync(database_url, lake, rebuild=True)
    del first
    sync(database_url, lake, rebuild=True)
    assert second.execute("SELECT count(*) FROM timings").fetchall() == [(3,)]
    del second
    sync(database_url, lake)
    assert len(list(lake.path.glob("*-timings.parquet"))) == 1


def test_a_rebuilt_lake_with_readers(
    store: Store, database_url: str, lake: Lake, make_measurement: MakeMeasurement
) -> None:
    """Also where the manifest was lost, and with it which files it named."""
    store.write([make_measurement(1)])
    with closing(analytics.connect(database_url)) as reader:
        (lake.path / "manifest.json").write_text("{")
        for _ in range(2):
            sync(database_url, lake, rebuild=True)
        assert reader.execute("SELECT count(*) FROM timings").fetchall() == [(3,)]
    del reader
    sync(database_url, lake)
    assert len(list(lake.path.glob("*-timings.parquet"))) == 1


@long
def test_readers_that_come_while_files_go(
    store: Store, database_url: str, lake: Lake, make_measurement: MakeMeasurement
) -> None:
    """Whenever a reader comes, every file of its state is there, though another process replaces all of them."""
    store.write([make_measurement(number) for number in range(3)])
    code = (
        "import sys; from pathlib import Path; from diode_store.lake import lake\n"
        "from diode_store.lake import sync as lake_sync\n"
        "lake.RETIREMENT_S = 0.0\n"
        "print('ready', flush=True)\n"
        "while True: lake_sync.sync(sys.argv[1], lake.Lake(Path(sys.argv[2])), rebuild=True)\n"
    )
    sync(database_url, lake)
    writer = subprocess.Popen(
        [sys.executable, "-c", code, database_url, str(lake.path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    counts, deadline = set(), time.monotonic() + 4
    try:
        while time.monotonic() < deadline:
            with closing(analytics.open_lake(lake)) as connection:
                time.sleep(0.02)  # the writer gets on to the next state, and the one after
                counts |= set(connection.execute("SELECT count(*) FROM observations").fetchall())
    finally:
        writer.kill()
        writer.communicate()
    assert counts == {(9,)}


def test_a_folder_that_cannot_be_locked(tmp_path: Path) -> None:
    """Somebody else's lake is read without a lock, under the rule of time."""
    assert lake_readers.hold(tmp_path / "nowhere", 1) is None


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lake is read without a lock, and no file stays open."""

    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    before = list(OPEN_FILES.iterdir())
    assert [lake_readers.hold(tmp_path, 1) for _ in range(3)] == [None] * 3
    assert len(list(OPEN_FILES.iterdir())) == len(before)
