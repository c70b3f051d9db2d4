"""Where a cache is, who may read it, and what is asked of an empty one."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from diode_store.cache.cache import Cache, cache_path
from diode_store.cache.sync import sync
from diode_store.query import analytics
from diode_store.views.view_files import VIEWS

if TYPE_CHECKING:
    import pytest

    from conftest import MakeMeasurement
    from diode_store.warehouse.store import Store


def test_an_empty_cache_has_empty_views(database_url: str, tmp_path: Path) -> None:
    """Whether nothing was measured or nothing synced, views answer with no rows and typed columns."""
    for connection in (
        analytics.connect(database_url),
        analytics.connect(str(tmp_path / "nowhere.db"), sync=False),
    ):
        for view in VIEWS:
            assert connection.execute(f"SELECT * FROM {view}").fetchall() == []  # noqa: S608 - our own names
        types = dict(connection.execute("SELECT column_name, column_type FROM (DESCRIBE observations)").fetchall())
        assert types["runtime_us"] == "DOUBLE"
        assert types["measured_at"] == "TIMESTAMP"
        connection.close()


def test_the_cache_is_private(store: Store, database_url: str, cache: Cache, make_measurement: MakeMeasurement) -> None:
    """Its folder is no more readable than the database it copies."""
    store.write([make_measurement(1)])
    sync(database_url, cache)
    assert cache.path.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in cache.path.iterdir()} == {0o600}


def test_where_a_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Beside an SQLite file, in the data folder for a server, elsewhere if told so; no password gets into a name."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert cache_path("sqlite:////data/runs.db") == Path("/data/runs.cache")
    assert cache_path("runs.sqlite3") == Path("runs.cache")
    assert cache_path("sqlite:////data/runs.db", Path("/cache")) == Path("/cache")
    server = cache_path("postgresql://me:secret@db/warehouse")
    assert server.parent == tmp_path / "torch-diode"
    assert server == cache_path("postgresql://me:other@db/warehouse")
    assert server != cache_path("postgresql://me:secret@db/other")


def test_the_environment_chooses_the_cache(
    store: Store, database_url: str, tmp_path: Path, make_measurement: MakeMeasurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DIODE_CACHE holds for whoever does not say otherwise."""
    store.write([make_measurement(1)])
    monkeypatch.setenv("DIODE_CACHE", str(tmp_path / "chosen"))
    analytics.connect(database_url).close()
    assert (tmp_path / "chosen" / "state.json").exists()
    assert not cache_path(database_url).exists()


def test_a_name_with_quotes_and_spaces(
    store: Store, database_path: Path, tmp_path: Path, make_measurement: MakeMeasurement
) -> None:
    """Paths are quoted wherever they meet SQL or a URI."""
    store.write([make_measurement(1)])
    store.close()
    folder = tmp_path / "it's 100% a=b?"
    folder.mkdir()
    moved = shutil.copy(database_path, folder / "ware house#1.db")
    with closing(analytics.connect(str(moved))) as connection:
        assert connection.execute("SELECT count(*) FROM observations").fetchall() == [(3,)]
