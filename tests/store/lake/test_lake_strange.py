"""Strange entries in a lake's folder: syncs and queries go on, and nothing outside is touched."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from lake_reading import measurement_ids

from diode_store.errors import LakeError
from diode_store.lake import lake as lake_module
from diode_store.lake import readers
from diode_store.lake.sync import sync
from strange import everything_in, strange_entries

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import MakeMeasurement
    from diode_store.lake.lake import Lake
    from diode_store.warehouse.store import Store


@pytest.mark.quick(1)
@pytest.mark.parametrize("suffix", [".parquet", ".reading", "-timings.parquet", ".json"])
def test_a_lake_is_synced_beside_what_is_strange(
    store: Store,
    database_url: str,
    lake: Lake,
    tmp_path: Path,
    make_measurement: MakeMeasurement,
    monkeypatch: pytest.MonkeyPatch,
    suffix: str,
) -> None:
    """Also when everything that no state names counts as litter."""
    monkeypatch.setattr(lake_module, "RETIREMENT_S", -1.0)
    store.write([make_measurement(1)])
    sync(database_url, lake)
    strange_entries(lake.path, tmp_path / "outside", suffix)
    before = everything_in(tmp_path / "outside")
    for number in (2, 3):
        store.write([make_measurement(number)])
        sync(database_url, lake)
    assert len(measurement_ids(lake)) == 3
    assert everything_in(tmp_path / "outside") == before


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", ["manifest.json", "lock", "000001.reading", "checked.json"])
@pytest.mark.parametrize("kind", ["loop", "pipe", "folder", "zeros"])
def test_a_lake_whose_own_files_are_something_else(
    store: Store, database_url: str, lake: Lake, make_measurement: MakeMeasurement, name: str, kind: str
) -> None:
    """It is synced, or one line says what cannot be used; nothing waits."""
    store.write([make_measurement(1)])
    sync(database_url, lake)
    path = lake.path / name
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
        sync(database_url, lake)
        assert len(measurement_ids(lake)) == 2
    except LakeError as error:
        assert str(lake.path) in str(error)  # noqa: PT017 - either is right
    assert readers.held(lake.path) == []
