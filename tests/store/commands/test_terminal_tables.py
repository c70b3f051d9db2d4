"""Tables on terminals of different widths: what fits is readable, what does not is named."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from diode_store.command_line.render import fitting_columns, quantity
from diode_store.commands.wide_table import KEY_COLUMNS, print_wide
from diode_store.views.view_files import VIEWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from view_warehouse import Warehouse

CODE = """
from diode_store.command_line.console import print_rows
print_rows(
    ["ranking", "regret@1", "regret@3", "regret@5", "max"],
    [("ours", 1.25, 1.125, 1.0, 123456.0), ("the order of the heuristics", None, 2.5, 1.5, 2.0)],
    title="held out",
)
"""


def on_terminal(columns: int) -> list[str]:
    """Return the lines that ``CODE`` shows on a terminal of that width."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns)}
    subprocess.run([sys.executable, "-c", CODE], stdout=theirs, stderr=theirs, env=environment, check=True)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    return shown.splitlines()


def test_a_table_that_fits_is_whole() -> None:
    """Every column is there, aligned, and nothing is said to be left out."""
    assert on_terminal(80) == [
        "held out",
        "ranking                      regret@1  regret@3  regret@5     max",
        "ours                            1.250     1.125     1.000  123456",
        "the order of the heuristics         -     2.500     1.500   2.000",
    ]


def test_columns_that_do_not_fit_are_named_below() -> None:
    """The first columns stay in full, none is folded, and the last ones are named."""
    assert on_terminal(50) == [
        "held out",
        "ranking                      regret@1  regret@3",
        "ours                            1.250     1.125",
        "the order of the heuristics         -     2.500",
        "not shown: regret@5, max; widen the terminal, or send it to a file",
    ]


@pytest.mark.parametrize(("width", "expected"), [(1, 1), (7, 1), (8, 2), (12, 2), (13, 3), (80, 3)])
def test_fitting_columns(width: int, expected: int) -> None:
    """A column counts if its widest cell still fits; the first one always does."""
    assert fitting_columns(["a", "bb", "c"], [("long", 1, "xyz")], width) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, None), (1, "1 B"), (999, "999 B"), (50e6, "50 MB"), (141 * 10**9, "141 GB"), (4.8e12, "4.8 TB")],
)
def test_quantity(value: float | None, expected: str | None) -> None:
    """Sizes are read in steps of a thousand."""
    assert quantity(value, "B") == expected


def shown(columns: Sequence[str], rows: Iterable[Sequence[object]], width: int) -> list[str]:
    """Return the lines that a terminal of that width shows of a query's rows."""
    file = io.StringIO()
    print_wide(columns, rows, Console(file=file, width=width))
    return file.getvalue().splitlines()


def headings(lines: list[str]) -> list[str]:
    """Return the names of the columns of a table."""
    return [name.strip() for name in lines[1].split("┃")[1:-1]]


def test_many_rows_are_counted() -> None:
    """Two hundred rows are shown, all are counted."""
    lines = shown(["n"], ([number] for number in range(1234)), 80)
    assert lines[-1] == "1,234 rows, the first 200 shown; --csv prints all"
    assert sum(line.startswith("│") for line in lines) == 200


def test_long_texts_are_cut() -> None:
    """A long text is cut and shows that it was."""
    assert f"│ {'x' * 31}… │" in shown(["text"], [["x" * 100]], 80)


def test_a_table_that_fits_keeps_the_order_of_sql() -> None:
    """Columns stay where the SELECT put them."""
    assert headings(shown(["id", "runtime_us", "op"], [(1, 2.5, "mm"), (2, 3.5, "mm")], 80)) == [
        "id",
        "runtime_us",
        "op",
    ]


def test_key_columns_come_first_where_not_all_fit() -> None:
    """The rest follow in SQL's order, and those left out are named."""
    columns = ["a_long_identifier", "another_long_one", "runtime_us", "op"]
    lines = shown(columns, [(1, 2, 2.5, "mm"), (3, 4, 3.5, "bmm")], 50)
    assert headings(lines) == ["op", "runtime_us", "a_long_identifier"]
    assert [cell.strip() for cell in lines[3].split("│")[1:-1]] == ["mm", "2.500", "1"]
    assert " ".join(" ".join(lines[-2:]).split()) == "too narrow for: another_long_one (SELECT fewer columns, or --csv)"


def test_one_row_that_does_not_fit_turns_vertical() -> None:
    """A line a column, in SQL's order; long texts are whole."""
    assert shown(["a", "long_text", "nothing"], [(1, "x" * 60, None)], 40) == [
        "a          1",
        f"long_text  {'x' * 60}",
        "nothing    NULL",
    ]


@pytest.mark.long
def test_key_columns_are_columns_of_views(views: Warehouse) -> None:
    """No name is misspelt, and each view that is wider than a terminal has a few."""
    columns = {view: {row["column_name"] for row in views.ask(f"DESCRIBE {view}")} for view in VIEWS}
    assert set(KEY_COLUMNS) <= set.union(*columns.values())
    wide = {view: found for view, found in columns.items() if len(found) > 8}
    assert {view for view, found in wide.items() if len(found & set(KEY_COLUMNS)) < 6} == set()
