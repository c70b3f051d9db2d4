"""The part of a warehouse that a sync reads, on either database.

Added and deleted measurements show in *blocks*: every ``BLOCK`` ids have a digest of their ids and keys. The database
computes the digests in one pass, which costs a fraction of fetching the rows. Only blocks with a changed digest are
compared row by row. Counts or a highest id would not do: a delete and an insert can balance, and a PostgreSQL
transaction with lower ids may commit last. For SQLite, ``diode_store.cache.tips`` finds blocks that need no new digest.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from diode_store.cache.layout import FACTS, MARKS, SNAPSHOTS
from diode_store.errors import DatabaseError

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from diode_store.cache.cache import State
    from diode_store.cache.layout import Columns

BLOCK = 4096
"""Number of ids that share a digest."""

KEYED = {"measurements": "uid", "problems": "key", "configs": "key", "decisions": "uid"}
"""Tables that are compared by blocks, with the column of their 16-byte keys."""
STORED_ONCE = ("measurements", "decisions")
"""Tables of these whose rows never change, but for marks; ``ingested_at`` says when the warehouse stored a row."""
_FILLED_LATER = {"problems": ("extra", "m", "dimensions")}
"""Columns that may get a value after a row was stored, by table; ``extra`` in any other table."""
_MARKED = "SELECT id, flags, superseded_by FROM measurements WHERE flags IS NOT NULL OR superseded_by IS NOT NULL"


class Facts(Protocol):
    """Source of measurements and timings to copy; iterate over one result at a time."""

    def snapshot(self) -> contextlib.AbstractContextManager[None]:
        """Read one state of the database inside this block; keep it short, since it delays the database's clean-up."""

    @property
    def left_out(self) -> list[str]:
        """A line for each row that ``batches`` left out because its column cannot hold a value; readers clear it."""

    def rows(self, sql: str) -> Iterator[Any]:
        """Yield the rows of a SELECT that both databases understand."""

    def batches(self, columns: Columns, sql: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a SELECT of ``columns`` as Arrow, in the cache's types, without rows with a wrong value."""


class WarehouseRows(Facts, Protocol):
    """A warehouse as rows; iterate over one result at a time."""

    @property
    def file(self) -> Path | None:
        """SQLite file, which other processes can read too; None for a server."""

    def tips(self, before: dict[str, str]) -> tuple[dict[str, str], dict[str, int]]:
        """Return the tip of each table, and the id up to which a table is unchanged since its tip was ``before``.

        Both lack a table whose rows may come in another order than their ids.
        """

    def blocks(self, table: str, key: str, first: int) -> dict[str, str]:
        """Return the digest of the ids and 16-byte keys in each block that is not empty, from block ``first`` on.

        SQLite's digests also cover the times of ``STORED_ONCE``.
        """


class Digests(NamedTuple):
    """Digests of a warehouse."""

    prints: dict[str, str]
    """Digest of each small table."""
    blocks: dict[str, dict[str, str]]
    """Digests of the blocks of each table that is compared by blocks."""
    tips: dict[str, str]
    """Tips of these tables, which save the next sync most digests."""


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


def digests(source: WarehouseRows, before: State) -> Digests:
    """Return the digests of a warehouse in its snapshot; unchanged blocks keep their digests of the state before."""
    tips, unchanged = source.tips(before.tips)
    blocks = {}
    for table, key in KEYED.items():
        # The block after the last one that is unchanged from its first id to its last.
        first = (unchanged.get(table, -1) + 1) // BLOCK
        kept = {block: digest for block, digest in before.blocks.get(table, {}).items() if int(block) < first}
        blocks[table] = kept | source.blocks(table, key, first)
    prints = {}
    for name in SNAPSHOTS:
        if name in STORED_ONCE:
            prints[name] = ""
        elif name in KEYED:
            counts = ", ".join(f"count({column})" for column in _FILLED_LATER.get(name, ("extra",)))
            extras = list(source.rows(f"SELECT {counts} FROM {name}"))
            prints[name] = digest_of([repr(list(map(tuple, extras))).encode()])
        else:
            prints[name] = digest_of(repr(tuple(row)).encode() for row in source.rows(select(name)))
    return Digests(prints, blocks, tips)


def block_range(block: str) -> tuple[int, int]:
    """Return the first and last id of a block."""
    return int(block) * BLOCK, int(block) * BLOCK + BLOCK - 1


def select(table: str, condition: str = "true") -> str:
    """Return the SELECT of a table's columns, in order."""
    if table == MARKS:
        return f"{_MARKED} ORDER BY id"
    columns = SNAPSHOTS.get(table) or FACTS[table]
    return f"SELECT {', '.join(columns)} FROM {table} WHERE {condition} ORDER BY 1, 2"


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
