"""Runs ``diode-ingest``, in this process unless it must have no power over files."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from diode_collectors.ingest.commands import ingest as cli

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = Path(sys.executable).with_name("diode-ingest")
_WITHOUT_POWER = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")


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
    is_root = os.geteuid() == 0
    if is_root and shutil.which("setpriv") is None:
        pytest.skip("root runs the tests, and there is no setpriv to do without its power over files")
    command = [*(_WITHOUT_POWER if is_root else ()), str(PROGRAM), *map(str, args)]
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
