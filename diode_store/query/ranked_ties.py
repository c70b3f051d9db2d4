"""The fastest kernels of each problem on one device in one environment: the winner and its tie set."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from diode_store.candidates.convolution_space import why_not_trusted
from diode_store.errors import ExportError
from diode_store.exchange.foreign.inductor_lut import Ranked
from diode_store.ops import OPS
from diode_store.query.routings import TimedProblem, over_routings
from diode_store.records import CONFIG_COLUMNS, REGIME_NAMES, UNKNOWN, Environment, KernelConfig, Problem, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import duckdb

    from diode_store.warehouse.hardware import StoredHardware

_ENVIRONMENTS = """
SELECT e.id, e.torch, e.triton, e.compute, e.driver, e.python, e.os, e.template_hashes, count(DISTINCT m.problem_id)
FROM measurements AS m
JOIN environments AS e ON e.id = m.environment_id
JOIN problems AS p ON p.id = m.problem_id
WHERE m.hardware_id = $1 AND ($2 IS NULL OR p.op = $2) AND m.superseded_by IS NULL
GROUP BY ALL
ORDER BY e.id
"""
# Leave out problems with timings of vendor kernels alone: ranking those would keep Inductor from tuning them.
_RANKED = """
SELECT f.problem_id, f.op, f.inputs, f.scalars, f.runtime_us, f.regime, f.tie_config_ids, f.sigma
FROM fastest_configs AS f
WHERE f.hardware_id = $1 AND f.environment_id = $2 AND ($3 IS NULL OR f.op = $3) AND is_regime(f.regime, $4)
    AND EXISTS (
        SELECT 1 FROM measurements AS m
        WHERE m.hardware_id = $1 AND m.environment_id = $2 AND m.problem_id = f.problem_id
            AND m.superseded_by IS NULL AND NOT is_by_vendor_alone(m.search_space)
    )
QUALIFY regime_place(f.hardware_id, f.environment_id, f.problem_id, f.regime) = 1
ORDER BY f.op, f.dtype, f.b, f.m, f.n, f.k, f.layout, f.problem_id
"""
_LEFT_OUT = """
WITH measured AS (
    SELECT
        m.problem_id,
        bool_or(m.environment_id = $2) AS is_here,
        bool_and(is_by_vendor_alone(m.search_space)) FILTER (m.environment_id = $2) AS is_by_vendor
    FROM measurements AS m
    JOIN problems AS p ON p.id = m.problem_id
    WHERE m.hardware_id = $1 AND ($3 IS NULL OR p.op = $3) AND m.superseded_by IS NULL
    GROUP BY m.problem_id
),
ranked AS (
    SELECT problem_id, bool_or(is_regime(regime, $4)) AS is_wanted
    FROM fastest_configs
    WHERE hardware_id = $1 AND environment_id = $2
    GROUP BY problem_id
)
SELECT
    count(*) FILTER (NOT m.is_here),
    count(*) FILTER (m.is_here AND NOT m.is_by_vendor AND r.problem_id IS NULL),
    count(*) FILTER (m.is_here AND NOT m.is_by_vendor AND NOT r.is_wanted),
    count(*) FILTER (m.is_here AND m.is_by_vendor)
FROM measured AS m
LEFT JOIN ranked AS r USING (problem_id)
"""


_UNTRUSTED = "fastest with 8 warps in a convolution's template, whose results cannot be trusted"


@dataclass(frozen=True)
class FoundEnvironment:
    """An environment with timings on a device."""

    id: int
    environment: Environment
    description: str

    @property
    def torch(self) -> str:
        """Version of torch."""
        return self.environment.torch

    @property
    def template_hashes(self) -> Mapping[str, str]:
        """SHA-256 of each template's source, by template uid."""
        return self.environment.template_hashes

    def has_torch(self, version: str) -> bool:
        """Return whether the environment has this version of torch; ``2.13`` also means 2.13.0+cu130."""
        return self.torch == version or self.torch.startswith((f"{version}.", f"{version}+"))


def environment_of(
    connection: duckdb.DuckDBPyConnection,
    device: StoredHardware,
    op: str | None,
    wanted: int | None,
    torch: str | None = None,
) -> FoundEnvironment:
    """Return the environment with the id ``wanted`` and this version of torch, or the only environment.

    Raises:
        ExportError: no environment fits, or several do; the message lists them.
    """
    found = [_environment(row) for row in connection.execute(_ENVIRONMENTS, [device.id, op]).fetchall()]
    chosen = [each for each in found if wanted in {None, each.id} and (torch is None or each.has_torch(torch))]
    if len(chosen) == 1:
        return chosen[0]
    nothing = f"no {op!r} was measured" if op else "nothing was measured"
    if found:
        listed = "; ".join(f"{each.id} is {each.description}" for each in chosen or found)
        why = f"name one environment with --environment-id: {listed}"
    else:
        why = f"{nothing} on this device; `diode hardware list` shows what was"
    asked = [f"in environment {wanted}"] if wanted is not None else []
    asked += [f"with torch {torch!r}"] if torch is not None else []
    where = f"{nothing} on {device.name} {' '.join(asked)}; " if asked and not chosen else ""
    raise ExportError(f"{where}{why}")


def _environment(row: tuple[Any, ...]) -> FoundEnvironment:
    number, *values, hashes, problems = row
    fields = dict(zip(("torch", "triton", "compute", "driver", "python", "os"), values, strict=True))
    environment = Environment(**fields, template_hashes=json.loads(hashes) if hashes else {})
    said = ", ".join(f"{name} {value}" for name, value in fields.items() if name == "torch" or value != UNKNOWN)
    return FoundEnvironment(number, environment, f"{said} ({problems:,} problems)")


def left_out(
    connection: duckdb.DuckDBPyConnection, hardware_id: int, environment_id: int, op: str | None, regime: str | None
) -> dict[str, int]:
    """Return the number of measured problems on a device that ``ranked`` leaves out, by reason."""
    asked = [hardware_id, environment_id, op, regime]
    [counts] = connection.execute(_LEFT_OUT, asked).fetchall()
    reasons = (
        "measured in another environment only (--environment-id takes another)",
        "no time of theirs counts: failed, flagged, replayed, implausible or given up early",
        f"not timed in the regime {regime!r}"
        + ("" if regime in REGIME_NAMES else f" (known: {', '.join(REGIME_NAMES)})"),
        "timed by the vendor's kernels alone (`diode-collect --search-space VENDOR`)",
    )
    return {why: number for why, number in zip(reasons, counts, strict=True) if number}


def ranked(
    connection: duckdb.DuckDBPyConnection,
    hardware_id: int,
    environment_id: int,
    op: str | None,
    regime: str | None = None,
    *,
    left_out: dict[str, int] | None = None,
) -> Iterator[Ranked]:
    """Yield each timed problem with its tie set, in a stable order.

    If a problem was timed in several regimes, the regime nearest to deployment counts unless ``regime`` names another.
    A grouped product comes once for all its routings, as ``routings`` says. Kernels whose results cannot be trusted are
    left out, and problems whose fastest kernels all are; ``left_out`` gets their number by the reason.
    """
    rows = connection.execute(_RANKED, [hardware_id, environment_id, op, regime]).fetchall()
    found = list(over_routings(connection, hardware_id, environment_id, map(_timed_problem, rows)))
    wanted = sorted({number for each in found for number in each.ties})
    columns = ", ".join(CONFIG_COLUMNS)
    select = f"SELECT id, {columns}, kwargs FROM configs WHERE id IN (SELECT unnest($1::BIGINT[]))"  # noqa: S608 - our own names
    configs = {row[0]: config_of_row(row[1:]) for row in connection.execute(select, [wanted]).fetchall()}
    for each in found:
        ties = tuple(configs[number] for number in each.ties)
        if each.problem.op in OPS and OPS[each.problem.op].is_convolution:
            ties = tuple(config for config in ties if why_not_trusted(each.problem.shape, config) is None)
        if ties:
            yield Ranked(each.problem, ties, each.runtime_us, each.regime)
        elif left_out is not None:
            left_out[_UNTRUSTED] = left_out.get(_UNTRUSTED, 0) + 1


def _timed_problem(row: tuple[Any, ...]) -> TimedProblem:
    number, name, inputs, scalars, runtime_us, regime, ties, sigma = row
    specs = tuple(TensorSpec(dtype, tuple(size), tuple(stride)) for dtype, size, stride in json.loads(inputs))
    problem = Problem(name, specs, tuple((n, v) for n, v in json.loads(scalars)))
    return TimedProblem(number, problem, runtime_us, regime, tuple(ties), sigma)


def config_of_row(row: Sequence[Any]) -> KernelConfig:
    """Return the config of a row that holds ``CONFIG_COLUMNS`` and ``kwargs``."""
    *columns, kwargs = row
    pairs = tuple((name, value) for name, value in json.loads(kwargs or "[]"))
    return KernelConfig(**dict(zip(CONFIG_COLUMNS, columns, strict=True)), kwargs=pairs)
