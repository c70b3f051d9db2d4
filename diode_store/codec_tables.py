"""The two tables of a record in the wire format: configs, and timings that point into them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from diode_store import checks
from diode_store.codec_reading import Interned, RawArray, unpack
from diode_store.errors import RecordError
from diode_store.records import CONFIG_COLUMNS, KernelConfig, Outcome, Timing, plain_scalar
from diode_store.timing_table import TimingTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CONFIG_TABLE = (*CONFIG_COLUMNS, "kwargs")
"""Columns of the config table; ``extra`` follows where a config has one."""
TIMING_TABLE = ("config", *(name for name in Timing._fields if name != "config"))
"""Columns of the timing table; ``config`` is a position in the config table."""
TABLE_FIELDS = ("config_columns", "configs", "timing_columns", "timings")

_TIMING_DEFAULTS = {"outcome": Outcome.OK.value, "is_estimate": False}
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}
_OK = Outcome.OK.value
_small = partial(checks.integer, least=0, most=checks.INT32)
_CONFIG_CHECKS: dict[str, checks.Check] = {
    "template": checks.text,
    **dict.fromkeys(("block_m", "block_n", "block_k", "group_m", "num_stages", "num_warps"), _small),
    "allow_tf32": checks.flag,
    "use_fast_accum": checks.flag,
    "acc_type": checks.text,
}


def write_tables(timings: Sequence[Timing]) -> dict[str, Any]:
    """Return the fields that hold ``timings`` and their configs."""
    index: dict[KernelConfig, int] = {}
    rows = [(index.setdefault(t.config, len(index)), *t[1:]) for t in timings]
    columns = (*CONFIG_TABLE, "extra") if any(config.extra for config in index) else CONFIG_TABLE
    configs = [[getattr(config, name) for name in columns] for config in index]
    return dict(zip(TABLE_FIELDS, (columns, configs, TIMING_TABLE, rows), strict=True))


def read_tables(content: dict[str, Any]) -> tuple[TimingTable, dict[str, Any]]:
    """Return the timings, and the columns of them that this version does not know.

    Raises:
        RecordError: the tables are not whole or a value is wrong; as for ``codec.decode``, other errors of reading
            malformed content may pass through.
    """
    configs = _configs(content)
    columns = checks.array("timing_columns", content["timing_columns"])
    rows: Sequence[Any] = checks.array("timings", content["timings"])
    unknown: dict[str, Any] = {}
    if columns != TIMING_TABLE:
        rows, unknown = _known_columns(columns, rows)
    _check_rows("timings", rows, len(TIMING_TABLE))
    if not rows:
        raise RecordError("a measurement needs at least one timing")
    positions, *values = zip(*rows, strict=True)
    if not _is_plain(positions, *values, configs=len(configs)):
        for position, row in enumerate(rows):
            _check_closely(f"timing {position}", row, len(configs))
    return TimingTable([configs[position] for position in positions], *values), unknown


def _is_plain(
    positions: Sequence[Any],
    runtimes: Sequence[Any],
    outcomes: Sequence[Any],
    estimates: Sequence[Any],
    repeats: Sequence[Any],
    p10: Sequence[Any],
    p90: Sequence[Any],
    *,
    configs: int,
) -> bool:
    """Tell whether whole columns are as they should be, with what Python does at the speed of C.

    Otherwise each row has to be looked at: to find which is wrong, or that all are right in an unusual way.
    """
    return (
        set(map(type, positions)) == {int}
        and min(positions) >= 0
        and max(positions) < configs
        and set(map(type, estimates)) == {bool}
        and set(map(type, outcomes)) == {str}
        and _OUTCOMES.keys() >= set(outcomes)
        and [outcome == _OK for outcome in outcomes] == [runtime is not None for runtime in runtimes]
        and all(map(_are_times, (runtimes, p10, p90)))
        and _are_counts(repeats)
    )


def _are_times(values: Sequence[Any]) -> bool:
    """Tell whether those that are there are finite and positive; a sum is NaN or infinite if one of them is."""
    kinds = set(map(type, values))
    if type(None) in kinds:
        values = [value for value in values if value is not None]
    return kinds <= {float, type(None)} and (
        not values or (min(values) > 0 and max(values) < checks.MAX_MICROSECONDS and math.isfinite(sum(values)))
    )


def _are_counts(values: Sequence[Any]) -> bool:
    kinds = set(map(type, values))
    if type(None) in kinds:
        values = [value for value in values if value is not None]
    return kinds <= {int, type(None)} and (not values or (min(values) >= 1 and max(values) <= checks.INT32))


def _configs(content: dict[str, Any]) -> list[KernelConfig]:
    columns = checks.array("config_columns", content["config_columns"])
    rows = content["configs"]
    if not isinstance(rows, RawArray):
        checks.array("configs", rows)
    interned = _config_readers(columns)
    try:
        return interned.all_of(rows)
    except RecordError:
        # Once more, to say which one it is.
        for position, raw in enumerate(rows):
            checks.array(f"configs[{position}]", unpack(raw), len(columns))
        raise


@lru_cache(maxsize=16)
def _config_readers(columns: tuple[str, ...]) -> Interned[KernelConfig]:
    """Return what builds configs of these columns, once each: records repeat the same few thousand."""
    return Interned(partial(_config_of_row, columns))


def _config_of_row(columns: tuple[str, ...], row: object) -> KernelConfig:
    values = {
        name: value
        for name, value in zip(columns, checks.array("a config", row, len(columns)), strict=True)
        if value is not None or name == "kwargs"
    }
    config = _config(values)
    extra = checks.extra_fields(values, CONFIG_TABLE)
    return replace(config, extra=extra) if extra else config


def _check_rows(what: str, rows: Iterable[Any], width: int) -> None:
    for position, row in enumerate(rows):
        if type(row) is not tuple or len(row) != width:
            checks.array(f"{what}[{position}]", row, width)


def _config(values: dict[str, Any]) -> KernelConfig:
    known = checks.fields("config", values, _CONFIG_CHECKS)
    checks.require("a config", known, ("template",))
    pairs = (checks.array("a kwarg", pair, 2) for pair in checks.array("kwargs", values.get("kwargs", ())))
    kwargs = (
        (checks.text("kwarg", name), plain_scalar(checks.scalar(f"kwarg {checks.shown(name)}", value)))
        for name, value in pairs
    )
    return KernelConfig(**known, kwargs=tuple(sorted(dict(kwargs).items())))


def _known_columns(columns: Sequence[Any], rows: Sequence[Any]) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
    positions = {checks.text("timing_columns", name): i for i, name in enumerate(columns)}
    checks.require("timing_columns", positions, ("config", "runtime_us"))
    _check_rows("timings", rows, len(columns))
    known = [
        tuple(row[positions[n]] if n in positions else _TIMING_DEFAULTS.get(n) for n in TIMING_TABLE) for row in rows
    ]
    return known, {name: [row[i] for row in rows] for name, i in positions.items() if name not in TIMING_TABLE}


def _check_closely(what: str, row: Sequence[Any], configs: int) -> None:
    config, runtime, outcome, guess, repeats, *spread = row
    known = checks.member(f"{what}: outcome", _OUTCOMES, outcome)
    if (known is Outcome.OK) != (runtime is not None):
        raise RecordError(f"{what}: outcome {outcome} does not go with runtime {checks.shown(runtime)}")
    checks.integer(f"{what}: config", config, least=0, most=configs - 1)
    checks.flag(f"{what}: is_estimate", guess)
    if repeats is not None:
        checks.integer(f"{what}: repeats", repeats, least=1, most=checks.INT32)
    if runtime is not None:
        checks.microseconds(f"{what}: runtime_us", runtime)
    for name, value in zip(("p10_us", "p90_us"), spread, strict=True):
        if value is not None:
            checks.microseconds(f"{what}: {name}", value)
