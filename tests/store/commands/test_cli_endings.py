"""How commands end when they are interrupted or their output cannot be written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).with_name("diode")
FULL = Path("/dev/full")


@pytest.mark.quick(2)
@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full, which Linux has")
@pytest.mark.parametrize(
    "args",
    [
        ("--help",),
        ("db", "stats", "--help"),
        ("db", "stats", "--database", "DATABASE"),
        ("db", "stats", "--json", "--database", "DATABASE"),
        ("query", "SELECT * FROM range(100000)", "--database", "DATABASE"),
        ("query", "SELECT 1", "--json", "--database", "DATABASE"),
    ],
)
def test_a_full_disk_is_one_line(args: tuple[str, ...], database_path: Path) -> None:
    """Output that cannot be written is an error, said once and without a traceback."""
    command = [str(PROGRAM), *(str(database_path) if arg == "DATABASE" else arg for arg in args)]
    with FULL.open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    expected = "error: the output cannot be written: No space left on device; make room, or send it elsewhere\n"
    assert (done.returncode, done.stderr) == (1, expected)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("endless", "number"),
    [
        (
            "SELECT count(*) FROM range(10000000) AS a, range(10000000) AS b WHERE a.range * b.range = -1",
            signal.SIGTERM,
        ),
        ("SELECT range(3000000000)", signal.SIGINT),  # DuckDB does not notice an interrupt here
    ],
)
def test_an_interrupted_query_says_so(database_path: Path, endless: str, number: signal.Signals) -> None:
    """Ctrl-C or SIGTERM during a long query ends it within two seconds with status 130 and no traceback."""
    command = [PROGRAM, "query", endless, "--memory-limit", "64GB", "--database", database_path]
    cache = database_path.with_suffix(".cache") / "state.json"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not cache.exists() and process.poll() is None:
            time.sleep(0.05)
        try:
            time.sleep(1)
            process.send_signal(number)
            began = time.monotonic()
            out, err = process.communicate(timeout=60)
            assert time.monotonic() - began < 2
        finally:
            process.kill()
    assert (process.returncode, out, err) == (130, "", "interrupted\n")


def test_bytes_that_are_no_text(database_path: Path) -> None:
    """An argument that no database can hold is bad usage, said on one line."""
    command = [PROGRAM, "db", "prune", "--dataset", b"\xff", "--database", database_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: '\\udcff' is not UTF-8 text; set the terminal to UTF-8\n"


def test_json_names_what_is_no_text(tmp_path: Path) -> None:
    """A name that is not UTF-8 appears in JSON, and a program reads the same name."""
    folder = os.fsdecode(bytes(tmp_path) + b"/sp\xffool")
    command = [PROGRAM, "ingest", "status", "--json", "--spool", folder]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["directory"] == folder
