"""A published table has the rows of its warehouses, whatever happened to them before."""

from __future__ import annotations

import hashlib
import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from published_rows import there, wanted

from diode_store.cache.cache import cache_of
from diode_store.cache.sync import sync
from diode_store.delta import table as delta
from diode_store.delta.contract import COLUMNS, VERSION
from diode_store.query import analytics
from diode_store.query import publish as publishing
from diode_store.query.publish import publish
from diode_store.warehouse.store import Store

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from conftest import MakeMeasurement, RunCommand

_DIGESTS = {1: "44b2d09a7cb8f73a", 2: "bdeed6edc4e2f407"}
"""Digest of the columns of each version: whoever changes them raises the version."""


def did(report: publishing.PublishReport) -> tuple[int, int, int]:
    """Return what a publication added, changed and removed."""
    return report.added, report.changed, report.removed


def test_publishes_every_timing(
    any_store: Store, any_url: str, make_measurement: MakeMeasurement, tmp_path: Path
) -> None:
    """Every column of every timing arrives, and a second publication writes nothing."""
    any_store.write([make_measurement(number) for number in range(20)])
    report = publish(any_url, str(tmp_path / "table"))
    assert did(report) == (20, 0, 0)
    assert there(tmp_path / "table") == wanted(any_url)
    assert report.added_timings == len(wanted(any_url))
    again = publish(any_url, str(tmp_path / "table"))
    assert (did(again), again.commits, again.version) == ((0, 0, 0), 0, report.version)


def test_follows_the_warehouse(
    store: Store, database_url: str, raw: sqlite3.Connection, make_measurement: MakeMeasurement, tmp_path: Path
) -> None:
    """New, flagged, superseded and deleted measurements arrive with the next publication."""
    table = tmp_path / "table"
    store.write([make_measurement(number) for number in range(9)])
    publish(database_url, str(table))
    store.write([make_measurement(9)])
    raw.execute("UPDATE measurements SET flags = 'throttled' WHERE id = 2")
    raw.execute("UPDATE measurements SET superseded_by = x'00112233445566778899aabbccddeeff' WHERE id = 3")
    raw.execute("DELETE FROM timings WHERE measurement_id IN (5, 6)")
    raw.execute("DELETE FROM measurements WHERE id IN (5, 6)")
    raw.commit()
    planned = publish(database_url, str(table), dry_run=True)
    assert (did(planned), planned.commits) == ((1, 2, 2), 0)
    report = publish(database_url, str(table))
    assert did(report) == (1, 2, 2)
    assert there(table) == wanted(database_url)
    raw.execute("UPDATE measurements SET flags = NULL, superseded_by = NULL")
    raw.commit()
    assert did(publish(database_url, str(table))) == (0, 2, 0)
    assert there(table) == wanted(database_url)


def test_two_warehouses_share_a_table(
    store: Store, database_url: str, another_warehouse: str, make_measurement: MakeMeasurement, tmp_path: Path
) -> None:
    """Each keeps its own rows, even if both have one measurement; deletes of one leave the other's alone."""
    table = str(tmp_path / "table")
    store.write([make_measurement(number) for number in range(4)])
    with Store.open(another_warehouse) as another:
        another.write([make_measurement(number) for number in range(2, 7)])
    publish(database_url, table)
    publish(another_warehouse, table)
    assert there(table) == wanted(database_url, another_warehouse)
    with Store.open(another_warehouse) as another, another.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM timings")
        connection.exec_driver_sql("DELETE FROM measurements")
    assert did(publish(another_warehouse, table)) == (0, 0, 5)
    assert there(table) == wanted(database_url)


def test_writes_in_parts(
    store: Store,
    database_url: str,
    make_measurement: MakeMeasurement,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A large publication has several commits, and a large change too."""
    monkeypatch.setattr(publishing, "TIMINGS_A_COMMIT", 5)
    monkeypatch.setattr(publishing, "_UIDS_A_COMMIT", 3)
    table = str(tmp_path / "table")
    store.write([make_measurement(number) for number in range(12)])
    told: list[float] = []
    report = publish(database_url, table, on_progress=told.append)
    assert report.commits > 3
    assert sum(told) == report.added_timings
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE measurements SET flags = 'throttled' WHERE id > 4")
    assert did(publish(database_url, table)) == (0, 8, 0)
    assert there(table) == wanted(database_url)


def test_another_machine_publishes_meanwhile(
    store: Store,
    database_url: str,
    make_measurement: MakeMeasurement,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its measurements are neither published twice nor taken for deleted ones."""
    table = str(tmp_path / "table")
    store.write([make_measurement(number) for number in range(4)])
    publish(database_url, table)
    store.write([make_measurement(4)])
    calls: list[Any] = []

    def meanwhile(report: Any) -> None:
        calls.append(report)
        if len(calls) == 1:
            store.write([make_measurement(5)])
            with monkeypatch.context() as elsewhere:
                elsewhere.setenv("DIODE_CACHE", str(tmp_path / "other machine"))
                assert did(publish(database_url, table)) == (2, 0, 0)

    report = publish(database_url, table, on_sync=meanwhile)
    assert (did(report), report.conflicts) == ((0, 0, 0), 1)
    assert there(table) == wanted(database_url)


def test_gives_up_when_always_overtaken(
    store: Store,
    database_url: str,
    make_measurement: MakeMeasurement,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error says so, and that the rest is published next time."""
    monkeypatch.setattr(publishing, "_ATTEMPTS", 2)
    table = str(tmp_path / "table")
    numbers = iter(range(100))

    def overtaken(*arguments: Any) -> Any:
        store.write([make_measurement(next(numbers))])
        report = sync(*arguments)
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(publishing, "sync", sync)
            elsewhere.setenv("DIODE_CACHE", str(tmp_path / "other machine"))
            publish(database_url, table)
        return report

    with monkeypatch.context() as busy:
        busy.setattr(publishing, "sync", overtaken)
        with pytest.raises(publishing.PublishedTableError, match="other writers overtook 2 commits"):
            publish(database_url, table)
    assert did(publish(database_url, table)) == (0, 0, 0)
    assert there(table) == wanted(database_url)


def test_tidies(
    store: Store, database_url: str, diode: RunCommand, make_measurement: MakeMeasurement, tmp_path: Path
) -> None:
    """Small files become one for a device and month; the replaced ones stay for a week."""
    table = tmp_path / "table"
    for number in range(4):
        store.write([make_measurement(number)])
        publish(database_url, str(table))
    files = len(list(table.rglob("*.parquet")))
    options = ("--database", database_url, "--compact", "--vacuum")
    dry = diode("publish", str(table), *options, "--dry-run")
    assert dry.code == 0, dry.err
    assert len(list(table.rglob("*.parquet"))) == files
    found = diode("publish", str(table), *options)
    assert found.code == 0, found.err
    assert "joined with others" in found.err
    assert "0 files deleted" in found.err
    opened = delta.open_table(str(table))
    assert len(opened.file_uris()) < files
    assert there(table) == wanted(database_url)
    orphan = table / "hardware=NVIDIA%20H200" / "orphan.parquet"
    orphan.touch()
    for path in table.rglob("*.parquet"):
        os.utime(path, (1e9, 1e9))
    found = diode("publish", str(table), "--database", database_url, "--vacuum")
    assert found.err == "1 file deleted\n", "the replaced files were in use until now"
    assert not orphan.exists()
    assert did(publish(database_url, str(table))) == (0, 0, 0)
    assert there(table) == wanted(database_url)


def test_an_empty_warehouse_publishes_nothing(
    store: Store, database_url: str, diode: RunCommand, tmp_path: Path
) -> None:
    """There is a table afterwards, which is empty."""
    found = diode("publish", str(tmp_path / "table"), "--database", database_url)
    assert (found.code, "nothing to publish" in found.out) == (0, True)
    assert there(tmp_path / "table") == []


def test_a_dry_run_makes_no_table(
    store: Store, database_url: str, diode: RunCommand, make_measurement: MakeMeasurement, tmp_path: Path
) -> None:
    """It says what would be written."""
    store.write([make_measurement(1)])
    found = diode("publish", str(tmp_path / "table"), "--database", database_url, "--dry-run")
    assert "to be written: 1 measurement with" in found.out
    assert not (tmp_path / "table").exists()


def test_columns_are_the_contract(
    store: Store, database_url: str, make_measurement: MakeMeasurement, tmp_path: Path
) -> None:
    """The view, the contract and the files of the table have the same columns with the same types."""
    types = {"VARCHAR": "string", "BIGINT": "long", "DOUBLE": "double", "BOOLEAN": "boolean", "TIMESTAMP": "timestamp"}
    with closing(analytics.connect(database_url)) as connection:
        view = {name: types[kind] for name, kind, *_ in connection.execute("DESCRIBE published").fetchall()}
    del view["measurement_id"]
    assert view.keys() == COLUMNS.keys() - {"warehouse"}
    assert all(COLUMNS[name] == kind for name, kind in view.items())
    store.write([make_measurement(1)])
    publish(database_url, str(tmp_path / "table"))
    found = DeltaTable(tmp_path / "table")
    assert {field.name: field.type.type for field in found.schema().fields} == COLUMNS
    assert found.metadata().partition_columns == ["hardware", "month"]
    protocol = found.protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2), "any reader of Delta can read it"


def test_the_version_tells_a_change_of_the_columns() -> None:
    """Another program reads these columns, so a change of them is a new version."""
    digest = hashlib.blake2b(repr(COLUMNS).encode(), digest_size=8).hexdigest()
    assert _DIGESTS[VERSION] == digest


def test_a_corrected_value_is_published(
    store: Store, database_url: str, raw: sqlite3.Connection, make_measurement: MakeMeasurement, tmp_path: Path
) -> None:
    """A timing that the cache left out arrives when its value fits."""
    store.write([make_measurement(number) for number in range(3)])
    raw.execute("UPDATE timings SET repeats = 'many' WHERE measurement_id = 2 AND config_id = 1")
    raw.commit()
    publish(database_url, str(tmp_path / "table"))
    raw.execute("UPDATE timings SET repeats = 3 WHERE measurement_id = 2 AND config_id = 1")
    raw.commit()
    sync(database_url, cache_of(database_url), rebuild=True)
    assert did(publish(database_url, str(tmp_path / "table"))) == (0, 1, 0)
    assert there(tmp_path / "table") == wanted(database_url)


def test_another_warehouse_in_the_same_cache(
    store: Store,
    database_url: str,
    another_warehouse: str,
    make_measurement: MakeMeasurement,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If its sync comes between, the publication begins again."""
    monkeypatch.setenv("DIODE_CACHE", str(tmp_path / "shared"))
    store.write([make_measurement(1)])
    with Store.open(another_warehouse) as another:
        another.write([make_measurement(2)])
    calls: list[Any] = []

    def meanwhile(report: Any) -> None:
        calls.append(report)
        if len(calls) == 1:
            sync(another_warehouse, cache_of(another_warehouse))

    report = publish(database_url, str(tmp_path / "table"), on_sync=meanwhile)
    assert (did(report), report.conflicts) == ((1, 0, 0), 1)
    assert there(tmp_path / "table") == wanted(database_url)


def test_remembers_only_what_it_saw(
    store: Store, database_url: str, make_measurement: MakeMeasurement, tmp_path: Path
) -> None:
    """A table that was made again at the same place, or restored to an older version, is filled again."""
    table = tmp_path / "table"
    store.write([make_measurement(number) for number in range(3)])
    publish(database_url, str(table))
    DeltaTable(table).restore(0)
    assert did(publish(database_url, str(table))) == (3, 0, 0)
    cache = cache_of(database_url)
    (cache.path / "published.json").write_text("[")
    assert did(publish(database_url, str(table))) == (0, 0, 0)
    assert there(table) == wanted(database_url)
