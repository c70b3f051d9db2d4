"""Runs ``diode-ingest``, in this process unless it must have no power over files."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from diode_collectors.ingest.commands import ingest as cli
from ordinary import AS_ORDINARY, CANNOT

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = Path(sys.executable).with_name("diode-ingest")


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def ingest(*args: object) -> Ended:
    """Run ``diode-ingest ARGS...`` in this process, as the console script would."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        cli.main([str(arg) for arg in args])
    code = ended.value.code
    return Ended(code if isinstance(code, int) else int(code is not None), out.getvalue(), err.getvalue())


def ingest_without_power(*args: object) -> Ended:
    """Run ``diode-ingest ARGS...`` as a process that file permissions hold for, also when root runs the tests."""
    if CANNOT:
        pytest.skip(CANNOT)
    command = [*AS_ORDINARY, str(PROGRAM), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Ended(done.returncode, done.stdout, done.stderr)


@contextlib.contextmanager
def closed(folder: Path) -> Iterator[None]:
    """Let nobody list or enter a folder meanwhile."""
    folder.chmod(0)
    try:
        yield
    finally:
        folder.chmod(0o700)
