"""A whole sweep of real compiles on this CPU: its lane killed, itself killed, resumed, and its lane unable to start."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from sweep_processes import Sweep, counted, once_each, recorded

from diode_collectors.inductor.device import detect_environment, detect_hardware
from diode_store.records import Outcome, Source
from lanes import long
from waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("sweeps")

MEASURED = ["bmm:8x8x8:2", "mm:32x64x96", "bmm:16x48x32:3"]
TOO_LARGE, SILENT = "mm:2000000x2000000x8", "bmm:1x8x8:2"


@long
def test_a_sweep_survives_its_lane_and_itself(tmp_path: Path) -> None:
    """Kill -9 of the compiling lane, then of the sweep: restarted, it comes to one true record of each problem."""
    asked = [TOO_LARGE, *MEASURED, SILENT]
    with Sweep(tmp_path, asked, quick=False) as sweep:
        assert sweep.wait_for("device")["torch"] == detect_environment().torch
        assert "needs about 59605" in sweep.wait_for("result")["error"]
        eventually(lambda: len(sweep.alive()) > 1, within_s=60)  # the lane has started g++
        os.kill(min(sweep.lanes()), signal.SIGKILL)
        note = sweep.wait_for("note")["message"]
        assert note.startswith(f"{MEASURED[0]}/nn/fp32: its process died and is started again (")
        first = sweep.wait_for("result")
        assert (first["problem"], first["timings"], first["error"]) == (f"{MEASURED[0]}/nn/fp32", 2, None)
        sweep.process.kill()
        sweep.process.wait()
        eventually(lambda: not sweep.alive())
        eventually(lambda: not [path for path in sweep.temporary.iterdir() if path.is_dir()])
    assert counted(sweep.spool) == once_each(MEASURED[:1])

    with Sweep(tmp_path, asked[1:], quick=False) as sweep:
        report = sweep.report()
        eventually(lambda: not sweep.alive())
    assert [report[name] for name in ("problems", "skipped", "measured", "silent", "failed")] == [4, 1, 2, 1, 0]
    assert (report["timings"], report["failures"], report["not_begun"]) == (4, 0, 0)
    assert counted(sweep.spool) == once_each(MEASURED)
    for record in recorded(sweep.spool):
        assert (record.source, record.sweep_id, record.sample_seed) == (Source.SWEEP, "sweep-of-a-test", 0)
        assert (record.hardware, record.environment.key) == (detect_hardware("cpu"), detect_environment().key)
        assert [timing.outcome for timing in record.timings] == [Outcome.OK] * 2
        assert all(0.1 < timing.runtime_us < 100_000 for timing in record.timings)  # type: ignore[operator]
    assert [path.name for path in sweep.temporary.iterdir()] == ["diode-sweep-cpu.lock"]


def test_a_torch_that_cannot_be_imported_ends_the_sweep(tmp_path: Path) -> None:
    """With what it said, after two attempts; nothing is left."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "torch.py").write_text('raise ImportError("libcudart.so.13: cannot open shared object file")')
    path = os.pathsep.join(filter(None, (str(broken), os.environ.get("PYTHONPATH"))))
    with Sweep(tmp_path, MEASURED, quick=False, environment={"PYTHONPATH": path}) as sweep:
        error = sweep.error()
        eventually(lambda: not sweep.alive())
    assert error["kind"] == "HardwareError"
    assert error["message"] == (
        "cpu: no worker could start; it said: ImportError: libcudart.so.13: cannot open shared object file"
    )
    assert list(sweep.temporary.iterdir()) == []
