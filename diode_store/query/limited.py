"""Run queries with limits, in a process that can be ended whatever DuckDB does.

In some functions, such as ``range`` as a list, DuckDB obeys neither an interrupt nor its memory limit.
"""

from __future__ import annotations

import subprocess
import weakref
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

from diode_store.cache.cache import cache_of
from diode_store.cache.opening import require_something_to_read
from diode_store.cache.sync import SyncReport, sync_to_read
from diode_store.errors import DamagedCacheError, DiodeError, QueryError, mark_damaged
from diode_store.processes.child import Child, ChildError, ChildLateError, ChildMemoryError
from diode_store.query.limits import DEFAULT, Limits
from diode_store.system.private_folder import SPILL, private_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from diode_store.cache.cache import Cache, Reading

CLOSED = "this warehouse is closed; open it again with diode_store.open()"


def open_session(
    store_url: str,
    cache_dir: Path | str | None = None,
    *,
    sync: bool = True,
    limits: Limits = DEFAULT,
    on_sync: Callable[[SyncReport], None] = lambda _report: None,
    on_progress: Callable[[float], None] = lambda _timings: None,
) -> Session:
    """Return a session over the cache of the warehouse at ``store_url``.

    Args:
        store_url: URL of the warehouse, or path of an SQLite file.
        cache_dir: folder of the cache; None means ``DIODE_CACHE``, else the folder beside the database.
        sync: bring the cache up to date first. If False, there must be a cache or a warehouse.
        limits: limits of each query.
        on_sync: called with the report of the sync.
        on_progress: called with the number of timings just copied.

    Raises:
        SchemaError: ``store_url`` has no warehouse, or one of another revision.
        DatabaseError: the warehouse cannot be read.
        CacheError: there is no cache and none can be written, or it cannot be read.
        DiodeError: no folder for temporary files can be made.
    """
    if not sync:
        require_something_to_read(store_url, cache_dir)
    cache = cache_of(store_url, cache_dir)
    worker = _Worker(limits)  # it imports DuckDB while this process syncs
    try:
        if sync:
            on_sync(sync_to_read(store_url, cache, on_progress=on_progress))
        return Session(cache, limits, worker)
    except BaseException:
        worker.close()
        raise


class Session:
    """One state of a cache, to query; a context manager."""

    def __init__(self, cache: Cache, limits: Limits, first: _Worker | None = None) -> None:
        """Hold the current state of the cache.

        Args:
            cache: the cache to read.
            limits: limits of each query.
            first: a process that was started earlier to save time.

        Raises:
            CacheError: the cache is damaged.
        """
        self.cache, self._limits = cache, limits
        with ExitStack() as undo:
            self.reading, release = cache.hold()
            undo.callback(release)
            self._workers: list[_Worker] = []
            self._idle: list[_Worker] = []
            if first is not None:
                self._idle.append(self._take(first))
            undo.callback(_close_all, self._workers)
            self._close = weakref.finalize(self, undo.pop_all().close)

    def ask(self, kind: str, *arguments: Any, **options: Any) -> Iterator[Any]:
        """Return the parts of an answer as they are computed. The first part is there when this returns.

        Args:
            kind: a key of ``worker.ANSWERS``.
            arguments: arguments of that answer.
            options: keyword arguments of that answer.

        Raises:
            QueryError: the query is refused, fails or reaches a limit; also raised while the parts are read.
        """
        parts = self._asked((kind, arguments, options))
        return chain([next(parts)], parts)

    def rows(
        self, sql: str, parameters: Any = None, *, whole: bool = False
    ) -> tuple[Sequence[str], Iterator[tuple[Any, ...]]]:
        """Return the names of the columns, and the rows on demand.

        Args:
            sql: the query.
            parameters: values of its parameters.
            whole: the caller keeps all rows, so together they must fit the memory limit.

        Raises:
            QueryError: as for ``ask``.
        """
        parts = self.ask("rows", sql, parameters, whole=whole)
        return next(parts), chain.from_iterable(parts)

    def table(self, sql: str, parameters: Any) -> pa.Table:
        """Return all rows as an Arrow table; 128-bit sums that fit into 64 bits become integers.

        Raises:
            QueryError: as for ``ask``.
        """
        import pyarrow as pa

        from diode_store.query.results import narrowed

        parts = self.ask("table", sql, parameters, whole=True)
        schema, wide = next(parts)
        return narrowed(pa.Table.from_batches(read_batches(schema, parts), schema), wide)

    def batches(self, sql: str, rows_a_batch: int) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return a schema, and Arrow batches for Parquet.

        Raises:
            QueryError: as for ``ask``.
        """
        parts = self.ask("plain", sql, rows_a_batch)
        schema = next(parts)
        return schema, read_batches(schema, parts)

    def csv_lines(self, sql: str) -> Iterator[str]:
        """Return the lines of a CSV file, the header first.

        Raises:
            QueryError: as for ``ask``.
        """
        return chain.from_iterable(self.ask("csv", sql))

    def close(self) -> None:
        """End every query and release the cache's files."""
        self._close()

    def __enter__(self) -> Self:
        """Return the session."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the session."""
        self.close()

    @property
    def is_empty(self) -> bool:
        """True if this state of the cache holds no measurement."""
        return not self.reading.state.measurements

    @property
    def is_closed(self) -> bool:
        """True if the session is closed."""
        return not self._close.alive

    def _asked(self, request: tuple[str, tuple[Any, ...], dict[str, Any]]) -> Iterator[Any]:
        if self.is_closed:
            raise QueryError(CLOSED)
        worker = self._an_idle_one() or self._take(_Worker(self._limits))
        try:
            yield from worker.answers(request)
        except DamagedCacheError as error:
            mark_damaged(error.reason)
            raise
        except QueryError:
            if self.is_closed:  # closing ends the process
                raise QueryError(CLOSED) from None
            raise
        finally:
            # If the reader left the answer early, nobody needs its process any more.
            if worker.is_idle and not self.is_closed:
                self._idle.append(worker)
            else:
                worker.close()
                if worker in self._workers:
                    self._workers.remove(worker)

    def _an_idle_one(self) -> _Worker | None:
        """Return an idle worker, if there is one whose process is alive; the system may have killed it meanwhile."""
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive:
                return worker
            worker.close()
            self._workers.remove(worker)
        return None

    def _take(self, worker: _Worker) -> _Worker:
        worker.open(self.reading)
        self._workers.append(worker)
        return worker


class _Worker:
    """A process that answers one query after another."""

    def __init__(self, limits: Limits) -> None:
        """Start the process.

        Raises:
            QueryError: the system refuses a process.
        """
        self._limits = limits
        with ExitStack() as undo:
            self._folder: Path = undo.enter_context(private_folder(SPILL)).path
            try:
                self._child = undo.enter_context(Child("diode_store.query.worker:serve", output=subprocess.DEVNULL))
            except ChildError as error:
                raise QueryError(f"the process that runs the query {error}; try again") from None
            self._undo = undo.pop_all()
        self.is_idle = True

    def open(self, reading: Reading) -> None:
        """Tell the process which state of the cache to read."""
        self._child.send((reading, self._folder, self._limits.memory))

    def answers(self, request: object) -> Iterator[Any]:
        """Yield the parts of the answer to a request.

        Raises:
            QueryError: the query is refused, fails or reaches a limit.
        """
        limits = self._limits
        self.is_idle = False
        try:
            yield from self._child.ask(request, limits.time_s)
            self.is_idle = True
        except ChildLateError as error:
            raise QueryError(f"the query {error} (--time-limit, time_limit_s=); narrow it, or allow more") from None
        except ChildMemoryError:
            raise QueryError(
                f"the query needs more memory than its limit of {limits.memory} (--memory-limit, memory_limit=);"
                " narrow it, or allow more"
            ) from None
        except ChildError as error:
            raise QueryError(
                f"the process that runs the query {error}; narrow the query, or give it"
                f" another memory limit than {limits.memory} (--memory-limit, memory_limit=)"
            ) from None
        except DiodeError:
            self.is_idle = True
            raise

    @property
    def is_alive(self) -> bool:
        """True while the process runs."""
        return self._child.exit_status is None

    def close(self) -> None:
        """End the process, whatever it does."""
        self._undo.close()


def read_batches(schema: pa.Schema, parts: Iterator[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield the Arrow batches in the parts of an answer."""
    import pyarrow as pa

    return (pa.ipc.read_record_batch(pa.py_buffer(part), schema) for part in parts)


def _close_all(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.close()
