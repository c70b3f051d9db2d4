"""Read measurements with their timings and metrics from a warehouse, some thousands of timings at a time."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from diode_store.cache.arrow_rows import arrow_schema
from diode_store.cache.layout import FACTS, TEXT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from diode_store.cache.source import Facts, WarehouseRows

    Tables = dict[str, pa.Table]
    """Rows of each of ``FACTS``."""

TIMINGS_AT_ONCE = 250_000
"""Timings of a chunk, about: what is read in one snapshot and held in memory."""
IDS_AT_ONCE = 20_000
"""Most measurements that one statement names: SQLite takes statements of up to a megabyte."""
_USUAL = "ok"
_SAMPLES, _SAMPLE = 8, 64


def read_facts(source: Facts, ids: NDArray[np.int64]) -> Iterator[Tables]:
    """Yield measurements with their timings and metrics, in the order of ``ids``, without measurements that are gone.

    Args:
        source: the warehouse.
        ids: the measurements.
    """
    waiting = [ids]
    while waiting:
        some = waiting.pop()
        limit = 2 * TIMINGS_AT_ONCE if len(some) > 1 else None
        before = len(source.left_out)
        with source.snapshot():
            timings = _read(source, "timings", some, limit)
            is_cut = timings.num_rows + len(source.left_out) - before == limit
            others = () if is_cut else [table for table in FACTS if table != "timings"]
            found = {table: _read(source, table, some, None) for table in others}
        if is_cut:
            # Far more timings than others have: so many at once would take too much memory.
            waiting += np.array_split(some, 2)[::-1]
        else:
            yield {**found, "timings": timings}


def _read(source: Facts, table: str, ids: NDArray[np.int64], limit: int | None) -> pa.Table:
    columns = FACTS[table]
    key = next(iter(columns))
    # The usual outcome is not read: a text takes longer than a number.
    names = (f"nullif({name}, '{_USUAL}')" if name == "outcome" else name for name in columns)
    sql = f"{wanted(ids)} SELECT {', '.join(names)} FROM wanted CROSS JOIN {table} WHERE {key} = wanted_id"
    batches = source.batches(columns, sql if limit is None else f"{sql} LIMIT {limit}")
    rows = pa.Table.from_batches(batches, arrow_schema(columns)).combine_chunks()
    for place, (name, kind) in enumerate(columns.items()):
        if kind == TEXT:
            texts = rows[name].fill_null(_USUAL) if name == "outcome" else rows[name]
            rows = rows.set_column(place, name, texts.dictionary_encode())
    return rows


def wanted(ids: NDArray[np.int64]) -> str:
    """Return the beginning of a SELECT from ``wanted``, which has ``ids`` as ``wanted_id`` in their order."""
    return f"WITH wanted (wanted_id) AS (VALUES ({'), ('.join(map(str, ids.tolist()))}))"


def timings_per_measurement(source: WarehouseRows, ids: NDArray[np.int64]) -> float:
    """Estimate the timings of a measurement from a few samples; at least 1."""
    if not len(ids):
        return 1.0
    width = min(_SAMPLE, len(ids))
    starts = np.linspace(0, len(ids) - width, _SAMPLES).astype(int)
    sample = np.unique(np.concatenate([ids[start : start + width] for start in starts]))
    sql = f"{wanted(sample)} SELECT count(*) FROM wanted CROSS JOIN timings WHERE measurement_id = wanted_id"
    with source.snapshot():
        [(count,)] = islice(source.rows(sql), 1)
    return max(1.0, float(count) / len(sample))
