"""Remember which measurements were deleted, and find old ones quickly.

Revision: 0002, after 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
# What going back loses, table by table, for `diode db downgrade` to say.
LOSES = {"tombstones": "which measurements were deleted; one that is delivered again will be stored again"}


def upgrade() -> None:
    op.create_table(
        "tombstones",
        sa.Column("uid", sa.LargeBinary(length=16), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reason", sa.String(), nullable=False, comment="what it was deleted by, such as prune --replays"),
        sa.Column("extra", sa.JSON(none_as_null=True)),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_tombstones")),
        comment="Measurements that were deleted on purpose: one that is delivered again is not stored again",
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_measurements_ingested_at"), "measurements", ["ingested_at"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_measurements_ingested_at"), table_name="measurements")
    op.drop_table("tombstones")
