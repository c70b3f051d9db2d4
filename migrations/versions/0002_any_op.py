"""Hold problems of any op, their dimensions, and metrics beside times.

Revision: 0002, after 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
_KNOWN_BEFORE = "op IN ('mm', 'addmm', 'bmm', 'baddbmm', 'int_mm', 'scaled_mm', 'mm_plus_mm')"
_NEW_PROBLEMS = f"SELECT id FROM problems WHERE NOT {_KNOWN_BEFORE}"  # noqa: S608 - of constants alone
_NEW_MEASUREMENTS = f"SELECT id FROM measurements WHERE problem_id IN ({_NEW_PROBLEMS})"  # noqa: S608 - of constants alone
# What going back loses, table by table, for `diode db downgrade` to say.
LOSES = {
    "metric_values": "metrics of kernels, such as registers and spills",
    "metrics": "names and units of these metrics",
    "problems": "problems of newer ops, with all their measurements and decisions",
}
# Rows of these tables that are lost, for tables that lose only some.
LOST_ROWS = {"problems": f"NOT {_KNOWN_BEFORE}"}
_DERIVED = {
    "b": sa.BigInteger(),
    "m": sa.BigInteger(),
    "n": sa.BigInteger(),
    "k": sa.BigInteger(),
    "layout": sa.String(length=2),
}


def upgrade() -> None:
    with op.batch_alter_table("problems") as problems:
        for name, kind in _DERIVED.items():
            problems.alter_column(name, existing_type=kind, nullable=True)
        dimensions = sa.Column("dimensions", sa.JSON(none_as_null=True), comment="{name: value, ...} sorted by name")
        problems.add_column(dimensions)
    op.create_table(
        "metrics",
        sa.Column("id", _id(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("unit", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_metrics")),
        sa.UniqueConstraint("name", "unit", name=op.f("uq_metrics_name_unit")),
        comment="Kinds of values that kernels were measured to have beside their times",
    )
    op.create_table(
        "metric_values",
        sa.Column("measurement_id", _id(), nullable=False),
        sa.Column("config_id", _id(), nullable=False),
        sa.Column("metric_id", _id(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("measurement_id", "config_id", "metric_id", name=op.f("pk_metric_values")),
        sqlite_with_rowid=False,
    )
    is_marked = sa.text("flags IS NOT NULL OR superseded_by IS NOT NULL")
    op.create_index(
        "ix_measurements_marked", "measurements", ["id"], sqlite_where=is_marked, postgresql_where=is_marked
    )


def downgrade() -> None:
    op.drop_index("ix_measurements_marked", table_name="measurements")
    op.drop_table("metric_values")
    op.drop_table("metrics")
    op.execute(f"DELETE FROM timings WHERE measurement_id IN ({_NEW_MEASUREMENTS})")  # noqa: S608 - of constants alone
    for table in ("measurements", "decisions"):
        op.execute(f"DELETE FROM {table} WHERE problem_id IN ({_NEW_PROBLEMS})")  # noqa: S608 - of constants alone
    op.execute(f"DELETE FROM problems WHERE NOT {_KNOWN_BEFORE}")  # noqa: S608 - of constants alone
    with op.batch_alter_table("problems") as problems:
        problems.drop_column("dimensions")
        for name, kind in _DERIVED.items():
            problems.alter_column(name, existing_type=kind, nullable=False)


def _id() -> sa.types.TypeEngine[int]:
    """Return an integer key; SQLite numbers rows automatically only for a column declared exactly INTEGER."""
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")
