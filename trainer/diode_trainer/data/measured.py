"""Measurements by problem, for corrections, whoever chose what to time.

Unlike training examples, they include the few configs that compiles under a hook measured.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from diode_store.candidates.columns import INT_COLUMNS, ConfigColumns
from diode_store.errors import DatasetError
from diode_store.ops import OPS, dimensions_of_text
from diode_store.records import Hardware, ProblemShape, Source, TimingMethod
from diode_store.timing.noise import usual_sigma
from diode_store.warehouse import record_fields
from diode_trainer.corrections.correcting import MeasuredProblem
from diode_trainer.data.dataset import NOT_LEARNED, ingest_first
from diode_trainer.data.from_warehouse import ExampleFilter, match_measured
from diode_trainer.data.regimes import as_deployed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duckdb import DuckDBPyConnection

    from diode_store.warehouse.hardware import StoredHardware

LAUNCH_MATTERS_US = 30.0
"""Shortest usable time if the launch was timed as well; shorter ones are left out, as the launch dominates them."""
_ESTIMATE_SIGMA = 0.3
"""Relative scatter of configs that were dropped after a first look."""

_SHAPE = tuple(f.name for f in fields(ProblemShape))
_IS_TOO_SHORT = f"outcome = 'ok' AND NOT coalesce(launch_hidden, false) AND runtime_us < {LAUNCH_MATTERS_US}"
_FROM = """
FROM observations
WHERE op IN ({ops}) AND m IS NOT NULL
AND list_contains($hardware, hardware_id) AND NOT is_replay AND flags IS NULL AND implausible IS NULL
AND ($source IS NULL OR source = $source)
""".replace("{ops}", ", ".join(f"'{op}'" for op in OPS if op not in NOT_LEARNED))
_KEYS = f"hardware_id, {', '.join(_SHAPE)}, regime"
_CONFIG = f"""
template, {", ".join(f"coalesce({name}, 0) AS {name}" for name in INT_COLUMNS)}, coalesce(allow_tf32, false) AS allow
"""
_MEASURED = f"""
SELECT {_KEYS}, {_CONFIG},
    median(runtime_us) FILTER (outcome = 'ok') AS runtime_us,
    greatest(count(*) FILTER (outcome = 'ok'), 1) AS measurements,
    bool_and(coalesce(launch_hidden, false)) AS launch_hidden,
    bool_and(is_estimate) AS is_estimate
{_FROM} AND NOT ({_IS_TOO_SHORT})
GROUP BY ALL ORDER BY ALL
"""
_TOO_SHORT = f"SELECT count(*) {_FROM} AND {_IS_TOO_SHORT}"


@dataclass(frozen=True)
class MeasuredData:
    """Measurements with their hardware."""

    problems: tuple[MeasuredProblem, ...]
    matched: tuple[StoredHardware, ...]
    """Hardware that the name matched."""
    too_short: int
    """Number of timings left out because their launch was timed as well."""


class _Row(NamedTuple):
    """Timings of one config of one problem in one regime."""

    hardware_id: int
    shape: ProblemShape
    regime: str | None
    config: tuple[Any, ...]
    runtime_us: float | None
    measurements: int
    launch_hidden: bool
    is_estimate: bool

    @classmethod
    def of(cls, row: Sequence[Any]) -> _Row:
        shape, config = 1 + len(_SHAPE), 1 + len(_SHAPE) + 3 + len(INT_COLUMNS)
        found = ProblemShape(*(*row[1 : shape - 1], dimensions_of_text(row[shape - 1])))
        return cls(row[0], found, row[shape], tuple(row[shape + 1 : config]), *row[config:])

    @property
    def sigma(self) -> float:
        """Relative scatter of one measurement."""
        if self.runtime_us is None or self.is_estimate:
            return _ESTIMATE_SIGMA
        return usual_sigma(self.runtime_us, [TimingMethod(launch_hidden=self.launch_hidden, regime=self.regime)])


def load_measured(url: str, hardware: str, *, source: Source | None = None, all_matches: bool = False) -> MeasuredData:
    """Sync the cache, and read the measurements on ``hardware``.

    The times of a problem come from one regime: the one with the most configs.

    Args:
        url: warehouse.
        hardware: alias, name or beginning of a name.
        source: only measurements of this source; None for all.
        all_matches: accept devices that differ in architecture or multiprocessors.

    Raises:
        HardwareError: the name matches nothing, or different devices; lists the known ones.
        SchemaError: the database has another schema revision.
        DatasetError: there are no measurements; says what to do.
    """
    from diode_store.query.analytics import connect

    by_name = match_measured(url, ExampleFilter(hardware, all_matches=all_matches))
    matched = tuple({row.id: row for rows in by_name.values() for row in rows}.values())
    parameters = {"hardware": [row.id for row in matched], "source": None if source is None else source.value}
    with connect(url) as connection:
        devices = _devices(connection)
        rows = [_Row.of(row) for row in connection.execute(_MEASURED, parameters).fetchall()]
        ((too_short,),) = connection.execute(_TOO_SHORT, parameters).fetchall()
    if not rows:
        names = ", ".join(row.name for row in matched)
        what = "no measurements" if source is None else f"no measurements from {source}"
        short = f" but {too_short} too short to tell from their launches" if too_short else ""
        raise DatasetError(f"{what} on {names}{short}; collect some, or {ingest_first(url)}")
    cases = groupby(rows, key=lambda row: (row.hardware_id, row.shape))
    problems = tuple(_problem(devices[device], shape, list(case)) for (device, shape), case in cases)
    return MeasuredData(problems, matched, too_short)


def _devices(connection: DuckDBPyConnection) -> dict[int, Hardware]:
    names = record_fields.HARDWARE
    rows = connection.execute(f"SELECT id, {', '.join(names)} FROM hardware").fetchall()  # noqa: S608 - names
    return {row[0]: Hardware(**dict(zip(names, row[1:], strict=True))) for row in rows}


def _problem(hardware: Hardware, shape: ProblemShape, rows: list[_Row]) -> MeasuredProblem:
    by_regime = Counter(row.regime for row in rows)
    regime = max(by_regime, key=lambda regime: (by_regime[regime], regime or ""))
    rows = [row for row in rows if row.regime == regime]
    return MeasuredProblem(
        hardware=hardware,
        shape=shape,
        columns=ConfigColumns.from_rows([row.config for row in rows]),
        runtime_us=as_deployed(
            np.array([np.inf if row.runtime_us is None else row.runtime_us for row in rows]), regime
        ),
        count=np.array([row.measurements for row in rows], dtype=np.int64),
        sigma=np.array([row.sigma for row in rows]),
    )
