"""A place that cannot have the table is refused in one line that says what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
from deltalake import DeltaTable, write_deltalake
from published_rows import there, wanted

from diode_store.delta.contract import VERSION, table_name
from diode_store.query.publish import publish

if TYPE_CHECKING:
    from conftest import MakeMeasurement, RunCommand
    from diode_store.warehouse.store import Store


@pytest.fixture
def database(store: Store, database_url: str, make_measurement: MakeMeasurement) -> str:
    """Return a warehouse with some measurements."""
    store.write([make_measurement(number) for number in range(5)])
    return database_url


def refused(diode: RunCommand, database: str, url: str | Path, *options: str) -> str:
    """Return the only line that the refused command prints."""
    found = diode("publish", str(url), "--database", database, *options)
    assert (found.code, found.out) == (1, ""), found
    [line] = found.err.splitlines()
    return line


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3:/bucket/table", "write s3:// with two slashes"),
        ("ftp://host/table", "ftp:// is not supported; use s3://"),
        ("postgresql://host/db", "postgresql:// is not supported; use s3://"),
        ("", "the address of the table is empty"),
        ("s3://bucket/all timings", "name the table with letters, digits and - _ . only"),
        ("s3://bucket/table?hardware=NVIDIA H200", "names a part of a table; publish to the whole"),
    ],
)
def test_other_addresses(database: str, diode: RunCommand, url: str, reason: str) -> None:
    """Only object stores and folders can have a table."""
    assert reason in refused(diode, database, url)


@pytest.mark.parametrize("url", ["s3://bucket/table", "gs://bucket/table", "az://container/table"])
def test_no_credentials(database: str, url: str) -> None:
    """The line names the variables that are missing; in a process of its own, since delta-rs reads them once."""
    command = [str(Path(sys.executable).with_name("diode")), "publish", url, "--database", database]
    environment = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_REGION": "us-east-1", "HOME": "/nonexistent", "PATH": ""}
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=170)
    assert found.returncode == 1
    [line] = found.stderr.splitlines()
    assert "credentials are missing; set" in line


def test_a_table_of_something_else(database: str, diode: RunCommand, tmp_path: Path) -> None:
    """A Delta table of another program stays as it is."""
    write_deltalake(tmp_path / "table", pl.DataFrame({"a": [1]}))
    assert "is a Delta table of something else; name another place" in refused(diode, database, tmp_path / "table")
    assert DeltaTable(tmp_path / "table").version() == 0


@pytest.mark.parametrize(("step", "remedy"), [(1, "upgrade torch-diode"), (-1, "publish to another place")])
def test_another_version(database: str, diode: RunCommand, tmp_path: Path, step: int, remedy: str) -> None:
    """A table of another version of the columns is neither read nor written."""
    publish(database, str(tmp_path / "table"))
    DeltaTable(tmp_path / "table").alter.set_table_name(table_name(VERSION + step))
    assert remedy in refused(diode, database, tmp_path / "table")
    found = diode("query", "SELECT 1", "--database", str(tmp_path / "table"))
    assert (found.code, remedy in found.err) == (1, True)


def test_changed_columns(database: str, diode: RunCommand, tmp_path: Path) -> None:
    """A table to which another program added a column is refused, and the column is named."""
    publish(database, str(tmp_path / "table"))
    more = pl.read_delta(str(tmp_path / "table")).with_columns(mine=pl.lit(1))
    write_deltalake(tmp_path / "table", more, mode="append", schema_mode="merge")
    assert "another program changed the column mine" in refused(diode, database, tmp_path / "table")


def test_a_folder_with_other_files(database: str, diode: RunCommand, tmp_path: Path) -> None:
    """A mistyped folder does not get a table among its files."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    assert "holds other files; name an empty or new folder" in refused(diode, database, tmp_path / "mine")
    assert "holds other files" in refused(diode, database, tmp_path / "mine", "--dry-run")
    assert len(list((tmp_path / "mine").iterdir())) == 1


def test_the_folder_of_a_killed_first_publication(database: str, tmp_path: Path) -> None:
    """A folder with nothing but an empty log gets the table."""
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    publish(database, str(tmp_path / "table"))
    assert there(tmp_path / "table") == wanted(database)


def test_a_file(database: str, diode: RunCommand, tmp_path: Path) -> None:
    """A file is no folder."""
    (tmp_path / "file").touch()
    assert "is a file; name a folder" in refused(diode, database, tmp_path / "file")


def test_a_damaged_log(database: str, diode: RunCommand, tmp_path: Path) -> None:
    """A log entry that is cut or not JSON is told; nothing is written over it."""
    publish(database, str(tmp_path / "table"))
    entry = tmp_path / "table" / "_delta_log" / f"{1:020}.json"
    cut = entry.read_text()[:200]
    entry.write_text(cut)
    line = refused(diode, database, tmp_path / "table")
    assert str(tmp_path / "table") in line
    assert entry.read_text() == cut
    assert not (entry.parent / f"{2:020}.json").exists()


def test_a_missing_file(
    database: str, store: Store, make_measurement: MakeMeasurement, diode: RunCommand, tmp_path: Path
) -> None:
    """A file that the log names and that is gone is told with its name, by readers and publishers."""
    table = tmp_path / "table"
    publish(database, str(table))
    [file] = table.rglob("*.parquet")
    file.unlink()
    store.write([make_measurement(9)])
    assert file.name in refused(diode, database, table)
    found = diode("query", "SELECT count(*) FROM observations", "--database", str(table))
    assert (found.code, file.name in found.err) == (1, True)


def test_a_folder_that_cannot_be_written(database: str, diode: RunCommand) -> None:
    """The system's reason is told."""
    assert "/proc/table" in refused(diode, database, "/proc/table")


def test_without_delta_rs(database: str, tmp_path: Path) -> None:
    """A plain installation says what to install."""
    program = (
        "import sys; sys.modules['deltalake'] = None\n"
        "from diode_store.command_line.cli import main\n"
        f"main(['publish', {str(tmp_path / 'table')!r}, '--database', {database!r}])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert found.stderr == "error: published tables need delta-rs; run `pip install torch-diode[delta]`\n"


def test_a_clock_that_went_back(
    database: str, store: Store, make_measurement: MakeMeasurement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions decide what is newer, and not times."""
    table = tmp_path / "table"
    publish(database, str(table))
    for entry in (table / "_delta_log").iterdir():
        entry.write_text(entry.read_text().replace('"timestamp":1', '"timestamp":9'))
    store.write([make_measurement(10)])
    with monkeypatch.context() as past:
        past.setattr("time.time", lambda: 1e9)
        report = publish(database, str(table))
    assert report.added == 1
    assert there(table) == wanted(database)
