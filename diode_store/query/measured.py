"""Measured times of all configs of some problems on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from diode_store.kernels import CONFIG_COLUMNS, agrees
from diode_store.query.ranked_ties import config_of_row

if TYPE_CHECKING:
    from collections.abc import Collection

    import duckdb

    from diode_store.kernels import KernelConfig

# Of several environments take the last measured one; of several regimes the one nearest to deployment.
_MEASURED = f"""
WITH wanted AS (SELECT id, key FROM problems WHERE key IN (SELECT unnest($2::BLOB[]))),
found AS MATERIALIZED (
    SELECT problem_id, environment_id, torch, regime, config_id, runtime_us
    FROM config_rank
    WHERE hardware_id = $1 AND problem_id IN (SELECT id FROM wanted)
),
dates AS (
    SELECT problem_id, environment_id, max(measured_at) AS measured_at
    FROM measurements
    WHERE hardware_id = $1 AND superseded_by IS NULL
    GROUP BY ALL
),
places AS (
    SELECT problem_id, environment_id, regime
    FROM (SELECT DISTINCT problem_id, environment_id, regime FROM found)
    JOIN dates USING (problem_id, environment_id)
    QUALIFY row_number() OVER (
        PARTITION BY problem_id ORDER BY measured_at DESC, environment_id DESC, regime_rank(regime), regime
    ) = 1
)
SELECT w.key, f.torch, f.regime, f.runtime_us, {", ".join(f"c.{name}" for name in CONFIG_COLUMNS)}, c.kwargs
FROM found AS f
JOIN places AS p
    ON p.problem_id = f.problem_id AND p.environment_id = f.environment_id AND p.regime IS NOT DISTINCT FROM f.regime
JOIN wanted AS w ON w.id = f.problem_id
JOIN configs AS c ON c.id = f.config_id
ORDER BY w.key, f.runtime_us, f.config_id
"""  # noqa: S608 - only our own names are put together


@dataclass(frozen=True)
class MeasuredProblem:
    """Times of a problem's kernels in one environment and one regime."""

    torch: str
    regime: str | None
    times_us: dict[KernelConfig, float]
    """Times in microseconds, the fastest first."""

    def time_us(self, config: KernelConfig) -> float | None:
        """Return the time of ``config``, else of the first known config that agrees with its named parameters."""
        if config in self.times_us:
            return self.times_us[config]
        return next((time for known, time in self.times_us.items() if agrees(config, known)), None)


def measured_configs(
    connection: duckdb.DuckDBPyConnection, hardware_id: int, problems: Collection[bytes]
) -> dict[bytes, MeasuredProblem]:
    """Return the measurements of the problems with these keys on a device; unmeasured problems are missing."""
    found: dict[bytes, MeasuredProblem] = {}
    rows = connection.execute(_MEASURED, [hardware_id, list(problems)]).fetchall()
    for key, torch, regime, runtime_us, *config in rows:
        known = found.setdefault(bytes(key), MeasuredProblem(torch, regime, {}))
        known.times_us.setdefault(config_of_row(config), runtime_us)
    return found
