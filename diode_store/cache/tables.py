"""The tables in the cache's DuckDB files, and the views that join both files to one state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diode_store.cache.cache import BASE, RECENT
from diode_store.cache.layout import FACTS, SNAPSHOTS
from diode_store.values.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable

    import duckdb

    from diode_store.cache.cache import Reading

NOW = "now"
"""Schema of a sync's views that join the attached files to one state."""
SETTINGS: dict[str, Any] = {
    # DuckDB must not take a variable of the calling Python program for a table.
    "python_enable_replacements": False,
    "autoload_known_extensions": False,
}
"""DuckDB's settings for every connection."""
_NUMBER = {"case_no": "INTEGER"}
_COUNTS = {"timing_count": "INTEGER", "failure_count": "INTEGER", "estimate_count": "INTEGER"}
_CASE = {"hardware_id": "BIGINT", "environment_id": "BIGINT", "problem_id": "BIGINT", "regime": "VARCHAR"}
CASE_KEY = ", ".join(_CASE)
"""Columns that make a case, as SQL."""
_BOUNDS = ("flops", "bytes_moved", "peak_tflops", "peak_gb_per_s", "roofline_us", "certain_us", "least_us")
STORED: dict[str, dict[str, str]] = {
    "measurements": {**FACTS["measurements"], **_NUMBER, **_COUNTS},
    "timings": {**FACTS["timings"], **_NUMBER},
    "metric_values": {**FACTS["metric_values"], **_NUMBER},
    "known_cases": {**_NUMBER, **_CASE, **dict.fromkeys(_BOUNDS, "DOUBLE")},
    "summaries": {
        **_NUMBER,
        **_CASE,
        "family": "VARCHAR",
        "config_id": "INTEGER",
        "runtime_us": "DOUBLE",
        "repeats": "BIGINT",
        "runner_up_config_id": "INTEGER",
        "runner_up_us": "DOUBLE",
        "tie_config_ids": "INTEGER[]",
        "sigma": "DOUBLE",
        "tie_us": "DOUBLE",
        "second_us": "DOUBLE",
        "configs": "BIGINT",
        "best_config_id": "INTEGER",
        "best_us": "DOUBLE",
        "vendor_config_id": "INTEGER",
        "vendor_us": "DOUBLE",
        "triton_config_id": "INTEGER",
        "triton_us": "DOUBLE",
        "templates": "STRUCT(template VARCHAR, config_id INTEGER, us DOUBLE, repeats BIGINT, configs BIGINT)[]",
        "measurements": "BIGINT",
        "first_measured_at": "TIMESTAMP",
        "last_measured_at": "TIMESTAMP",
    },
    "covered": {
        "hardware_id": "BIGINT",
        "environment_id": "BIGINT",
        "regime": "VARCHAR",
        "op": "VARCHAR",
        "dtype": "VARCHAR",
        "tf32": "BOOLEAN",
        "config_id": "BIGINT",
        "timings": "BIGINT",
    },
}
"""Tables that both files have."""
_ONLY_RECENT = {"dropped": {"id": "BIGINT"}, "changed": dict(_NUMBER)}
_LEFT_OUT = {
    "measurements": ("dropped", "dropped.id = here.id"),
    "timings": ("dropped", "dropped.id = here.measurement_id"),
    "metric_values": ("dropped", "dropped.id = here.measurement_id"),
    "summaries": ("changed", "changed.case_no = here.case_no"),
}
"""Table of the base → the table of the recent file that says what to leave out, and how."""
READ_AS = {**{name: f"stored_{name}" for name in FACTS}, "metrics": "metric_names"}
"""Names of tables whose own names are those of views."""


def create(columns: dict[str, str], name: str, what: str = "TABLE") -> str:
    """Return the statement that makes a table; JSON is text."""
    typed = (f'"{column}" {"VARCHAR" if kind == "JSON" else kind}' for column, kind in columns.items())
    return f"CREATE {what} {name} ({', '.join(typed)})"


def create_all(connection: duckdb.DuckDBPyConnection, kind: str) -> None:
    """Make every table of a new file that is attached as ``kind``."""
    of_kind = STORED if kind != RECENT else {**STORED, **_ONLY_RECENT, **SNAPSHOTS}
    for name, columns in of_kind.items():
        connection.execute(create(columns, f"{kind}.{name}"))


def attach(connection: duckdb.DuckDBPyConnection, paths: dict[str, str]) -> None:
    """Attach the files of a state for reading."""
    for kind, path in paths.items():
        connection.execute(f"ATTACH {quoted(path)} AS {kind} (READ_ONLY)")


def sources(reading: Reading, kinds: Iterable[str]) -> dict[str, str]:
    """Return the SELECT of each table in a state: what the base still has, and what the recent file adds.

    Args:
        reading: the state; a table that leaves nothing out of the base is read without looking.
        kinds: the files that are attached.
    """
    there = list(kinds)
    counts = {"dropped": reading.state.dropped, "changed": reading.state.changed}
    found = {}
    for name, columns in STORED.items():
        parts = [f"SELECT * FROM {RECENT}.{name}"] if RECENT in there else []
        if BASE in there:
            gone, condition = _LEFT_OUT.get(name, ("", ""))
            without = f" ANTI JOIN {RECENT}.{gone} ON {condition}" if counts.get(gone) else ""
            parts.insert(0, f"SELECT here.* FROM {BASE}.{name} AS here{without}")
        found[READ_AS.get(name, name)] = " UNION ALL ".join(parts) or _nothing(columns)
    for name, columns in SNAPSHOTS.items():
        found[READ_AS.get(name, name)] = f"SELECT * FROM {RECENT}.{name}" if RECENT in there else _nothing(columns)
    return found


def _nothing(columns: dict[str, str]) -> str:
    typed = (f"NULL::{'VARCHAR' if kind == 'JSON' else kind} AS {name}" for name, kind in columns.items())
    return f"SELECT {', '.join(typed)} WHERE false"
