"""The examples, as far as the acceptance tests do not run them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.py"


def test_ctrl_c_ends_the_quickstart_quietly(tmp_path: Path) -> None:
    """It exits with 130 and one line, whichever step it is at."""
    process = subprocess.Popen(
        [sys.executable, QUICKSTART],
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    while "$ diode db upgrade" not in process.stdout.readline():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the step as well
    process.wait(60)
    error = process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    assert (process.returncode, error) == (130, "\ninterrupted; run it again, what is done is kept\n")
