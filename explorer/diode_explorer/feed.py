"""The newest state of the cache for many readers: synced in the background, with cached answers."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from diode_store.cache.cache import cache_of
from diode_store.cache.sync import sync
from diode_store.errors import DiodeError, QueryError, first_line
from diode_store.query.analytics import open_cache
from diode_store.query.limited import Session
from diode_store.query.limits import Limits
from diode_store.query.results import arrow_table, run_query
from diode_trainer.report.questions import Answer, Typed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import duckdb
    import pyarrow as pa

    from diode_store.cache.cache import Cache
    from diode_trainer.report.questions import Question

log = logging.getLogger(__name__)

MOST_ROWS = 2_000
"""Maximum rows of an answer on a page; downloads have up to ``MOST_DOWNLOADED``."""
MOST_DOWNLOADED = 1_000_000
_MEMORY = "25%"
_MOST_KEPT = 512
_WORKED_OUT = ("best_times", "regret")
"""Views that pages query often, materialized once for each state of the cache."""
_REST = 4
"""Pause between syncs, as a multiple of the last sync's duration."""
_PATIENCE_S = 2.0
"""Seconds to wait at the end for a sync, which may wait for another process. Stopping it anywhere is safe."""


class SlowQueryError(QueryError):
    """A query exceeded its time limit."""


class State:
    """One state of the cache, which caches its answers."""

    def __init__(self, cache: Cache, limit_s: float, threads: int | None = None) -> None:
        """Open the cache as it is, and materialize the views that pages query often.

        Args:
            cache: the cache.
            limit_s: time limit of a query.
            threads: threads of a query; None for one per processor. With one thread, sums are the same to the last bit.
        """
        # Read the generation first: if another process syncs in between, the next look finds a newer one.
        state = cache.state()
        self.generation = state.generation if state else 0
        """Increases whenever the cache changes."""
        self.connection = open_cache(cache, memory=_MEMORY, threads=threads)
        for view in _WORKED_OUT:
            self.connection.execute(
                f"CREATE TABLE worked_out AS FROM {view}; DROP VIEW {view}; ALTER TABLE worked_out RENAME TO {view}"
            )
        self._cache, self._limit_s = cache, limit_s
        self._typed: Session | None = None
        self._typing = threading.Lock()
        self._kept: dict[tuple[Any, ...], Future[Answer]] = {}
        self._lock = threading.Lock()

    def ask(self, question: Question, rows: int = MOST_ROWS) -> Answer:
        """Return the answer, from the cache if the question was asked before.

        Args:
            question: the question.
            rows: maximum number of rows.

        Raises:
            SlowQueryError: the query exceeds its time limit.
            QueryError: the query is not one SELECT, or fails.
        """
        key = question.sql, tuple(question.bound.items()), rows
        with self._lock:
            future = self._kept.get(key)
            if is_first := future is None:
                if len(self._kept) >= _MOST_KEPT:
                    self._kept.pop(next(iter(self._kept)))
                future = self._kept[key] = Future()
        if is_first:
            try:
                future.set_result(self._asked(question, rows))
            except BaseException as error:
                with self._lock:
                    self._kept.pop(key, None)
                future.set_exception(error)
                raise
        return future.result()

    def table(self, question: Question) -> pa.Table:
        """Return the answer as an Arrow table of at most ``MOST_DOWNLOADED`` rows.

        Raises:
            SlowQueryError: the query exceeds its time limit.
            QueryError: the query is not one SELECT, or fails.
        """
        if isinstance(question, Typed):
            with self._session() as session:
                return session.table(question.sql, ())
        with self._limited() as cursor:
            return arrow_table(cursor, f"SELECT * FROM ({question.sql}) LIMIT {MOST_DOWNLOADED}", question.bound)  # noqa: S608 - our own limit

    def close(self) -> None:
        """Release the cache, and end the process of typed queries."""
        if self._typed is not None:
            self._typed.close()
        self.connection.close()

    @contextmanager
    def _session(self) -> Iterator[Session]:
        """Yield the process of typed queries. It runs one at a time, since each may take a quarter of the memory."""
        with self._typing:
            if self._typed is None:
                self._typed = Session(self._cache, Limits(self._limit_s, _MEMORY))
            yield self._typed

    def _asked(self, question: Question, rows: int) -> Answer:
        if isinstance(question, Typed):
            with self._session() as session:
                columns, found = session.rows(question.sql)
                return _first(columns, found, rows)
        with self._limited() as cursor:
            result = run_query(cursor, question.sql, question.bound)
            return _first(result.columns, result, rows)

    @contextmanager
    def _limited(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a cursor whose queries are interrupted at the time limit."""
        cursor = self.connection.cursor()
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


def _first(columns: Sequence[str], rows: Iterable[tuple[Any, ...]], most: int) -> Answer:
    found = list(itertools.islice(rows, most + 1))
    return Answer(tuple(columns), tuple(found[:most]), is_cut=len(found) > most)


class Feed:
    """The newest state of a cache that this process keeps up to date; a context manager."""

    def __init__(self, database: str, *, every_s: float = 5.0, limit_s: float = 10.0) -> None:
        """Sync once, and open the cache.

        Args:
            database: the warehouse: a URL, or the path of an SQLite file.
            every_s: seconds between looks for new measurements.
            limit_s: time limit of a query.

        Raises:
            SchemaError: there is no warehouse, or it has another revision.
            DatabaseError: the warehouse cannot be read.
            CacheError: the cache cannot be written or read.
        """
        self._database, self._every_s, self._limit_s = database, every_s, limit_s
        self._cache = cache_of(database)
        sync(database, self._cache)
        self._state = State(self._cache, limit_s)
        self._prepare: Callable[[State], None] = lambda _state: None
        self._ends = threading.Event()
        self._said: str | None = None
        self._thread = threading.Thread(target=self._keep_up, name="cache", daemon=True)

    def __enter__(self) -> Self:
        """Start syncing."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop syncing, and release the cache."""
        self._ends.set()
        self._thread.join(_PATIENCE_S)
        self._state.close()

    @property
    def state(self) -> State:
        """The newest state. A state is consistent, and stays open while anybody holds it."""
        return self._state

    def prepare(self, how: Callable[[State], None]) -> None:
        """Call ``how`` on each new state before it is shown, for example to make the most common pages."""
        how(self._state)
        self._prepare = how

    def _keep_up(self) -> None:
        pause_s = self._every_s
        while not self._ends.wait(pause_s):
            began = time.monotonic()
            try:
                sync(self._database, self._cache)
                newest = self._cache.state()
                if newest is not None and newest.generation != self._state.generation:
                    state = State(self._cache, self._limit_s)
                    self._prepare(state)
                    # Readers of the old state hold it; the last one releases it.
                    self._state = state
                self._said = None
            except Exception as error:
                if first_line(error) != self._said:
                    of_ours = isinstance(error, DiodeError)
                    told = "the cache cannot be updated: %s"
                    log.warning(told, first_line(error), exc_info=None if of_ours else error)
                self._said = first_line(error)
            pause_s = max(self._every_s, _REST * (time.monotonic() - began))
