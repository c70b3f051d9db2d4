"""Runs ``diode-ingest`` in this process."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from diode_collectors import cli

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
