"""The examples, as far as the acceptance tests do not run them."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from spool_reading import spooled

from diode_store.exchange.foreign.torch_diode_files import read_file
from diode_store.exchange.foreign.torch_diode_types import Dataset
from lanes import long

EXAMPLES = Path(__file__).parents[3] / "examples"
QUICKSTART = EXAMPLES / "quickstart.py"


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


@pytest.mark.long
def test_the_quickstart_keeps_to_one_warehouse(tmp_path: Path) -> None:
    """What it ingests is what it queries, whatever the daemon's settings file says."""
    config = tmp_path / "config" / "torch-diode" / "diode-ingest.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'database = "{tmp_path}/other.db"\nspool = "{tmp_path}/spool"\ngroup = "no-such-group"\n')
    process = subprocess.Popen(
        [sys.executable, QUICKSTART],
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "$ diode fastest" in line:
                os.killpg(process.pid, signal.SIGINT)
    assert any(line.startswith("NVIDIA H200,mm,bfloat16,1199,90641,") for line in lines), lines
    assert not (tmp_path / "spool").exists()


@long
def test_collecting_a_data_set(tmp_path: Path) -> None:
    """It says how much of the compiles was seen, saves a data set and spools every kernel."""
    finished = subprocess.run(
        [sys.executable, EXAMPLES / "collect_matmul_dataset.py", "--output", "data.json", "--spool", "spool"],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "CUDA_VISIBLE_DEVICES": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert finished.returncode == 0, finished.stderr
    covered = "matrix products compiled: 3 (1 recorded, 2 with one choice only)"
    assert finished.stdout == f"{covered}\n2 timings\nsaved data.json\n"
    assert "collect_to_spool keeps them" in finished.stderr
    assert read_file(tmp_path / "data.json", Dataset) == Dataset()
    (found,) = spooled(tmp_path / "spool")
    assert (found.problem.op, len(found.timings)) == ("bmm", 2)


def test_a_data_set_of_another_format(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The example says so before it compiles anything."""
    example = EXAMPLES / "collect_matmul_dataset.py"
    monkeypatch.setattr(sys, "argv", [str(example), "--output", "data.pt"])
    with mock.patch.dict(os.environ), pytest.raises(SystemExit) as ended:
        runpy.run_path(str(example), run_name="__main__")
    expected = "error: data.pt: the file's suffix sets its format; name it .json or .msgpack\n"
    assert (ended.value.code, *capsys.readouterr()) == (1, "", expected)
