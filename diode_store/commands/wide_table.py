"""Readable tables for results wider or longer than the terminal."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console
    from rich.table import Table

MOST_ROWS = 200
"""Further rows are counted but not shown."""
KEY_COLUMNS = (
    *("op", "m", "n", "k", "template", "runtime_us", "outcome", "triton_us", "vendor_us", "speedup", "ratio"),
    *("scope", "verdict", "template_before", "template_after", "runtime_us_before", "runtime_us_after"),
    *("rank", "dtype", "b", "layout", "hardware", "torch"),
    *("block_m", "block_n", "block_k", "num_stages", "num_warps", "group_m", "problems", "configs", "timings"),
)
"""Which kernel of which problem took how long: shown first where not all columns fit."""
_CELL_WIDTH = 32
_NULL = "NULL"


def print_wide(columns: Sequence[str], rows: Iterable[Sequence[object]], console: Console | None = None) -> None:
    """Print a table that fits the terminal; NULL is spelled out.

    Where not all columns fit, a single row is printed with one line per column; otherwise ``KEY_COLUMNS`` come first
    and the columns left out are named.

    Args:
        columns: the columns' names.
        rows: read to their end, to count them.
        console: the terminal unless given.
    """
    from rich.console import Console

    console = console or Console()
    remaining = iter(rows)
    shown = list(islice(remaining, MOST_ROWS))
    if len(shown) == 1 and _fitting(columns, shown, console.width) < len(columns):
        _print_vertical(columns, shown[0], console)
        return
    columns, shown = _key_columns_first(columns, shown, console.width)
    fitting = _fitting(columns, shown, console.width)
    console.print(_table(columns, shown, fitting))
    more = sum(1 for _ in remaining)
    console.print(
        f"{len(shown) + more:,} rows" + (f", the first {MOST_ROWS} shown; --csv prints all" if more else ""),
        highlight=False,
    )
    if fitting < len(columns):
        hidden = ", ".join(columns[fitting:])
        console.print(
            f"too narrow for: {hidden} (SELECT fewer columns, or --csv)", style="dim", markup=False, highlight=False
        )


def _print_vertical(columns: Sequence[str], row: Sequence[object], console: Console) -> None:
    """Print one row, one line per column."""
    from rich.text import Text

    width = max(map(len, columns))
    for name, value in zip(columns, row, strict=True):
        line = Text.assemble((f"{name:<{width}}", "bold"), "  ", (_text(value), "dim" if value is None else ""))
        console.print(line, soft_wrap=True)


def _key_columns_first(
    columns: Sequence[str], rows: list[Sequence[object]], width: int
) -> tuple[Sequence[str], list[Sequence[object]]]:
    """Return the table in SQL's order if it fits, else with ``KEY_COLUMNS`` first."""
    if _fitting(columns, rows, width) == len(columns):
        return columns, rows
    places = {name: place for place, name in enumerate(KEY_COLUMNS)}
    order = sorted(range(len(columns)), key=lambda at: places.get(columns[at], len(places)))
    return [columns[at] for at in order], [[row[at] for at in order] for row in rows]


def _text(value: object) -> str:
    from diode_store.render import cell_text

    return _NULL if value is None else cell_text(value)


def _cell(value: object) -> str:
    text = _text(value)
    return text if len(text) <= _CELL_WIDTH else f"{text[: _CELL_WIDTH - 1]}…"


def _fitting(columns: Sequence[str], rows: list[Sequence[object]], width: int) -> int:
    """Return how many columns fit in full; at least one."""
    used = 1
    for position, name in enumerate(columns):
        used += 3 + max(len(name), *(len(_cell(row[position])) for row in rows), 1)
        if used > width:
            return max(position, 1)
    return len(columns)


def _table(columns: Sequence[str], rows: list[Sequence[object]], fitting: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for position, name in enumerate(columns[:fitting]):
        numeric = any(isinstance(row[position], (int, float)) for row in rows)
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value), style="dim" if value is None else "") for value in row[:fitting]))
    return table
