"""Strange entries in a cache's folder: syncs and queries go on, and nothing outside is touched."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from cache_reading import measurement_ids

from diode_store.cache.sync import sync
from diode_store.errors import CacheError
from strange import everything_in, strange_entries

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import MakeMeasurement
    from diode_store.cache.cache import Cache
    from diode_store.warehouse.store import Store


@pytest.mark.quick(1)
@pytest.mark.parametrize("suffix", [".duckdb", ".new", ".damaged", ".json"])
def test_a_cache_is_synced_beside_what_is_strange(
    store: Store,
    database_url: str,
    cache: Cache,
    tmp_path: Path,
    make_measurement: MakeMeasurement,
    suffix: str,
) -> None:
    """Everything that no state names counts as litter."""
    store.write([make_measurement(1)])
    sync(database_url, cache)
    strange_entries(cache.path, tmp_path / "outside", suffix)
    before = everything_in(tmp_path / "outside")
    for number in (2, 3):
        store.write([make_measurement(number)])
        sync(database_url, cache)
    assert len(measurement_ids(cache)) == 3
    assert everything_in(tmp_path / "outside") == before


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", ["state.json", "lock", "recent.new", "checked.json"])
@pytest.mark.parametrize("kind", ["loop", "pipe", "folder", "zeros"])
def test_a_cache_whose_own_files_are_something_else(
    store: Store, database_url: str, cache: Cache, make_measurement: MakeMeasurement, name: str, kind: str
) -> None:
    """It is synced, or one line says what cannot be used; nothing waits."""
    store.write([make_measurement(1)])
    sync(database_url, cache)
    path = cache.path / name
    path.unlink(missing_ok=True)
    make = {
        "loop": lambda: path.symlink_to(name),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "zeros": lambda: path.symlink_to("/dev/zero"),
    }
    make[kind]()
    store.write([make_measurement(2)])
    try:
        sync(database_url, cache)
        assert len(measurement_ids(cache)) == 2
    except CacheError as error:
        assert str(cache.path) in str(error)  # noqa: PT017 - either is right
