"""From a device that no model knows to one that picks its kernels, with real timings of this machine's CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

USE = """
import json, torch, torch_diode
sizes = (64, 96), (96, 80)
settings = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "ATEN,CPP"}
torch.compile(torch.mm, options=settings)(*(torch.randn(size) for size in sizes))
print(json.dumps(torch_diode.get_stats()))
"""


@pytest.mark.long
def test_a_device_of_ones_own(tmp_path: Path) -> None:
    """Sweep, ingest, train: then the next process uses the model, which nobody named, and says nothing about it."""
    programs = Path(sys.executable).parent
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "data")}

    def run(program: str, *args: str) -> subprocess.CompletedProcess[str]:
        command = (str(programs / program), *args)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=900)
        assert done.returncode == 0, done.stderr
        return done

    before = run("python", "-c", USE)
    assert "torch-diode abstains: it finds no GPU" in before.stderr
    assert json.loads(before.stdout)["model_selections"] == 0
    run("diode", "db", "upgrade")
    run("diode-collect", "--device", "cpu", "--op", "mm", "--num-shapes", "11", "--min-size", "32", "--max-size", "128")
    run("diode-ingest", "--once")
    (device,) = json.loads(run("diode", "hardware", "list", "--json").stdout)
    trained = run("diode-train", "--hardware", device["name"], "--folds", "0", "--num-epochs", "5")
    assert trained.stdout.splitlines()[-1] == f"hook   asks it first on {device['name']}"
    after = run("python", "-c", USE)
    assert after.stderr == ""
    assert json.loads(after.stdout)["model_selections"] == 1
