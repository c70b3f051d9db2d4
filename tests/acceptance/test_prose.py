"""The script in `make check` that counts what a reader stumbles over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "prose.py"
LONG = " ".join(["word"] * 26) + "."
SOURCE = f'''"""Of a module."""


def f():
    """Return it.

    {LONG}
    """
    x = "Of a string that is no docstring"


class C:
    """Something."""

    a = 1
    """Whether it is one."""
'''
PAGE = f"# {LONG}\n\n{LONG}\n\n```\n{LONG}\n```\n\n| {LONG} |\n"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script in a folder."""
    return subprocess.run([sys.executable, SCRIPT, *arguments], cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a repository with two headless docstrings and two long sentences."""
    (tmp_path / "a.py").write_text(SOURCE)
    (tmp_path / "b.md").write_text(PAGE)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)  # noqa: S607
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True, env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull})  # noqa: S607
    return tmp_path


def test_every_place_of_files(checkout: Path) -> None:
    """Each place is printed with its line and kind; strings, headings, code and tables are no prose."""
    lines = run(checkout, "a.py", "b.md").stdout.splitlines()
    assert sorted(line.split(" ", 2)[:2] for line in lines) == [
        ["a.py:16:", "headless:"],
        ["a.py:1:", "headless:"],
        ["a.py:5:", "long:"],
        ["b.md:3:", "long:"],
    ]


@pytest.mark.parametrize(
    ("headless", "long", "exit_code", "message"),
    [
        (2, 2, 0, ""),
        (1, 2, 1, "2 headless where 1 are allowed"),
        (2, 1, 1, "2 long where 1 are allowed"),
        (3, 2, 1, "2 headless, not 3: set headless = 2"),
    ],
)
def test_the_budget_only_falls(checkout: Path, headless: int, long: int, exit_code: int, message: str) -> None:
    """More places fail, and so does a budget above what there is."""
    (checkout / "pyproject.toml").write_text(f"[tool.prose]\nheadless = {headless}\nlong = {long}\n")
    done = run(checkout)
    assert (done.returncode, message in done.stdout, bool(done.stdout)) == (exit_code, True, bool(message))
