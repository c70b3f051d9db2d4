"""Tables that are wider or longer than the terminal, printed so that they can still be read."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console
    from rich.table import Table

MOST_ROWS = 200
"""More are counted, not shown: they scroll away."""
_CELL_WIDTH = 32
_NULL = "NULL"


def print_wide(columns: Sequence[str], rows: Iterable[Sequence[object]], console: Console | None = None) -> None:
    """Print a table; columns that do not fit are left out by name, NULL is visible.

    Args:
        columns: the columns' names.
        rows: read to their end, to say how many there are.
        console: where to; the terminal unless given.
    """
    from rich.console import Console

    console = console or Console()
    remaining = iter(rows)
    shown = list(islice(remaining, MOST_ROWS))
    cells = [[_cell(value) for value in row] for row in shown]
    fitting = _fitting(columns, cells, console.width)
    console.print(_table(columns, shown, cells, fitting))
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


def _cell(value: object) -> str:
    from diode_store.render import cell_text

    if value is None:
        return _NULL
    text = cell_text(value)
    return text if len(text) <= _CELL_WIDTH else f"{text[: _CELL_WIDTH - 1]}…"


def _fitting(columns: Sequence[str], cells: list[list[str]], width: int) -> int:
    """Return how many columns fit in full; at least one."""
    used = 1
    for position, name in enumerate(columns):
        used += 3 + max(len(name), *(len(row[position]) for row in cells), 1)
        if used > width:
            return max(position, 1)
    return len(columns)


def _table(columns: Sequence[str], rows: list[Sequence[object]], cells: list[list[str]], fitting: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for position, name in enumerate(columns[:fitting]):
        numeric = any(isinstance(row[position], (int, float)) for row in rows)
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row, texts in zip(rows, cells, strict=True):
        pairs = zip(row[:fitting], texts[:fitting], strict=True)
        table.add_row(*(Text(text, style="dim" if value is None else "") for value, text in pairs))
    return table
