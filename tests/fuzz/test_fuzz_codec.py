from __future__ import annotations

import os
import resource
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from lanes import sizes

PROGRAM = Path(__file__).with_name("fuzz_codec.py")
_MOST_BYTES = 2 * 2**30
# Linux starts a program's peak of memory at that of the process which starts it, and libFuzzer looks at the peak: here
# that would be pytest's, with all it has loaded. A small process between them keeps the figure the fuzzer's own.
_SMALL_PARENT = [sys.executable, "-c", "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"]


def limit_memory() -> None:
    """Let an allocation beyond reason fail where it is made."""
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))


@pytest.mark.long
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not installed (pip install -e .[dev])")
@pytest.mark.parametrize("seconds", sizes(2, 300))
def test_nothing_that_is_read_crashes_the_reader(tmp_path: Path, seconds: int) -> None:
    """Some time of guided fuzzing: no exception but our own, no input that takes 5 s or 600 MiB."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    paths = (str(PROGRAM.parents[1]), str(PROGRAM.parents[1] / "faults"), os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run([sys.executable, PROGRAM, "--seed", corpus], env=environment, check=True)
    assert len(list(corpus.iterdir())) > 20
    limits = (f"-max_total_time={seconds}", "-rss_limit_mb=600", "-timeout=5", "-max_len=20000")
    fuzz = [
        sys.executable,
        PROGRAM,
        corpus,
        *limits,
        "-seed=1",
        f"-artifact_prefix={tmp_path}/",
        "-print_final_stats=1",
    ]
    done = subprocess.run(
        [*_SMALL_PARENT, *fuzz],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit_memory,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    runs = next(line for line in done.stderr.splitlines() if "number_of_executed_units" in line)
    assert int(runs.rpartition(":")[2]) > 100
