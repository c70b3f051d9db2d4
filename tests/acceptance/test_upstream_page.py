"""docs/upstream.md: what takes the place of upstream's names is there."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from page_commands import commands, is_command, unknown_options

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs" / "upstream.md").read_text(encoding="utf-8")
_NAME = re.compile(r"(?:diode_\w+|torch_diode)(?:\.\w+)*")
_SAME = "the same names in "
_RESOLVE = """
import importlib, json, sys

def resolve(name):
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return
    raise AttributeError(name)

missing = []
for name in json.loads(sys.argv[1]):
    try:
        resolve(name)
    except AttributeError:
        missing.append(name)
print(json.dumps(missing))
"""


def rows() -> list[tuple[str, str]]:
    """Return both cells of each row of the tables from upstream's names to ours."""
    tables = PAGE.partition("## Import paths")[2]
    found = re.findall(r"^\| (.*?) \| (.*?) \|$", tables, re.MULTILINE)
    return [row for row in found if row[1] != "here"]


def quoted(cell: str) -> list[str]:
    """Return what a cell has in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def names() -> list[str]:
    """Return every Python name on the right; of "the same names in MODULE" those on the left, in that module."""
    found = []
    for left, right in rows():
        here = [text for text in quoted(right) if _NAME.fullmatch(text)]
        if right.startswith(_SAME):
            here = [f"{here[0]}.{name}" for name in quoted(left.partition(":")[2])]
        found += here
    return found


def test_the_page_has_its_tables() -> None:
    """What follows reads them."""
    assert len(rows()) > 60
    assert len(names()) > 60


@pytest.mark.long
def test_every_name_exists() -> None:
    """Each module, class, function and method on the right can be imported."""
    told = subprocess.run(
        [sys.executable, "-c", _RESOLVE, json.dumps(names())],
        env={**os.environ, "DIODE_DISABLE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(told.stdout) == []


SHOWN = [text for _, right in rows() for text in quoted(right) if is_command(text)]


@pytest.mark.parametrize("words", [*commands(PAGE), *map(shlex.split, dict.fromkeys(SHOWN))], ids=" ".join)
def test_commands(words: list[str]) -> None:
    """Each command exists and takes the options that it is shown with."""
    assert unknown_options(words) == set()


def test_examples() -> None:
    """The scripts that are named are there."""
    scripts = [text for _, right in rows() for text in quoted(right) if text.startswith("examples/")]
    assert scripts
    assert [script for script in scripts if not (CHECKOUT / script).is_file()] == []


def test_nothing_on_the_right_is_unchecked() -> None:
    """What is in backticks there is a name, a command, a script, or a view of the warehouse."""
    views = {"coverage", "fastest_configs", "config_rank", "MatmulModelV1"}
    for _, right in rows():
        for text in quoted(right):
            known = _NAME.fullmatch(text) or is_command(text) or text.startswith("examples/") or text in views
            assert known, text
