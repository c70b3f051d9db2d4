"""Tables for results wider or longer than the terminal."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console
    from rich.table import Table

MOST_ROWS = 200
"""Maximum number of printed rows; further rows are counted."""
KEY_COLUMNS = (
    *("op", "m", "n", "k", "template", "runtime_us", "outcome", "triton_us", "vendor_us", "speedup", "ratio"),
    *("regret", "picked_us", "best_us", "best_template", "predicted_us"),
    *("scope", "verdict", "template_before", "template_after", "runtime_us_before", "runtime_us_after"),
    *("rank", "dtype", "b", "layout", "hardware", "torch"),
    *("block_m", "block_n", "block_k", "num_stages", "num_warps", "group_m", "problems", "configs", "timings"),
)
"""Columns to show first if not all columns fit: a kernel, its problem and its time."""
_PLACES = {name: place for place, name in enumerate(KEY_COLUMNS)}
_CELL_WIDTH = 32
_NULL = "NULL"


def print_wide(columns: Sequence[str], rows: Iterable[Sequence[object]], console: Console | None = None) -> None:
    """Print a table that fits the terminal; NULL is spelled out.

    If not all columns fit, a single row is printed with one line per column. Several rows are printed with
    ``KEY_COLUMNS`` first, and a line names the omitted columns.

    Args:
        columns: names of the columns.
        rows: rows, read to their end to count them.
        console: another console than the terminal.
    """
    from rich.console import Console

    console = console or Console()
    remaining = iter(rows)
    shown = list(islice(remaining, MOST_ROWS))
    cells = [[_cell(value) for value in row] for row in shown]
    widths = [max(len(name), 1, *(len(row[at]) for row in cells)) for at, name in enumerate(columns)]
    order: Sequence[int] = range(len(columns))
    if _fitting(widths, console.width) < len(columns):
        if len(shown) == 1:
            _print_vertical(columns, shown[0], console)
            return
        order = sorted(order, key=lambda at: _PLACES.get(columns[at], len(_PLACES)))
    fitting = _fitting([widths[at] for at in order], console.width)
    console.print(_table(columns, shown, cells, order[:fitting]))
    more = sum(1 for _ in remaining)
    console.print(
        f"{len(shown) + more:,} rows" + (f", the first {MOST_ROWS} shown; --csv prints all" if more else ""),
        highlight=False,
    )
    if fitting < len(columns):
        hidden = ", ".join(columns[at] for at in order[fitting:])
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


def _text(value: object) -> str:
    from diode_store.command_line.render import cell_text

    return _NULL if value is None else cell_text(value)


def _cell(value: object) -> str:
    text = _text(value)
    return text if len(text) <= _CELL_WIDTH else f"{text[: _CELL_WIDTH - 1]}…"


def _fitting(widths: Sequence[int], width: int) -> int:
    """Return how many columns of these widths fit in full; at least one."""
    used = 1
    for position, needed in enumerate(widths):
        used += 3 + needed
        if used > width:
            return max(position, 1)
    return len(widths)


def _table(
    columns: Sequence[str], rows: list[Sequence[object]], cells: list[list[str]], positions: Sequence[int]
) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for at in positions:
        numeric = any(isinstance(row[at], (int, float)) for row in rows)
        table.add_column(Text(columns[at]), justify="right" if numeric else "left", overflow="fold")
    for row, texts in zip(rows, cells, strict=True):
        table.add_row(*(Text(texts[at], style="dim" if row[at] is None else "") for at in positions))
    return table
