"""The one question every test of faults ends with: is each acknowledged measurement there once, as it was made?

Reads the tables one by one with plain SELECTs and holds every column of every row against the record that was made;
nothing of the code that writes or reads the warehouse decides here what is right.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from diode_store.warehouse import schema
from diode_store.warehouse.database import make_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from diode_store.records import Environment, Hardware, KernelConfig, Measurement, Problem, Timing

_AT_ONCE = 400
NOT_COMPARED = {"id", "measurement_id", "config_id", "hardware_id", "environment_id", "problem_id", "ingested_at"}
_DIMENSIONS = {
    "hardware": schema.hardware,
    "environment": schema.environments,
    "problem": schema.problems,
    "config": schema.configs,
}

Row = dict[str, Any]


def assert_exactly_once(
    url: str, acknowledged: Collection[bytes], record_of: Callable[[bytes], Measurement], *, others: bool = False
) -> int:
    """Compare the warehouse, row by row, with what was produced; return how many measurements it holds.

    Args:
        url: the warehouse.
        acknowledged: uids that must be there, exactly once each.
        record_of: the record that was made under a uid.
        others: whether what was made but not acknowledged may be there too (once).
    """
    stored = stored_rows(url)
    times = Counter(bytes(row["measurement"]["uid"]) for row in stored)
    missing = set(acknowledged) - set(times)
    assert not missing, (
        f"{len(missing):,} of {len(acknowledged):,} acknowledged measurements are lost: {_some(missing)}"
    )
    twice = {uid for uid, count in times.items() if count > 1}
    assert not twice, f"stored twice: {_some(twice)}"
    if not others:
        assert times.keys() == set(acknowledged), f"never asked for: {_some(times.keys() - set(acknowledged))}"
    for row in stored:
        expected = expected_rows(record_of(bytes(row["measurement"]["uid"])))
        for part, content in expected.items():
            assert content == row[part], part
        assert expected.keys() == row.keys()
    return len(stored)


def stored_rows(url: str) -> list[dict[str, Any]]:
    """Return all measurements with their dimensions and timings, and fail on a row that belongs to none.

    Fails too when a time of ingestion is not of the last day.
    """
    engine = make_engine(url)
    try:
        with engine.connect() as connection:
            dimensions = {name: _by_id(connection, table) for name, table in _DIMENSIONS.items()}
            timings = _timings(connection, dimensions["config"])
            found = [_measurement(row, dimensions, timings) for row in _rows(connection, schema.measurements)]
    finally:
        engine.dispose()
    assert not timings, f"timings of measurements that are not there: {sorted(timings)[:5]}"
    return found


def _measurement(row: Row, dimensions: dict[str, dict[int, Row]], timings: dict[int, list[Row]]) -> dict[str, Any]:
    assert abs(datetime.now(UTC) - _utc(row["ingested_at"])) < timedelta(days=1)
    parts = {name: dimensions[name][row[f"{name}_id"]] for name in ("hardware", "environment", "problem")}
    return {"measurement": _compared(row), **parts, "timings": sorted(timings.pop(row["id"]), key=_config_key)}


def _timings(connection: sa.Connection, configs: dict[int, Row]) -> dict[int, list[Row]]:
    found = defaultdict(list)
    for row in _rows(connection, schema.timings):
        found[row["measurement_id"]].append({"config": configs[row["config_id"]], **_compared(row)})
    return found


def _by_id(connection: sa.Connection, table: sa.Table) -> dict[int, Row]:
    return {row["id"]: _compared(row) for row in _rows(connection, table)}


def _rows(connection: sa.Connection, table: sa.Table) -> Iterable[Row]:
    result = connection.execution_options(yield_per=_AT_ONCE).execute(sa.select(table))
    return (dict(row) for row in result.mappings())


def _compared(row: Row) -> Row:
    return {name: _value(value) for name, value in row.items() if name not in NOT_COMPARED}


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        return _utc(value)
    return bytes(value) if isinstance(value, memoryview) else value


def _utc(moment: datetime) -> datetime:
    """SQLite gives times back without their zone; all are stored in UTC."""
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def expected_rows(m: Measurement) -> dict[str, Any]:
    """Return what the tables must hold of a measurement, every column of theirs."""
    return {
        "measurement": _measurement_row(m),
        "hardware": _hardware_row(m.hardware),
        "environment": _environment_row(m.environment),
        "problem": _problem_row(m.problem),
        "timings": sorted((_timing_row(timing) for timing in m.timings), key=_config_key),
    }


def _measurement_row(m: Measurement) -> Row:
    plain = (
        "uid",
        "host",
        "device_uuid",
        "sweep_id",
        "collector_version",
        "is_replay",
        "search_space",
        "sample_seed",
        "choice_policy",
        "family",
        "dataset",
        "licence",
        "superseded_by",
    )
    return {
        **{name: getattr(m, name) for name in plain},
        "source": m.source.value,
        "measured_at": m.measured_at,
        "statistic": m.timing_method.statistic,
        "flush_l2": m.timing_method.flush_l2,
        "launch_hidden": m.timing_method.launch_hidden,
        "regime": m.timing_method.regime,
        **vars(m.device_state),
        "flags": ",".join(m.flags) or None,
        "extra": _extra(m),
    }


def _hardware_row(h: Hardware) -> Row:
    names = [name for name in h.__dataclass_fields__ if name != "extra"]
    return {"key": h.key, **{name: getattr(h, name) for name in names}, "extra": _extra(h)}


def _environment_row(e: Environment) -> Row:
    names = ("torch", "triton", "compute", "driver", "python", "os")
    values = {name: getattr(e, name) for name in names}
    return {"key": e.key, **values, "template_hashes": dict(e.template_hashes) or None, "extra": _extra(e)}


def _problem_row(p: Problem) -> Row:
    a, b = p.inputs[-2:]
    return {
        "key": p.key,
        "op": p.op,
        "dtype": a.dtype,
        "b": a.size[0] if len(a.size) > 2 else 1,
        "m": a.size[-2],
        "n": b.size[-1],
        "k": a.size[-1],
        "layout": p.shape.layout,
        "dimensions": None,
        "inputs": [[spec.dtype, list(spec.size), list(spec.stride)] for spec in p.inputs],
        "scalars": [list(pair) for pair in p.scalars],
        "extra": _extra(p),
    }


@lru_cache(maxsize=100_000)
def _config_row(c: KernelConfig) -> Row:
    names = [name for name in c.__dataclass_fields__ if name not in {"kwargs", "extra"}]
    values = {name: getattr(c, name) for name in names}
    return {"key": c.key, **values, "kwargs": [list(pair) for pair in c.kwargs], "extra": _extra(c)}


def _timing_row(t: Timing) -> Row:
    row = {**t._asdict(), "config": _config_row(t.config), "outcome": t.outcome.value, "extra": None}
    assert row.keys() - {"config"} == {c.name for c in schema.timings.columns} - NOT_COMPARED
    return row


def _extra(record: Any) -> Row | None:
    return dict(record.extra) or None


def _config_key(timing: Row) -> bytes:
    return bytes(timing["config"]["key"])


def _some(uids: Iterable[bytes]) -> str:
    return ", ".join(uid.hex() for uid in sorted(uids)[:5])
