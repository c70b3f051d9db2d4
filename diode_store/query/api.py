"""The Python API to query the warehouse, ``diode_store.open``; see docs/python.md."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

from diode_store.errors import QueryError
from diode_store.query.analytics import connect, require_something_to_read
from diode_store.query.results import arrow_table, bound, run_query
from diode_store.settings import default_database_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import duckdb
    import pyarrow as pa


class Warehouse:
    """A read-only view of a warehouse as it was when opened; a context manager."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection: duckdb.DuckDBPyConnection | None = connection

    def query(self, sql: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> Result:
        """Return the answer to one SELECT over the views and tables of docs/views.md.

        Args:
            sql: in DuckDB's dialect, with a ``?`` or ``$name`` for each parameter.
            parameters: the values, a list or a dictionary.

        Raises:
            QueryError: it is not one SELECT or EXPLAIN, it would write or read elsewhere, or it has a mistake.
        """
        return Result(self, sql, parameters)

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Return another DuckDB connection to the same data, for what ``query`` does not offer.

        Raises:
            QueryError: the warehouse was closed.
        """
        if self._connection is None:
            raise QueryError("this warehouse is closed; open it again with diode_store.open()")
        return self._connection.cursor()

    def close(self) -> None:
        """Release the lake's files; later queries fail."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close it."""
        self.close()


class Result:
    """The answer to a query. Each way of reading it runs the query again, so keep what it returns."""

    def __init__(self, warehouse: Warehouse, sql: str, parameters: Sequence[Any] | dict[str, Any]) -> None:
        """Check the query without running it."""
        self._warehouse = warehouse
        self._asked = (sql, parameters)
        self.columns: tuple[str, ...] = tuple(bound(warehouse.cursor(), sql, parameters).columns)
        """The columns' names."""

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows as tuples of Python values, fetched on demand.

        Raises:
            QueryError: the query failed, or the warehouse was closed.
        """
        yield from run_query(self._warehouse.cursor(), *self._asked)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return all rows as tuples of Python values.

        Raises:
            QueryError: as in iterating.
        """
        return list(self)

    def arrow(self) -> pa.Table:
        """Return all rows as an Arrow table.

        Raises:
            QueryError: as in iterating.
        """
        return arrow_table(self._warehouse.cursor(), *self._asked)

    def pandas(self) -> Any:
        """Return all rows as a pandas ``DataFrame``.

        Raises:
            QueryError: as in iterating, or pandas is not installed.
        """
        if find_spec("pandas") is None:
            raise QueryError("pandas is not installed; `pip install pandas`, or use .arrow()")
        return self.arrow().to_pandas()


def open_warehouse(
    database: str | Path | None = None, *, lake: str | Path | None = None, sync: bool = True
) -> Warehouse:
    """Open a warehouse for queries; new measurements are copied to the lake first.

    Args:
        database: a URL, or the path of an SQLite file; None means the one that every command uses.
        lake: its lake, a folder or a URL; None means ``DIODE_LAKE``, else the folder beside the database.
        sync: False reads the lake without syncing.

    Raises:
        SchemaError: there is no warehouse, or one of another revision.
        DatabaseError: the warehouse cannot be read.
        LakeError: the lake cannot be written or read.
        DiodeError: there is no folder for temporary files.
    """
    url = default_database_url() if database is None else str(database)
    if not sync:
        require_something_to_read(url, lake)
    return Warehouse(connect(url, lake, sync=sync))
