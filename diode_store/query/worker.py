"""Answer queries in a process that can be ended at any time and whose memory is limited.

The process ends after a query that took all its memory or failed unexpectedly: it may not get back what that query
reserved.
"""

from __future__ import annotations

import re
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any

from diode_store.errors import DiodeError, QueryError, first_line
from diode_store.query.analytics import add_views, open_state
from diode_store.query.csv_sql import csv_lines
from diode_store.query.plan import plan_json
from diode_store.query.results import Batches, PlainBatches, bound, errors_of_duckdb, run_query, wide_columns
from diode_store.system.memory import limit_memory
from diode_store.views.view_files import VIEWS, views_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import duckdb

    from diode_store.cache.cache import Reading
    from diode_store.processes.parent import Parent, Say

_OF_THE_LIMIT = 0.75
"""Share of the memory limit that DuckDB keeps by spilling to files. The rest is for memory that it does not count."""
_LEAST_LIMIT = 250_000_000
"""Bytes that DuckDB, Python and their threads need for any query."""
_LINES_A_PART = 10_000
_SIZE = re.compile(r"\s*\d+(\.\d+)?\s*(%|([kmgt]i?)?b|bytes)\s*", re.IGNORECASE)
"""Sizes that are a limit. DuckDB would also take ``-1`` or ``none``, which are not."""
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def _columns(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Any) -> Iterator[Any]:
    yield tuple(bound(connection, sql, parameters).columns)


def _rows(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Any) -> Iterator[Any]:
    result = run_query(connection, sql, parameters)
    yield result.columns
    yield from result.parts()


def _csv(connection: duckdb.DuckDBPyConnection, sql: str) -> Iterator[Any]:
    lines = csv_lines(connection, sql)
    while part := list(islice(lines, _LINES_A_PART)):
        yield part


def _plan(connection: duckdb.DuckDBPyConnection, sql: str, *, analyze: bool) -> Iterator[Any]:
    yield plan_json(connection, sql, analyze=analyze)


def _table(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Any) -> Iterator[Any]:
    relation = bound(connection, sql, parameters)
    batches = Batches(connection, relation)
    yield batches.schema, wide_columns(relation)
    yield from (batch.serialize().to_pybytes() for batch in batches)


def _plain(connection: duckdb.DuckDBPyConnection, sql: str, rows_a_batch: int) -> Iterator[Any]:
    batches = PlainBatches(connection, sql, rows_a_batch=rows_a_batch)
    yield batches.schema
    yield from (batch.serialize().to_pybytes() for batch in batches)


ANSWERS: dict[str, Callable[..., Iterator[Any]]] = {
    "columns": _columns,
    "rows": _rows,
    "csv": _csv,
    "plan": _plan,
    "table": _table,
    "plain": _plain,
}
"""Kind of a request → the parts of its answer."""


def _opened(reading: Reading, folder: Path, memory: str) -> tuple[duckdb.DuckDBPyConnection, int]:
    """Open a state of a cache and limit this process's memory; return the connection and the limit in bytes.

    Raises:
        QueryError: DuckDB does not understand the limit.
    """
    import duckdb

    if not _SIZE.fullmatch(memory):
        raise QueryError(f"the memory limit {memory!r} is no size; give one such as 4GB or 50%")
    try:
        with duckdb.connect(config={"memory_limit": memory, "threads": "1"}) as measuring:
            [[text]] = measuring.execute("SELECT current_setting('memory_limit')").fetchall()
    except duckdb.Error as error:
        raise QueryError(
            f"the memory limit {memory!r} cannot be kept: {first_line(error)}; give 256MB or more"
        ) from error
    number, unit = text.split()
    limit = int(float(number) * _UNITS[unit])
    if limit < _LEAST_LIMIT:
        raise QueryError(f"the memory limit {memory!r} is too small for any query; give 256MB or more")
    connection = open_state(reading, folder, memory=f"{int(limit * _OF_THE_LIMIT)}B", views=())
    connection.execute("SELECT 1")
    limit_memory(limit)
    return connection, limit


def _answer(
    request: tuple[str, tuple[Any, ...], dict[str, Any]],
    connection: duckdb.DuckDBPyConnection,
    limit: int,
    say: Say,
) -> None:
    """Send every part of an answer.

    Raises:
        MemoryError: the query, or a whole answer that the caller keeps, needs more than ``limit`` bytes.
    """
    kind, arguments, options = request
    is_kept, kept = options.pop("whole", False), 0
    try:
        for part in _parts(kind, connection, arguments, options):
            kept += _size(part) if is_kept else 0
            if kept > limit:
                raise MemoryError
            say(part)
    except DiodeError as error:
        if re.search("out of memory|bad alloc", str(error), re.IGNORECASE):
            raise MemoryError from error
        raise


def _parts(
    kind: str, connection: duckdb.DuckDBPyConnection, arguments: tuple[Any, ...], options: dict[str, Any]
) -> Iterator[Any]:
    """Yield the parts of an answer, after making the views that its statement may read."""
    sql, has_begun = arguments[0], False
    with errors_of_duckdb():
        add_views(connection, views_of(sql) if isinstance(sql, str) else ())
    try:
        for part in ANSWERS[kind](connection, *arguments, **options):
            has_begun = True
            yield part
    except QueryError as error:
        if has_begun or "does not exist" not in str(error):
            raise
        # Ask again with every view, so that the message suggests the name that was meant.
        with errors_of_duckdb():
            add_views(connection, VIEWS)
        yield from ANSWERS[kind](connection, *arguments, **options)


def _size(part: Any) -> int:
    """Return about how many bytes a batch takes, or a list of rows, judged by the first row."""
    if not isinstance(part, list):
        return sys.getsizeof(part)
    return len(part) * (sys.getsizeof(part[0]) + sum(map(sys.getsizeof, part[0])))


def serve(parent: Parent) -> None:
    """Answer queries. The first message names the state of the cache and the memory limit."""
    state = parent.receive()
    opened = None

    def answer(request: tuple[str, tuple[Any, ...], dict[str, Any]], say: Say) -> None:
        """Send every part of the answer to a request."""
        nonlocal opened
        opened = opened or _opened(*state)
        _answer(request, *opened, say)

    parent.serve(answer)
