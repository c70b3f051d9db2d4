"""A made-up revision after the newest one, with a column, a table and rows to lose."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from diode_store.system.resources import migrations_dir
from diode_store.warehouse import migrate, schema

if TYPE_CHECKING:
    from pathlib import Path

NEXT = f"{int(schema.HEAD_REVISION) + 1:04d}"
LOSS = "which clocks there are"
MIGRATION = f"""
import sqlalchemy as sa
from alembic import op

revision = "{NEXT}"
down_revision = "{schema.HEAD_REVISION}"
LOSES = {{"clocks": "{LOSS}"}}


def upgrade():
    op.create_table("clocks", sa.Column("id", sa.Integer(), nullable=False), sa.PrimaryKeyConstraint("id"))
    op.execute("INSERT INTO clocks (id) VALUES (1), (2)")
    op.add_column("measurements", sa.Column("note", sa.String()))
    op.execute("UPDATE measurements SET note = host")


def downgrade():
    op.drop_column("measurements", "note")
    op.drop_table("clocks")
"""  # noqa: S608 - of constants alone


def folder_with_next(parent: Path) -> Path:
    """Return a copy of the migrations with one more."""
    folder = parent / "migrations"
    shutil.copytree(migrations_dir(), folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / f"{NEXT}_clocks.py").write_text(MIGRATION)
    return folder


def tables_with_next() -> sa.MetaData:
    """Return the tables of the made-up revision."""
    tables = sa.MetaData(naming_convention=schema.metadata.naming_convention)
    for table in schema.metadata.tables.values():
        table.to_metadata(tables)
    sa.Table("clocks", tables, sa.Column("id", sa.Integer, primary_key=True))
    tables.tables["measurements"].append_column(sa.Column("note", sa.String))
    return tables


def use(folder: Path, put: Any = setattr) -> None:
    """Make the revision in ``folder`` the newest; ``put`` is ``setattr`` or that of monkeypatch."""
    put(migrate, "migrations_dir", lambda: folder)
    put(schema, "metadata", tables_with_next())
    put(schema, "HEAD_REVISION", NEXT)
