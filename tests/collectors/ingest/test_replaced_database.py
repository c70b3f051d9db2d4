"""A database file that is replaced or deleted under whoever has it open: nothing may be lost in the old one."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from spool_samples import segment_bytes

from diode_collectors.ingest.ingest import ingest_once
from diode_collectors.spool.spool import Spool
from diode_store.errors import DatabaseError
from diode_store.warehouse.facts import insert_measurements
from diode_store.warehouse.store import Store

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a spool with one segment of one record."""
    spool = tmp_path / "spool"
    spool.mkdir(mode=0o700)
    (spool / "a.seg").write_bytes(segment_bytes([1]))
    return spool


def replace_file(path: Path) -> None:
    """Put another file of the same content in the place of ``path``, as restoring a backup does."""
    other = path.with_name("restored.db")
    shutil.copy(path, other)
    other.replace(path)


def test_a_replaced_database_keeps_the_spool(directory: Path, database_path: Path) -> None:
    """Writing to a file that nobody will read is an error, the segment stays, and a new store takes it up."""
    with Store.open(str(database_path)) as store:
        replace_file(database_path)
        with pytest.raises(DatabaseError, match="was replaced or deleted while it was open"):
            ingest_once(directory, store)
    assert [path.name for path in Spool(directory).sealed()] == ["a.seg"]
    with Store.open(str(database_path)) as store:
        assert ingest_once(directory, store).measurements == 1
        assert store.counts()["measurements"] == 1


def test_a_database_replaced_in_the_middle_of_a_pass(
    directory: Path, database_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was committed to a file while that was replaced does not count as stored."""
    with Store.open(str(database_path)) as store:

        def insert_and_replace(*arguments: object) -> object:
            replace_file(database_path)
            return insert_measurements(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr("diode_store.warehouse.store.insert_measurements", insert_and_replace)
        with pytest.raises(DatabaseError, match="was replaced or deleted while it was open"):
            ingest_once(directory, store)
    assert [path.name for path in Spool(directory).sealed()] == ["a.seg"]


def test_a_deleted_database_is_no_longer_read(database_path: Path) -> None:
    """A store whose file is gone says so instead of answering from the deleted one."""
    with Store.open(str(database_path)) as store:
        database_path.unlink()
        with pytest.raises(DatabaseError, match="was replaced or deleted while it was open"):
            store.counts()
