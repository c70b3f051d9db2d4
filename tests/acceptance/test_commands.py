"""Every command's help, and how the commands behave when they are used wrongly."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

SUBCOMMANDS = sorted(entry.name for entry in entry_points(group="diode.commands"))
PROGRAMS = ("diode", "diode-collect", "diode-ingest", "diode-train")
DATABASE = ["upgrade", "downgrade", "prune", "supersede", "tombstones", "vacuum", "backup", "current", "check", "stats"]
NESTED = (
    *(("diode", "db", name) for name in DATABASE),
    ("diode", "lake", "status"),
    ("diode", "lake", "compact"),
    ("diode", "hardware", "list"),
    ("diode", "hardware", "alias"),
    ("diode", "models", "list"),
    ("diode", "models", "show"),
    ("diode", "models", "verify"),
    ("diode-ingest", "run"),
    ("diode-ingest", "status"),
    ("diode-ingest", "validate"),
    ("diode-ingest", "pack"),
    ("diode-ingest", "unit"),
)


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an installed command."""
    executable = Path(sys.executable).with_name(program)
    return subprocess.run([executable, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "command", [*((p,) for p in PROGRAMS), *(("diode", name) for name in SUBCOMMANDS), *NESTED], ids=" ".join
)
def test_help(command: tuple[str, ...]) -> None:
    """Every command explains itself and exits with 0."""
    finished = run(*command, "--help")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert "Usage" in finished.stdout


def test_umbrella_lists_every_subcommand() -> None:
    """`diode --help` names each sub-command with a line of help."""
    lines = run("diode", "--help").stdout.splitlines()
    for name in SUBCOMMANDS:
        described = [line for line in lines if name in line.split() and len(line.split()) > 3]
        assert described, f"{name} has no line of help"


@pytest.mark.parametrize("program", PROGRAMS)
def test_unknown_option_is_bad_usage(program: str) -> None:
    """An option that does not exist exits with 2."""
    assert run(program, "--no-such-option").returncode == 2


def test_unknown_subcommand_is_bad_usage() -> None:
    """A sub-command that does not exist exits with 2 and says so."""
    finished = run("diode", "no-such-command")
    assert finished.returncode == 2
    assert "no-such-command" in finished.stderr
