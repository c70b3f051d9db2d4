"""The columns of a published table, which other programs read: a change needs a new ``VERSION``.

The table has a row for each timing. Its rows are those of the view ``published``, with the warehouse that published
them; ``diode_store/views/sql/columns.toml`` describes each column.
"""

from __future__ import annotations

import re

VERSION = 2
"""Version of the columns and of their meaning."""
PARTITIONS = ("hardware", "month")
"""Columns by which the files are divided."""

_NAME = "torch-diode timings, version {}"
_TEXT, _WHOLE, _REAL, _FLAG, _TIME = "string", "long", "double", "boolean", "timestamp"

COLUMNS: dict[str, str] = {
    "hardware": _TEXT,
    "month": _TEXT,
    "warehouse": _TEXT,
    "measurement_uid": _TEXT,
    "hardware_key": _TEXT,
    "vendor": _TEXT,
    "arch": _TEXT,
    "multiprocessors": _WHOLE,
    "l2_bytes": _WHOLE,
    "shared_memory_per_block_bytes": _WHOLE,
    "memory_bytes": _WHOLE,
    "memory_bandwidth_bytes_per_s": _WHOLE,
    "max_clock_mhz": _WHOLE,
    "hardware_extra": _TEXT,
    "environment_key": _TEXT,
    "torch": _TEXT,
    "triton": _TEXT,
    "compute": _TEXT,
    "driver": _TEXT,
    "python": _TEXT,
    "os": _TEXT,
    "template_hashes": _TEXT,
    "environment_extra": _TEXT,
    "problem_key": _TEXT,
    "op": _TEXT,
    "dtype": _TEXT,
    "b": _WHOLE,
    "m": _WHOLE,
    "n": _WHOLE,
    "k": _WHOLE,
    "layout": _TEXT,
    "dimensions": _TEXT,
    "inputs": _TEXT,
    "scalars": _TEXT,
    "problem_extra": _TEXT,
    "config_key": _TEXT,
    "template": _TEXT,
    "block_m": _WHOLE,
    "block_n": _WHOLE,
    "block_k": _WHOLE,
    "group_m": _WHOLE,
    "num_stages": _WHOLE,
    "num_warps": _WHOLE,
    "allow_tf32": _FLAG,
    "use_fast_accum": _FLAG,
    "acc_type": _TEXT,
    "kwargs": _TEXT,
    "config_extra": _TEXT,
    "runtime_us": _REAL,
    "outcome": _TEXT,
    "is_estimate": _FLAG,
    "repeats": _WHOLE,
    "p10_us": _REAL,
    "p90_us": _REAL,
    "timing_extra": _TEXT,
    "metrics": _TEXT,
    "source": _TEXT,
    "measured_at": _TIME,
    "wrong_measured_at": _TIME,
    "ingested_at": _TIME,
    "host": _TEXT,
    "device_uuid": _TEXT,
    "sweep_id": _TEXT,
    "collector_version": _TEXT,
    "is_replay": _FLAG,
    "search_space": _TEXT,
    "sample_seed": _WHOLE,
    "choice_policy": _TEXT,
    "statistic": _TEXT,
    "flush_l2": _FLAG,
    "launch_hidden": _FLAG,
    "regime": _TEXT,
    "sm_clock_mhz": _WHOLE,
    "memory_clock_mhz": _WHOLE,
    "temperature_c": _WHOLE,
    "throttle_reasons": _TEXT,
    "foreign_processes": _WHOLE,
    "family": _TEXT,
    "dataset": _TEXT,
    "licence": _TEXT,
    "measurement_extra": _TEXT,
    "flags": _TEXT,
    "superseded_by": _TEXT,
}
"""Delta's type of each column, in the table's order; times are in UTC."""

STATISTICS = ("warehouse", "measurement_uid", "op", "dtype", "m", "n", "k", "template", "measured_at")
"""Columns whose smallest and largest value each file's entry in the log has, so that readers can skip files."""


def table_name(version: int = VERSION) -> str:
    """Return the name that a table of ``version`` has in its metadata."""
    return _NAME.format(version)


def version_of(name: str | None) -> int | None:
    """Return the version in the name of a published table; None for the name of any other table."""
    found = re.fullmatch(_NAME.format(r"(\d{1,9})"), name or "")
    return int(found[1]) if found else None
