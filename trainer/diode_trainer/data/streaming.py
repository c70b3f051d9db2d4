"""Stream the warehouse's examples problem by problem; only the current problem is in memory.

Timings arrive as numbers (``training_timings``). The tables that these refer to (devices, problems, configs) are small
and read once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_store.candidates.columns import INT_COLUMNS, ConfigColumns, kwargs_of_text
from diode_store.ops import FUSED_OPS, OPS, dimensions_of_text
from diode_store.records import Hardware, ProblemShape, is_vendor_template
from diode_store.warehouse import record_fields
from diode_trainer.data.dataset import NOT_LEARNED, Examples

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from duckdb import DuckDBPyConnection
    from numpy.typing import NDArray

    Rows = dict[str, NDArray[Any]]

_SHAPE = "op, dtype, b, m, n, k, layout, asks_for_tf32(dtype, scalars), dimensions"
"""Columns of ``problems`` in the order of the fields of ``ProblemShape``."""
_TIMINGS = """
SELECT case_id, config_id, runtime_us, is_estimate
FROM (SELECT * FROM training_timings {where})
WHERE case_id BETWEEN ? AND ?
ORDER BY case_id, config_id
"""
_TIMINGS_AT_ONCE = 5_000_000
"""Timings sorted at once; they need some 600 MiB."""
_CASES = """
SELECT case_id, hardware_id, environment_id, problem_id, family, regime, usual_sigmas
FROM cases_of('stock')
ORDER BY case_id
"""


def stream_examples(
    connection: DuckDBPyConnection, where: str, parameters: Sequence[Any], unknown: Counter[str] | None = None
) -> Iterator[Examples]:
    """Yield the examples by problem, hardware, environment and regime, in no order that means anything.

    Args:
        connection: result of ``diode_store.query.analytics.connect``.
        where: empty, or a WHERE clause over the columns of ``training_timings``, with ``?`` for values.
        parameters: values of the clause.
        unknown: counts the problems left out because the table of ops does not know their op, by op.

    Raises:
        QueryError: the cache cannot be read.
    """
    from diode_store.query.results import stream

    dimensions = _Dimensions.read(connection)
    for first, last in _parts(connection, dimensions.cases["case_id"]):
        for rows in _cases(stream(connection, _TIMINGS.format(where=where), [*parameters, first, last])):
            example = dimensions.examples(rows)
            if example is not None:
                yield example
    if unknown is not None:
        unknown.update(dimensions.unknown.values())


def _parts(connection: DuckDBPyConnection, cases: NDArray[np.int32]) -> Iterator[tuple[int, int]]:
    """Yield the first and last id of runs of sorted cases with about ``_TIMINGS_AT_ONCE`` timings."""
    ((timings,),) = connection.execute("SELECT count(*) FROM timings").fetchall()
    parts = max(1, round(timings / _TIMINGS_AT_ONCE))
    for ids in np.array_split(cases, parts):
        if len(ids):
            yield int(ids[0]), int(ids[-1])


def _cases(batches: pa.RecordBatchReader) -> Iterator[Rows]:
    """Split batches, which may end within a case, into the rows of one case each."""
    left: Rows | None = None
    for batch in batches:
        rows = _numpy(batch)
        if left is not None:
            rows = {name: np.concatenate([left[name], values]) for name, values in rows.items()}
        starts = np.flatnonzero(np.diff(rows["case_id"], prepend=-1))
        for first, after in pairwise(starts):
            yield {name: values[first:after] for name, values in rows.items()}
        left = {name: values[starts[-1] :] for name, values in rows.items()} if len(starts) else None
    if left is not None:
        yield left


def _numpy(batch: pa.RecordBatch) -> Rows:
    """Return the columns of a batch; a NULL time (a failed config) becomes inf."""
    rows: Rows = {
        name: batch.column(name).to_numpy(zero_copy_only=False) for name in batch.schema.names if name != "runtime_us"
    }
    return {**rows, "runtime_us": batch.column("runtime_us").fill_null(np.inf).to_numpy()}


@dataclass(frozen=True)
class _Dimensions:
    """Tables that the numbers refer to."""

    hardware: dict[int, Hardware]
    shapes: dict[int, ProblemShape]
    ops: dict[int, str]
    """Op of each problem without a shape."""
    configs: ConfigColumns
    is_vendor: NDArray[np.bool_]
    position: NDArray[np.intp]
    """Index in ``configs`` by config id."""
    cases: Rows
    """Columns of ids and names, sorted by the number of the case."""
    unknown: dict[int, str]
    """Op of each problem that was left out; filled by ``examples``."""

    @classmethod
    def read(cls, connection: DuckDBPyConnection) -> _Dimensions:
        hardware = connection.execute(f"SELECT id, {', '.join(record_fields.HARDWARE)} FROM hardware").fetchall()  # noqa: S608 - names
        problems = connection.execute(f"SELECT id, {_SHAPE} FROM problems").fetchall()  # noqa: S608 - names
        known = [row for row in problems if is_known(row[1], row[4])]
        columns = ", ".join(f"coalesce({name}, 0)" for name in INT_COLUMNS)
        configs = connection.execute(
            f"SELECT id, template, {columns}, coalesce(allow_tf32, false), kwargs FROM configs ORDER BY id"  # noqa: S608 - names
        ).fetchall()
        position = np.zeros(max((row[0] for row in configs), default=0) + 1, dtype=np.intp)
        position[[row[0] for row in configs]] = np.arange(len(configs))
        found = ConfigColumns.from_rows([row[1:-1] for row in configs], [kwargs_of_text(row[-1]) for row in configs])
        return cls(
            {row[0]: Hardware(**dict(zip(record_fields.HARDWARE, row[1:], strict=True))) for row in hardware},
            {row[0]: ProblemShape(*(*row[1:-1], dimensions_of_text(row[-1]))) for row in known},
            {row[0]: row[1] for row in problems if not is_known(row[1], row[4])},
            found,
            found.template_mask(is_vendor_template),
            position,
            {name: _with_none(values) for name, values in connection.execute(_CASES).fetchnumpy().items()},
            {},
        )

    def examples(self, rows: Rows) -> Examples | None:
        """Return the rows of one case as examples; None for a problem without a shape."""
        at = self.position[rows["config_id"]]
        case = int(np.searchsorted(self.cases["case_id"], rows["case_id"][0]))
        hardware, environment, problem = (
            int(self.cases[name][case]) for name in ("hardware_id", "environment_id", "problem_id")
        )
        if problem not in self.shapes:
            if self.ops[problem] not in NOT_LEARNED:
                self.unknown[problem] = self.ops[problem]
            return None
        return Examples(
            hardware=self.hardware[hardware],
            environment=str(environment),
            shape=self.shapes[problem],
            columns=self.configs.take(at),
            # A slice would keep the whole batch in memory.
            runtime_us=rows["runtime_us"].copy(),
            is_vendor=self.is_vendor[at],
            is_estimate=rows["is_estimate"].copy(),
            family=self.cases["family"][case],
            regime=self.cases["regime"][case],
            usual_sigmas=tuple(map(float, self.cases["usual_sigmas"][case])),
        )


def is_known(op: str, m: int | None) -> bool:
    """Return whether a problem of a warehouse has a shape that models learn from."""
    return op in OPS and op not in FUSED_OPS and m is not None


def _with_none(values: NDArray[Any]) -> NDArray[Any]:
    """Return a DuckDB column with None in place of masked NULLs."""
    if not np.ma.isMaskedArray(values):
        return values
    found = np.array(np.ma.getdata(values), dtype=object)
    found[np.ma.getmaskarray(values)] = None
    return found
