"""Read whole measurements from the warehouse, as the records that were stored."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from diode_store.records import (
    CONFIG_COLUMNS,
    DeviceState,
    Environment,
    Hardware,
    KernelConfig,
    Measurement,
    Metric,
    Outcome,
    Source,
    Timing,
    TimingMethod,
    regime_rank,
)
from diode_store.values.times import with_zone
from diode_store.warehouse import record_fields, schema
from diode_store.warehouse.dimensions import problem_of_row

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_AT_ONCE = 200


def iter_measurements(
    engine: sa.Engine, *, hardware_ids: Collection[int] | None = None, op: str | None = None
) -> Iterator[Measurement]:
    """Yield the measurements of the warehouse in the order of their ids, superseded ones too.

    Args:
        engine: the warehouse.
        hardware_ids: only those on this hardware.
        op: only those of this op.
    """
    with engine.connect() as connection:
        reader = _Reader(connection)
        ids: list[int] = list(connection.scalars(_wanted(hardware_ids, op)).all())
        for start in range(0, len(ids), _AT_ONCE):
            yield from reader.read(ids[start : start + _AT_ONCE])


def nearest_regimes(
    engine: sa.Engine, *, hardware_ids: Collection[int] | None = None, op: str | None = None
) -> dict[tuple[bytes, bytes], int]:
    """Return the rank of the regime nearest to deployment that each problem was timed in, replays apart.

    Args:
        engine: the warehouse.
        hardware_ids: only on this hardware.
        op: only of this op.

    Returns:
        (key of the hardware, key of the problem) → ``regime_rank``.
    """
    hardware, problems, columns = schema.hardware, schema.problems, schema.measurements.c
    query = (
        sa.select(hardware.c.key, problems.c.key, columns.regime)
        .select_from(schema.measurements)
        .join(hardware, hardware.c.id == columns.hardware_id)
        .join(problems, problems.c.id == columns.problem_id)
        .where(columns.id.in_(_wanted(hardware_ids, op).order_by(None)), columns.is_replay.is_(False))
        .distinct()
    )
    found: dict[tuple[bytes, bytes], int] = {}
    with engine.connect() as connection:
        for device, problem, regime in connection.execute(query):
            place, rank = (bytes(device), bytes(problem)), regime_rank(regime)
            found[place] = min(rank, found.get(place, rank))
    return found


def _wanted(hardware_ids: Collection[int] | None, op: str | None) -> sa.Select[Any]:
    columns = schema.measurements.c
    query = sa.select(columns.id).order_by(columns.id)
    if hardware_ids is not None:
        query = query.where(columns.hardware_id.in_(hardware_ids))
    if op is not None:
        query = query.join(schema.problems, schema.problems.c.id == columns.problem_id).where(
            schema.problems.c.op == op
        )
    return query


class _Reader:
    """Keeps the dimensions, which measurements share, and reads measurements a few at a time."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._hardware = self._dimension(schema.hardware, _hardware)
        self._environments = self._dimension(schema.environments, _environment)
        self._problems = self._dimension(schema.problems, problem_of_row)
        self._configs = self._dimension(schema.configs, _config)
        self._named = self._dimension(schema.metrics, lambda row: (row["name"], row["unit"]))

    def _dimension(self, table: sa.Table, make: Any) -> dict[int, Any]:
        rows = self._connection.execute(sa.select(table)).mappings()
        return {row["id"]: make(row) for row in rows}

    def read(self, ids: Collection[int]) -> Iterator[Measurement]:
        timings, metrics = self._timings(ids), self._metrics(ids)
        table = schema.measurements
        query = sa.select(table).where(table.c.id.in_(ids)).order_by(table.c.id)
        for row in self._connection.execute(query).mappings():
            number = row["id"]
            yield self._measurement(row, *timings[number], metrics.get(number, {}))

    def _timings(self, ids: Collection[int]) -> dict[int, tuple[tuple[int, ...], tuple[Timing, ...]]]:
        """Return the ids of the configs of each measurement, and their timings."""
        columns = schema.timings.c
        query = (
            sa.select(schema.timings)
            .where(columns.measurement_id.in_(ids))
            .order_by(columns.measurement_id, columns.config_id)
        )
        rows = self._connection.execute(query)
        outcomes = {outcome.value: outcome for outcome in Outcome}
        found = {}
        for number, group in groupby(rows, key=lambda row: row[0]):
            pairs = [
                (config, Timing(self._configs[config], us, outcomes[outcome], estimate, repeats, p10, p90))
                for _, config, us, outcome, estimate, repeats, p10, p90, _extra in group
            ]
            config_ids, timings = zip(*pairs, strict=True)
            found[number] = (config_ids, timings)
        return found

    def _metrics(self, ids: Collection[int]) -> dict[int, dict[int, dict[int, float]]]:
        """Return measurement → metric → config → value, with the metrics in their order."""
        columns = schema.metric_values.c
        query = (
            sa.select(columns.measurement_id, columns.metric_id, columns.config_id, columns.value)
            .where(columns.measurement_id.in_(ids))
            .order_by(columns.metric_id)
        )
        found: dict[int, dict[int, dict[int, float]]] = {}
        for number, metric, config, value in self._connection.execute(query):
            found.setdefault(number, {}).setdefault(metric, {})[config] = value
        return found

    def _measurement(
        self,
        row: sa.RowMapping,
        config_ids: tuple[int, ...],
        timings: tuple[Timing, ...],
        metrics: dict[int, dict[int, float]],
    ) -> Measurement:
        measured_at = row["measured_at"]
        return Measurement(
            uid=bytes(row["uid"]),
            hardware=self._hardware[row["hardware_id"]],
            environment=self._environments[row["environment_id"]],
            problem=self._problems[row["problem_id"]],
            timings=timings,
            source=Source(row["source"]),
            measured_at=measured_at and with_zone(measured_at),
            timing_method=TimingMethod(**{name: row[name] for name in record_fields.TIMING_METHOD}),
            device_state=DeviceState(**{name: row[name] for name in record_fields.DEVICE_STATE}),
            flags=tuple(row["flags"].split(",")) if row["flags"] else (),
            superseded_by=bytes(row["superseded_by"]) if row["superseded_by"] else None,
            extra=row["extra"] or {},
            metrics=tuple(self._metric(number, values, config_ids) for number, values in metrics.items()),
            **{name: row[name] for name in record_fields.MEASUREMENT},
        )

    def _metric(self, number: int, values: dict[int, float], config_ids: tuple[int, ...]) -> Metric:
        name, unit = self._named[number]
        return Metric(name, unit, tuple(map(values.get, config_ids)))


def _hardware(row: sa.RowMapping) -> Hardware:
    return Hardware(**{name: row[name] for name in record_fields.HARDWARE}, extra=row["extra"] or {})


def _environment(row: sa.RowMapping) -> Environment:
    fields = {name: row[name] for name in record_fields.ENVIRONMENT}
    return Environment(**fields, template_hashes=row["template_hashes"] or {}, extra=row["extra"] or {})


def _config(row: sa.RowMapping) -> KernelConfig:
    columns = {name: row[name] for name in CONFIG_COLUMNS}
    return KernelConfig(**columns, kwargs=tuple((n, v) for n, v in row["kwargs"]), extra=row["extra"] or {})
