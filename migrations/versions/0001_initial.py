"""Create the first schema.

Revision: 0001
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    _create_warehouse()
    _create_hardware()
    _create_environments()
    _create_problems()
    _create_configs()
    _create_measurements()
    _create_timings()
    _create_decisions()
    _create_tombstones()


def _id() -> sa.types.TypeEngine[int]:
    """Return an integer key; SQLite numbers rows automatically only for a column declared exactly INTEGER."""
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _extra() -> sa.Column[object]:
    return sa.Column("extra", sa.JSON(none_as_null=True))


def _create_warehouse() -> None:
    warehouse = op.create_table(
        "warehouse",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uuid", sa.String(length=36), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        _extra(),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_warehouse")),
        comment="One row: which warehouse this is, so that a cache never serves another one's data",
    )
    op.bulk_insert(warehouse, [{"id": 1, "uuid": str(uuid.uuid4()), "created_at": datetime.now(UTC)}])


def _create_hardware() -> None:
    op.create_table(
        "hardware",
        sa.Column("id", _id(), nullable=False),
        sa.Column("key", sa.LargeBinary(length=16), nullable=False),
        sa.Column("vendor", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("arch", sa.String(), nullable=False),
        sa.Column("multiprocessors", sa.Integer(), nullable=False),
        sa.Column("l2_bytes", sa.BigInteger()),
        sa.Column("shared_memory_per_block_bytes", sa.BigInteger()),
        sa.Column("memory_bytes", sa.BigInteger()),
        sa.Column("memory_bandwidth_bytes_per_s", sa.BigInteger()),
        sa.Column("max_clock_mhz", sa.Integer()),
        _extra(),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hardware")),
        sa.UniqueConstraint("key", name=op.f("uq_hardware_key")),
    )
    op.create_table(
        "hardware_aliases",
        sa.Column("alias", sa.String(), nullable=False, comment="lower case"),
        sa.Column("hardware_id", _id(), nullable=False),
        _extra(),
        sa.ForeignKeyConstraint(
            ["hardware_id"], ["hardware.id"], name=op.f("fk_hardware_aliases_hardware_id_hardware")
        ),
        sa.PrimaryKeyConstraint("alias", "hardware_id", name=op.f("pk_hardware_aliases")),
    )


def _create_environments() -> None:
    op.create_table(
        "environments",
        sa.Column("id", _id(), nullable=False),
        sa.Column("key", sa.LargeBinary(length=16), nullable=False),
        sa.Column("torch", sa.String(), nullable=False),
        sa.Column("triton", sa.String(), nullable=False),
        sa.Column("compute", sa.String(), nullable=False),
        sa.Column("driver", sa.String(), nullable=False),
        sa.Column("python", sa.String(), nullable=False),
        sa.Column("os", sa.String(), nullable=False),
        sa.Column("template_hashes", sa.JSON(none_as_null=True)),
        _extra(),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_environments")),
        sa.UniqueConstraint("key", name=op.f("uq_environments_key")),
    )


def _create_problems() -> None:
    op.create_table(
        "problems",
        sa.Column("id", _id(), nullable=False),
        sa.Column("key", sa.LargeBinary(length=16), nullable=False),
        sa.Column("op", sa.String(), nullable=False),
        sa.Column("dtype", sa.String(), nullable=False),
        sa.Column("b", sa.BigInteger(), nullable=False),
        sa.Column("m", sa.BigInteger(), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("k", sa.BigInteger(), nullable=False),
        sa.Column("layout", sa.String(length=2), nullable=False),
        sa.Column(
            "inputs", sa.JSON(), nullable=False, comment="[[dtype, [size, ...], [stride, ...]], ...] in elements"
        ),
        sa.Column("scalars", sa.JSON(), nullable=False, comment="[[name, value], ...] sorted by name"),
        _extra(),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_problems")),
        sa.UniqueConstraint("key", name=op.f("uq_problems_key")),
    )
    op.create_index(op.f("ix_problems_op_m_n_k"), "problems", ["op", "m", "n", "k"], unique=False)


def _create_configs() -> None:
    op.create_table(
        "configs",
        sa.Column("id", _id(), nullable=False),
        sa.Column("key", sa.LargeBinary(length=16), nullable=False),
        sa.Column("template", sa.String(), nullable=False),
        sa.Column("block_m", sa.Integer()),
        sa.Column("block_n", sa.Integer()),
        sa.Column("block_k", sa.Integer()),
        sa.Column("group_m", sa.Integer()),
        sa.Column("num_stages", sa.Integer()),
        sa.Column("num_warps", sa.Integer()),
        sa.Column("allow_tf32", sa.Boolean()),
        sa.Column("use_fast_accum", sa.Boolean()),
        sa.Column("acc_type", sa.String()),
        sa.Column("kwargs", sa.JSON(), nullable=False, comment="[[name, value], ...] sorted by name"),
        _extra(),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_configs")),
        sa.UniqueConstraint("key", name=op.f("uq_configs_key")),
    )


def _create_measurements() -> None:
    op.create_table(
        "measurements",
        sa.Column("id", _id(), nullable=False),
        sa.Column("uid", sa.LargeBinary(length=16), nullable=False),
        sa.Column("hardware_id", _id(), nullable=False),
        sa.Column("environment_id", _id(), nullable=False),
        sa.Column("problem_id", _id(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("measured_at", sa.DateTime(timezone=True)),
        sa.Column("ingested_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("host", sa.String()),
        sa.Column("device_uuid", sa.String()),
        sa.Column("sweep_id", sa.String()),
        sa.Column("collector_version", sa.String()),
        sa.Column("is_replay", sa.Boolean(), nullable=False),
        sa.Column("search_space", sa.String()),
        sa.Column("sample_seed", sa.BigInteger()),
        sa.Column("choice_policy", sa.String(), nullable=False),
        sa.Column("statistic", sa.String()),
        sa.Column("flush_l2", sa.Boolean()),
        sa.Column("launch_hidden", sa.Boolean()),
        sa.Column("regime", sa.String()),
        sa.Column("sm_clock_mhz", sa.Integer()),
        sa.Column("memory_clock_mhz", sa.Integer()),
        sa.Column("temperature_c", sa.Integer()),
        sa.Column("throttle_reasons", sa.String()),
        sa.Column("foreign_processes", sa.Integer()),
        sa.Column("flags", sa.String(), comment="comma-separated reasons not to trust it; NULL when there are none"),
        sa.Column("family", sa.String()),
        sa.Column("dataset", sa.String()),
        sa.Column("licence", sa.String()),
        sa.Column("superseded_by", sa.LargeBinary(length=16)),
        _extra(),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environments.id"], name=op.f("fk_measurements_environment_id_environments")
        ),
        sa.ForeignKeyConstraint(["hardware_id"], ["hardware.id"], name=op.f("fk_measurements_hardware_id_hardware")),
        sa.ForeignKeyConstraint(["problem_id"], ["problems.id"], name=op.f("fk_measurements_problem_id_problems")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_measurements")),
        sa.UniqueConstraint("uid", name=op.f("uq_measurements_uid")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        op.f("ix_measurements_hardware_id_problem_id"), "measurements", ["hardware_id", "problem_id"], unique=False
    )
    op.create_index(op.f("ix_measurements_ingested_at"), "measurements", ["ingested_at"], unique=False)


def _create_timings() -> None:
    op.create_table(
        "timings",
        sa.Column("measurement_id", _id(), nullable=False),
        sa.Column("config_id", _id(), nullable=False),
        sa.Column("runtime_us", sa.Float(), comment="NULL unless outcome is ok"),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("is_estimate", sa.Boolean(), nullable=False),
        sa.Column("repeats", sa.Integer()),
        sa.Column("p10_us", sa.Float()),
        sa.Column("p90_us", sa.Float()),
        _extra(),
        sa.PrimaryKeyConstraint("measurement_id", "config_id", name=op.f("pk_timings")),
        sqlite_with_rowid=False,
    )


def _create_decisions() -> None:
    op.create_table(
        "decisions",
        sa.Column("id", _id(), nullable=False),
        sa.Column("uid", sa.LargeBinary(length=16), nullable=False),
        sa.Column("hardware_id", _id(), nullable=False),
        sa.Column("environment_id", _id(), nullable=False),
        sa.Column("problem_id", _id(), nullable=False),
        sa.Column("decided_by", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("model_sha256", sa.String()),
        sa.Column("candidates", sa.Integer(), nullable=False),
        sa.Column("config_id", _id(), comment="the first of kept; NULL where nothing was picked"),
        sa.Column("predicted_us", sa.Float()),
        sa.Column("kept", sa.JSON(), nullable=False, comment="[[config id, predicted us], ...] fastest first"),
        sa.Column("predicted_vendor_us", sa.Float()),
        sa.Column("p_within_2pct", sa.Float()),
        sa.Column("similar_to", sa.String(), comment="device whose model decided in place of one for this device"),
        sa.Column("seconds", sa.Float()),
        sa.Column("observed", sa.Boolean(), nullable=False),
        sa.Column("failure", sa.String(), comment="why the graph with it could not be compiled; NULL unless it failed"),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ingested_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("host", sa.String()),
        sa.Column("hook_version", sa.Integer()),
        _extra(),
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


def _create_tombstones() -> None:
    op.create_table(
        "tombstones",
        sa.Column("uid", sa.LargeBinary(length=16), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reason", sa.String(), nullable=False, comment="what it was deleted by, such as prune --replays"),
        _extra(),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_tombstones")),
        comment="Measurements that were deleted on purpose: one that is delivered again is not stored again",
        sqlite_with_rowid=False,
    )
