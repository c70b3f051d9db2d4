"""The fastest kernels of each problem on one device in one environment, with those within noise of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from diode_store.errors import ExportError
from diode_store.exchange.inductor_lut import Ranked
from diode_store.records import CONFIG_COLUMNS, KernelConfig, Problem, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
_RANKED = """
SELECT f.op, f.inputs, f.scalars, f.tie_config_ids
FROM fastest_configs AS f
WHERE f.hardware_id = $1 AND f.environment_id = $2 AND ($3 IS NULL OR f.op = $3)
QUALIFY regime_place(f.hardware_id, f.environment_id, f.problem_id, f.regime) = 1
ORDER BY f.op, f.dtype, f.b, f.m, f.n, f.k, f.layout, f.problem_id
"""


@dataclass(frozen=True)
class FoundEnvironment:
    """An environment in which something was timed on a device."""

    id: int
    torch: str
    description: str
    template_hashes: Mapping[str, str]


def environment_of(
    connection: duckdb.DuckDBPyConnection, device: StoredHardware, op: str | None, wanted: int | None
) -> FoundEnvironment:
    """Return the environment with the id ``wanted``, or the only one there is.

    Raises:
        ExportError: there is none, or there are several and none was named; the message lists them.
    """
    found = [_environment(row) for row in connection.execute(_ENVIRONMENTS, [device.id, op]).fetchall()]
    chosen = [environment for environment in found if wanted in {None, environment.id}]
    if len(chosen) == 1:
        return chosen[0]
    nothing = f"no {op} was measured" if op else "nothing was measured"
    if found:
        listed = "; ".join(f"{environment.id} is {environment.description}" for environment in found)
        why = f"name one environment with --environment-id: {listed}"
    else:
        why = f"{nothing} on this device; `diode hardware list` shows what was"
    where = "" if wanted is None else f"{nothing} on {device.name} in environment {wanted}; "
    raise ExportError(f"{where}{why}")


def _environment(row: tuple[Any, ...]) -> FoundEnvironment:
    number, torch, *others, hashes, problems = row
    named = zip(("triton", "compute", "driver", "python", "os"), others, strict=True)
    said = ", ".join(f"{name} {value}" for name, value in named if value != "unknown")
    description = f"torch {torch}{', ' if said else ''}{said} ({problems:,} problems)"
    return FoundEnvironment(number, torch, description, json.loads(hashes) if hashes else {})


def ranked(
    connection: duckdb.DuckDBPyConnection, hardware_id: int, environment_id: int, op: str | None
) -> Iterator[Ranked]:
    """Yield each problem that was timed there, in a stable order, with its tie set.

    Of a problem that was timed in several regimes the one nearest to deployment counts.
    """
    rows = connection.execute(_RANKED, [hardware_id, environment_id, op]).fetchall()
    wanted = sorted({number for row in rows for number in row[3]})
    columns = ", ".join(CONFIG_COLUMNS)
    select = f"SELECT id, {columns}, kwargs FROM configs WHERE id IN (SELECT unnest($1::BIGINT[]))"  # noqa: S608 - our own names
    configs = {row[0]: _config(row[1:]) for row in connection.execute(select, [wanted]).fetchall()}
    for name, inputs, scalars, ties in rows:
        specs = tuple(TensorSpec(dtype, tuple(size), tuple(stride)) for dtype, size, stride in json.loads(inputs))
        problem = Problem(name, specs, tuple((n, v) for n, v in json.loads(scalars)))
        yield Ranked(problem, tuple(configs[number] for number in ties))


def _config(row: tuple[Any, ...]) -> KernelConfig:
    *columns, kwargs = row
    pairs = tuple((name, value) for name, value in json.loads(kwargs or "[]"))
    return KernelConfig(**dict(zip(CONFIG_COLUMNS, columns, strict=True)), kwargs=pairs)
