"""Read an SQLite warehouse by columns, in processes of their own.

The standard library's SQLite returns row by row, which keeps one processor busy. ADBC returns columns, but brings a
second SQLite library. Therefore each process only reads the database and has no other connection to it, as
``diode_store.cache.adbc`` requires.
"""

from __future__ import annotations

import contextlib
import os
import sys
from itertools import cycle
from typing import TYPE_CHECKING

import pyarrow as pa

from diode_store.cache.adbc import open_columns
from diode_store.cache.facts import TIMINGS_AT_ONCE, read_facts
from diode_store.cache.opening import open_source
from diode_store.errors import CacheError, CacheValueError
from diode_store.processes.child import Child, ChildError
from diode_store.system.files import real_path
from diode_store.system.private_folder import SPILL, private_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from diode_store.cache.facts import Tables
    from diode_store.cache.source import WarehouseRows
    from diode_store.processes.parent import Parent, Say

    Order = tuple[Path, NDArray[np.int64], Path]
    """Database, measurements to read, and beginning of the names of the files to write."""

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
            folder = stack.enter_context(private_folder(SPILL)).path
            orders = [(file, chunk, folder / str(number)) for number, chunk in enumerate(chunks)]
            for number, order in enumerate(orders[: _AHEAD * workers]):
                children[number % workers].send(order)
            for number, child in zip(range(len(orders)), cycle(children), strict=False):
                yield from _facts_of(child, source)
                for order in orders[number + _AHEAD * workers :][:1]:
                    child.send(order)
        except ChildError as error:
            raise CacheError(f"a process of the sync {error}; run `diode sync` again") from None


def _facts_of(child: Child, source: WarehouseRows) -> list[Tables]:
    """Return the answer to an order, and take over what it left out."""
    facts: list[Tables] = []
    while True:
        is_last, found = child.answer()
        if is_last:
            source.left_out.extend(found)
            return facts
        facts.append({table: _mapped(path) for table, path in found.items()})


def _mapped(path: Path) -> pa.Table:
    """Return the rows of a file, which goes with them."""
    with pa.memory_map(str(path)) as file:
        path.unlink()
        return pa.ipc.open_stream(file).read_all()


def serve(parent: Parent) -> None:
    """Read what the sync orders."""
    parent.serve(_read)


def _read(order: Order, say: Say) -> list[str]:
    """Say files of facts by columns; if a value does not fit its column, read by rows, which names a wrong value."""
    database, ids, path = order
    with open_source(str(database)):
        pass  # checks that it exists with the current schema; closed before another SQLite opens it
    try:
        with open_columns(database) as columns:
            # Whole, since a wrong value may come last.
            found, left_out = list(read_facts(columns, ids)), []
    except CacheValueError:
        with open_source(str(database)) as rows:
            found, left_out = list(read_facts(rows, ids)), list(rows.left_out)
    # A file costs less than sending the rows.
    for number, tables in enumerate(found):
        files = {table: path.with_name(f"{path.name}-{number}-{table}") for table in tables}
        for table, file in files.items():
            with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, tables[table].schema) as stream:
                stream.write_table(tables[table])
        say(files)
    return left_out
