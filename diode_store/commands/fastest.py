"""Show the fastest known kernel of each problem on one device, and the vendor's time."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from diode_store.candidates.names import DTYPES
from diode_store.command_line.console import (
    HardwareOption,
    JsonOption,
    SourceOption,
    make_app,
    print_note,
    print_rows,
)
from diode_store.command_line.options import takes_options
from diode_store.command_line.render import problem_text
from diode_store.commands.query import AllMatchesOption, CsvOption, NoSyncOption, OpOption, connected
from diode_store.commands.results import json_lines
from diode_store.devices.known import describe
from diode_store.errors import NO_MEASUREMENTS, QueryError
from diode_store.ops import ProblemShape, dimensions_of_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_store.commands.cover import CoverRow
    from diode_store.query.named_devices import Device

app = make_app(__doc__)

_DEFAULT_LIMIT = 20
_TF32 = "tf32"
_LAYOUT = re.compile("[nts]{2}")

_KERNEL = """
CASE WHEN {0}.block_m IS NULL THEN {0}.template || coalesce(
    ' ' || named_blocks({0}.kwargs) || ' s' || {0}.num_stages || ' w' || {0}.num_warps, ''
)
ELSE concat(
    {0}.template,
    coalesce(
        ' ' || {0}.block_m || 'x' || {0}.block_n || 'x' || {0}.block_k,
        concat(' m' || {0}.block_m, ' n' || {0}.block_n, ' k' || {0}.block_k)
    ),
    ' s' || {0}.num_stages, ' w' || {0}.num_warps, ' g' || {0}.group_m
) END
"""

_ORDER = "f.op, f.dtype, f.b, f.m, f.n, f.k, f.layout, f.problem_id, f.hardware_id, f.environment_id"
_ARITHMETIC = f"CASE WHEN f.tf32 THEN '{_TF32}' ELSE f.dtype END"

_WHERE = f"""
WHERE f.hardware_id = $hardware_id
    AND ($op IS NULL OR f.op = $op) AND ($dtype IS NULL OR {_ARITHMETIC} = $dtype)
    AND ($b IS NULL OR f.b = $b) AND ($m IS NULL OR f.m = $m) AND ($n IS NULL OR f.n = $n) AND ($k IS NULL OR f.k = $k)
    AND ($layout IS NULL OR f.layout = $layout)
QUALIFY regime_place(f.hardware_id, f.environment_id, f.problem_id, f.regime) = 1
"""
# One device at a time: DuckDB then skips other devices' timings.
_FASTEST = f"""
WITH vendor AS (
    SELECT environment_id, problem_id, regime, min(runtime_us) AS vendor_us
    FROM fastest_by_template
    WHERE hardware_id = $hardware_id AND is_vendor
    GROUP BY ALL
)
SELECT
    f.hardware, f.torch, f.op, f.dtype, f.b, f.m, f.n, f.k, f.layout, f.dimensions, f.tf32,
    {_KERNEL.format("f")} AS kernel,
    f.runtime_us, v.vendor_us, v.vendor_us / f.runtime_us AS speedup,
    {_KERNEL.format("r")} AS runner_up, f.runner_up_us,
    len(f.tie_config_ids) - 1 AS ties, f.repeats, f.config_id, f.tie_config_ids, f.regime,
    problem_text(f.op, {_ARITHMETIC}, f.b, f.m, f.n, f.k, f.layout, f.dimensions, f.inputs, f.scalars) AS problem,
    {_ORDER}
FROM fastest_configs AS f
LEFT JOIN vendor AS v
    ON v.environment_id = f.environment_id AND v.problem_id = f.problem_id AND v.regime IS NOT DISTINCT FROM f.regime
LEFT JOIN configs AS r ON r.id = f.runner_up_config_id
{_WHERE}
"""  # noqa: S608 - only our own text is put together; what the user typed are parameters

_RANKED = f"""
WITH wanted AS (
    SELECT f.environment_id, f.problem_id, f.regime
    FROM fastest_configs AS f
    {_WHERE}
)
SELECT f.hardware, f.problem_id AS problem, f.config_id, {_KERNEL.format("f")} AS kernel, f.slowdown
FROM config_rank AS f
JOIN wanted AS w
    ON w.environment_id = f.environment_id AND w.problem_id = f.problem_id AND w.regime IS NOT DISTINCT FROM f.regime
WHERE f.hardware_id = $hardware_id
ORDER BY f.config_id, f.problem_id, f.environment_id
"""  # noqa: S608 - as above

_SHAPES = """
SELECT DISTINCT f.op, f.dtype, f.b, f.m, f.n, f.k, f.layout, f.tf32, f.dimensions
FROM fastest_configs AS f
WHERE f.hardware_id = $1 AND ($2 IS NULL OR f.op = $2) AND f.m IS NOT NULL
"""
_VIEWS = ("fastest_configs", "fastest_by_template", "config_rank", "coverage")
"""Views that these queries read."""
_NEAREST = 3


class Row(NamedTuple):
    """Fastest kernel of one problem; the fields are the columns of ``--json`` and ``--csv``."""

    hardware: str
    torch: str
    op: str
    dtype: str
    b: int | None
    """None for an op that this version does not know, like the next four."""
    m: int | None
    n: int | None
    k: int | None
    layout: str | None
    dimensions: str | None
    """JSON of the other dimensions of the problem."""
    tf32: bool
    """True if float32 may be multiplied as TF32, as requested."""
    kernel: str
    """Template, block sizes (as MxNxK, or by letter if some are missing), then s(tages), w(arps) and g(roup)."""
    runtime_us: float
    vendor_us: float | None
    speedup: float | None
    """Best vendor time divided by this kernel's time."""
    runner_up: str | None
    runner_up_us: float | None
    ties: int
    """Number of other kernels within noise of the fastest."""
    repeats: int
    config_id: int
    tie_config_ids: list[int]
    regime: str | None
    """Timing regime; if there are several, the one nearest to deployment."""
    problem: str
    """The problem in short."""


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """The filter on problems; None matches any."""

    op: OpOption = None
    b: Annotated[int | None, typer.Option("--b", metavar="B", help="Batch size; 1 for no batch.", min=1)] = None
    m: Annotated[int | None, typer.Option("--m", metavar="M", help="Rows of the result.", min=1)] = None
    n: Annotated[int | None, typer.Option("--n", metavar="N", help="Columns of the result.", min=1)] = None
    k: Annotated[int | None, typer.Option("--k", metavar="K", help="The summed dimension.", min=1)] = None
    layout: Annotated[
        str | None,
        typer.Option(metavar="AB", help="Layout of A and B, such as nt: n row-major, t transposed, s other."),
    ] = None
    dtype: Annotated[
        str | None, typer.Option(metavar="DTYPE", help="bf16 or bfloat16, fp16, tf32, fp32 without TF32, ...")
    ] = None

    def __str__(self) -> str:
        sizes = (f"{name} = {getattr(self, name)}" for name in "bmnk" if getattr(self, name))
        layout = [f"layout {self.layout}"] if self.layout else []
        words = [*(word for word in (self.op, self.dtype) if word), *sizes, *layout]
        # The option's name in quotes marks an error of that option; without quotes the combination is wrong.
        return repr(words[0]) if words in ([self.op], [self.dtype]) else ", ".join(words) or "any problem"

    @property
    def has_size(self) -> bool:
        """True if the filter has a size; without sizes no shape is nearer than another."""
        return any(getattr(self, name) for name in "bmnk")

    def distance(self, shape: ProblemShape) -> tuple[object, ...]:
        """Return a sort key, nearest first: by dtype, then layout, then the ratios of the sizes."""
        pairs = [(getattr(self, name), getattr(shape, name)) for name in "bmnk"]
        ratios = sum(abs(math.log(found / size)) for size, found in pairs if size)
        others = self.dtype not in {None, shape.arithmetic}, self.layout not in {None, shape.layout}
        return *others, ratios, astuple(shape)


@app.command(
    epilog='Example: diode fastest --hardware "NVIDIA H200" --op mm --m 4096 --dtype bf16', no_args_is_help=False
)
@takes_options(_Wanted)
def fastest(  # noqa: PLR0913 - one parameter per option
    database: SourceOption,
    *,
    hardware: HardwareOption = None,
    all_matches: AllMatchesOption = False,
    options: _Wanted,
    limit: Annotated[
        int, typer.Option(metavar="ROWS", help="Print at most this many rows; 0 for all.", min=0)
    ] = _DEFAULT_LIMIT,
    kernels: Annotated[
        int | None,
        typer.Option("--cover", metavar="N", help="Print the N kernels that together serve the problems best.", min=1),
    ] = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    no_sync: NoSyncOption = False,
) -> None:
    """Print the fastest kernel of each problem: its time, the vendor's best time, and the runner-up.

    TIES counts the other kernels within noise of the best; see docs/comparing.md.
    """
    if as_json and as_csv:
        raise typer.BadParameter("--json and --csv exclude each other")
    _check_layout(options.layout)
    connection = connected(database, *_VIEWS, sync=not no_sync)
    wanted = replace(options, dtype=_known_dtype(connection, options.dtype))
    devices = _devices(connection, hardware, all_matches=all_matches)
    rows: list[Row] | list[CoverRow]
    if kernels is None:
        rows = _fastest(connection, devices, wanted)
    else:
        rows, limit = _cover(connection, devices, wanted, kernels), 0
    if not rows:
        nearest = _nearest(connection, devices, wanted) if wanted.has_size else ""
        remedy = nearest or _what_there_is(connection, devices)
        raise QueryError(f"no timings of {wanted} on {hardware or devices[0].name}; {remedy}")
    shown = rows[: limit or len(rows)]
    if as_json or as_csv:
        _write(shown, as_json=as_json)
    elif kernels is None:
        print_rows(*_readable(cast("list[Row]", shown)), title=f"Fastest kernels on {describe(devices)}")
    else:
        print_rows(shown[0]._fields, shown, title=f"Kernels that serve {wanted} on {describe(devices)}")
    if len(shown) < len(rows):
        print_note(f"{len(shown)} of {len(rows)} problems; --limit 0 shows all")


def _write(rows: list[Row] | list[CoverRow], *, as_json: bool) -> None:
    """Write the rows for a script, as JSON lines or else as CSV."""
    from diode_store.query.csv_sql import lines_of

    lines = json_lines if as_json else lines_of
    sys.stdout.writelines(lines(rows[0]._fields, rows))


def _check_layout(layout: str | None) -> None:
    if layout is not None and not _LAYOUT.fullmatch(layout):
        raise typer.BadParameter(
            f"--layout {layout!r}: give two letters, of A and B, each n (row-major), t (transposed) or s (other)"
        )


def _known_dtype(connection: Any, typed: str | None) -> str | None:
    """Return the full name of a dtype, known or in the warehouse."""
    if typed is None:
        return None
    usual = {**DTYPES, _TF32: _TF32}
    stored = {name for (name,) in connection.execute("SELECT DISTINCT dtype FROM problems").fetchall()}
    others = sorted(stored.difference(usual.values()))
    if typed not in {*usual, *usual.values(), *others}:
        raise typer.BadParameter(f"--dtype {typed!r}: no such dtype; use one of {', '.join([*usual, *others])}")
    return usual.get(typed, typed)


def _fastest(connection: Any, devices: Sequence[Device], wanted: _Wanted) -> list[Row]:
    """Return the rows of all devices, ordered by problem."""
    found: list[tuple[Any, ...]] = []
    for device in devices:
        found += connection.execute(_FASTEST, {"hardware_id": device.id, **vars(wanted)}).fetchall()
    width = len(Row._fields)
    # An unknown op has no sizes, and None has no order.
    ordered = sorted(found, key=lambda row: [(value is None, value or 0) for value in row[width:]])
    return [Row(*row[:width]) for row in ordered]


def _cover(connection: Any, devices: Sequence[Device], wanted: _Wanted, kernels: int) -> list[CoverRow]:
    """Return a cover of each device's problems."""
    from diode_store.commands.cover import cover

    each = (cover(connection, _RANKED, {"hardware_id": device.id, **vars(wanted)}, kernels) for device in devices)
    return [row for rows in each for row in rows]


def _devices(connection: Any, text: str | None, *, all_matches: bool) -> list[Device]:
    """Return the devices that match ``text``, or the only measured device; note them on stderr."""
    from diode_store.query.named_devices import measured_devices, named_devices

    if text is None:
        found = _only(measured_devices(connection))
    else:
        found = named_devices(connection, text, all_matches=all_matches)
    print_note(f"hardware: {describe(found)}")
    return found


def _only(found: list[Device]) -> list[Device]:
    """Return the only measured device."""
    if not found:
        raise QueryError(NO_MEASUREMENTS)
    if len(found) > 1:
        raise QueryError(f"several devices were measured: {describe(found)}; name one with --hardware")
    return found


def _readable(rows: Sequence[Row]) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Return the columns of the printed table."""
    extra = [name for name in ("hardware", "torch", "regime") if len({getattr(row, name) for row in rows}) > 1]
    columns = (*extra, "problem", "kernel", "us", "vendor us", "speedup", "runner-up", "its us", "ties")
    return columns, [(*(getattr(row, name) for name in extra), *_readable_row(row)) for row in rows]


def _readable_row(row: Row) -> tuple[object, ...]:
    times = (_short(row.kernel), row.runtime_us, row.vendor_us, row.speedup)
    return (row.problem, *times, _short(row.runner_up), row.runner_up_us, row.ties)


def _short(kernel: str | None) -> str | None:
    """Return ``kernel`` without ``triton::``; vendor kernels keep ``aten::``."""
    return kernel and kernel.removeprefix("triton::")


def _nearest(connection: Any, devices: Sequence[Device], wanted: _Wanted) -> str:
    """List the measured shapes of the same op that are nearest to ``wanted``; empty if there are none."""
    rows = (connection.execute(_SHAPES, [device.id, wanted.op]).fetchall() for device in devices)
    found = {_shape(*row) for each in rows for row in each}
    shapes = sorted(found, key=wanted.distance)
    return f"nearest measured: {', '.join(map(problem_text, shapes[:_NEAREST]))}" if shapes else ""


def _shape(*values: Any) -> ProblemShape:
    *fields, dimensions = values
    return replace(ProblemShape(*fields), dimensions=dimensions_of_text(dimensions))


def _what_there_is(connection: Any, devices: Sequence[Device]) -> str:
    rows = connection.execute(
        f"SELECT f.op, {_ARITHMETIC}, sum(f.problems)::BIGINT FROM coverage AS f "  # noqa: S608 - as above
        "WHERE f.hardware_id IN (SELECT unnest($1::BIGINT[])) GROUP BY ALL ORDER BY ALL",
        [[device.id for device in devices]],
    ).fetchall()
    there = ", ".join(f"{op} {dtype} ({problems} problems)" for op, dtype, problems in rows)
    return f"there is: {there}" if there else "there is nothing measured on it yet"
