"""The part of a warehouse that a sync reads, on either database.

Added and deleted measurements show in *blocks*: every ``BLOCK`` ids have a digest of their ids and uids. The database
computes all digests in one pass, which costs a fraction of fetching the rows. Only blocks with a changed digest are
compared row by row. Counts or a highest id would not do: a delete and an insert can balance, and a PostgreSQL
transaction with lower ids may commit last.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Protocol

from diode_store.errors import DatabaseError
from diode_store.lake.layout import FACTS, MARKS, SNAPSHOTS

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from diode_store.lake.parquet_files import Columns

BLOCK = 4096
"""Number of ids that share a digest."""

# The digest of a large table covers its keys and the number of rows with ``extra``, which may be filled in later.
_KEYED = {"problems": "key", "configs": "key", "decisions": "uid"}
_MARKED = "SELECT id, flags, superseded_by FROM measurements WHERE flags IS NOT NULL OR superseded_by IS NOT NULL"


class Facts(Protocol):
    """Source of measurements and timings to copy; iterate over one result at a time."""

    def snapshot(self) -> contextlib.AbstractContextManager[None]:
        """Read one state of the database inside this block; keep it short, since it delays the database's clean-up."""

    @property
    def left_out(self) -> list[str]:
        """A line for each row that ``batches`` left out because its column cannot hold a value; readers clear it."""

    def batches(self, columns: Columns, sql: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a SELECT of ``columns`` as Arrow, in the lake's types, without rows with a wrong value."""


class WarehouseRows(Facts, Protocol):
    """A warehouse as rows; iterate over one result at a time."""

    @property
    def file(self) -> Path | None:
        """SQLite file, which other processes can read too; None for a server."""

    def rows(self, sql: str) -> Iterator[Any]:
        """Yield the rows of a SELECT that both databases understand."""

    def blocks(self, table: str, key: str) -> dict[str, str]:
        """Return the digest of the ids and 16-byte keys in each block that is not empty."""


def explain(url: str) -> None:
    """Raise the SchemaError for this revision; it is rare enough to load SQLAlchemy for its message."""
    from diode_store.warehouse.store import Store

    Store.open(url).close()


def warehouse_uuid(source: WarehouseRows) -> str:
    """Return the warehouse's uuid.

    Raises:
        DatabaseError: the database has none.
    """
    row = next(iter(source.rows("SELECT uuid FROM warehouse")), None)
    if row is None:
        raise DatabaseError("the warehouse has lost its uuid; restore the database from a backup")
    return str(row[0])


def highest_id(source: WarehouseRows) -> int:
    """Return the highest id of a measurement; -1 if there is none."""
    return int(next(iter(source.rows("SELECT coalesce(max(id), -1) FROM measurements")))[0])


def fingerprints(source: WarehouseRows) -> dict[str, str]:
    """Return a digest of each snapshot's table; a table with an equal digest needs no copy."""
    found = {}
    for name in SNAPSHOTS:
        found[name] = _keyed(source, name) if name in _KEYED else digest_of(_rows_of(source, name))
    return found


def measurement_blocks(source: WarehouseRows) -> dict[str, str]:
    """Return the digests of the measurements by block."""
    return source.blocks("measurements", "uid")


def select(table: str) -> str:
    """Return the SELECT of a table's columns, in order."""
    if table == MARKS:
        return f"{_MARKED} ORDER BY id"
    columns = SNAPSHOTS.get(table) or FACTS[table]
    return f"SELECT {', '.join(columns)} FROM {table} ORDER BY 1, 2"  # noqa: S608 - our own names


def _rows_of(source: WarehouseRows, table: str) -> Iterator[bytes]:
    return (repr(row).encode() for row in source.rows(select(table)))


def _keyed(source: WarehouseRows, table: str) -> str:
    extras = list(source.rows(f"SELECT count(extra) FROM {table}"))  # noqa: S608 - our own names
    return digest_of(repr(part).encode() for part in (extras, sorted(source.blocks(table, _KEYED[table]).items())))


def wrong_values(source: WarehouseRows) -> list[str]:
    """Return a line for each row that a sync would leave out; reads every table."""
    with source.snapshot():
        for table, columns in {**FACTS, **SNAPSHOTS}.items():
            for _batch in source.batches(columns, select(table)):
                pass
    return list(source.left_out)


def digest_of(parts: Iterable[bytes]) -> str:
    """Return a digest of ``parts`` in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
        digest.update(b"\0")
    return digest.hexdigest()
