"""The lake as it is now, for many readers at once: kept up to date behind them, answers kept until it changes."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from diode_store.errors import DiodeError, QueryError, first_line
from diode_store.lake.lake import lake_of
from diode_store.lake.sync import sync
from diode_store.query.analytics import open_lake
from diode_store.query.results import arrow_table, run_query

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import duckdb
    import pyarrow as pa

    from diode_store.lake.lake import Lake

log = logging.getLogger(__name__)

MOST_ROWS = 2_000
"""Of an answer that a page shows; what is downloaded has as many as ``MOST_DOWNLOADED``."""
MOST_DOWNLOADED = 1_000_000
_MEMORY = "25%"
_MOST_KEPT = 512
_PATIENCE_S = 2.0
"""With a sync under way at the end, which may wait for another process's; it may be cut off anywhere."""


class SlowQueryError(QueryError):
    """A query took longer than it may."""


@dataclass(frozen=True)
class Answer:
    """The rows of a query."""

    rows: tuple[tuple[Any, ...], ...]
    is_cut: bool
    """Whether there are more rows."""


class _State:
    """One state of the lake, and the answers from it so far."""

    def __init__(self, lake: Lake) -> None:
        # Read before: should another process sync in between, this one looks again, and does not miss it.
        manifest = lake.manifest()
        self.generation = manifest.generation if manifest else 0
        self.connection = open_lake(lake, memory=_MEMORY)
        self.kept: dict[tuple[Any, ...], Future[Answer]] = {}


class Feed:
    """Answers queries from the newest state of a lake that this process keeps up to date; a context manager."""

    def __init__(self, database: str, *, every_s: float = 5.0, limit_s: float = 10.0) -> None:
        """Sync once, and open the lake.

        Args:
            database: the warehouse: a URL, or the path of an SQLite file.
            every_s: how often to look for new measurements.
            limit_s: how long a query may take.

        Raises:
            SchemaError: there is no warehouse, or one of another revision.
            DatabaseError: it cannot be read.
            LakeError: the lake cannot be written or read.
        """
        self._database, self._every_s, self._limit_s = database, every_s, limit_s
        self._lake = lake_of(database)
        sync(database, self._lake)
        self._state = _State(self._lake)
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._said: str | None = None
        self._thread = threading.Thread(target=self._keep_up, name="lake", daemon=True)

    def __enter__(self) -> Self:
        """Begin to keep up."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop keeping up, and release the lake."""
        self._ends.set()
        self._thread.join(_PATIENCE_S)
        self._state.connection.close()

    @property
    def generation(self) -> int:
        """The number of the state that answers come from; what is new makes a higher one."""
        return self._state.generation

    def ask(self, sql: str, parameters: Mapping[str, str], rows: int = MOST_ROWS) -> Answer:
        """Return the answer to one SELECT, kept from before where the lake is as it was.

        Args:
            sql: with a ``$name`` for each parameter.
            parameters: their values.
            rows: how many at most.

        Raises:
            SlowQueryError: it takes too long.
            QueryError: it is not one SELECT, or fails.
        """
        state, key = self._state, (sql, tuple(parameters.items()), rows)  # held meanwhile, so that its files stay
        with self._lock:
            future = state.kept.get(key)
            if is_first := future is None:
                if len(state.kept) >= _MOST_KEPT:
                    state.kept.pop(next(iter(state.kept)))
                future = state.kept[key] = Future()
        if is_first:
            try:
                future.set_result(self._asked(state.connection, sql, parameters, rows))
            except BaseException as error:
                with self._lock:
                    state.kept.pop(key, None)
                future.set_exception(error)
                raise
        return future.result()

    def table(self, sql: str, parameters: Mapping[str, str]) -> pa.Table:
        """Return the answer to one SELECT as an Arrow table, of ``MOST_DOWNLOADED`` rows at most.

        Raises:
            SlowQueryError: it takes too long.
            QueryError: it is not one SELECT, or fails.
        """
        state = self._state
        with self._limited(state.connection) as cursor:
            return arrow_table(cursor, f"SELECT * FROM ({sql}) LIMIT {MOST_DOWNLOADED}", dict(parameters))  # noqa: S608 - our own limit

    def _asked(
        self, connection: duckdb.DuckDBPyConnection, sql: str, parameters: Mapping[str, str], rows: int
    ) -> Answer:
        with self._limited(connection) as cursor:
            found = list(itertools.islice(run_query(cursor, sql, dict(parameters)), rows + 1))
        return Answer(tuple(found[:rows]), len(found) > rows)

    @contextmanager
    def _limited(self, connection: duckdb.DuckDBPyConnection) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a cursor whose queries are stopped at the limit."""
        cursor = connection.cursor()
        began = time.monotonic()
        timer = threading.Timer(self._limit_s, cursor.interrupt)
        timer.start()
        try:
            yield cursor
        except QueryError as error:
            if time.monotonic() - began >= self._limit_s:
                raise SlowQueryError(f"the query was stopped after {self._limit_s:g} s; narrow it") from error
            raise
        finally:
            timer.cancel()
            cursor.close()

    def _keep_up(self) -> None:
        while not self._ends.wait(self._every_s):
            try:
                sync(self._database, self._lake)
                manifest = self._lake.manifest()
                if manifest is not None and manifest.generation != self._state.generation:
                    # Who still reads from the state before holds it; it is released with the last of them.
                    self._state = _State(self._lake)
                self._said = None
            except Exception as error:
                if first_line(error) != self._said:
                    of_ours = isinstance(error, DiodeError)
                    told = "the lake is not brought up to date: %s"
                    log.warning(told, first_line(error), exc_info=None if of_ours else error)
                self._said = first_line(error)
