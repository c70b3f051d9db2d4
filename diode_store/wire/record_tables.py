"""The tables of a record in the wire format: configs, timings that point into them, and metrics."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from itertools import count
from typing import TYPE_CHECKING, Any

import msgpack

from diode_store.errors import RecordError
from diode_store.records import CONFIG_COLUMNS, MOST_METRICS, KernelConfig, Metric, Outcome, Timing, plain_scalar
from diode_store.values import checks
from diode_store.wire.timing_table import ONCE_EACH, OUTCOMES, NumberedConfigs, TimingTable, repeats_a_config
from diode_store.wire.unpacking import Interned, unpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

CONFIG_TABLE = (*CONFIG_COLUMNS, "kwargs")
"""Columns of the config table; ``extra`` follows if a config has one."""
TIMING_TABLE = ("config", *(name for name in Timing._fields if name != "config"))
"""Columns of the timing table; ``config`` is a position in the config table."""
TABLE_FIELDS = ("config_columns", "configs", "timing_columns", "timings")

_MOST_CONFIGS = 50_000  # some 1 KiB each
_MOST_LAYOUTS = 16
_MOST_COLUMNS = 64
"""Limit on columns. A column costs a few bytes of a record, but a value for each timing once it is read."""
_TIMING_DEFAULTS = {"outcome": Outcome.OK.value, "is_estimate": False}
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
    positions = [index.setdefault(timing.config, len(index)) for timing in timings]
    columns, configs = write_configs(list(index))
    values = [_packed(column) for column in list(zip(*timings, strict=True))[1:]]
    in_order = None if positions == list(range(len(positions))) else positions
    return dict(zip(TABLE_FIELDS, (columns, configs, TIMING_TABLE, [in_order, *values]), strict=True))


def write_configs(configs: Sequence[KernelConfig]) -> tuple[tuple[str, ...], list[bytes]]:
    """Return the columns of a config table, and its rows."""
    columns = (*CONFIG_TABLE, "extra") if any(config.extra for config in configs) else CONFIG_TABLE
    return columns, [msgpack.packb([getattr(config, name) for name in columns]) for config in configs]


def tables_of_rows(
    config_columns: Sequence[str],
    configs: Iterable[Sequence[Any]],
    timing_columns: Sequence[str],
    timings: Iterable[Sequence[Any]],
) -> dict[str, Any]:
    """Return the fields that hold tables given by rows; the values are not checked.

    Raises:
        TypeError, ValueError, OverflowError: msgpack cannot store a value.
    """
    packed = [msgpack.packb(row) for row in configs]
    values = [list(column) for column in zip(*timings, strict=True)]
    return dict(zip(TABLE_FIELDS, (config_columns, packed, timing_columns, values), strict=True))


def read_configs(content: dict[str, Any]) -> list[KernelConfig]:
    """Return the configs of a record's config table, in its order.

    Raises:
        RecordError: the table is not whole, or a value is wrong.
    """
    numbers, by_number = _configs(content)
    return [by_number[number] for number in numbers]


def write_metrics(metrics: Sequence[Metric]) -> list[tuple[str, str, Any]]:
    """Return the field that holds metrics."""
    return [(metric.name, metric.unit, _packed(metric.values)) for metric in metrics]


def read_metrics(content: dict[str, Any], timings: int) -> tuple[Metric, ...]:
    """Return the metrics of a record with some number of timings; ``Measurement`` checks their values.

    Raises:
        RecordError: a metric is not a name, a unit and values.
    """
    rows = content.get("metrics")
    if rows is None:
        return ()
    found = []
    if len(checks.array("metrics", rows)) > MOST_METRICS:
        raise RecordError(f"a measurement has at most {MOST_METRICS} metrics, not {len(rows)}")
    for number, row in enumerate(rows):
        name, unit, values = checks.array(f"metrics[{number}]", row, 3)
        found.append(Metric(name, unit, values if isinstance(values, tuple) else (values,) * timings))
    return tuple(found)


def _packed(column: Sequence[Any]) -> Any:
    """Return a column as written: one value if all rows share it."""
    first = column[0]
    is_constant = all(value is first or (type(value) is type(first) and value == first) for value in column)
    return first if is_constant else column


def read_tables(content: dict[str, Any]) -> tuple[TimingTable, dict[str, Any]]:
    """Return the timings, and the unknown columns of the timings.

    Raises:
        RecordError: the tables are not whole or a value is wrong. Other errors of malformed content may pass through.
    """
    numbers, by_number = _configs(content)
    columns = checks.array("timing_columns", content["timing_columns"])
    named = _columns(columns, checks.array("timings", content["timings"]), len(numbers))
    length = len(named["config"])
    if not length:
        raise RecordError("a measurement needs at least one timing")
    known: list[Any] = [named.pop(name, None) or (_TIMING_DEFAULTS.get(name),) for name in TIMING_TABLE]
    is_plain = _is_plain(*known, configs=len(numbers))
    known = [_stretched(column, length) for column in known]
    if not is_plain:
        for number, row in enumerate(zip(*known, strict=True)):
            _check_closely(f"timing {number}", row, len(numbers))
    positions, *values = known
    chosen = numbers if isinstance(positions, range) else list(map(numbers.__getitem__, positions))
    configs = NumberedConfigs(chosen, by_number)
    # Equal configs have one number, but for what they hold in ``extra``.
    may_have_extra = content["config_columns"] != CONFIG_TABLE
    if len(set(chosen)) != length or (may_have_extra and repeats_a_config(configs)):
        raise RecordError(ONCE_EACH)
    unknown = {name: list(_stretched(column, length)) for name, column in named.items()}
    return TimingTable(configs, *values), unknown


def _stretched(column: Sequence[Any], length: int) -> Sequence[Any]:
    """Return a whole column of what may be one value for all rows."""
    return column if len(column) == length else tuple(column) * length


def _columns(columns: tuple[str, ...], values: tuple[Any, ...], configs: int) -> dict[str, Sequence[Any]]:
    """Return the timing columns by name, each a value a row, or one for all of them."""
    _check_names(columns)
    checks.array("timings", values, len(columns))
    given = dict(zip(columns, values, strict=True))
    positions = range(configs) if given["config"] is None else checks.array("timings.config", given["config"])
    for name, column in given.items():
        if not isinstance(column, tuple):
            given[name] = (column,)
        elif len(column) != len(positions):
            raise RecordError(f"timings.{checks.shown(name)} must hold {len(positions)} values, not {len(column)}")
    given["config"] = positions
    return given


@lru_cache(maxsize=16)
def _check_names(columns: tuple[str, ...]) -> None:
    if len(columns) > _MOST_COLUMNS:
        raise RecordError(f"timing_columns names {len(columns):,} columns, and at most {_MOST_COLUMNS} make sense")
    names = {checks.text("timing_columns", name) for name in columns}
    checks.require("timing_columns", names, ("config", "runtime_us"))
    if len(names) != len(columns):
        raise RecordError("timing_columns names a column twice")


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
    """Return whether whole columns are valid, checked at the speed of C.

    If not, the caller checks each row, to find the wrong one or to accept unusual but valid values.
    """
    return (
        (isinstance(positions, range) or _are_positions(positions, configs))
        and set(map(type, estimates)) == {bool}
        and set(map(type, outcomes)) == {str}
        and OUTCOMES.keys() >= set(outcomes)
        and _go_together(outcomes, runtimes)
        and _are_numbers(runtimes, float, 0, checks.MAX_MICROSECONDS)
        and _are_numbers(p10, float, 0, checks.MAX_MICROSECONDS)
        and _are_numbers(p90, float, 0, checks.MAX_MICROSECONDS)
        and _are_numbers(repeats, int, 0, checks.INT32)
    )


def _are_positions(values: Sequence[Any], configs: int) -> bool:
    return set(map(type, values)) == {int} and min(values) >= 0 and max(values) < configs


def _go_together(outcomes: Sequence[Any], runtimes: Sequence[Any]) -> bool:
    """Return whether exactly the timings with outcome ok have a runtime."""
    if outcomes.count(_OK) == len(outcomes):
        return None not in runtimes
    return [outcome == _OK for outcome in outcomes] == [runtime is not None for runtime in runtimes]


def _are_numbers(values: Sequence[Any], kind: type, least: int, most: float) -> bool:
    """Return whether the present values lie between two bounds: if all are positive, none is over their sum.

    A sum with a NaN is NaN, and fails the comparison.
    """
    kinds = set(map(type, values))
    if type(None) in kinds:
        kinds.discard(type(None))
        values = [value for value in values if value is not None]
    return not values or (kinds == {kind} and min(values) > least and sum(values) < most)


def _configs(content: dict[str, Any]) -> tuple[list[int], Mapping[int, KernelConfig]]:
    """Return the numbers of a record's configs, and what they stand for."""
    global _known_configs  # noqa: PLW0603 - replaced when it is full
    columns = checks.array("config_columns", content["config_columns"])
    rows = checks.array("configs", content["configs"])
    if not set(map(type, rows)) <= {bytes}:
        raise RecordError("configs must hold bytes")
    if len(_known_configs.by_number) > _MOST_CONFIGS:  # only between records
        _known_configs = _KnownConfigs()
    known = _known_configs
    try:
        return known.of_columns(columns).all_of(rows), known.by_number
    except RecordError:
        # Once more, to say which one it is.
        for position, raw in enumerate(rows):
            checks.array(f"configs[{position}]", unpack(raw), len(columns))
        raise


class _KnownConfigs:
    """Configs by number; equal configs share a number, since records repeat the same few thousand."""

    def __init__(self) -> None:
        self.by_number: dict[int, KernelConfig] = {}
        self._numbers: dict[bytes, int] = {}
        self._readers: dict[tuple[str, ...], Interned[int]] = {}

    def of_columns(self, columns: tuple[str, ...]) -> Interned[int]:
        """Return a function that numbers configs with these columns."""
        reader = self._readers.get(columns)
        if reader is None:
            if len(self._readers) >= _MOST_LAYOUTS:
                self._readers.clear()
            reader = self._readers[columns] = Interned(partial(self._number_of, columns), _MOST_CONFIGS)
        return reader

    def _number_of(self, columns: tuple[str, ...], row: object) -> int:
        config = _config_of_row(columns, row)
        number = next(_new_numbers)
        if not config.extra:
            # By key, which tells True from 1.
            number = self._numbers.setdefault(config.key, number)
        self.by_number.setdefault(number, config)
        return number


# Never used twice: a number that is kept never means another config.
_new_numbers = count()
_known_configs = _KnownConfigs()


def _config_of_row(columns: tuple[str, ...], row: object) -> KernelConfig:
    pairs = zip(columns, checks.array("a config", row, len(columns)), strict=True)
    values = {name: value for name, value in pairs if value is not None or name == "kwargs"}
    config = _config(values)
    extra = checks.extra_fields(values, CONFIG_TABLE)
    return replace(config, extra=extra) if extra else config


def _config(values: dict[str, Any]) -> KernelConfig:
    known = checks.fields("config", values, _CONFIG_CHECKS)
    checks.require("a config", known, ("template",))
    pairs = (checks.array("a kwarg", pair, 2) for pair in checks.array("kwargs", values.get("kwargs", ())))
    kwargs = (
        (checks.text("kwarg", name), plain_scalar(checks.scalar(f"kwarg {checks.shown(name)}", value)))
        for name, value in pairs
    )
    return KernelConfig(**known, kwargs=tuple(sorted(dict(kwargs).items())))


def _check_closely(what: str, row: Sequence[Any], configs: int) -> None:
    config, runtime, outcome, guess, repeats, *spread = row
    known = checks.member(f"{what}: outcome", OUTCOMES, outcome)
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
