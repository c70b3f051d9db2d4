"""A dataset from the warehouse: its view ``training_examples``, through DuckDB."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import UTC
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_store.columns import INT_COLUMNS, ConfigColumns
from diode_store.errors import DatasetError
from diode_store.normalise import DTYPES
from diode_store.records import Hardware, ProblemShape
from diode_trainer.dataset import REMEDY, Dataset, Examples, canonical, what_there_is

if TYPE_CHECKING:
    from collections.abc import Iterator

    from duckdb import DuckDBPyConnection
    from numpy.typing import NDArray

    from diode_store.hardware import StoredHardware

    Table = dict[str, NDArray[Any]]

_DTYPES = {**DTYPES, "half": "float16", "float": "float32"}

_HARDWARE = (
    "vendor",
    "arch",
    "multiprocessors",
    "l2_bytes",
    "shared_memory_per_block_bytes",
    "memory_bytes",
    "memory_bandwidth_bytes_per_s",
    "max_clock_mhz",
)
_SHAPE = tuple(f.name for f in fields(ProblemShape))
_GROUP = ("hardware_id", "environment_id", "problem_id")
_CONFIG = ("template", *INT_COLUMNS, "allow_tf32", "is_vendor", "is_estimate", "runtime_us", "outcome")
_COLUMNS = (*_GROUP, "hardware", *_HARDWARE, *_SHAPE, *_CONFIG)
_ARITHMETIC = "CASE WHEN tf32 THEN 'tf32' ELSE dtype END"
_LINEAGE = """
    SELECT count(DISTINCT measurement_uid) AS measurements, count(*) AS timings,
           min(measured_at) AS measured_from, max(measured_at) AS measured_to,
           list_sort(list(DISTINCT dataset) FILTER (dataset IS NOT NULL)) AS datasets,
           list_sort(list(DISTINCT {'torch': torch, 'triton': triton, 'compute': compute, 'driver': driver}))
               AS environments
    FROM observations
"""


@dataclass(frozen=True)
class Selection:
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
    """What was found."""

    dataset: Dataset
    matched: tuple[StoredHardware, ...]
    """The hardware that the name meant."""


def load_warehouse(url: str, selection: Selection) -> Loaded:
    """Read the examples of ``selection``; the lake is synced first.

    Raises:
        HardwareError: the name matches nothing, or devices that differ; lists what there is.
        SchemaError: the database has another schema revision.
        DatasetError: nothing to learn from; says what to do.
    """
    from diode_store.analytics import connect

    matched = _match(url, selection)
    with connect(url) as connection:
        where, parameters = _condition(matched, selection)
        query = f"SELECT {', '.join(_COLUMNS)} FROM training_examples {where}"  # noqa: S608 - no value is in it
        table = connection.execute(f"{query} ORDER BY {', '.join(_GROUP)}, config_id", parameters).fetchnumpy()
        if not len(table["problem_id"]):
            raise DatasetError(_nothing(connection, matched, selection))
        lineage = _lineage(connection, where, parameters)
    return Loaded(Dataset(canonical(_examples(table)), lineage), matched)


def _nothing(connection: DuckDBPyConnection, matched: tuple[StoredHardware, ...], selection: Selection) -> str:
    """Return why there are no examples: what was wanted, and what there is or how to get some."""
    where, parameters = _condition(matched, Selection())
    query = f"SELECT DISTINCT op, {_ARITHMETIC} FROM training_examples {where}"  # noqa: S608 - no value is in it
    there = connection.execute(query, parameters).fetchall()
    names = ", ".join(row.name for row in matched)
    remedy = f"there is: {what_there_is(there)}" if there else REMEDY
    return f"no examples of {selection.describe() or 'any problem'} on {names}; {remedy}"


def _match(url: str, selection: Selection) -> tuple[StoredHardware, ...]:
    from diode_store import hardware
    from diode_store.store import Store

    with Store.open(url) as store, store.engine.connect() as connection:
        rows = [row for row in hardware.list_hardware(connection) if row.measurements]
    if not rows:
        raise DatasetError(f"the warehouse holds no measurements; {REMEDY}")
    if selection.hardware is None:
        return tuple(rows)
    return tuple(hardware.match(rows, selection.hardware, all_matches=selection.all_matches))


def _condition(matched: tuple[StoredHardware, ...], selection: Selection) -> tuple[str, list[Any]]:
    """Return a WHERE clause and its parameters."""
    terms = ["list_contains(?, hardware_id)"]
    values: list[Any] = [[row.id for row in matched]]
    if selection.op is not None:
        terms.append("op = ?")
        values.append(selection.op)
    if selection.dtype is not None:
        terms.append(f"{_ARITHMETIC} = ?")
        values.append(selection.full_dtype)
    return "WHERE " + " AND ".join(terms), values


def _lineage(connection: DuckDBPyConnection, where: str, parameters: list[Any]) -> dict[str, Any]:
    from diode_store.schema import HEAD_REVISION

    usable = " AND NOT is_replay AND flags IS NULL AND choice_policy = 'stock'"
    row = connection.execute(_LINEAGE + where + usable, parameters).fetchone() or ()
    names = ("measurements", "timings", "measured_from", "measured_to", "datasets", "environments")
    found = dict(zip(names, row, strict=True))
    for name in ("measured_from", "measured_to"):
        # The lake keeps times in UTC, without saying so.
        found[name] = found[name].replace(tzinfo=UTC).isoformat() if found[name] is not None else None
    return {"schema_revision": HEAD_REVISION, **found}


def _examples(table: Table) -> Iterator[Examples]:
    """Cut the table into its problems."""
    templates, template_index = np.unique(table["template"].astype(str), return_inverse=True)
    numbers = {name: _filled(table[name], 0).astype(np.int32) for name in INT_COLUMNS}
    allow_tf32 = _filled(table["allow_tf32"], fill=False).astype(np.bool_)
    columns = ConfigColumns(
        tuple(templates.tolist()), template_index.astype(np.int32), allow_tf32=allow_tf32, **numbers
    )
    ran = table["outcome"].astype(str) == "ok"
    runtime = np.where(ran, _filled(table["runtime_us"], np.inf), np.inf)
    is_vendor, is_estimate = (
        _filled(table[name], fill=False).astype(np.bool_) for name in ("is_vendor", "is_estimate")
    )
    groups = np.stack([table[name] for name in _GROUP])
    changes = np.any(np.diff(groups, axis=1, prepend=groups[:, :1] - 1), axis=0)
    for rows in np.split(np.arange(groups.shape[1]), np.flatnonzero(changes)[1:]):
        first = int(rows[0])
        yield Examples(
            hardware=_hardware(table, first),
            environment=str(table["environment_id"][first]),
            shape=_shape(table, first),
            columns=columns.take(rows),
            runtime_us=runtime[rows],
            is_vendor=is_vendor[rows],
            is_estimate=is_estimate[rows],
        )


def _hardware(table: Table, row: int) -> Hardware:
    values = {name: _plain(table[name][row]) for name in _HARDWARE}
    return Hardware(name=str(table["hardware"][row]), **values)


def _shape(table: Table, row: int) -> ProblemShape:
    values: dict[str, Any] = {name: _plain(table[name][row]) for name in _SHAPE}
    return ProblemShape(**values)


def _plain(value: Any) -> Any:
    """Return a NumPy scalar as Python's own, a masked one as None."""
    if np.ma.is_masked(value):
        return None
    return value.item() if isinstance(value, np.generic) else value


def _filled(values: NDArray[Any], fill: Any) -> NDArray[Any]:
    return values.filled(fill) if isinstance(values, np.ma.MaskedArray) else values
