"""The tables of the warehouse, as SQLAlchemy Core; no queries, no engine.

Dimension tables (hardware, environments, problems, configs) have an integer primary key and a unique 16-byte content
key. ``timings`` is the fact table. Its key is (measurement, config). It has no foreign keys, which would slow down
ingest on SQLite and, far more, on PostgreSQL. ``metric_values`` has values beside the times, and none either. Every
other table has an ``extra`` JSON column for fields of a newer writer.

A change here needs a migration: see docs/architecture.md.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    UniqueConstraint,
    text,
)

HEAD_REVISION = "0002"
"""The Alembic revision this code reads and writes; a test compares it with the newest migration."""
VERSION_TABLE = "diode_schema_version"
"""Our own name, so that a warehouse can share a database with another Alembic project."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite numbers rows automatically only for a column declared exactly INTEGER.
_ID = BigInteger().with_variant(Integer, "sqlite")


# The condition of the query ``_MARKED`` in diode_store/cache/source.py, word for word.
_IS_MARKED = text("flags IS NOT NULL OR superseded_by IS NOT NULL")


def _extra() -> Column[object]:
    return Column("extra", JSON(none_as_null=True))


warehouse = Table(
    "warehouse",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("uuid", String(36), nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
    _extra(),
    comment="One row: which warehouse this is, so that a cache never serves another one's data",
)

hardware = Table(
    "hardware",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("key", LargeBinary(16), nullable=False, unique=True),
    Column("vendor", String, nullable=False),
    Column("name", String, nullable=False),
    Column("arch", String, nullable=False),
    Column("multiprocessors", Integer, nullable=False),
    Column("l2_bytes", BigInteger),
    Column("shared_memory_per_block_bytes", BigInteger),
    Column("memory_bytes", BigInteger),
    Column("memory_bandwidth_bytes_per_s", BigInteger),
    Column("max_clock_mhz", Integer),
    _extra(),
)

hardware_aliases = Table(
    "hardware_aliases",
    metadata,
    Column("alias", String, primary_key=True, comment="lower case"),
    Column("hardware_id", _ID, ForeignKey("hardware.id"), primary_key=True),
    _extra(),
)

environments = Table(
    "environments",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("key", LargeBinary(16), nullable=False, unique=True),
    Column("torch", String, nullable=False),
    Column("triton", String, nullable=False),
    Column("compute", String, nullable=False),
    Column("driver", String, nullable=False),
    Column("python", String, nullable=False),
    Column("os", String, nullable=False),
    Column("template_hashes", JSON(none_as_null=True)),
    _extra(),
)

problems = Table(
    "problems",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("key", LargeBinary(16), nullable=False, unique=True),
    Column("op", String, nullable=False),
    Column("dtype", String, nullable=False),
    # NULL for an op that the writer did not know, like the next four.
    Column("b", BigInteger),
    Column("m", BigInteger),
    Column("n", BigInteger),
    Column("k", BigInteger),
    Column("layout", String(2)),
    Column("dimensions", JSON(none_as_null=True), comment="{name: value, ...} sorted by name"),
    Column("inputs", JSON, nullable=False, comment="[[dtype, [size, ...], [stride, ...]], ...] in elements"),
    Column("scalars", JSON, nullable=False, comment="[[name, value], ...] sorted by name"),
    _extra(),
    Index(None, "op", "m", "n", "k"),
)

configs = Table(
    "configs",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("key", LargeBinary(16), nullable=False, unique=True),
    Column("template", String, nullable=False),
    Column("block_m", Integer),
    Column("block_n", Integer),
    Column("block_k", Integer),
    Column("group_m", Integer),
    Column("num_stages", Integer),
    Column("num_warps", Integer),
    Column("allow_tf32", Boolean),
    Column("use_fast_accum", Boolean),
    Column("acc_type", String),
    Column("kwargs", JSON, nullable=False, comment="[[name, value], ...] sorted by name"),
    _extra(),
)

measurements = Table(
    "measurements",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("uid", LargeBinary(16), nullable=False),
    Column("hardware_id", _ID, ForeignKey("hardware.id"), nullable=False),
    Column("environment_id", _ID, ForeignKey("environments.id"), nullable=False),
    Column("problem_id", _ID, ForeignKey("problems.id"), nullable=False),
    Column("source", String, nullable=False),
    Column("measured_at", DateTime(timezone=True)),
    Column("ingested_at", DateTime(timezone=True), nullable=False),
    Column("host", String),
    Column("device_uuid", String),
    Column("sweep_id", String),
    Column("collector_version", String),
    Column("is_replay", Boolean, nullable=False),
    Column("search_space", String),
    Column("sample_seed", BigInteger),
    Column("choice_policy", String, nullable=False),
    Column("statistic", String),
    Column("flush_l2", Boolean),
    Column("launch_hidden", Boolean),
    Column("regime", String),
    Column("sm_clock_mhz", Integer),
    Column("memory_clock_mhz", Integer),
    Column("temperature_c", Integer),
    Column("throttle_reasons", String),
    Column("foreign_processes", Integer),
    Column("flags", String, comment="comma-separated reasons not to trust it; NULL when there are none"),
    Column("family", String),
    Column("dataset", String),
    Column("licence", String),
    Column("superseded_by", LargeBinary(16)),
    _extra(),
    UniqueConstraint("uid"),
    Index(None, "hardware_id", "problem_id"),
    # For a nightly prune, which finds old rows without reading the whole table.
    Index(None, "ingested_at"),
    # For the cache, which reads the marked measurements at every sync.
    Index("ix_measurements_marked", "id", sqlite_where=_IS_MARKED, postgresql_where=_IS_MARKED),
    # Never reuse the id of a deleted measurement: by their ids the cache knows the measurements that it has.
    sqlite_autoincrement=True,
)

timings = Table(
    "timings",
    metadata,
    Column("measurement_id", _ID, nullable=False),
    Column("config_id", _ID, nullable=False),
    Column("runtime_us", Float, comment="NULL unless outcome is ok"),
    Column("outcome", String, nullable=False),
    Column("is_estimate", Boolean, nullable=False),
    Column("repeats", Integer),
    Column("p10_us", Float),
    Column("p90_us", Float),
    _extra(),
    PrimaryKeyConstraint("measurement_id", "config_id"),
    sqlite_with_rowid=False,
)

metrics = Table(
    "metrics",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("name", String, nullable=False),
    Column("unit", String, nullable=False),
    UniqueConstraint("name", "unit"),
    comment="Kinds of values that kernels were measured to have beside their times",
)

metric_values = Table(
    "metric_values",
    metadata,
    Column("measurement_id", _ID, nullable=False),
    Column("config_id", _ID, nullable=False),
    Column("metric_id", _ID, nullable=False),
    Column("value", Float, nullable=False),
    PrimaryKeyConstraint("measurement_id", "config_id", "metric_id"),
    sqlite_with_rowid=False,
)

decisions = Table(
    "decisions",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("uid", LargeBinary(16), nullable=False),
    Column("hardware_id", _ID, ForeignKey("hardware.id"), nullable=False),
    Column("environment_id", _ID, ForeignKey("environments.id"), nullable=False),
    Column("problem_id", _ID, ForeignKey("problems.id"), nullable=False),
    Column("decided_by", String, nullable=False),
    Column("reason", String, nullable=False),
    Column("mode", String, nullable=False),
    Column("policy", String, nullable=False),
    Column("model_sha256", String),
    Column("candidates", Integer, nullable=False),
    Column("config_id", _ID, ForeignKey("configs.id"), comment="the first of kept; NULL where nothing was picked"),
    Column("predicted_us", Float),
    Column("kept", JSON, nullable=False, comment="[[config id, predicted us], ...] fastest first"),
    Column("predicted_vendor_us", Float),
    Column("p_within_2pct", Float),
    Column("similar_to", String, comment="device whose model decided in place of one for this device"),
    Column("seconds", Float),
    Column("observed", Boolean, nullable=False),
    Column("failure", String, comment="why the graph with it could not be compiled; NULL unless it failed"),
    Column("decided_at", DateTime(timezone=True), nullable=False),
    Column("ingested_at", DateTime(timezone=True), nullable=False),
    Column("host", String),
    Column("hook_version", Integer),
    _extra(),
    UniqueConstraint("uid"),
    # For a nightly prune, as above.
    Index(None, "ingested_at"),
    comment="What the hook decided, a row each time it did",
    sqlite_autoincrement=True,
)

tombstones = Table(
    "tombstones",
    metadata,
    Column("uid", LargeBinary(16), primary_key=True),
    Column("deleted_at", DateTime(timezone=True), nullable=False),
    Column("reason", String, nullable=False, comment="what it was deleted by, such as prune --replays"),
    _extra(),
    comment="Measurements that were deleted on purpose: one that is delivered again is not stored again",
    sqlite_with_rowid=False,
)
