"""The two tables of a record in the wire format: configs, and timings that point into them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from diode_store import checks
from diode_store.errors import RecordError
from diode_store.records import CONFIG_COLUMNS, KernelConfig, Outcome, Timing, plain_scalar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CONFIG_TABLE = (*CONFIG_COLUMNS, "kwargs")
"""Columns of the config table; ``extra`` follows where a config has one."""
TIMING_TABLE = ("config", *(name for name in Timing._fields if name != "config"))
"""Columns of the timing table; ``config`` is a position in the config table."""
TABLE_FIELDS = ("config_columns", "configs", "timing_columns", "timings")

_TIMING_DEFAULTS = {"outcome": Outcome.OK.value, "is_estimate": False}
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}
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


def read_tables(content: dict[str, Any]) -> tuple[tuple[Timing, ...], dict[str, Any]]:
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
    _check_timings(rows, len(configs))
    outcomes, new = _OUTCOMES, tuple.__new__
    return tuple([new(Timing, (configs[row[0]], row[1], outcomes[row[2]], *row[3:])) for row in rows]), unknown


def _configs(content: dict[str, Any]) -> list[KernelConfig]:
    columns = checks.array("config_columns", content["config_columns"])
    rows = checks.array("configs", content["configs"])
    _check_rows("configs", rows, len(columns))
    if columns == CONFIG_TABLE:
        return [_config(row) for row in rows]
    configs = []
    for row in rows:
        values = {name: value for name, value in zip(columns, row, strict=True) if value is not None}
        config = _config((*(values.get(name) for name in CONFIG_TABLE[:-1]), values.get("kwargs", ())))
        extra = checks.extra_fields(values, CONFIG_TABLE)
        configs.append(replace(config, extra=extra) if extra else config)
    return configs


def _check_rows(what: str, rows: Iterable[Any], width: int) -> None:
    for position, row in enumerate(rows):
        if type(row) is not tuple or len(row) != width:
            checks.array(f"{what}[{position}]", row, width)


def _config(row: tuple[Any, ...]) -> KernelConfig:
    try:
        return _interned(row, *row, *(value for _, value in row[-1])) if row[-1] else _interned(row, *row)
    except (TypeError, ValueError) as error:  # a map where a value should be, or kwargs that are no pairs
        raise RecordError("a config must hold plain values, and kwargs as pairs of a name and a value") from error


@lru_cache(maxsize=100_000, typed=True)
def _interned(row: tuple[Any, ...], *_values: Any) -> KernelConfig:
    """Build each distinct config once: records repeat the same few thousand.

    The values come once more by themselves, so that the cache sees their types: True and 1 are equal.
    """
    values = dict(zip(CONFIG_TABLE, row, strict=True))
    known = checks.fields("config", values, _CONFIG_CHECKS)
    checks.require("a config", known, ("template",))
    pairs = checks.array("kwargs", values["kwargs"])
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


def _check_timings(rows: Iterable[Any], configs: int) -> None:
    """Check what SQL could not: that numbers are finite and positive and fit their outcome.

    The common row passes on a few comparisons; any other is looked at closely.
    """
    most = checks.MAX_MICROSECONDS
    for position, row in enumerate(rows):
        config, runtime, outcome, guess, repeats, p10, p90 = row
        if not (
            type(runtime) is float
            and 0 < runtime < most
            and outcome == "ok"
            and type(config) is int
            and 0 <= config < configs
            and type(guess) is bool
            and repeats is p10 is p90 is None
        ):
            _check_closely(f"timing {position}", row, configs)


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
