"""A lake at a URL: whatever fsspec can write and DuckDB can read."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import fsspec
import pytest
from lake_reading import ask, did, measurement_ids

from diode_store.errors import LakeError
from diode_store.lake import lake as lake_module
from diode_store.lake.compact import compact
from diode_store.lake.lake import Lake, lake_path
from diode_store.lake.status import lake_status
from diode_store.lake.sync import sync
from diode_store.query import analytics
from diode_store.system.settings import Settings

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from conftest import MakeMeasurement
    from diode_store.warehouse.store import Store


@pytest.fixture
def remote() -> Iterator[Lake]:
    """Return a lake in an object store that lives as long as this process."""
    filesystem = fsspec.filesystem("memory")
    yield Lake("memory://bucket/it's a lake")
    if filesystem.exists("/bucket"):
        filesystem.rm("/bucket", recursive=True)


def test_a_whole_life(
    remote: Lake, store: Store, database_url: str, raw: sqlite3.Connection, make_measurement: MakeMeasurement
) -> None:
    """Copied, added to, dropped from, compacted: what readers see is right at each step."""
    store.write([make_measurement(number) for number in range(3)])
    assert did(sync(database_url, remote)) == (3, 9, 0, None)
    assert did(sync(database_url, remote)) == (0, 0, 0, None)
    store.write([make_measurement(5)])
    raw.execute("DELETE FROM measurements WHERE id = 2")
    assert did(sync(database_url, remote)) == (1, 3, 1, None)
    assert measurement_ids(remote) == [1, 3, 4]
    done = compact(remote)
    assert (done.segments_before, done.segments_after, done.dropped) == (2, 1, 1)
    assert measurement_ids(remote) == [1, 3, 4]
    found = lake_status(remote)
    assert (found.lake, found.measurements, found.damage) == ("memory://bucket/it's a lake", 3, None)
    assert found.retired_files == 5


def test_old_files_go_by_time(
    remote: Lake, store: Store, database_url: str, make_measurement: MakeMeasurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can tell who reads an object store, so what is replaced stays for a while, and so do remains."""
    store.write([make_measurement(1)])
    sync(database_url, remote)
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe_file("/bucket/it's a lake/000009-left-timings.parquet", b"half")
    sync(database_url, remote, rebuild=True)
    assert len(remote.folder.sizes()) == 2 * 9 + 2
    monkeypatch.setattr(lake_module, "RETIREMENT_S", 0.0)
    sync(database_url, remote)
    manifest = remote.manifest()
    assert manifest is not None
    assert remote.folder.sizes().keys() == manifest.files() | {"manifest.json"}


def test_a_damaged_one_is_rebuilt(
    remote: Lake, store: Store, database_url: str, make_measurement: MakeMeasurement
) -> None:
    """As a local one is."""
    store.write([make_measurement(1)])
    sync(database_url, remote)
    filesystem = fsspec.filesystem("memory")
    [victim] = [path for path in filesystem.ls("/bucket/it's a lake", detail=False) if path.endswith("timings.parquet")]
    filesystem.rm(victim)
    with pytest.raises(LakeError, match=r"-timings.parquet is missing; run `diode sync`"):
        analytics.open_lake(remote)
    assert "is missing" in (sync(database_url, remote).rebuilt or "")
    assert measurement_ids(remote) == [1]


def test_two_machines_that_sync_one_lake(
    remote: Lake, store: Store, database_url: str, make_measurement: MakeMeasurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock on one machine does not hold the other, so the slower one finds out, and changes nothing."""
    store.write([make_measurement(1)])
    sync(database_url, remote)
    store.write([make_measurement(2)])
    original = Lake.next_generation

    def slow(self: Lake, manifest: lake_module.Manifest | None) -> int:
        """Let the other machine be quicker."""
        monkeypatch.setattr(Lake, "next_generation", original)
        monkeypatch.setattr(Lake, "lock", lambda *_args, **_named: closing_nothing())
        sync(database_url, remote)
        return original(self, manifest)

    monkeypatch.setattr(Lake, "next_generation", slow)
    with pytest.raises(LakeError, match="another machine synced it meanwhile"):
        sync(database_url, remote)
    assert measurement_ids(remote) == [1, 2]


def closing_nothing() -> closing[NothingToClose]:
    """Return a context manager that does nothing."""
    return closing(NothingToClose())


class NothingToClose:
    """Has nothing to close."""

    def close(self) -> None:
        """Do nothing."""


def test_queries_reach_the_lakes_files_only(
    remote: Lake, store: Store, database_url: str, make_measurement: MakeMeasurement
) -> None:
    """What else lies in the bucket is out of reach."""
    store.write([make_measurement(1)])
    sync(database_url, remote)
    fsspec.filesystem("memory").pipe_file("/bucket/it's a lake/secret.csv", b"a\n1\n")
    fsspec.filesystem("memory").pipe_file("/bucket/secret.csv", b"a\n1\n")
    with closing(analytics.open_lake(remote)) as connection:
        for place in ("memory:///bucket/it''s a lake/secret.csv", "memory:///bucket/secret.csv"):
            with pytest.raises(duckdb.Error, match="disabled by configuration"):
                connection.execute(f"SELECT * FROM read_csv('{place}')")  # noqa: S608 - our own names


def test_the_environment_chooses_a_url(
    store: Store, database_url: str, make_measurement: MakeMeasurement, monkeypatch: pytest.MonkeyPatch, remote: Lake
) -> None:
    """DIODE_LAKE takes URLs, for every command."""
    store.write([make_measurement(1)])
    monkeypatch.setenv("DIODE_LAKE", str(remote))
    assert Settings.from_environment().lake_dir == "memory://bucket/it's a lake"
    with closing(analytics.connect(database_url)) as connection:
        assert connection.execute("SELECT count(*) FROM observations").fetchall() == [(3,)]
    assert remote.manifest() is not None


def test_a_file_url_is_a_path(
    store: Store, database_url: str, make_measurement: MakeMeasurement, tmp_path: Path
) -> None:
    """So that its readers are known exactly."""
    store.write([make_measurement(1)])
    url = f"file://{tmp_path}/with%20space"
    assert lake_path(database_url, url) == Path(f"{tmp_path}/with space")
    found = Lake(url)
    sync(database_url, found)
    assert found.path == tmp_path / "with space"
    assert ask(found, "SELECT count(*) FROM observations") == [(3,)]


def test_a_store_that_fails(
    remote: Lake, store: Store, database_url: str, make_measurement: MakeMeasurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its library raises becomes one line, and nothing is rebuilt for want of an answer."""
    store.write([make_measurement(1)])
    sync(database_url, remote)
    before = remote.folder.sizes()

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no credentials\nand more")

    with monkeypatch.context() as failing:
        failing.setattr(type(remote.folder.filesystem), "cat_file", fail)
        with pytest.raises(LakeError, match=r"^memory://.*: no credentials; check the address, the credentials and"):
            sync(database_url, remote)
    assert remote.folder.sizes() == before
    assert did(sync(database_url, remote)) == (0, 0, 0, None)


def test_a_url_that_nothing_reads(database_url: str) -> None:
    """An unknown scheme, a missing library and a password: one line, without the password."""
    with pytest.raises(LakeError, match=r"nosuch://me:\*\*\*@host/lake: Protocol not known: nosuch"):
        Lake("nosuch://me:secret@host/lake")
    with pytest.raises(LakeError, match="is no local folder"):
        _ = Lake("memory://x").path
