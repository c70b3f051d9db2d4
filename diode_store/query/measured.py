"""What was measured of some problems on one device: every config's time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diode_store.kernels import CONFIG_COLUMNS, KernelConfig, agrees

if TYPE_CHECKING:
    from collections.abc import Collection

    import duckdb

# Of several environments the one that was measured last; of several regimes the one nearest to a deployed kernel.
_MEASURED = f"""
WITH wanted AS (SELECT id, key FROM problems WHERE key IN (SELECT unnest($2::BLOB[]))),
latest AS (
    SELECT problem_id, arg_max(environment_id, measured_at) AS environment_id
    FROM measurements
    WHERE hardware_id = $1 AND superseded_by IS NULL AND problem_id IN (SELECT id FROM wanted)
    GROUP BY problem_id
),
places AS (
    SELECT problem_id, environment_id, arg_min(regime, regime_rank(regime)) AS regime
    FROM fastest_configs
    JOIN latest USING (problem_id, environment_id)
    WHERE hardware_id = $1
    GROUP BY ALL
)
SELECT w.key, r.torch, r.regime, r.runtime_us, {", ".join(f"c.{name}" for name in CONFIG_COLUMNS)}, c.kwargs
FROM config_rank AS r
JOIN places AS l
    ON l.problem_id = r.problem_id AND l.environment_id = r.environment_id AND l.regime IS NOT DISTINCT FROM r.regime
JOIN wanted AS w ON w.id = r.problem_id
JOIN configs AS c ON c.id = r.config_id
WHERE r.hardware_id = $1
ORDER BY w.key, r.runtime_us, r.config_id
"""  # noqa: S608 - only our own names are put together


@dataclass(frozen=True)
class MeasuredProblem:
    """The times of a problem's kernels, in one environment and one regime."""

    torch: str
    regime: str | None
    times_us: dict[KernelConfig, float]
    """Fastest first, in microseconds."""

    def time_us(self, config: KernelConfig) -> float | None:
        """Return the time of ``config``; of a source that does not name all its parameters what agrees with it."""
        if config in self.times_us:
            return self.times_us[config]
        return next((time for known, time in self.times_us.items() if agrees(config, known)), None)


def measured_configs(
    connection: duckdb.DuckDBPyConnection, hardware_id: int, problems: Collection[bytes]
) -> dict[bytes, MeasuredProblem]:
    """Return what was measured of problems, given by their keys, on a device; those that were not are left out."""
    found: dict[bytes, MeasuredProblem] = {}
    for key, torch, regime, runtime_us, *config, kwargs in connection.execute(
        _MEASURED, [hardware_id, list(problems)]
    ).fetchall():
        pairs = tuple((name, value) for name, value in json.loads(kwargs or "[]"))
        kernel = KernelConfig(**dict(zip(CONFIG_COLUMNS, config, strict=True)), kwargs=pairs)
        found.setdefault(bytes(key), MeasuredProblem(torch, regime, {})).times_us.setdefault(kernel, runtime_us)
    return found
