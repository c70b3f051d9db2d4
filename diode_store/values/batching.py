"""Cut streams into lists of about equal weight, one for each step: a transaction, a file, a row group."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_Item = TypeVar("_Item")

ROWS_PER_GROUP = 122_880
"""Rows of a Parquet file's row group, as DuckDB has them: it reads the groups of one file with several threads."""


def in_batches(items: Iterable[_Item], weigh: Callable[[_Item], int], limit: int) -> Iterator[list[_Item]]:
    """Yield ``items`` in lists, each but the last ending with the item that brings its weight to ``limit``."""
    batch: list[_Item] = []
    weight = 0
    for item in items:
        batch.append(item)
        weight += weigh(item)
        if weight >= limit:
            yield batch
            batch, weight = [], 0
    if batch:
        yield batch
