"""The Python API to query the warehouse, ``diode_store.open``; see docs/python.md."""

from __future__ import annotations

from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self, cast

from diode_store.errors import QueryError
from diode_store.query.limited import CLOSED, open_session
from diode_store.query.limits import Limits
from diode_store.system.private_folder import SPILL, private_folder
from diode_store.system.settings import default_database_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import duckdb
    import pyarrow as pa

    from diode_store.query.limited import Session


class Warehouse:
    """A read-only view of the warehouse's state when opened; a context manager."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._undo = ExitStack()
        self._connection: duckdb.DuckDBPyConnection | None = None

    def query(self, sql: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> Result:
        """Return the answer to one SELECT over the views and tables of the warehouse.

        Args:
            sql: a query in DuckDB's dialect, with a ``?`` or ``$name`` for each parameter.
            parameters: the values, a list or a dictionary.

        Raises:
            QueryError: the query is not one SELECT or EXPLAIN, would write or read elsewhere, or has a mistake.
        """
        return Result(self._session, sql, parameters)

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Return a DuckDB connection of this process to the same data, for features that ``query`` lacks.

        The time limit does not apply to it.

        Raises:
            QueryError: the warehouse was closed.
        """
        if self._session.is_closed:
            raise QueryError(CLOSED)
        if self._connection is None:
            from diode_store.query.analytics import open_state

            folder = self._undo.enter_context(private_folder(SPILL))
            self._connection = open_state(self._session.reading, folder.path)
            self._undo.callback(self._connection.close)
        return self._connection.cursor()

    def close(self) -> None:
        """End every query and release the cache's files; later queries fail."""
        self._undo.close()
        self._session.close()

    def __enter__(self) -> Self:
        """Return the warehouse."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the warehouse."""
        self.close()


class Result:
    """The answer to a query. Each way of reading runs the query again, so keep the returned rows."""

    def __init__(self, session: Session, sql: str, parameters: Sequence[Any] | dict[str, Any]) -> None:
        """Check the query without running it."""
        self._session = session
        self._asked = (sql, parameters)
        [self.columns] = cast("list[tuple[str, ...]]", session.ask("columns", sql, parameters))
        """Names of the columns."""

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows as tuples of Python values, fetched on demand.

        Raises:
            QueryError: the query failed or reached a limit, or the warehouse was closed.
        """
        yield from self._session.rows(*self._asked)[1]

    def rows(self) -> list[tuple[Any, ...]]:
        """Return all rows as tuples of Python values.

        Raises:
            QueryError: as for iteration.
        """
        return list(self._session.rows(*self._asked, whole=True)[1])

    def arrow(self) -> pa.Table:
        """Return all rows as an Arrow table.

        Raises:
            QueryError: as for iteration.
        """
        return self._session.table(*self._asked)

    def pandas(self) -> Any:
        """Return all rows as a pandas ``DataFrame``.

        Raises:
            QueryError: as for iteration, or pandas is not installed.
        """
        if find_spec("pandas") is None:
            raise QueryError("pandas is not installed; `pip install pandas`, or use .arrow()")
        return self.arrow().to_pandas()


def open_warehouse(
    database: str | Path | None = None,
    *,
    cache: str | Path | None = None,
    sync: bool = True,
    time_limit_s: float = Limits.time_s,
    memory_limit: str = Limits.memory,
) -> Warehouse:
    """Open a warehouse for queries after copying new measurements to its cache.

    Args:
        database: a URL, or the path of an SQLite file; None means the default of every command.
        cache: its cache; None means ``DIODE_CACHE``, else the folder beside the database.
        sync: False reads the cache without syncing.
        time_limit_s: maximum seconds for one query.
        memory_limit: maximum memory of one query, or of an answer read whole: ``4GB``, or a share of the machine's.

    Raises:
        SchemaError: the database holds no warehouse, or one of another revision.
        DatabaseError: the warehouse cannot be read.
        CacheError: the cache cannot be written or read.
        DiodeError: no folder for temporary files can be made.
    """
    url = default_database_url() if database is None else str(database)
    return Warehouse(open_session(url, cache, sync=sync, limits=Limits(time_limit_s, memory_limit)))
