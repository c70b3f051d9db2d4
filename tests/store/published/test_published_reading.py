"""A published table is queried like a warehouse, with the same answers."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from any_op import CONV, scaled
from deltalake import DeltaTable
from published_rows import there, wanted

import diode_store
from diode_store.cache import published
from diode_store.cache.cache import cache_of
from diode_store.cache.change import Change
from diode_store.cache.sync import SyncReport, sync
from diode_store.errors import DiodeError
from diode_store.query import analytics
from diode_store.query.publish import publish
from diode_store.records import Hardware
from diode_store.warehouse.store import Store
from ordinary import AS_ORDINARY, needs_ordinary
from samples import EVERY_FIELD

if TYPE_CHECKING:
    import sqlite3

    from conftest import MakeMeasurement, RunCommand

_VIEWS = (
    "observations",
    "published",
    "metrics",
    "problem_inputs",
    "coverage",
    "training_examples",
    "vendor_gap",
    "rooflines",
)


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Return the place of a table."""
    return str(tmp_path / "table")


def answers(url: str) -> dict[str, list[str]]:
    """Return the rows of views without the ids, which are those of a warehouse alone."""
    found = {}
    with closing(analytics.connect(url)) as connection:
        for view in _VIEWS:
            relation = connection.sql(f"FROM {view}")
            kept = [name for name in relation.columns if not name.endswith("_id")]
            found[view] = sorted(map(repr, relation.select(*kept).fetchall()))
    return found


def synced(url: str) -> SyncReport:
    """Sync the cache of a published table."""
    return sync(url, cache_of(url))


def test_has_the_same_answers(store: Store, database_url: str, make_measurement: MakeMeasurement, table: str) -> None:
    """Every view is the same, with problems of any op and with metrics."""
    store.write([make_measurement(number) for number in range(30)])
    store.write([make_measurement(30 + number, problem=problem) for number, problem in enumerate((scaled(), CONV))])
    store.write([make_measurement(40, **EVERY_FIELD), make_measurement(41, metrics=EVERY_FIELD["metrics"])])
    publish(database_url, table)
    assert answers(table) == answers(database_url)
    assert answers(f"file://{table}") == answers(database_url)


def test_copies_only_what_is_new(
    store: Store, database_url: str, raw: sqlite3.Connection, make_measurement: MakeMeasurement, table: str
) -> None:
    """New measurements are added; marks and deletions follow; an unchanged table is not read."""
    store.write([make_measurement(number) for number in range(8)])
    publish(database_url, table)
    assert synced(table).added == 8
    store.write([make_measurement(8), make_measurement(9)])
    raw.execute("UPDATE measurements SET flags = 'throttled' WHERE id = 2")
    raw.execute("UPDATE measurements SET superseded_by = x'00112233445566778899aabbccddeeff' WHERE id = 3")
    raw.execute("DELETE FROM timings WHERE measurement_id IN (5, 6)")
    raw.execute("DELETE FROM measurements WHERE id IN (5, 6)")
    raw.commit()
    publish(database_url, table)
    report = synced(table)
    assert (report.added, report.dropped, report.rebuilt) == (2, 2, None)
    assert answers(table) == answers(database_url)
    report = synced(table)
    assert (report.added, report.dropped) == (0, 0)


def test_a_measurement_of_two_warehouses_counts_once(
    store: Store, database_url: str, another_warehouse: str, make_measurement: MakeMeasurement, table: str
) -> None:
    """It stays as long as one of them has it."""
    store.write([make_measurement(number) for number in range(4)])
    with Store.open(another_warehouse) as another:
        another.write([make_measurement(number) for number in range(2, 6)])
    publish(database_url, table)
    assert synced(table).measurements == 4
    publish(another_warehouse, table)
    assert synced(table).measurements == 6
    with store.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM timings")
        connection.exec_driver_sql("DELETE FROM measurements")
    publish(database_url, table)
    assert synced(table).measurements == 4
    uids = "SELECT DISTINCT measurement_uid FROM observations ORDER BY 1"
    with closing(analytics.connect(table)) as one, closing(analytics.connect(another_warehouse)) as other:
        assert one.execute(uids).fetchall() == other.execute(uids).fetchall()


def test_reads_a_part(store: Store, database_url: str, make_measurement: MakeMeasurement, table: str) -> None:
    """A device and a month name a part, which has a cache of its own; files of others are not read."""
    other = Hardware(vendor="nvidia", name="NVIDIA H100 80GB HBM3", arch="sm_90", multiprocessors=132)
    store.write([make_measurement(1), make_measurement(2, hardware=other)])
    publish(database_url, table)
    for path in Path(table).rglob("*.parquet"):
        if "H100" not in str(path):
            path.unlink()
    report = synced(f"{table}?hardware={other.name.replace(' ', '%20')}")
    assert report.measurements == 1


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ("hardware=H100", "has no timings of H100; it has: NVIDIA H200"),
        ("device=H100", "unknown parameter device; there are hardware and since"),
        ("since=2999-01", "has no timings since 2999-01; the newest are of 20"),
        ("since=June", "since is 'June', not a month such as 2026-11"),
        ("since=2026-6", "since is '2026-6', not a month such as 2026-11"),
        ("since=2026-01&since=2026-02", "a parameter is there twice; name one device and one month"),
    ],
)
def test_a_mistyped_part_is_told(
    store: Store, database_url: str, make_measurement: MakeMeasurement, table: str, part: str, reason: str
) -> None:
    """It would look like a table without timings."""
    store.write([make_measurement(1)])
    publish(database_url, table)
    with pytest.raises(DiodeError, match=reason):
        synced(f"{table}?{part}")


def test_commands_read_it(
    store: Store, database_url: str, diode: RunCommand, make_measurement: MakeMeasurement, table: str
) -> None:
    """Commands that read take it as --from or --database, the Python API too; commands that write refuse it."""
    store.write([make_measurement(number) for number in range(3)])
    publish(database_url, table)
    found = diode("query", "SELECT count(*) AS n FROM observations", "--from", table, "--json")
    assert str(len(there(table))) in found.out
    assert diode("fastest", "--from", table).code == 0
    assert diode("cache", "status", "--database", table).code == 0
    with diode_store.open(table) as warehouse:
        assert warehouse.query("SELECT count(*) FROM observations").rows() == [(len(there(table)),)]
    assert diode("hardware", "list", "--database", table).code == 0
    asked = diode("train", "--from", table, "--hardware", "NVIDIA H200", "--op", "bmm")
    assert "no examples of op bmm on NVIDIA H200; there is: op mm" in asked.err
    other = f"{table} of another"
    for command in (("import", __file__), ("db", "upgrade"), ("db", "check"), ("ingest", "--once"), ("publish", other)):
        refused = diode(*command, "--database", table)
        assert (refused.code, "is a published table, which can only be read" in refused.err) == (1, True), refused


def test_the_setting_of_the_cache_is_not_for_tables(
    store: Store,
    database_url: str,
    make_measurement: MakeMeasurement,
    table: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``DIODE_CACHE`` is the cache of the warehouse, which a query of a table leaves alone."""
    store.write([make_measurement(1)])
    publish(database_url, table)
    monkeypatch.setenv("DIODE_CACHE", str(tmp_path / "mine"))
    assert cache_of(table).path != tmp_path / "mine"
    assert cache_of(database_url).path == tmp_path / "mine"


def test_a_sync_that_failed_is_made_up_for(
    store: Store,
    database_url: str,
    make_measurement: MakeMeasurement,
    table: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Timings that the cache did not take wait, also if their file was replaced and more were published meanwhile."""
    store.write([make_measurement(number) for number in range(3)])
    publish(database_url, table)
    synced(table)
    for number in (3, 4):
        store.write([make_measurement(number)])
        publish(database_url, table)
        DeltaTable(table).optimize.compact()
        with monkeypatch.context() as broken:

            def fail(*_arguments: Any) -> None:
                raise DiodeError("power cut")

            broken.setattr(Change, "make", fail)
            with pytest.raises(DiodeError, match="power cut"):
                synced(table)
    report = synced(table)
    assert (report.added, report.rebuilt) == (2, None)
    assert answers(table) == answers(database_url)


@pytest.mark.parametrize("what", ["state.json", "published.catalog", "recent", "everything"])
def test_lost_files_are_made_again(
    store: Store, database_url: str, make_measurement: MakeMeasurement, table: str, what: str
) -> None:
    """The cache and its catalog hold no data of their own."""
    store.write([make_measurement(number) for number in range(3)])
    publish(database_url, table)
    synced(table)
    for path in cache_of(table).path.iterdir():
        if path.name.startswith(what) or what == "everything":
            path.unlink()
    store.write([make_measurement(3)])
    publish(database_url, table)
    assert synced(table).measurements == 4
    assert answers(table) == answers(database_url)


def test_a_damaged_catalog_is_told_and_made_again(
    store: Store, database_url: str, make_measurement: MakeMeasurement, table: str
) -> None:
    """The next sync reads the whole table again."""
    store.write([make_measurement(number) for number in range(3)])
    publish(database_url, table)
    synced(table)
    catalog = cache_of(table).path / "published.catalog"
    catalog.write_bytes(catalog.read_bytes()[:5000] + b"\0" * 9000)
    store.write([make_measurement(3)])
    publish(database_url, table)
    with pytest.raises(DiodeError, match=r"was damaged and is removed: .*; try again"):
        synced(table)
    assert synced(table).rebuilt is not None
    assert answers(table) == answers(database_url)


def test_a_damaged_file_of_the_table_is_named(
    store: Store, database_url: str, make_measurement: MakeMeasurement, table: str
) -> None:
    """The fault is not the catalog's, which stays."""
    store.write([make_measurement(number) for number in range(3)])
    publish(database_url, table)
    synced(table)
    store.write([make_measurement(3)])
    publish(database_url, table)
    newest = max(Path(table).rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    content = newest.read_bytes()
    newest.write_bytes(content[:200] + bytes(len(content) - 400) + content[-200:])
    for _ in range(2):
        with pytest.raises(DiodeError, match=rf"{newest.name} is damaged: .*; restore that file"):
            synced(table)
    newest.write_bytes(content)
    assert (synced(table).rebuilt, answers(table)) == (None, answers(database_url))


def test_a_folder_that_cannot_be_written_still_answers(
    store: Store, database_url: str, diode: RunCommand, make_measurement: MakeMeasurement, table: str
) -> None:
    """It says how old the answer is."""
    store.write([make_measurement(1)])
    publish(database_url, table)
    synced(table)
    lock = cache_of(table).path / "published.lock"
    lock.unlink()
    lock.mkdir()
    store.write([make_measurement(2)])
    publish(database_url, table)
    found = diode("query", "SELECT count(DISTINCT measurement_uid) AS n FROM observations", "--from", table, "--csv")
    assert (found.code, found.out) == (0, "n\n1\n")
    assert "cannot be written: Is a directory" in found.err
    assert "the answer is of 20" in found.err


def test_another_fault_is_not_blamed_on_the_table(
    store: Store,
    database_url: str,
    make_measurement: MakeMeasurement,
    table: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If a file cannot be written here, no file of the table is called damaged."""
    store.write([make_measurement(1)])
    publish(database_url, table)
    with monkeypatch.context() as broken:
        broken.setattr(published, "_WAITING", "no such folder/{}.parquet")
        with pytest.raises(DiodeError, match="Cannot open file") as told:
            synced(table)
    assert "restore that file" not in str(told.value)
    assert synced(table).measurements == 1


@needs_ordinary
def test_a_read_only_folder_still_answers(
    store: Store, database_url: str, make_measurement: MakeMeasurement, table: str
) -> None:
    """The catalog is not taken for damaged."""
    store.write([make_measurement(1)])
    publish(database_url, table)
    synced(table)
    folder = cache_of(table).path
    store.write([make_measurement(2)])
    publish(database_url, table)
    folder.chmod(0o500)
    command = [
        Path(sys.executable).with_name("diode"),
        "query",
        "SELECT count(DISTINCT measurement_uid) AS n FROM observations",
    ]
    try:
        found = subprocess.run([*AS_ORDINARY, *command, "--from", table], capture_output=True, text=True, check=False)
    finally:
        folder.chmod(0o700)
    assert (found.returncode, found.stdout) == (0, "n\n1\n"), found.stderr
    assert f"{folder} is not writable; the answer is of 20" in found.stderr
    assert (synced(table).measurements, synced(table).rebuilt) == (2, None)


def test_relative_names_of_tables_do_not_share_a_cache(
    store: Store,
    database_url: str,
    make_measurement: MakeMeasurement,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A folder is the same from everywhere, and another one in another folder."""
    (tmp_path / "x").mkdir()
    store.write([make_measurement(1)])
    publish(database_url, str(tmp_path / "x" / "t"))
    monkeypatch.chdir(tmp_path / "x")
    here = cache_of("t").path
    assert here == cache_of(f"{tmp_path}/x/t/").path == cache_of(f"file://{tmp_path}/x/t").path
    publish(database_url, str(tmp_path / "t"))
    monkeypatch.chdir(tmp_path)
    assert cache_of("t").path != here


@pytest.mark.long
def test_all_bundled_timings_of_two_warehouses(tmp_path: Path, table: str, diode: RunCommand) -> None:
    """So many that DuckDB keeps them in several parts."""
    urls = [str(tmp_path / f"{name}.db") for name in ("one", "other")]
    for url in urls:
        assert diode("db", "upgrade", "--database", url).code == 0
        assert diode("ingest", "--once", "--bundled", "--database", url).code == 0
        publish(url, table)
    assert answers(table)["training_examples"] == answers(urls[0])["training_examples"]


def test_several_read_at_once(store: Store, database_url: str, make_measurement: MakeMeasurement, table: str) -> None:
    """The first makes the cache; the others wait for it."""
    store.write([make_measurement(number) for number in range(10)])
    publish(database_url, table)
    command = [
        str(Path(sys.executable).with_name("diode")),
        "query",
        "SELECT count(*) FROM observations",
        "--from",
        table,
    ]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    ended = [(*process.communicate(), process.returncode) for process in running]
    assert ended == [(f"count_star()\n{len(wanted(database_url))}\n", "", 0)] * 3
