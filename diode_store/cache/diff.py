"""Find the measurements that a sync must copy or drop, by comparing the blocks of ids whose digests differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from diode_store.cache.bench import NOW
from diode_store.cache.source import block_range

if TYPE_CHECKING:
    from collections.abc import Iterable

    import duckdb
    from numpy.typing import NDArray

    from diode_store.cache.source import WarehouseRows

_KEY = np.dtype([("id", "<i8"), ("uid", "S16")])
"""A measurement as one value that NumPy compares."""


@dataclass(frozen=True)
class Difference:
    """Work for a sync."""

    missing: NDArray[np.int64]
    """Ids of the measurements to copy, in order."""
    gone: NDArray[np.int64]
    """Ids of the measurements that the warehouse no longer has."""


def compare(
    source: WarehouseRows, connection: duckdb.DuckDBPyConnection, then: dict[str, str], now: dict[str, str]
) -> Difference:
    """Compare the measurements of the warehouse with those of the cache.

    Args:
        source: the warehouse.
        connection: a connection to the cache's state.
        then: digests of the warehouse's blocks when the cache was made.
        now: digests of its blocks.
    """
    missing, gone = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for block in sorted((b for b in now.keys() | then.keys() if now.get(b) != then.get(b)), key=int):
        # A block at a time: Python's rows take ten times the memory of an array.
        query = "SELECT id, uid FROM {} WHERE id BETWEEN {} AND {} ORDER BY id"
        wanted = _keys(source.rows(query.format("measurements", *block_range(block))))
        held = _keys(connection.execute(query.format(f"{NOW}.stored_measurements", *block_range(block))).fetchall())
        missing.append(np.setdiff1d(wanted, held)["id"])
        gone.append(np.setdiff1d(held, wanted)["id"])
    return Difference(np.concatenate(missing), np.concatenate(gone))


def _keys(rows: Iterable[tuple[int, bytes]]) -> NDArray[np.void]:
    return np.array([(number, bytes(uid)) for number, uid in rows], _KEY)
