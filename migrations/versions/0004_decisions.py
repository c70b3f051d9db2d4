"""Keep what the hook decided, so that later measurements can tell what it cost.

Revision: 0004, after 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
# What going back loses, table by table, for `diode db downgrade` to say.
LOSES = {"decisions": "what the hook decided, and which of its picks could not be compiled; nothing brings that back"}

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "decisions",
        sa.Column("id", ID, nullable=False),
        sa.Column("uid", sa.LargeBinary(length=16), nullable=False),
        sa.Column("hardware_id", ID, nullable=False),
        sa.Column("environment_id", ID, nullable=False),
        sa.Column("problem_id", ID, nullable=False),
        sa.Column("decided_by", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("model_sha256", sa.String()),
        sa.Column("candidates", sa.Integer(), nullable=False),
        sa.Column("config_id", ID, comment="the first of kept; NULL where nothing was picked"),
        sa.Column("predicted_us", sa.Float()),
        sa.Column("kept", sa.JSON(), nullable=False, comment="[[config id, predicted us], ...] fastest first"),
        sa.Column("predicted_vendor_us", sa.Float()),
        sa.Column("p_within_2pct", sa.Float()),
        sa.Column("seconds", sa.Float()),
        sa.Column("observed", sa.Boolean(), nullable=False),
        sa.Column("failure", sa.String(), comment="why the graph with it could not be compiled; NULL unless it failed"),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ingested_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("host", sa.String()),
        sa.Column("hook_version", sa.Integer()),
        sa.Column("extra", sa.JSON(none_as_null=True)),
        sa.ForeignKeyConstraint(["hardware_id"], ["hardware.id"], name=op.f("fk_decisions_hardware_id_hardware")),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environments.id"], name=op.f("fk_decisions_environment_id_environments")
        ),
        sa.ForeignKeyConstraint(["problem_id"], ["problems.id"], name=op.f("fk_decisions_problem_id_problems")),
        sa.ForeignKeyConstraint(["config_id"], ["configs.id"], name=op.f("fk_decisions_config_id_configs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decisions")),
        sa.UniqueConstraint("uid", name=op.f("uq_decisions_uid")),
        comment="What the hook decided, a row each time it did",
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_decisions_ingested_at"), "decisions", ["ingested_at"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_decisions_ingested_at"), table_name="decisions")
    op.drop_table("decisions")
