"""Where DuckDB puts what does not fit into memory."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from diode_store.errors import CacheError, DiodeError, QueryError
from diode_store.query import analytics, results

if TYPE_CHECKING:
    from conftest import MakeMeasurement
    from diode_store.cache.cache import Cache
    from diode_store.warehouse.store import Store


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder that is the system's temporary one."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_private_folder_with_an_unpredictable_name(database_url: str, temporary: Path) -> None:
    """Each connection has its own in the system's temporary folder, closed to others; it goes with the connection."""
    first, second = analytics.connect(database_url), analytics.connect(database_url)
    folders = {con.execute("SELECT current_setting('temp_directory')").fetchall()[0][0] for con in (first, second)}
    assert {str(path) for path in temporary.iterdir() if path.is_dir()} == folders
    assert len(folders) == 2
    assert all(stat.S_IMODE(Path(path).stat().st_mode) == 0o700 for path in folders)
    first.close()
    del first, second
    assert list(temporary.iterdir()) == []


def test_a_result_larger_than_memory(cache: Cache, temporary: Path) -> None:
    """It is answered by way of files, and they are gone afterwards."""
    with closing(analytics.open_cache(cache, memory="60MB")) as connection:
        batches = results.stream(connection, "SELECT md5(range::VARCHAR) AS a FROM range(1_000_000) ORDER BY a")
        assert next(batches).num_rows
        assert [path for folder in temporary.iterdir() if folder.is_dir() for path in folder.iterdir()]
    del batches, connection
    assert list(temporary.iterdir()) == []


def test_nothing_is_left_when_a_cache_cannot_be_opened(
    store: Store, database_url: str, cache: Cache, make_measurement: MakeMeasurement, temporary: Path
) -> None:
    """Neither the folder for large results nor the hold on the cache's files."""
    store.write([make_measurement(1)])
    analytics.connect(database_url).close()
    for path in cache.path.glob("*.duckdb"):
        path.write_bytes(b"junk")
    with pytest.raises((CacheError, QueryError)):
        analytics.open_cache(cache)
    assert list(temporary.iterdir()) == []


def test_what_a_killed_query_left(database_url: str, temporary: Path) -> None:
    """The next connection removes it."""
    code = (
        "import os, sys; from diode_store.query import analytics;"
        "connection = analytics.connect(sys.argv[1]); os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "TMPDIR": str(temporary)}
    subprocess.run([sys.executable, "-c", code, database_url], env=environment, check=False)
    [left] = [path for path in temporary.iterdir() if path.is_dir()]
    analytics.connect(database_url).close()
    assert not left.exists()


def test_no_temporary_folder(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy is named."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(DiodeError, match="set TMPDIR"):
        analytics.open_cache(cache)
