from __future__ import annotations

import multiprocessing
import re
import stat
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from diode_store.errors import DatabaseError, DiodeError, SchemaError
from diode_store.system.resources import migrations_dir
from diode_store.warehouse import migrate, schema
from diode_store.warehouse.database import make_engine
from lanes import long
from samples import sql

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WRITERS = 4
HEAD = schema.HEAD_REVISION
NEXT = f"{int(HEAD) + 1:04d}"


@pytest.fixture
def engine(database_path: Path) -> Iterator[sa.Engine]:
    """Return an engine on an empty, migrated warehouse."""
    made = make_engine(str(database_path))
    yield made
    made.dispose()


def upgraded(path: str) -> str:
    """Upgrade in a process of its own and return what came of it."""
    engine = make_engine(path)
    try:
        return str(migrate.upgrade(engine).after)
    except DiodeError as error:
        return f"error: {error}"
    finally:
        engine.dispose()


def test_head_revision_is_the_newest_migration() -> None:
    """The revision that code without Alembic compares with is the one that Alembic would upgrade to."""
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(migrations_dir()))
    config.set_main_option("path_separator", "os")
    assert ScriptDirectory.from_config(config).get_heads() == [schema.HEAD_REVISION]


def test_migrations_make_the_schema(engine: sa.Engine) -> None:
    """The migrations' sum is the schema that the code uses: nothing is left for autogenerate to add."""
    assert migrate.differences(engine) == []


def test_a_change_by_hand_is_a_difference(engine: sa.Engine, database_path: Path) -> None:
    """The comparison sees a column that should not be there."""
    sql(database_path, "ALTER TABLE configs ADD COLUMN mine TEXT")
    [difference] = migrate.differences(engine)
    assert "mine" in difference


def test_upgrade_creates_a_private_file(tmp_path: Path) -> None:
    """A warehouse that does not exist is made, readable by its owner only, and belongs to no other."""
    path = tmp_path / "new" / "warehouse.db"
    engine = make_engine(str(path))
    assert migrate.upgrade(engine) == migrate.Upgrade(None, HEAD)
    migrate.require_current(engine)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with engine.connect() as connection:
        [row] = connection.execute(sa.select(schema.warehouse)).all()
    engine.dispose()
    assert uuid.UUID(row.uuid).version == 4
    age = datetime.now(UTC) - row.created_at.replace(tzinfo=UTC)
    assert abs(age.total_seconds()) < 60


def test_upgrade_of_a_current_warehouse_changes_nothing(engine: sa.Engine, database_path: Path) -> None:
    """Running it again is harmless: same revision, same identity."""
    before = sql(database_path, "SELECT uuid FROM warehouse")
    assert migrate.upgrade(engine) == migrate.Upgrade(HEAD, HEAD)
    assert sql(database_path, "SELECT uuid FROM warehouse") == before


@long
def test_upgrades_at_once(tmp_path: Path) -> None:
    """Many processes that create one warehouse at the same time agree on one, and none fails."""
    path = tmp_path / "warehouse.db"
    with multiprocessing.get_context("spawn").Pool(WRITERS) as pool:
        assert pool.map(upgraded, [str(path)] * WRITERS) == [HEAD] * WRITERS
    assert sql(path, "SELECT count(*) FROM warehouse") == [(1,)]


def test_failed_upgrade_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration that fails half way leaves the database as it was: DDL is in the transaction too."""
    path = tmp_path / "warehouse.db"
    sql(path, "CREATE VIEW timings AS SELECT 1 AS mine")
    engine = make_engine(str(path))
    with pytest.raises(DatabaseError, match="timings already exists"):
        migrate.upgrade(engine)
    engine.dispose()
    assert sql(path, "SELECT name FROM sqlite_master") == [("timings",)]


def test_broken_references_stop_an_upgrade(engine: sa.Engine, database_path: Path) -> None:
    """Rows that refer to nothing are found after a migration, and the migration is undone."""
    sql(database_path, "INSERT INTO hardware_aliases (alias, hardware_id) VALUES ('h200', 17)")
    with pytest.raises(DatabaseError, match="1 rows of hardware_aliases refer to rows that are not there"):
        migrate.upgrade(engine)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1


def test_no_file_is_no_warehouse(tmp_path: Path) -> None:
    """Looking for a warehouse that is not there says how to make it, and does not leave an empty file."""
    engine = make_engine(str(tmp_path / "none.db"))
    assert migrate.current(engine) is None
    with pytest.raises(
        SchemaError, match=r"none.db holds no warehouse yet; create it with `diode db upgrade --database /"
    ):
        migrate.require_current(engine)
    assert not (tmp_path / "none.db").exists()


def test_empty_database_is_no_warehouse(tmp_path: Path) -> None:
    """A file that SQLite made and nobody has used is no warehouse yet, and can become one."""
    sql(tmp_path / "other.db", "VACUUM")
    engine = make_engine(str(tmp_path / "other.db"))
    with pytest.raises(SchemaError, match="holds no warehouse yet"):
        migrate.require_current(engine)
    assert migrate.upgrade(engine) == migrate.Upgrade(None, HEAD)
    engine.dispose()


def test_older_schema_is_refused_with_the_command(
    engine: sa.Engine, database_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warehouse of an older revision names both revisions and the command that mends it."""
    monkeypatch.setattr(schema, "HEAD_REVISION", "9998")
    expected = (
        f"{database_path} has schema revision {HEAD} and this torch-diode needs 9998; "
        f"run `diode db upgrade --database {database_path}`"
    )
    with pytest.raises(SchemaError, match=re.escape(expected)):
        migrate.require_current(engine)


@pytest.mark.parametrize("revision", ["0000", "1", "a1b2c3d4"])
def test_unknown_schema_is_refused(engine: sa.Engine, database_path: Path, revision: str) -> None:
    """A revision that no release had is not sent to an upgrade that cannot be."""
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE diode_schema_version SET version_num = ?", (revision,))
    for action in (migrate.require_current, migrate.upgrade):
        with pytest.raises(
            SchemaError, match=f"has schema revision {revision}, from which no migration leads; restore"
        ):
            action(engine)


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    """An SQLite file with tables but without our version is refused for reading and for upgrading."""
    path = tmp_path / "other.db"
    for name in "abcd":
        sql(path, f"CREATE TABLE {name} (x)")
    engine = make_engine(str(path))
    for action in (migrate.require_current, migrate.upgrade):
        with pytest.raises(SchemaError, match=r"another program's database \(it has 4 tables: a, b, c, ...\); name an"):
            action(engine)
    engine.dispose()
    assert [name for (name,) in sql(path, "SELECT name FROM sqlite_master")] == ["a", "b", "c", "d"]


def test_newer_schema_is_refused_with_the_command(engine: sa.Engine, database_path: Path) -> None:
    """A warehouse that a newer release made is left alone by reading and by upgrading."""
    sql(database_path, "UPDATE diode_schema_version SET version_num = '9999'")
    for action in (migrate.require_current, migrate.upgrade):
        with pytest.raises(SchemaError, match=rf"has schema revision 9999, newer than {HEAD}.*pip install --upgrade"):
            action(engine)
    assert sql(database_path, "SELECT version_num FROM diode_schema_version") == [("9999",)]


def test_new_revision_is_written_from_the_schema(
    engine: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table added to the schema becomes a migration that a developer can read."""
    import shutil

    folder = tmp_path / "migrations"
    shutil.copytree(migrations_dir(), folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(migrate, "migrations_dir", lambda: folder)
    tables = sa.MetaData(naming_convention=schema.metadata.naming_convention)
    for table in schema.metadata.tables.values():
        table.to_metadata(tables)
    sa.Table("clocks", tables, sa.Column("id", sa.Integer, primary_key=True))
    monkeypatch.setattr(schema, "metadata", tables)
    [path] = migrate.new_revision(engine, "add clocks")
    text = (folder / "versions" / f"{NEXT}_add_clocks.py").read_text()
    assert path == str(folder / "versions" / f"{NEXT}_add_clocks.py")
    assert f'revision = "{NEXT}"' in text.replace("'", '"')
    assert "create_table('clocks'" in text
    assert "drop_table('clocks'" in text
    assert text.count("create_table") == 1


def test_every_table_keeps_what_is_new(engine: sa.Engine) -> None:
    """Every table has the column that holds what a newer writer adds; a metric's values are small instead."""
    for table in set(schema.metadata.tables.values()) - {schema.metrics, schema.metric_values}:
        assert "extra" in table.columns, table.name


def test_timings_are_laid_out_for_size(database_path: Path) -> None:
    """The fact table has no row ids, or every row would be stored twice."""
    [(statement,)] = sql(database_path, "SELECT sql FROM sqlite_master WHERE name = 'timings'")
    assert str(statement).strip().endswith("WITHOUT ROWID")


def test_ids_of_deleted_measurements_are_not_reused(database_path: Path) -> None:
    """A cache that knows measurement 1 must not take another one for it."""
    for number in (1, 2):
        sql(
            database_path,
            "INSERT INTO measurements (uid, hardware_id, environment_id, problem_id, source, ingested_at, is_replay,"
            " choice_policy) VALUES (x'00', 1, 1, 1, 'import', '2026-11-20', 0, 'stock')",
        )
        assert sql(database_path, "SELECT id FROM measurements") == [(number,)]
        sql(database_path, "DELETE FROM measurements")
