"""A dataset from the warehouse: what its view ``training_examples`` shows, through DuckDB."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any

from diode_store.errors import DatasetError
from diode_store.normalise import DTYPES
from diode_trainer.data.dataset import ExampleSet, canonical, ingest_first, what_there_is
from diode_trainer.data.streaming import stream_examples

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from diode_store.warehouse.hardware import StoredHardware

_DTYPES = {**DTYPES, "half": "float16", "float": "float32"}

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
    """Which of a warehouse's examples are wanted; None means all."""

    hardware: str | None = None
    """Alias, name, or the beginning of a name."""
    op: str | None = None
    dtype: str | None = None
    """As people type it: ``bf16`` or ``bfloat16``; ``tf32`` is float32 as TF32, ``fp32`` the rest of float32."""
    all_matches: bool = False
    """Accept hardware that differs in arch or multiprocessors."""

    @property
    def full_dtype(self) -> str | None:
        """The dtype by its whole name."""
        return None if self.dtype is None else _DTYPES.get(self.dtype, self.dtype)

    def describe(self) -> str:
        """Return what is wanted, in words."""
        wanted = ((name, getattr(self, name)) for name in ("op", "dtype"))
        return ", ".join(f"{name} {value}" for name, value in wanted if value is not None)


@dataclass(frozen=True)
class Loaded:
    """A dataset and the hardware that it is of."""

    dataset: ExampleSet
    matched: tuple[StoredHardware, ...]
    """The hardware that the name meant."""


def load_warehouse(url: str, wanted: ExampleFilter) -> Loaded:
    """Read the examples of ``wanted``; the lake is synced first.

    Raises:
        HardwareError: the name matches nothing, or devices that differ; lists what there is.
        SchemaError: the database has another schema revision.
        DatasetError: nothing to learn from; says what to do.
    """
    from diode_store.query.analytics import connect

    matched = match_measured(url, wanted)
    with connect(url) as connection:
        where, parameters = _condition(matched, wanted)
        examples = canonical(stream_examples(connection, where, parameters))
        if not examples:
            raise DatasetError(_nothing(connection, matched, wanted, ingest_first(url)))
        lineage = _lineage(connection, where, parameters)
    return Loaded(ExampleSet(examples, lineage), matched)


def _nothing(
    connection: DuckDBPyConnection, matched: tuple[StoredHardware, ...], wanted: ExampleFilter, ingest: str
) -> str:
    """Return why there are no examples: what was wanted, and what there is or how to get some."""
    where, parameters = _condition(matched, ExampleFilter())
    query = f"SELECT DISTINCT op, CASE WHEN tf32 THEN 'tf32' ELSE dtype END FROM training_examples {where}"  # noqa: S608 - no value is in it
    there = connection.execute(query, parameters).fetchall()
    names = ", ".join(row.name for row in matched)
    remedy = f"there is: {what_there_is(there)}" if there else ingest
    return f"no examples of {wanted.describe() or 'any problem'} on {names}; {remedy}"


def match_measured(url: str, wanted: ExampleFilter) -> tuple[StoredHardware, ...]:
    """Return the hardware with measurements that is wanted.

    Raises:
        HardwareError: the name matches nothing, or devices that differ; lists what there is.
        DatasetError: there are no measurements at all.
    """
    from diode_store.warehouse import hardware
    from diode_store.warehouse.store import Store

    with Store.open(url) as store, store.engine.connect() as connection:
        rows = [row for row in hardware.list_hardware(connection) if row.measurements]
    if not rows:
        raise DatasetError(f"the warehouse holds no measurements; {ingest_first(url)}")
    if wanted.hardware is None:
        return tuple(rows)
    return tuple(hardware.match(rows, wanted.hardware, all_matches=wanted.all_matches))


def _condition(matched: tuple[StoredHardware, ...], wanted: ExampleFilter) -> tuple[str, list[Any]]:
    """Return a WHERE clause and its parameters."""
    terms = ["list_contains(?, hardware_id)"]
    values: list[Any] = [[row.id for row in matched]]
    for column, value in (("op", wanted.op), (_ARITHMETIC, wanted.full_dtype)):
        if value is not None:
            terms.append(f"problem_id IN (SELECT id FROM problems WHERE {column} = ?)")  # noqa: S608 - our own names
            values.append(value)
    return "WHERE " + " AND ".join(terms), values


def _lineage(connection: DuckDBPyConnection, where: str, parameters: list[Any]) -> dict[str, Any]:
    from diode_store.warehouse.schema import HEAD_REVISION

    usable = " AND NOT is_replay AND flags IS NULL AND superseded_by IS NULL AND choice_policy = 'stock'"
    row = connection.execute(_LINEAGE + where + usable, parameters).fetchone() or ()
    names = ("measurements", "timings", "measured_from", "measured_to", "datasets", "environments")
    found = dict(zip(names, row, strict=True))
    for name in ("measured_from", "measured_to"):
        # The lake keeps times in UTC, without saying so.
        found[name] = found[name].replace(tzinfo=UTC).isoformat() if found[name] is not None else None
    return {"schema_revision": HEAD_REVISION, **found}
