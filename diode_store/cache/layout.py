"""Columns that the cache copies from the warehouse, with their types; light, so that a query need not load the schema.

The tables are those of ``diode_store.warehouse.schema`` at ``REVISION``; a test compares them. Three things differ.
Times have no zone and are in UTC. JSON stays text. Columns that may change after a measurement was stored (``flags``,
``superseded_by``) are in a small table of their own, ``marks``, which every sync rewrites.
"""

from __future__ import annotations

REVISION = "0002"
"""Schema revision that these columns describe; equals ``diode_store.warehouse.schema.HEAD_REVISION``."""
VERSION_TABLE = "diode_schema_version"
"""Table with a database's revision; equals ``diode_store.warehouse.schema.VERSION_TABLE``."""

INT, REAL, TEXT, FLAG, TIME, JSON, BYTES = "BIGINT", "DOUBLE", "VARCHAR", "BOOLEAN", "TIMESTAMP", "JSON", "BLOB"
"""DuckDB's names of the types; JSON is stored as VARCHAR."""

Columns = dict[str, str]
"""Type of each column of a table."""

_TEXTS = {"extra": JSON}
_MARKS = {"flags": TEXT, "superseded_by": BYTES}

FACTS: dict[str, Columns] = {
    "measurements": {
        "id": INT,
        "uid": BYTES,
        "hardware_id": INT,
        "environment_id": INT,
        "problem_id": INT,
        "source": TEXT,
        "measured_at": TIME,
        "ingested_at": TIME,
        "host": TEXT,
        "device_uuid": TEXT,
        "sweep_id": TEXT,
        "collector_version": TEXT,
        "is_replay": FLAG,
        "search_space": TEXT,
        "sample_seed": INT,
        "choice_policy": TEXT,
        "statistic": TEXT,
        "flush_l2": FLAG,
        "launch_hidden": FLAG,
        "regime": TEXT,
        "sm_clock_mhz": INT,
        "memory_clock_mhz": INT,
        "temperature_c": INT,
        "throttle_reasons": TEXT,
        "foreign_processes": INT,
        "family": TEXT,
        "dataset": TEXT,
        "licence": TEXT,
        **_TEXTS,
    },
    "timings": {
        "measurement_id": INT,
        "config_id": INT,
        "runtime_us": REAL,
        "outcome": TEXT,
        "is_estimate": FLAG,
        "repeats": INT,
        "p10_us": REAL,
        "p90_us": REAL,
        **_TEXTS,
    },
    "metric_values": {"measurement_id": INT, "config_id": INT, "metric_id": INT, "value": REAL},
}
"""Tables of which a sync copies new rows."""

MARKS = "marks"

SNAPSHOTS: dict[str, Columns] = {
    "hardware": {
        "id": INT,
        "key": BYTES,
        "vendor": TEXT,
        "name": TEXT,
        "arch": TEXT,
        "multiprocessors": INT,
        "l2_bytes": INT,
        "shared_memory_per_block_bytes": INT,
        "memory_bytes": INT,
        "memory_bandwidth_bytes_per_s": INT,
        "max_clock_mhz": INT,
        **_TEXTS,
    },
    "hardware_aliases": {"alias": TEXT, "hardware_id": INT, **_TEXTS},
    "environments": {
        "id": INT,
        "key": BYTES,
        "torch": TEXT,
        "triton": TEXT,
        "compute": TEXT,
        "driver": TEXT,
        "python": TEXT,
        "os": TEXT,
        "template_hashes": JSON,
        **_TEXTS,
    },
    "problems": {
        "id": INT,
        "key": BYTES,
        "op": TEXT,
        "dtype": TEXT,
        "b": INT,
        "m": INT,
        "n": INT,
        "k": INT,
        "layout": TEXT,
        "dimensions": JSON,
        "inputs": JSON,
        "scalars": JSON,
        **_TEXTS,
    },
    "configs": {
        "id": INT,
        "key": BYTES,
        "template": TEXT,
        "block_m": INT,
        "block_n": INT,
        "block_k": INT,
        "group_m": INT,
        "num_stages": INT,
        "num_warps": INT,
        "allow_tf32": FLAG,
        "use_fast_accum": FLAG,
        "acc_type": TEXT,
        "kwargs": JSON,
        **_TEXTS,
    },
    "metrics": {"id": INT, "name": TEXT, "unit": TEXT},
    "decisions": {
        "id": INT,
        "uid": BYTES,
        "hardware_id": INT,
        "environment_id": INT,
        "problem_id": INT,
        "decided_by": TEXT,
        "reason": TEXT,
        "mode": TEXT,
        "policy": TEXT,
        "model_sha256": TEXT,
        "candidates": INT,
        "config_id": INT,
        "predicted_us": REAL,
        "kept": JSON,
        "predicted_vendor_us": REAL,
        "p_within_2pct": REAL,
        "similar_to": TEXT,
        "seconds": REAL,
        "observed": FLAG,
        "failure": TEXT,
        "decided_at": TIME,
        "ingested_at": TIME,
        "host": TEXT,
        "hook_version": INT,
        **_TEXTS,
    },
    MARKS: {"id": INT, **_MARKS},
}
"""Small tables."""
