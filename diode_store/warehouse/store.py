"""Write batches of measurements and decisions into the warehouse: each once, whole or not at all."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self

import sqlalchemy as sa

from diode_store.errors import DatabaseError
from diode_store.records import Measurement, Outcome
from diode_store.warehouse import schema
from diode_store.warehouse.database import describe, make_engine, write_transaction
from diode_store.warehouse.decisions import insert_decisions
from diode_store.warehouse.dimensions import Dimensions, select_by_key
from diode_store.warehouse.doubts import contradicted, doubts_of
from diode_store.warehouse.drivers.binding import binding
from diode_store.warehouse.facts import insert_measurements, insert_metric_values, insert_timings, metric_ids
from diode_store.warehouse.migrate import require_current
from diode_store.warehouse.tombstones import buried
from diode_store.wire.timing_table import NumberedConfigs, TimingTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from diode_store.decisions import DecisionRecord
    from diode_store.records import KernelConfig
    from diode_store.warehouse.drivers.copy_format import TimingRow


_REVISION = sa.select(sa.column("version_num", sa.String)).select_from(sa.table(schema.VERSION_TABLE))
_EXTRA = attrgetter("extra")
_MOST_KEPT = 50_000


@dataclass(frozen=True)
class WriteReport:
    """Counts of one ``Store.write``."""

    measurements: int
    """New measurements written."""
    duplicates: int
    """Number of records that were stored already, or come twice in the batch; nothing was written for them."""
    timings: int
    """Timings written with the new measurements."""
    decisions: int = 0
    """New decisions written."""
    contradictions: tuple[Measurement | DecisionRecord, ...] = ()
    """Number of records that were not written because another record has their uid."""
    doubts: tuple[str, ...] = ()
    """A line for each value of the new measurements that cannot be true."""
    unknown_ops: tuple[tuple[str, int], ...] = ()
    """Numbers of new measurements by op, for the ops that this version does not know."""


def unknown_ops(measurements: Iterable[Measurement]) -> tuple[tuple[str, int], ...]:
    """Return the numbers of measurements by op, for the ops that this version does not know."""
    found = Counter(each.problem.op for each in measurements if each.problem.is_unknown)
    return tuple(sorted(found.items()))


class Store:
    """A warehouse open for writing; use it as a context manager.

    One thread writes; others may ask ``known`` or ``check`` meanwhile.
    """

    def __init__(self, engine: sa.Engine) -> None:
        """Write through ``engine``, whose schema must be current; ``Store.open`` checks that."""
        self.engine = engine
        self._dimensions = Dimensions()
        self._config_ids = _ConfigIds()
        # What comes after a lost connection may be a restored backup, or a standby that lagged: other rows, other ids.
        self._was_lost = threading.Event()
        sa.event.listen(engine, "invalidate", lambda *_: self._was_lost.set())

    @classmethod
    def open(cls, url: str) -> Store:
        """Open the warehouse at ``url``.

        Raises:
            SchemaError: the warehouse is missing or has another revision; the message names the command to run.
            DatabaseError: the warehouse cannot be opened.
        """
        engine = make_engine(url)
        try:
            require_current(engine)
        except BaseException:
            engine.dispose()
            raise
        return cls(engine)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    def __enter__(self) -> Self:
        """Return the store itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection."""
        self.close()

    @property
    def has_server(self) -> bool:
        """Return whether another process does the database's work, so that writing mostly waits."""
        return self.engine.dialect.name != "sqlite"

    @property
    def name(self) -> str:
        """The file, or the address without its password, for messages."""
        return describe(self.engine)

    def check(self) -> None:
        """Return if the warehouse answers and its schema is current; any thread may ask.

        Raises:
            SchemaError: the warehouse has another schema revision.
            DatabaseError: the warehouse does not answer.
        """
        with self.engine.connect() as connection:
            revision = connection.scalar(_REVISION)
        if revision != schema.HEAD_REVISION:
            require_current(self.engine)

    def write(self, records: Iterable[Measurement | DecisionRecord]) -> WriteReport:
        """Write the new ``records`` durably, all or none.

        Raises:
            DatabaseError: the database failed; nothing was written but, perhaps, dimension rows.
            SchemaError: the schema changed since the store was opened; nothing was written either.
            RecordError: a record holds a value that no database can store; nothing was written either.
        """
        batch = list(records)
        fresh, again = self._split(batch)
        measurements = [record for record in fresh if isinstance(record, Measurement)]
        others = [record for record in fresh if not isinstance(record, Measurement)]
        try:
            report = self._write(measurements, others) if fresh else WriteReport(0, 0, 0)
        except BaseException:
            self._forget()
            raise
        wrong = self.contradicted(again)
        known = len(batch) - report.measurements - report.decisions - len(wrong)
        return replace(report, duplicates=known, contradictions=tuple(wrong))

    def known(self, uids: Iterable[bytes]) -> set[bytes]:
        """Return the uids whose records are in the warehouse, or were deleted from it."""
        wanted = list(uids)
        if not wanted:
            return set()
        with self.engine.connect() as connection:
            tables = (schema.measurements, schema.decisions)
            here = {bytes(row.uid) for table in tables for row in select_by_key(connection, table.c.uid, wanted)}
            return here | buried(connection, wanted)

    def contradicted(self, records: Iterable[Measurement | DecisionRecord]) -> list[Measurement | DecisionRecord]:
        """Return the records whose uid belongs to another record in the warehouse."""
        found: list[Measurement | DecisionRecord] = []
        left = list(records)
        while left:
            # One of each uid at a time.
            by_uid = {record.uid: record for record in reversed(left)}
            with self.engine.connect() as connection:
                wrong = contradicted(connection, by_uid)
            found += (record for record in left if by_uid[record.uid] is record and record.uid in wrong)
            left = [record for record in left if by_uid[record.uid] is not record]
        return found

    def counts(self) -> dict[str, int]:
        """Return the number of rows by table, and of timings that failed as ``failures``."""
        decisions = sa.select(sa.func.count()).select_from(schema.decisions)
        tables = (schema.hardware, schema.environments, schema.problems, schema.configs, schema.measurements)
        with self.engine.connect() as connection:
            counts = {t.name: connection.scalar(sa.select(sa.func.count()).select_from(t)) or 0 for t in tables}
            failed = sa.func.count(sa.case((schema.timings.c.outcome != Outcome.OK.value, 1)))
            timings, failures = connection.execute(sa.select(sa.func.count(), failed)).one()
            return {
                **counts,
                "timings": timings,
                "failures": failures,
                "decisions": connection.scalar(decisions) or 0,
            }

    def _split(
        self, batch: Sequence[Measurement | DecisionRecord]
    ) -> tuple[list[Measurement | DecisionRecord], list[Measurement | DecisionRecord]]:
        """Return the new records, the first of each uid, and the others."""
        by_uid: dict[bytes, Measurement | DecisionRecord] = {}
        again = [record for record in batch if by_uid.setdefault(record.uid, record) is not record]
        known = self.known(by_uid)
        again += [record for uid, record in by_uid.items() if uid in known]
        return [record for uid, record in by_uid.items() if uid not in known], again

    def _forget(self) -> None:
        self._dimensions.forget()
        self._config_ids.forget()

    def _write(self, fresh: Sequence[Measurement], decisions: Sequence[DecisionRecord]) -> WriteReport:
        """Write new records; return the report on them alone."""
        if self._was_lost.is_set():
            self._was_lost.clear()
            self._forget()
        tables = {m.uid: TimingTable.of(m.timings) for m in fresh}
        config_ids = self._add_dimensions([*fresh, *decisions], tables)
        now = datetime.now(UTC)
        with write_transaction(self.engine) as connection:
            if self._was_lost.is_set():
                raise DatabaseError(f"{describe(self.engine)}: the connection was lost amid a batch; run it again")
            # A daemon runs for months; the database may have been upgraded since it was opened.
            if connection.scalar(_REVISION) != schema.HEAD_REVISION:
                require_current(self.engine)
            ids = insert_measurements(connection, [self._measurement_values(m, now) for m in fresh])
            rows = _timing_rows((ids[uid], config_ids[uid], table) for uid, table in tables.items() if uid in ids)
            insert_timings(connection, rows)
            self._insert_metrics(connection, [m for m in fresh if m.metrics and m.uid in ids], ids, config_ids)
            decided = insert_decisions(connection, decisions, self._dimensions, now)
        new = [m for m in fresh if m.uid in ids]
        doubts = chain.from_iterable(doubts_of(m, tables[m.uid], now) for m in new)
        timings = sum(len(tables[uid]) for uid in ids)
        return WriteReport(len(ids), 0, timings, decided, doubts=tuple(doubts), unknown_ops=unknown_ops(new))

    def _insert_metrics(
        self,
        connection: sa.Connection,
        measurements: Sequence[Measurement],
        ids: Mapping[bytes, int],
        config_ids: Mapping[bytes, Sequence[int]],
    ) -> None:
        if not measurements:
            return
        columns = [(m.uid, metric) for m in measurements for metric in m.metrics]
        known = metric_ids(connection, (metric for _, metric in columns))
        rows = (
            (ids[uid], config, known[metric.name, metric.unit], value)
            for uid, metric in columns
            for config, value in zip(config_ids[uid], metric.values, strict=True)
            if value is not None
        )
        insert_metric_values(connection, rows)

    def _add_dimensions(
        self, fresh: Sequence[Measurement | DecisionRecord], tables: Mapping[bytes, TimingTable]
    ) -> dict[bytes, Sequence[int]]:
        """Put missing dimension rows in their own short transaction; return the config ids of every table."""
        dimensions = self._dimensions
        found = {uid: self._config_ids.ids(table.configs) for uid, table in tables.items()}
        unsure = [tables[uid].configs for uid, ids in found.items() if ids is None]
        missing: Sequence[Iterable[Any]] = (
            dimensions.hardware.missing(record.hardware for record in fresh),
            dimensions.environments.missing(record.environment for record in fresh),
            dimensions.problems.missing(record.problem for record in fresh),
            dimensions.configs.missing(chain(chain.from_iterable(unsure), _kept(fresh))),
        )
        if any(missing):
            with write_transaction(self.engine) as connection:
                pairs = zip(dimensions.in_order, missing, strict=True)
                inserted = [dimension.insert(connection, records) for dimension, records in pairs]
            for dimension, ids in zip(dimensions.in_order, inserted, strict=True):
                dimension.remember(ids)
        known, row_ids = self._config_ids, dimensions.configs.ids
        return {
            uid: ids if ids is not None else known.remember(tables[uid].configs, row_ids) for uid, ids in found.items()
        }

    def _measurement_values(self, measurement: Measurement, now: datetime) -> dict[str, Any]:
        m, dimensions = measurement, self._dimensions
        method, device = m.timing_method, m.device_state
        with binding():  # a time in the year 1 may not exist in UTC
            measured_at = m.measured_at.astimezone(UTC) if m.measured_at else None
        return {
            "uid": m.uid,
            "hardware_id": dimensions.hardware.ids[m.hardware],
            "environment_id": dimensions.environments.ids[m.environment],
            "problem_id": dimensions.problems.ids[m.problem],
            "source": m.source.value,
            "measured_at": measured_at,
            "ingested_at": now,
            "host": m.host,
            "device_uuid": m.device_uuid,
            "sweep_id": m.sweep_id,
            "collector_version": m.collector_version,
            "is_replay": m.is_replay,
            "search_space": m.search_space,
            "sample_seed": m.sample_seed,
            "choice_policy": m.choice_policy,
            "statistic": method.statistic,
            "flush_l2": method.flush_l2,
            "launch_hidden": method.launch_hidden,
            "regime": method.regime,
            "sm_clock_mhz": device.sm_clock_mhz,
            "memory_clock_mhz": device.memory_clock_mhz,
            "temperature_c": device.temperature_c,
            "throttle_reasons": device.throttle_reasons,
            "foreign_processes": device.foreign_processes,
            "flags": ",".join(m.flags) or None,
            "family": m.family,
            "dataset": m.dataset,
            "licence": m.licence,
            "superseded_by": m.superseded_by,
            "extra": dict(m.extra) or None,
        }


def _kept(records: Iterable[Measurement | DecisionRecord]) -> Iterator[KernelConfig]:
    """Yield the configs that decisions name."""
    for record in records:
        if not isinstance(record, Measurement):
            yield from (config for config, _ in record.kept)


class _ConfigIds:
    """Ids of configs in the warehouse, by the codec's numbers, of which equal configs share one.

    Looked up for every timing, so without a call into Python, and without touching the config's memory.
    """

    def __init__(self) -> None:
        self._ids: dict[int, int] = {}

    def ids(self, configs: Sequence[KernelConfig]) -> list[int] | None:
        """Return the ids of ``configs``, or None unless all are known."""
        if not isinstance(configs, NumberedConfigs):
            return None
        try:
            return list(map(self._ids.__getitem__, configs.numbers))
        except KeyError:
            return None

    def remember(self, configs: Sequence[KernelConfig], row_ids: Mapping[KernelConfig, int]) -> list[int]:
        """Return the ids of ``configs`` out of ``row_ids``; know them by number from now on."""
        found = [row_ids[config] for config in configs]
        if len(self._ids) > _MOST_KEPT:
            self._ids.clear()
        # Configs with an ``extra`` are looked up each time, since the row may lack it.
        if isinstance(configs, NumberedConfigs) and not any(map(_EXTRA, configs)):
            self._ids.update(zip(configs.numbers, found, strict=True))
        return found

    def forget(self) -> None:
        """Forget everything."""
        self._ids.clear()


def _timing_rows(measured: Iterable[tuple[int, Sequence[int], TimingTable]]) -> Iterator[TimingRow]:
    # Whole columns at a time, and plain int for bool, as bytes yield it: the driver needs no adapter to bind that.
    blocks = (
        zip(
            repeat(number, len(table)),
            config_ids,
            table.runtimes_us,
            table.outcomes,
            bytes(table.estimates),
            table.repeats,
            table.p10_us,
            table.p90_us,
            strict=True,
        )
        for number, config_ids, table in measured
    )
    return chain.from_iterable(blocks)
