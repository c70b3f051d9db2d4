"""Every command's help, and how the commands behave when they are used wrongly."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest

SUBCOMMANDS = sorted(entry.name for entry in entry_points(group="diode.commands"))
PROGRAMS = ("diode", "diode-collect", "diode-ingest", "diode-train")
DATABASE = ["upgrade", "downgrade", "prune", "supersede", "tombstones", "vacuum", "backup", "current", "check", "stats"]
NESTED = (
    *(("diode", "db", name) for name in DATABASE),
    ("diode", "cache", "status"),
    ("diode", "cache", "rebuild"),
    ("diode", "hardware", "list"),
    ("diode", "hardware", "alias"),
    ("diode", "models", "list"),
    ("diode", "models", "show"),
    ("diode", "models", "history"),
    ("diode", "models", "verify"),
    ("diode-ingest", "run"),
    ("diode-ingest", "status"),
    ("diode-ingest", "validate"),
    ("diode-ingest", "pack"),
    ("diode-ingest", "unit"),
)
COMMANDS = (*((program,) for program in PROGRAMS), *(("diode", name) for name in SUBCOMMANDS), *NESTED)


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def run(program: str, *arguments: str) -> Ended:
    """Run a command in this process, as its console script would."""
    (script,) = entry_points(group="console_scripts", name=program)
    out, err = io.StringIO(), io.StringIO()
    argv = mock.patch.object(sys, "argv", [program, *arguments])
    with argv, redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        script.load()()
    return Ended(int(ended.value.code or 0), out.getvalue(), err.getvalue())


@pytest.mark.quick(25)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help(command: tuple[str, ...]) -> None:
    """Every command explains itself and exits with 0."""
    finished = run(*command, "--help")
    assert (finished.code, finished.err) == (0, "")
    assert "Usage" in finished.out


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_version(command: tuple[str, ...]) -> None:
    """Every command tells the version, whatever else it needs."""
    assert run(*command, "--version") == (0, f"torch-diode {version('torch-diode')}\n", "")


@pytest.mark.parametrize("program", PROGRAMS)
def test_installed_program(program: str) -> None:
    """The programs are installed, and start as a shell starts them."""
    executable = Path(sys.executable).with_name(program)
    finished = subprocess.run([executable, "--version"], capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stdout) == (0, f"torch-diode {version('torch-diode')}\n")


def test_umbrella_lists_every_subcommand() -> None:
    """`diode --help` names each sub-command with a line of help."""
    lines = run("diode", "--help").out.splitlines()
    for name in SUBCOMMANDS:
        described = [line for line in lines if name in line.split() and len(line.split()) > 3]
        assert described, f"{name} has no line of help"


@pytest.mark.parametrize("program", PROGRAMS)
def test_unknown_option_is_bad_usage(program: str) -> None:
    """An option that does not exist exits with 2."""
    assert run(program, "--no-such-option").code == 2


def test_unknown_subcommand_is_bad_usage() -> None:
    """A sub-command that does not exist exits with 2 and says so."""
    finished = run("diode", "no-such-command")
    assert finished.code == 2
    assert "no-such-command" in finished.err
