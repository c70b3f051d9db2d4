"""Read a warehouse in PostgreSQL for the cache through ADBC, which returns columns, not rows.

Every snapshot is a read-only REPEATABLE READ transaction. It ends after its chunk is read, because an old snapshot
keeps the server from cleaning up.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from diode_store.cache.adbc import AdbcSource
from diode_store.cache.layout import REVISION, VERSION_TABLE
from diode_store.cache.source import BLOCK, explain
from diode_store.errors import DatabaseError, first_line
from diode_store.system.urls import redact
from diode_store.values.units import MIB
from diode_store.warehouse.drivers.postgres_errors import with_remedy

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEFAULTS = {"application_name": "torch-diode", "connect_timeout": "5"}
_BEGIN = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"
_BATCH_BYTES = 16 * MIB


@contextlib.contextmanager
def open_postgres(url: str) -> Iterator[PostgresSource]:
    """Open the warehouse at ``url`` for reading.

    Raises:
        SchemaError: there is no warehouse, or one of another revision.
        DatabaseError: the warehouse cannot be read, or ADBC is not installed.
    """
    try:
        from adbc_driver_manager import Error
        from adbc_driver_postgresql import StatementOptions, dbapi  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise DatabaseError(
            f"{redact(url)}: copying from PostgreSQL needs ADBC; run `pip install torch-diode[postgres]`"
        ) from error
    try:
        with contextlib.closing(dbapi.connect(_address(url))) as connection:
            options = {StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(_BATCH_BYTES)}
            source = PostgresSource(connection, options)
            if source.revision() != REVISION:
                explain(url)
            yield source
    except Error as error:
        raise DatabaseError(f"{redact(url)}: {_reason(url, error)}") from error


class PostgresSource(AdbcSource):
    """A warehouse in PostgreSQL."""

    file = None

    def revision(self) -> str | None:
        """Return the schema's revision; None if there is no warehouse."""
        with self.snapshot():
            [(found,)] = self.rows(f"SELECT to_regclass('{VERSION_TABLE}')::text")
            rows = list(self.rows(f"SELECT version_num FROM {VERSION_TABLE}")) if found else []
        return str(rows[0][0]) if rows else None

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """See ``diode_store.cache.source.WarehouseRows``."""
        with self._connection.cursor() as cursor:
            cursor.execute(_BEGIN)
        try:
            yield
        finally:
            self._connection.rollback()

    def blocks(self, table: str, key: str, first: int) -> dict[str, str]:
        """See ``WarehouseRows``; the server combines a 64-bit hash of every key, seeded with its id."""
        sql = (
            f"SELECT id / {BLOCK}, count(*), bit_xor(hashbyteaextended({key}, id)) FROM {table} "
            f"WHERE id >= {first * BLOCK} GROUP BY 1 ORDER BY 1"
        )
        return {str(block): f"{count}:{digest & 2**64 - 1:016x}" for block, count, digest in self.rows(sql)}


def _address(url: str) -> str:
    """Return ``url`` as names and values for libpq, whose errors would quote a URL that it cannot read."""
    import sqlalchemy as sa
    from psycopg.conninfo import make_conninfo
    from sqlalchemy.dialects.postgresql.psycopg import dialect

    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError) as error:
        raise DatabaseError(f"{redact(url)} is not a database URL") from error
    if parsed.get_backend_name() not in {"postgresql", "postgres"}:
        raise DatabaseError(
            f"{redact(url)}: {parsed.get_backend_name()} is not supported; use SQLite, PostgreSQL or a published table "
            "such as s3://fleet/timings"
        )
    _, named = dialect().create_connect_args(parsed)  # type: ignore[no-untyped-call]
    return make_conninfo(**{**_DEFAULTS, **named})


def _reason(url: str, error: Exception) -> str:
    """Return one line of ADBC's error, without any password."""
    import sqlalchemy as sa

    text = with_remedy(first_line(error).removeprefix("IO: ").removeprefix("[libpq] "))
    password = sa.make_url(url).password
    return text.replace(password, "***") if password else text
