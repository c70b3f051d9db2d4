"""Doubts about records on their way into the warehouse: impossible values, and uids that mean something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa

from diode_store.command_line.render import problem_text
from diode_store.decisions import DecisionRecord
from diode_store.records import Measurement
from diode_store.timing.plausible import are_plausible, bound_of, clock_is_off, implausible
from diode_store.warehouse import schema
from diode_store.warehouse.dimensions import select_by_key
from diode_store.wire.timing_table import TimingTable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from datetime import datetime


_Record = TypeVar("_Record")
_Content = tuple[tuple[bytes, ...], dict[bytes, tuple[Any, ...]]]
"""Compared parts of a measurement: keys of device, software and problem, and each config's key with its time."""
_AT_ONCE = 500
_OF_A_DECISION = ("decided_by", "reason", "mode", "policy", "model_sha256", "candidates")
"""Columns of a decision that are compared, besides its keys."""


def doubts_of(measurement: Measurement, table: TimingTable, now: datetime) -> Iterator[str]:
    """Yield a line for each value of ``measurement`` that cannot be true."""
    bound = bound_of(measurement.problem, measurement.hardware)
    where = f"{measurement.hardware.name}, {problem_text(measurement.problem)}"
    if clock_is_off(measurement.measured_at, now):
        yield f"{where}: measured_at is {measurement.measured_at}, so that the clock there was off"
    if are_plausible(table.runtimes_us, table.p10_us, table.p90_us, bound):
        return
    columns = zip(table.configs, table.runtimes_us, table.p10_us, table.p90_us, strict=True)
    for config, runtime_us, p10_us, p90_us in columns:
        if why := implausible(runtime_us, p10_us, p90_us, bound):
            yield f"{where}, {config.template}: {why}"


def contradicted(connection: sa.Connection, records: Mapping[bytes, Measurement | DecisionRecord]) -> set[bytes]:
    """Return the uids whose record in the warehouse differs from the one in ``records``, or is of another kind.

    Of a measurement, compare device, software, problem, and every config with its time; marks such as flags may change
    in the warehouse. Of a decision, compare the same keys and its outcome.
    """
    measurements = {uid: each for uid, each in records.items() if isinstance(each, Measurement)}
    decisions = {uid: each for uid, each in records.items() if isinstance(each, DecisionRecord)}
    measured, decided = schema.measurements, schema.decisions
    return {
        *_there(connection, decided, measurements),
        *_there(connection, measured, decisions),
        *_differing(connection, measured, measurements, _stored, _content_of),
        *_differing(connection, decided, decisions, _stored_decisions, _decided),
    }


def _there(connection: sa.Connection, table: sa.Table, uids: Collection[bytes]) -> set[bytes]:
    return {bytes(row.uid) for row in select_by_key(connection, table.c.uid, list(uids))} if uids else set()


def _differing(
    connection: sa.Connection,
    table: sa.Table,
    records: Mapping[bytes, _Record],
    stored_of: Callable[[sa.Connection, Sequence[int]], Mapping[int, Any]],
    content_of: Callable[[_Record], Any],
) -> Iterator[bytes]:
    """Yield the uids of records that ``table`` has with other content."""
    rows = select_by_key(connection, table.c.uid, list(records), table.c.id) if records else ()
    uids = {row.id: bytes(row.uid) for row in rows}
    ids = list(uids)
    for start in range(0, len(ids), _AT_ONCE):
        for number, content in stored_of(connection, ids[start : start + _AT_ONCE]).items():
            if content != content_of(records[uids[number]]):
                yield uids[number]


def _stored(connection: sa.Connection, ids: Sequence[int]) -> dict[int, _Content]:
    """Return the values to compare of the measurements with these ids."""
    timings = schema.timings.c
    rows = connection.execute(_with_keys(schema.measurements, ids))
    found: dict[int, _Content] = {number: (tuple(map(bytes, keys)), {}) for number, *keys in rows}
    timed = (
        sa.select(
            timings.measurement_id, schema.configs.c.key, timings.runtime_us, timings.outcome, timings.is_estimate
        )
        .join(schema.configs, schema.configs.c.id == timings.config_id)
        .where(timings.measurement_id.in_(ids))
    )
    for number, key, *timing in connection.execute(timed):
        found[number][1][bytes(key)] = tuple(timing)
    return found


def _with_keys(table: sa.Table, ids: Sequence[int], *also: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Return a query for the rows with these ids: the id, the keys of device, software and problem, and ``also``."""
    of = {"hardware_id": schema.hardware, "environment_id": schema.environments, "problem_id": schema.problems}
    query = sa.select(table.c.id, *(dimension.c.key for dimension in of.values()), *also).where(table.c.id.in_(ids))
    for column, dimension in of.items():
        query = query.where(dimension.c.id == table.c[column])
    return query


def _content_of(measurement: Measurement) -> _Content:
    table = TimingTable.of(measurement.timings)
    timings = zip(table.runtimes_us, table.outcomes, table.estimates, strict=True)
    by_config = dict(zip((config.key for config in table.configs), timings, strict=True))
    return (measurement.hardware.key, measurement.environment.key, measurement.problem.key), by_config


def _stored_decisions(connection: sa.Connection, ids: Sequence[int]) -> dict[int, tuple[Any, ...]]:
    rows = connection.execute(_with_keys(schema.decisions, ids, *(schema.decisions.c[name] for name in _OF_A_DECISION)))
    return {number: (*map(bytes, values[:3]), *values[3:]) for number, *values in rows}


def _decided(decision: DecisionRecord) -> tuple[Any, ...]:
    keys = decision.hardware.key, decision.environment.key, decision.problem.key
    return (*keys, *(getattr(decision, name) for name in _OF_A_DECISION))
