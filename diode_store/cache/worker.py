"""Read an SQLite warehouse by columns, in processes of their own.

The standard library's SQLite returns row by row, which keeps one processor busy. ADBC returns columns, but brings a
second SQLite library. Therefore each process only reads the database and has no other connection to it, as
``diode_store.cache.adbc`` requires.
"""

from __future__ import annotations

import contextlib
import os
import sys
from itertools import islice
from typing import TYPE_CHECKING

from diode_store.cache.adbc import open_columns
from diode_store.cache.facts import TIMINGS_AT_ONCE, read_facts
from diode_store.cache.opening import open_source
from diode_store.errors import CacheError, CacheValueError
from diode_store.processes.child import Child, ChildError
from diode_store.system.files import real_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from diode_store.cache.facts import Tables
    from diode_store.cache.source import WarehouseRows
    from diode_store.processes.parent import Parent, Say

    Order = tuple[Path, NDArray[np.int64]]

MOST_WORKERS = 8
WORTH_A_PROCESS = 4 * TIMINGS_AT_ONCE
"""Timings from which on processes pay off: a process takes some tenths of a second to start."""
_AHEAD = 2
# NumPy would start a thread for each processor.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}


def read_chunks(source: WarehouseRows, chunks: Sequence[NDArray[np.int64]], timings: float) -> Iterator[Tables]:
    """Yield the facts of chunks of measurements, in order.

    Args:
        source: the warehouse.
        chunks: ids of measurements.
        timings: about how many timings they have, from which it follows who reads.
    """
    if timings < WORTH_A_PROCESS or source.file is None or not sys.executable:
        for chunk in chunks:
            yield from read_facts(source, chunk)
        return
    file = real_path(source.file)
    workers = min(MOST_WORKERS, len(os.sched_getaffinity(0)), len(chunks))
    with contextlib.ExitStack() as stack:
        try:
            children = [
                stack.enter_context(Child("diode_store.cache.worker:serve", environment=_ONE_THREAD))
                for _ in range(workers)
            ]
            for number, chunk in enumerate(islice(chunks, _AHEAD * workers)):
                children[number % workers].send((file, chunk))
            for number in range(len(chunks)):
                child = children[number % workers]
                yield from _facts_of(child, source)
                if number + _AHEAD * workers < len(chunks):
                    child.send((file, chunks[number + _AHEAD * workers]))
        except ChildError as error:
            raise CacheError(f"a process of the sync {error}; run `diode sync` again") from None


def _facts_of(child: Child, source: WarehouseRows) -> Iterator[Tables]:
    while True:
        is_last, found = child.answer()
        if is_last:
            source.left_out.extend(found)
            return
        yield found


def serve(parent: Parent) -> None:
    """Read what the sync orders."""
    parent.serve(_read)


def _read(order: Order, say: Say) -> list[str]:
    """Say the facts by columns; if a value does not fit its column, read by rows, which names a wrong value."""
    database, ids = order
    with open_source(str(database)):
        pass  # checks that it exists with the current schema; closed before another SQLite opens it
    try:
        with open_columns(database) as columns:
            # Whole, since a wrong value may come last.
            found, left_out = list(read_facts(columns, ids)), []
    except CacheValueError:
        with open_source(str(database)) as rows:
            found, left_out = list(read_facts(rows, ids)), list(rows.left_out)
    for tables in found:
        say(tables)
    return left_out
