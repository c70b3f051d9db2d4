"""``diode-collect``: real problems on this CPU, and what it says when asked for something else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch._inductor.config as inductor_config
from spool_reading import spooled
from torch._inductor import select_algorithm

from diode_collectors import sweep_cli
from diode_collectors.files import check_writable
from diode_collectors.shapes import SweepProblem
from diode_collectors.sweep import check_can_be_timed, check_device, default_device, sweep
from diode_store.errors import HardwareError, SpoolError
from diode_store.records import Outcome, Source

COLLECT = Path(sys.executable).with_name("diode-collect")


def collect(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``diode-collect``."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run([COLLECT, *arguments], capture_output=True, text=True, check=False, env=environment)


@pytest.mark.slow
def test_problems_are_timed_for_real(tmp_path: Path) -> None:
    """ATen and Inductor's C++ kernels of each problem are timed and land in the spool."""
    shapes = ("--shape", "mm:64x128x256", "--shape", "addmm:64x128x256", "--shape", "bmm:32x48x64:4")
    finished = collect(*shapes, "--device", "cpu", DIODE_SPOOL=str(tmp_path / "spool"))
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == ""
    note, summary = finished.stderr.splitlines()
    assert note.startswith("timing on ")
    assert summary.startswith("3 of 3 problems measured, 6 timings in ")
    assert f"(0 left nothing to time, 0 failed); in {tmp_path / 'spool'}, next: diode-ingest --once" in summary
    measurements = spooled(tmp_path / "spool")
    assert [(m.problem.op, m.problem.shape.b) for m in measurements] == [("mm", 1), ("addmm", 1), ("bmm", 4)]
    assert [(m.problem.shape.m, m.problem.shape.n, m.problem.shape.k) for m in measurements[::2]] == [
        (64, 128, 256),
        (32, 48, 64),
    ]
    assert {m.source for m in measurements} == {Source.SWEEP}
    assert len({m.sweep_id for m in measurements}) == 1
    assert {m.problem.shape.dtype for m in measurements} == {"float32"}
    for measurement in measurements:
        vendor, cpp = measurement.timings
        assert vendor.config.template == f"aten::{measurement.problem.op}"
        assert cpp.config.template.startswith("cpp::CppMicroGemm")
        assert {vendor.outcome, cpp.outcome} == {Outcome.OK}
        # A tenth of a microsecond to a tenth of a second: no other unit fits.
        assert all(0.1 < (timing.runtime_us or 0) < 1e5 for timing in measurement.timings)


def test_failures_and_silent_problems_are_counted(tmp_path: Path) -> None:
    """A problem that cannot run and one that leaves no choice cost nobody else anything."""
    broken = SweepProblem("bmm", 16, 16, 16, 2, "complex32")
    silent = SweepProblem("bmm", 16, 16, 16, 2, "int64")
    done: list[float] = []
    failures: list[SweepProblem] = []
    report = sweep(
        [broken, silent],
        tmp_path / "spool",
        device="cpu",
        on_progress=done.append,
        on_failure=lambda problem, _error: failures.append(problem),
    )
    assert (report.problems, report.measured, report.silent, report.failed, report.dropped) == (2, 0, 1, 1, 0)
    assert failures == [broken]
    assert done == [1.0, 1.0]
    assert spooled(tmp_path / "spool") == []


def test_a_sweep_leaves_inductor_as_it_was(tmp_path: Path) -> None:
    """Settings, autotuning tables and oneDNN are those of before."""
    before = (inductor_config.freezing, inductor_config.max_autotune_gemm_backends, torch.backends.mkldnn.enabled)
    sweep([], tmp_path / "spool", device="cpu")
    after = (inductor_config.freezing, inductor_config.max_autotune_gemm_backends, torch.backends.mkldnn.enabled)
    assert before == after
    assert select_algorithm.PRINT_AUTOTUNE is True


def test_nothing_measured_is_a_failure(tmp_path: Path) -> None:
    """A sweep that recorded nothing ends with 1 and says why."""
    spool = tmp_path / "file"
    spool.touch()
    finished = collect("--shape", "mm:8x8x8", "--device", "cpu", "--spool", spool)
    assert finished.returncode == 1
    assert finished.stderr.splitlines()[-1].startswith(f"error: {spool}: cannot create the spool folder")


def test_what_onednn_takes_over_is_refused_before_it_compiles(tmp_path: Path) -> None:
    """On a CPU, mm in bf16 leaves nothing to time; that is said at once, with what does."""
    spool = tmp_path / "spool"
    finished = collect("--shape", "mm:64x64x64", "--dtype", "bf16", "--device", "cpu", "--spool", spool)
    assert (finished.returncode, finished.stdout) == (1, "")
    [line] = finished.stderr.splitlines()
    assert line.startswith("error: on a CPU oneDNN takes mm and addmm in bfloat16 over")
    assert "--dtype fp32" in line
    assert not spool.exists()


@pytest.mark.parametrize(
    ("device", "problem"),
    [
        ("cpu", SweepProblem("mm", 8, 8, 8, 1, "float32")),
        ("cpu", SweepProblem("bmm", 8, 8, 8, 2, "bfloat16")),
        ("cuda", SweepProblem("mm", 8, 8, 8, 1, "bfloat16")),
    ],
)
def test_what_can_be_timed_is_not_refused(device: str, problem: SweepProblem) -> None:
    """One such problem is enough."""
    check_can_be_timed([SweepProblem("mm", 8, 8, 8, 1, "bfloat16"), problem], device)


def test_a_spool_that_cannot_be_written_ends_it_first() -> None:
    """No problem is compiled for a spool that takes no record; its message names the folder."""
    started = time.monotonic()
    with pytest.raises(SpoolError, match=r"^/proc/self: cannot write the spool: .*DIODE_SPOOL$"):
        sweep([SweepProblem("mm", 64, 64, 64, 1, "float32")], "/proc/self", device="cpu")
    assert time.monotonic() - started < 1


def test_a_check_leaves_nothing_in_the_spool(tmp_path: Path) -> None:
    """The folder is made, and empty."""
    check_writable(tmp_path / "spool")
    assert list((tmp_path / "spool").iterdir()) == []


def test_an_interrupted_sweep_says_what_it_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C ends it with 130; the note says how much is in the spool and how to go on."""

    def interrupt(_problem: SweepProblem, _device: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("diode_collectors.sweep._run", interrupt)
    report = sweep([SweepProblem("mm", 8, 8, 8, 1, "float32")] * 3, tmp_path / "spool", device="cpu")
    assert (report.problems, report.measured, report.failed, report.interrupted) == (3, 0, 0, True)
    sweep_cli._print(replace(report, measured=2, timings=4), tmp_path, as_json=False)
    note = capsys.readouterr().err
    assert note.startswith("2 of 3 problems measured, 4 timings in ")
    assert note.endswith(f"interrupted; run it again for the rest; in {tmp_path}, next: diode-ingest --once\n")
    monkeypatch.setattr(
        "sys.argv", ["diode-collect", "--shape", "mm:8x8x8", "--device", "cpu", "--spool", str(tmp_path)]
    )
    with pytest.raises(SystemExit) as ended:
        sweep_cli.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err.splitlines()[-1].endswith("; nothing was spooled")


def test_dry_run_lists_problems_and_touches_nothing(tmp_path: Path) -> None:
    """Given and drawn problems are listed once each, in order."""
    shapes = ("--shape", "mm:64x128x256", "--shape", "mm:64x128x256", "--num-shapes", "2", "--seed", "3")
    options = ("--device", "cpu", "--dtype", "bf16", "--spool", tmp_path / "spool", "--dry-run", "--json")
    finished = collect(*shapes, *options)
    assert (finished.returncode, finished.stderr) == (0, "")
    listed = json.loads(finished.stdout)
    assert listed[0] == {"op": "mm", "dtype": "bfloat16", "b": 1, "m": 64, "n": 128, "k": 256}
    assert len(listed) == 3
    assert not (tmp_path / "spool").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shape", "mm:1x2"), "'mm:1x2' is no shape"),
        (("--shape", "conv:1x2x3"), "unknown op 'conv'"),
        (("--shape", "mm:8x8x8", "--dtype", "int8"), "unknown dtype 'int8'"),
        (("--shape", "mm:8x8x8", "--search-space", "HUGE"), "HUGE"),
        (("--seed", "1"), "give problems with --shape or --num-shapes"),
    ],
)
def test_bad_usage_ends_with_2(arguments: tuple[str, ...], message: str) -> None:
    """What was typed wrong is named."""
    finished = collect(*arguments, "--device", "cpu")
    assert finished.returncode == 2
    assert message in " ".join(finished.stderr.split())


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda:99", "no device 'cuda:99': torch"),
        ("gpu", "unknown device 'gpu'; expected cuda, cuda:N or cpu"),
        ("meta", "a sweep runs on cuda or cpu, not on meta"),
    ],
)
def test_devices_that_are_not_there_are_refused(device: str, message: str) -> None:
    """One line that says what there could be."""
    with pytest.raises(HardwareError, match=message):
        check_device(device)


def test_a_missing_device_ends_with_1() -> None:
    """Asking for a GPU that is not there is no bad usage, but nothing can be done."""
    finished = collect("--shape", "mm:8x8x8", "--device", "cuda:99")
    assert (finished.returncode, finished.stdout) == (1, "")
    [line] = finished.stderr.splitlines()
    assert line.startswith("error: no device 'cuda:99'")


def test_the_default_device_can_be_used() -> None:
    """Whatever is chosen is there."""
    check_device(default_device())


def test_help_says_how_it_times() -> None:
    """Whoever trains on the records must know what the times are."""
    text = " ".join(collect("--help").stdout.split())
    assert "Inductor's own benchmarker" in text
    assert "does not hide the launch" in text
    assert "Example: diode-collect --shape" in text
