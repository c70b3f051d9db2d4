"""Datasets from the warehouse's view ``training_examples``, read through DuckDB."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any

from diode_store.candidates.names import DTYPES
from diode_store.devices.known import split_names
from diode_store.errors import DatasetError, NoMeasurementsError
from diode_store.records import UNKNOWN_REGIME, is_regime
from diode_trainer.data.dataset import LEARNED_ALONE, ExampleSet, canonical, ingest_first, what_there_is, with_unknown
from diode_trainer.data.streaming import stream_examples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from duckdb import DuckDBPyConnection

    from diode_store.warehouse.hardware import StoredHardware

    Matched = Mapping[str, Sequence[StoredHardware]]

_DTYPES = {**DTYPES, "half": "float16", "float": "float32"}

ALL_REGIMES = "all"
"""Name of all regimes, including the unknown one."""
_ARITHMETIC = "CASE WHEN asks_for_tf32(dtype, scalars) THEN 'tf32' ELSE dtype END"
_LINEAGE = """
    WITH counted AS (SELECT measurement_id, count(*) AS timings FROM timings GROUP BY measurement_id)
    SELECT count(*) AS measurements, coalesce(sum(c.timings), 0)::BIGINT AS timings,
           min(measured_at) AS measured_from, max(measured_at) AS measured_to,
           list_sort(list(DISTINCT dataset) FILTER (dataset IS NOT NULL)) AS datasets,
           list_sort(list(DISTINCT {'torch': torch, 'triton': triton, 'compute': compute, 'driver': driver}))
               AS environments
    FROM measurements AS m
    JOIN counted AS c ON c.measurement_id = m.id
    JOIN environments AS e ON e.id = m.environment_id
"""


@dataclass(frozen=True)
class ExampleFilter:
    """Filter for the examples of a warehouse; None accepts all."""

    hardware: str | None = None
    """Alias, name or beginning of a name, or a comma list of these; each is matched separately."""
    op: str | None = None
    """None for all ops that one model learns together."""
    dtype: str | None = None
    """Dtype as people type it: ``bf16`` or ``bfloat16``; ``tf32`` is float32 as TF32, ``fp32`` is IEEE float32."""
    all_matches: bool = False
    """Accept devices that differ in architecture or multiprocessors."""
    regime: str | None = None
    """One of ``REGIME_NAMES``, such as ``deployed``, or ``ALL_REGIMES``. None applies the default of the source."""

    @property
    def names(self) -> list[str]:
        """Parts of ``hardware``; empty for all devices."""
        return [] if self.hardware is None else split_names(self.hardware) or [self.hardware]

    def has_regime(self, regime: str | None) -> bool:
        """Return whether the filter accepts timings of a regime."""
        return self.regime == ALL_REGIMES or is_regime(regime, self.regime)

    def has_op(self, op: str) -> bool:
        """Return whether the filter accepts an op."""
        return op not in LEARNED_ALONE if self.op is None else op == self.op

    @property
    def full_dtype(self) -> str | None:
        """Full name of the dtype."""
        return None if self.dtype is None else _DTYPES.get(self.dtype, self.dtype)

    def describe(self) -> str:
        """Describe the filter in words."""
        wanted = ((name, getattr(self, name)) for name in ("op", "dtype", "regime"))
        return ", ".join(f"{name} {value}" for name, value in wanted if value is not None)


@dataclass(frozen=True)
class Loaded:
    """Dataset with its hardware."""

    dataset: ExampleSet
    matched: Mapping[str, Sequence[StoredHardware]]
    """Matched hardware by requested name."""


def load_warehouse(url: str, wanted: ExampleFilter) -> Loaded:
    """Sync the cache, and read the examples that match ``wanted``, by default of all regimes.

    Raises:
        HardwareError: a name matches nothing, or different devices; lists the known ones.
        SchemaError: the database has another schema revision.
        DatasetError: no example matches; says what to do.
    """
    from diode_store.query.analytics import connect

    matched = match_measured(url, wanted)
    with connect(url, views=("training_examples",)) as connection:
        where, parameters = _condition(matched, wanted)
        unknown: Counter[str] = Counter()
        stream = stream_examples(connection, where, parameters, unknown)
        examples = canonical(example for example in stream if wanted.has_regime(example.regime))
        if not examples:
            raise DatasetError(_nothing(connection, matched, wanted, ingest_first(url)))
        lineage = _lineage(connection, where, parameters, wanted.regime) | with_unknown(unknown)
    return Loaded(ExampleSet(examples, lineage), matched)


def _nothing(connection: DuckDBPyConnection, matched: Matched, wanted: ExampleFilter, ingest: str) -> str:
    """Return why there are no examples: the filter, and what the warehouse has or how to fill it."""
    where, parameters = _condition(matched, None)
    query = f"SELECT DISTINCT op, CASE WHEN tf32 THEN 'tf32' ELSE dtype END FROM training_examples {where}"  # noqa: S608 - no value is in it
    there = connection.execute(query, parameters).fetchall()
    names = ", ".join(dict.fromkeys(row.name for rows in matched.values() for row in rows))
    remedy = f"there is: {what_there_is(there)}" if there else ingest
    if there and wanted.regime is not None:
        query = f"SELECT DISTINCT coalesce(regime, '{UNKNOWN_REGIME}') FROM training_examples {where} ORDER BY ALL"  # noqa: S608 - as above
        remedy += f"; regime {', '.join(name for (name,) in connection.execute(query, parameters).fetchall())}"
    return f"no examples of {wanted.describe() or 'matrix products'} on {names}; {remedy}"


def match_measured(url: str, wanted: ExampleFilter) -> Matched:
    """Return the measured hardware by requested name; all of it under an empty name if no name is given.

    Raises:
        HardwareError: a name matches nothing, or different devices; lists the known ones.
        NoMeasurementsError: the warehouse has no measurements.
    """
    from diode_store.query.named_devices import stored_hardware
    from diode_store.warehouse import hardware

    rows = [row for row in stored_hardware(url) if row.measurements]
    if not rows:
        raise NoMeasurementsError(f"the warehouse holds no measurements; {ingest_first(url)}")
    if wanted.hardware is None:
        return {"": rows}
    return {name: hardware.match(rows, name, all_matches=wanted.all_matches) for name in wanted.names}


def _condition(matched: Matched, wanted: ExampleFilter | None) -> tuple[str, list[Any]]:
    """Return a WHERE clause and its parameters; without a filter it accepts every op."""
    terms = ["list_contains(?, hardware_id)"]
    values: list[Any] = [sorted({row.id for rows in matched.values() for row in rows})]
    if wanted is None:
        return f"WHERE {terms[0]}", values
    for column, value in (("op", wanted.op), (_ARITHMETIC, wanted.full_dtype)):
        if value is not None:
            terms.append(f"problem_id IN (SELECT id FROM problems WHERE {column} = ?)")  # noqa: S608 - our own names
            values.append(value)
    if wanted.op is None:
        terms.append("NOT problem_id IN (SELECT id FROM problems WHERE list_contains(?, op))")
        values.append(list(LEARNED_ALONE))
    return "WHERE " + " AND ".join(terms), values


def _lineage(connection: DuckDBPyConnection, where: str, parameters: list[Any], regime: str | None) -> dict[str, Any]:
    from diode_store.warehouse.schema import HEAD_REVISION

    usable = " AND NOT is_replay AND flags IS NULL AND superseded_by IS NULL AND choice_policy = 'stock'"
    of_regime = " AND is_regime(m.regime, ?)"
    asked = [*parameters, None if regime == ALL_REGIMES else regime]
    row = connection.execute(_LINEAGE + where + usable + of_regime, asked).fetchone() or ()
    names = ("measurements", "timings", "measured_from", "measured_to", "datasets", "environments")
    found = dict(zip(names, row, strict=True))
    for name in ("measured_from", "measured_to"):
        # The cache stores times in UTC without a time zone.
        found[name] = found[name].replace(tzinfo=UTC).isoformat() if found[name] is not None else None
    return {"schema_revision": HEAD_REVISION, **found}
