"""The lake as it is now, for many readers at once: kept up to date behind them, answers kept until it changes."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from diode_explorer.pages.questions import Answer
from diode_store.errors import DiodeError, QueryError, first_line
from diode_store.lake.lake import lake_of
from diode_store.lake.sync import sync
from diode_store.query.analytics import open_lake
from diode_store.query.results import arrow_table, run_query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import duckdb
    import pyarrow as pa

    from diode_explorer.pages.questions import Question
    from diode_store.lake.lake import Lake

log = logging.getLogger(__name__)

MOST_ROWS = 2_000
"""Of an answer that a page shows; what is downloaded has as many as ``MOST_DOWNLOADED``."""
MOST_DOWNLOADED = 1_000_000
_MEMORY = "25%"
_MOST_KEPT = 512
_WORKED_OUT = ("best_times", "regret")
"""Views that pages ask for again and again: each is worked out once for each state of the lake."""
_REST = 4
"""How many times as long as a state took to make, nothing new is looked for: of 10 M timings one takes 2 s."""
_PATIENCE_S = 2.0
"""With a sync under way at the end, which may wait for another process's; it may be cut off anywhere."""


class SlowQueryError(QueryError):
    """A query took longer than it may."""


class State:
    """One state of the lake: its answers are kept, so that each is worked out once."""

    def __init__(self, lake: Lake, limit_s: float, threads: int | None = None) -> None:
        """Open the lake as it is, and work out what every page asks for.

        Args:
            lake: what to read.
            limit_s: how long a query may take.
            threads: how many work on a query; None for as many as there are processors. With one, sums come out the
                same to the last bit.
        """
        # Read before: should another process sync in between, this one looks again, and does not miss it.
        manifest = lake.manifest()
        self.generation = manifest.generation if manifest else 0
        """What is new makes a higher one."""
        self.connection = open_lake(lake, memory=_MEMORY, threads=threads)
        for view in _WORKED_OUT:
            self.connection.execute(
                f"CREATE TABLE worked_out AS FROM {view}; DROP VIEW {view}; ALTER TABLE worked_out RENAME TO {view}"
            )
        self._limit_s = limit_s
        self._kept: dict[tuple[Any, ...], Future[Answer]] = {}
        self._lock = threading.Lock()

    def ask(self, question: Question, rows: int = MOST_ROWS) -> Answer:
        """Return the answer, kept from before if it was asked already.

        Args:
            question: what is asked.
            rows: how many at most.

        Raises:
            SlowQueryError: it takes too long.
            QueryError: it is not one SELECT, or fails.
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
        """Return the answer as an Arrow table, of ``MOST_DOWNLOADED`` rows at most.

        Raises:
            SlowQueryError: it takes too long.
            QueryError: it is not one SELECT, or fails.
        """
        with self._limited() as cursor:
            return arrow_table(cursor, f"SELECT * FROM ({question.sql}) LIMIT {MOST_DOWNLOADED}", question.bound)  # noqa: S608 - our own limit

    def _asked(self, question: Question, rows: int) -> Answer:
        with self._limited() as cursor:
            result = run_query(cursor, question.sql, question.bound)
            found = list(itertools.islice(result, rows + 1))
        return Answer(result.columns, tuple(found[:rows]), is_cut=len(found) > rows)

    @contextmanager
    def _limited(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a cursor whose queries are stopped at the limit."""
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
        self._state = State(self._lake, limit_s)
        self._prepare: Callable[[State], None] = lambda _state: None
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
    def state(self) -> State:
        """The newest state; what is made from it is consistent, and it stays while somebody holds it."""
        return self._state

    def prepare(self, how: Callable[[State], None]) -> None:
        """Have something done with each new state before it is shown, such as making the pages that most ask for."""
        how(self._state)
        self._prepare = how

    def _keep_up(self) -> None:
        pause_s = self._every_s
        while not self._ends.wait(pause_s):
            began = time.monotonic()
            try:
                sync(self._database, self._lake)
                manifest = self._lake.manifest()
                if manifest is not None and manifest.generation != self._state.generation:
                    state = State(self._lake, self._limit_s)
                    self._prepare(state)
                    # Who still reads from the state before holds it; it is released with the last of them.
                    self._state = state
                self._said = None
            except Exception as error:
                if first_line(error) != self._said:
                    of_ours = isinstance(error, DiodeError)
                    told = "the lake is not brought up to date: %s"
                    log.warning(told, first_line(error), exc_info=None if of_ours else error)
                self._said = first_line(error)
            pause_s = max(self._every_s, _REST * (time.monotonic() - began))
