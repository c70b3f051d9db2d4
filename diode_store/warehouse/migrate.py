"""Look up a database's schema revision, upgrade it to the newest, or downgrade it to an older one.

Only functions that change a schema import Alembic. The check that every reader and writer makes first is one small
query.
"""

from __future__ import annotations

from argparse import Namespace
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from diode_store.command_line.render import counted, printable
from diode_store.errors import DatabaseError, NoWarehouseError, SchemaError
from diode_store.system.resources import migrations_dir
from diode_store.system.settings import upgrade_command
from diode_store.warehouse import schema
from diode_store.warehouse.database import begin_write, create_database_file, database_file, describe, write_transaction
from diode_store.warehouse.dimensions import fill_problems
from diode_store.warehouse.drivers.sqlite_errors import is_there

if TYPE_CHECKING:
    from collections.abc import Iterator

    from alembic.config import Config
    from alembic.script import Script

_VERSIONS = sa.table(schema.VERSION_TABLE, sa.column("version_num", sa.String))
# Any number, the same for every upgrade: it names the lock that two upgrades of one PostgreSQL database share.
_ADVISORY_LOCK = 0x6469_6F64_65


@dataclass(frozen=True)
class Upgrade:
    """Revisions before and after an upgrade or a downgrade; equal if there was nothing to do."""

    before: str | None
    after: str


@dataclass(frozen=True)
class Loss:
    """Rows of one table that a downgrade drops."""

    table: str
    rows: int
    what: str
    """Meaning of the rows, and the consequence of losing them."""


def current(engine: sa.Engine) -> str | None:
    """Return the database's schema revision, or None without a warehouse or a file.

    Raises:
        DatabaseError: the database cannot be read.
    """
    if _has_no_file(engine):
        return None
    with engine.connect() as connection:
        return _revision(connection)


def require_current(engine: sa.Engine) -> None:
    """Make sure that the database has the schema this code reads and writes.

    Raises:
        SchemaError: the database has no schema, an older or a newer one; the message names the command to run.
        DatabaseError: the database cannot be read.
    """
    revision = current(engine)
    if revision == schema.HEAD_REVISION:
        return
    where = describe(engine)
    if revision is None:
        if not _has_no_file(engine):
            with engine.connect() as connection:
                _refuse_foreign(connection)
        raise NoWarehouseError(f"{where} holds no warehouse yet; create it with {upgrade_command(where)}")
    _refuse_unknown(where, revision)
    raise SchemaError(
        f"{where} has schema revision {revision} and this torch-diode needs {schema.HEAD_REVISION}; "
        f"run {upgrade_command(where)}"
    )


def upgrade(engine: sa.Engine) -> Upgrade:
    """Bring the database to the newest revision, in one transaction; create it if it does not exist.

    Problems of ops that were not known when they were stored, and are now, get their sizes.

    Raises:
        SchemaError: a newer torch-diode or another program made the database.
        DatabaseError: the database cannot be created or written, or its rows would break a reference.
    """
    from alembic import command
    from alembic.util import CommandError

    create_database_file(engine)
    with _migration(engine) as connection:
        before = _revision(connection)
        if before is None:
            _refuse_foreign(connection)
        else:
            _refuse_unknown(describe(engine), before)
        try:
            command.upgrade(_config(connection), "head")
        except CommandError as error:
            raise SchemaError(f"{describe(engine)} cannot be upgraded from revision {before}: {error}") from error
        after = _revision(connection)
        if after is None:
            raise SchemaError(f"{describe(engine)}: the migrations left no revision; reinstall torch-diode")
        fill_problems(connection)
    return Upgrade(before, after)


def losses(engine: sa.Engine, revision: str) -> list[Loss]:
    """Return the losses of going back to ``revision``, the newest revision's first.

    Raises:
        SchemaError: the database holds no warehouse, or ``revision`` is not an older one.
        DatabaseError: the database cannot be read.
    """
    _require_file(engine)
    with engine.connect() as connection:
        scripts = _scripts_back(connection, revision)
        return [
            Loss(name, _rows(connection, name, getattr(script.module, "LOST_ROWS", {}).get(name)), what)
            for script in scripts
            for name, what in script.module.LOSES.items()
        ]


def downgrade(engine: sa.Engine, revision: str) -> Upgrade:
    """Bring the database back to ``revision``, in one transaction, for an older torch-diode to use.

    Raises:
        SchemaError: the database holds no warehouse, or ``revision`` is not an older one.
        DatabaseError: the database cannot be written, or its rows would break a reference.
    """
    from alembic import command

    _require_file(engine)
    with _migration(engine) as connection:
        before = _scripts_back(connection, revision)[0].revision
        command.downgrade(_config(connection), revision)
    return Upgrade(before, revision)


def differences(engine: sa.Engine) -> list[str]:
    """Return the differences between the database's tables and ``diode_store.warehouse.schema``.

    Raises:
        DatabaseError: the database cannot be read.
    """
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with engine.connect() as connection:
        options = {"version_table": schema.VERSION_TABLE, "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        return [str(difference) for difference in compare_metadata(context, schema.metadata)]


def new_revision(engine: sa.Engine, message: str) -> list[str]:
    """Write a migration from the database's tables to ``diode_store.warehouse.schema`` and return its path.

    For developers: the migration goes to the checkout, and a person has to read and test it.
    """
    from alembic import command

    require_current(engine)
    number = f"{int(schema.HEAD_REVISION) + 1:04d}"
    with _migration(engine) as connection:
        written = command.revision(_config(connection), message, autogenerate=True, rev_id=number)
    scripts = written if isinstance(written, list) else [written]
    return [script.path for script in scripts if script is not None]


def _scripts_back(connection: sa.Connection, revision: str) -> list[Script]:
    """Return the migrations to undo on the way back to ``revision``, the newest first; at least one."""
    from alembic.script import ScriptDirectory

    present, where = _revision(connection), describe(connection.engine)
    if present is None:
        raise SchemaError(f"{where} holds no warehouse; name another database")
    _refuse_unknown(where, present)
    scripts = list(ScriptDirectory.from_config(_config(connection)).walk_revisions(head=present))
    older = [script.revision for script in scripts[1:]]
    if not older:
        raise SchemaError(f"{where} has schema revision {present}; there is none before it")
    if revision not in older:
        raise SchemaError(
            f"{where} has schema revision {present} and cannot go back to {printable(revision)}; "
            f"name {' or '.join(sorted(older))}"
        )
    return scripts[: older.index(revision) + 1]


def _rows(connection: sa.Connection, table: str, condition: str | None) -> int:
    query = sa.select(sa.func.count()).select_from(sa.table(table))
    return connection.scalar(query if condition is None else query.where(sa.text(condition))) or 0


def _config(connection: sa.Connection) -> Config:
    from alembic.config import Config

    config = Config(cmd_opts=Namespace(quiet=True))
    config.set_main_option("script_location", str(migrations_dir()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes.update(connection=connection, target_metadata=schema.metadata, version_table=schema.VERSION_TABLE)
    return config


@contextmanager
def _migration(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open the transaction that a migration runs in, alone on its database."""
    if engine.dialect.name != "sqlite":
        with write_transaction(engine) as connection:
            # Wait however long another migration takes: then nothing is left to do.
            connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
            connection.exec_driver_sql("SET LOCAL lock_timeout TO DEFAULT")
            yield connection
        return
    # Batch mode copies a table and drops the old one. With foreign keys on, that drop deletes the rows of other
    # tables that refer to it. The setting cannot change inside a transaction.
    with engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        driver.execute("PRAGMA foreign_keys = OFF")
        try:
            with begin_write(connection):
                yield connection
                _check_foreign_keys(connection)
        finally:
            driver.execute("PRAGMA foreign_keys = ON")


def _check_foreign_keys(connection: sa.Connection) -> None:
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
    if broken:
        tables = ", ".join(sorted({str(row[0]) for row in broken}))
        raise DatabaseError(
            f"{describe(connection.engine)}: {len(broken)} rows of {tables} refer to rows that are not there; "
            "nothing was changed; restore the database from a backup"
        )


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(schema.VERSION_TABLE):
        return None
    revision: Any = connection.execute(sa.select(_VERSIONS.c.version_num)).scalar()
    return None if revision is None else str(revision)


def _has_no_file(engine: sa.Engine) -> bool:
    path = database_file(engine)
    return path is not None and not is_there(path)


def _require_file(engine: sa.Engine) -> None:
    if _has_no_file(engine):
        raise SchemaError(f"{describe(engine)} holds no warehouse; name another database")


def _refuse_foreign(connection: sa.Connection) -> None:
    """Raise SchemaError if an SQLite file without our version table has tables; a server's database may be shared."""
    if connection.dialect.name != "sqlite":
        return
    tables = [name for name in sa.inspect(connection).get_table_names() if name != schema.VERSION_TABLE]
    if tables:
        some = ", ".join(printable(name) for name in tables[:3])
        raise SchemaError(
            f"{describe(connection.engine)} is another program's database (it has {counted(len(tables), 'table')}: "
            f"{some}{', ...' if len(tables) > 3 else ''}); name another file"  # noqa: PLR2004 - as many as shown
        )


def _refuse_unknown(where: str, revision: str) -> None:
    """Raise SchemaError unless a migration leads from ``revision``; they are numbered from 0001 in order."""
    newest = schema.HEAD_REVISION
    numbered = len(revision) == len(newest) and revision.isdecimal()
    if numbered and revision > newest:
        raise SchemaError(
            f"{where} has schema revision {revision}, newer than {newest}, the newest this torch-diode "
            "knows; upgrade it with `pip install --upgrade torch-diode`"
        )
    if not numbered or int(revision) < 1:
        raise SchemaError(
            f"{where} has schema revision {printable(revision)}, from which no migration leads; restore it from a "
            "backup, or name another file"
        )
