"""Tables on terminals of different widths: what fits is readable, what does not is named."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from diode_store.render import fitting_columns, quantity

CODE = """
from diode_store.console import print_rows
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
