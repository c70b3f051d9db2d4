"""Read measurements and their timings from a warehouse, some thousands of timings at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diode_store.cache.layout import FACTS
from diode_store.values.batching import in_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from diode_store.cache.source import Facts, WarehouseRows

TIMINGS_AT_ONCE = 250_000
"""Timings of a chunk, about: what is read in one snapshot and held in memory."""
_FEW_RUNS = 4
_SAMPLES, _SAMPLE = 8, 64


def read_facts(source: Facts, ids: NDArray[np.int64]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield batches of measurements and timings, with their table, without measurements that are gone.

    Args:
        source: the warehouse.
        ids: the measurements.
    """
    for some in _pieces(source, ids):
        with source.snapshot():
            for table, columns in FACTS.items():
                key = next(iter(columns))
                sql = f"SELECT {', '.join(columns)} FROM {table} WHERE {_among(key, some)}"
                for batch in source.batches(columns, sql):
                    yield table, batch


def _pieces(source: Facts, ids: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Cut ``ids`` by the number of their timings."""
    if not len(ids):
        return
    with source.snapshot():
        counted = source.rows(
            f"SELECT measurement_id, count(*) FROM timings WHERE {_among('measurement_id', ids)} GROUP BY 1"
        )
        counts = dict(map(tuple, counted))
    for some in in_batches(ids.tolist(), lambda number: counts.get(number, 0) + 1, TIMINGS_AT_ONCE):
        yield np.array(some, np.int64)


def _among(key: str, ids: NDArray[np.int64]) -> str:
    """Return the condition that ``key`` is one of ``ids``; long runs of numbers are written as runs."""
    ordered = np.sort(ids)
    runs = np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1)
    if len(runs) <= _FEW_RUNS:
        return " OR ".join(f"{key} BETWEEN {run[0]:d} AND {run[-1]:d}" for run in runs)
    return f"{key} IN ({', '.join(map(str, ordered.tolist()))})"


def timings_per_measurement(source: WarehouseRows, ids: NDArray[np.int64]) -> float:
    """Estimate the timings of a measurement from a few samples; at least 1."""
    if not len(ids):
        return 1.0
    ordered = np.sort(ids)
    width = min(_SAMPLE, len(ordered))
    starts = np.linspace(0, len(ordered) - width, _SAMPLES).astype(int)
    with source.snapshot():
        counts = [
            next(iter(source.rows(f"SELECT count(*) FROM timings WHERE {_among('measurement_id', some)}")))[0]
            for some in (ordered[start : start + width] for start in starts)
        ]
    return max(1.0, float(sum(counts)) / (_SAMPLES * width))
