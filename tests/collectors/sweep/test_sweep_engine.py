"""How a sweep deals with its lanes, with real processes that make their measurements up."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import time
from pathlib import Path

import pytest
from quick_lane import CONFIGS
from sweep_processes import Sweep, counted, once_each, recorded

from diode_collectors.sweep import kept_kernels
from diode_collectors.sweep.kept_kernels import used_alone
from diode_store.errors import DiodeError
from diode_store.records import Outcome
from diode_store.system.private_folder import MARK
from lanes import long, sizes
from waiting import eventually

pytestmark = pytest.mark.xdist_group("sweeps")

PROBLEMS = [f"bmm:{16 * i}x32x64:2" for i in range(1, 13)]


def test_every_problem_is_measured_once(tmp_path: Path) -> None:
    """By three lanes together; the report counts what the spool holds, and nothing is left over."""
    with Sweep(tmp_path, PROBLEMS, options={"lanes": 3}) as sweep:
        report = sweep.report()
        results = sweep.of_kind("result")
    assert counted(sweep.spool) == once_each(PROBLEMS)
    assert report["problems"] == report["measured"] == len(PROBLEMS)
    assert report["timings"] == 5 * len(PROBLEMS)
    assert {key: report[key] for key in ("skipped", "silent", "failed", "not_begun", "restarts")} == {
        "skipped": 0, "silent": 0, "failed": 0, "not_begun": 0, "restarts": 0,
    }  # fmt: skip
    assert (report["interrupted"], report["ended_by"]) == (False, None)
    assert sorted(result["problem"] for result in results) == sorted(f"{text}/nn/fp32" for text in PROBLEMS)
    assert sweep.of_kind("device") == [
        {"event": "device", "device": "cpu", "hardware": "NVIDIA H200", "torch": "2.11.0+cu130"}
    ]
    assert [path.name for path in sweep.temporary.iterdir()] == []
    assert {m.sweep_id for m in recorded(sweep.spool)} == {"sweep-of-a-test"}


@pytest.mark.long
def test_shared_kernels_are_kept_for_some_time(tmp_path: Path) -> None:
    """All lanes of a device find them in one folder; each generation begins anew, and one that no lane uses goes."""
    with Sweep(tmp_path, PROBLEMS[:9], options={"lanes": 1, "share_kernels": True}, generation=15) as sweep:
        assert sweep.report()["measured"] == 9
    extras = [m.extra for m in sorted(recorded(sweep.spool), key=lambda m: m.problem.shape.m)]
    assert [extra["generation"] for extra in extras] == ["0"] * 3 + ["1"] * 3 + ["2"] * 3
    assert [extra["there"] for extra in extras] == [["0"]] * 3 + [["1"]] * 3 + [["2"]] * 3
    assert {extra["of"] for extra in extras} == {"kernels"}
    assert [path.name for path in sweep.temporary.iterdir()] == []


@pytest.mark.long
def test_kept_kernels_serve_the_next_sweep(tmp_path: Path) -> None:
    """It goes on with the last generation, and removes no more than those before, whatever else is in the folder."""
    kept = tmp_path / "kept"
    (kept / "0").mkdir(parents=True)
    options = {"lanes": 1, "share_kernels": True, "kernels": str(kept)}
    with Sweep(tmp_path, PROBLEMS[:5], options=options, generation=15) as sweep:
        sweep.report()
    (kept / "kernels/1/compiled").touch()
    with Sweep(tmp_path, PROBLEMS[:7], options=options, generation=15) as sweep:
        assert sweep.report()["measured"] == 2
    assert [path.name for path in (kept / "kernels").iterdir()] == ["1"]
    assert (kept / "kernels/1/compiled").exists()
    for number in range(14):
        (kept / f"kernels/1/{number}").touch()
    with Sweep(tmp_path, PROBLEMS[:8], options=options, generation=15) as sweep:
        sweep.report()
    assert [path.name for path in (kept / "kernels").iterdir()] == ["2"]
    assert sorted(path.name for path in kept.iterdir()) == ["0", "kernels", "lock"]
    assert list(sweep.temporary.iterdir()) == []


def test_nothing_is_kept_where_nothing_is_shared(tmp_path: Path) -> None:
    """What is in the folder stays as it is."""
    (tmp_path / "kept/kernels/0").mkdir(parents=True)
    with Sweep(tmp_path, PROBLEMS[:2], options={"lanes": 1, "kernels": str(tmp_path / "kept")}, generation=1) as sweep:
        sweep.report()
    assert [path.name for path in (tmp_path / "kept/kernels").iterdir()] == ["0"]


def test_two_sweeps_cannot_keep_kernels_in_one_folder(tmp_path: Path) -> None:
    """The second ends with a line that says so; nor can a file be the folder."""
    options = {"lanes": 1, "share_kernels": True, "kernels": str(tmp_path / "kept")}
    with Sweep(tmp_path / "one", PROBLEMS, environment={"QUICK_LANE_S": "0.3"}, options=options) as first:
        first.wait_for("result")
        with Sweep(tmp_path / "two", PROBLEMS, options=options) as second:
            told = second.wait_for("error")
        assert told["message"].startswith(f"--kernels {tmp_path / 'kept'}: another sweep uses it; name another")
    (tmp_path / "file").touch()
    with Sweep(tmp_path / "two", PROBLEMS, options=options | {"kernels": str(tmp_path / "file")}) as second:
        assert "file: " in second.wait_for("error")["message"]


def test_kernels_cannot_be_kept_where_there_are_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without them is named as what it is, not as a crash."""

    def no_lock(_fd: int) -> bool:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(kept_kernels, "try_lock", no_lock)
    refused = pytest.raises(DiodeError, match=r"--kernels .*/kept: .*No locks available.*; name a folder")
    with refused, used_alone(tmp_path / "kept"):
        pytest.fail("it went on without a lock")


def test_a_second_sweep_measures_nothing(tmp_path: Path) -> None:
    """All of it is in the spool; what is new is measured."""
    with Sweep(tmp_path, PROBLEMS) as sweep:
        sweep.report()
    with Sweep(tmp_path, PROBLEMS) as sweep:
        report = sweep.report()
    assert (report["problems"], report["skipped"], report["measured"]) == (12, 12, 0)
    with Sweep(tmp_path, [*PROBLEMS, "mm:8x8x8"]) as sweep:
        report = sweep.report()
    assert (report["problems"], report["skipped"], report["measured"]) == (13, 12, 1)
    assert counted(sweep.spool) == once_each([*PROBLEMS, "mm:8x8x8"])


def test_kernels_that_were_left_out_are_measured(tmp_path: Path) -> None:
    """A sweep without TMA kernels is no reason to skip one with them, nor the other way round."""
    for include_tma, skipped in ((False, 0), (True, 0), (False, 1), (True, 1)):
        with Sweep(tmp_path, PROBLEMS[:1], options={"include_tma": include_tma}) as sweep:
            assert sweep.report()["skipped"] == skipped
    assert {m.search_space for m in recorded(sweep.spool)} == {"DEFAULT", "DEFAULT without TMA"}


def test_a_problem_that_is_asked_for_twice_is_measured_once(tmp_path: Path) -> None:
    """Also where two ways to type it mean the same record."""
    with Sweep(tmp_path, ["mm:8x8x8", "mm:8x16x8", ("mm:8x8x8/nn/fp32", "other")], options={"lanes": 2}) as sweep:
        report = sweep.report()
    assert (report["problems"], report["measured"], report["skipped"]) == (3, 2, 1)
    assert counted(sweep.spool) == once_each(["mm:8x8x8", "mm:8x16x8"])


def test_what_fails_and_what_says_nothing_is_counted(tmp_path: Path) -> None:
    """The others are measured; the reasons are told in one line each."""
    problems = [("mm:1x1x1", "fails"), "mm:2x2x2", ("mm:3x3x3", "silent"), "mm:4x4x4"]
    with Sweep(tmp_path, problems) as sweep:
        report = sweep.report()
        said = {result["problem"]: (result["error"], result["silent"]) for result in sweep.of_kind("result")}
    assert [report[name] for name in ("problems", "measured", "failed", "silent")] == [4, 2, 1, 1]
    assert said["mm:1x1x1/nn/fp32"] == ("RuntimeError: lowering failed: no such op", None)
    assert said["mm:3x3x3/nn/fp32"] == (None, "Inductor had one choice only")
    assert counted(sweep.spool) == once_each(["mm:2x2x2", "mm:4x4x4"])


def test_a_lane_that_dies_is_started_again(tmp_path: Path) -> None:
    """Its problem is given out again and measured once; a note quotes what it said last."""
    problems = [*PROBLEMS[:3], (PROBLEMS[3], "dies once"), *PROBLEMS[4:6]]
    with Sweep(tmp_path, problems, options={"lanes": 2}) as sweep:
        report = sweep.report()
        notes = [note["message"] for note in sweep.of_kind("note")]
    assert counted(sweep.spool) == once_each(PROBLEMS[:6])
    assert (report["measured"], report["restarts"], report["failed"]) == (6, 1, 0)
    assert notes == [
        f"{PROBLEMS[3]}/nn/fp32: its process died and is started again (Segmentation fault in ptxas (signal 9))"
    ]


def test_a_killed_lane_takes_what_it_started_with_it(tmp_path: Path) -> None:
    """Its compilers end too, and keep nobody from noticing that it is gone."""
    with Sweep(tmp_path, [("mm:1x1x1", "compiles once"), "mm:2x2x2"]) as sweep:
        sweep.wait_for("begin")
        eventually(lambda: len(sweep.alive()) == 2)
        os.kill(min(sweep.lanes()), signal.SIGKILL)
        report = sweep.report()
        assert sweep.alive() == []
    assert (report["measured"], report["restarts"]) == (2, 1)


def test_a_problem_that_kills_every_lane_fails(tmp_path: Path) -> None:
    """After three deaths it is given up, with their last words; the others are measured."""
    with Sweep(tmp_path, ["mm:2x2x2", ("mm:1x1x1", "dies"), "mm:4x4x4"]) as sweep:
        report = sweep.report()
        errors = [result["error"] for result in sweep.of_kind("result") if result["error"]]
    assert (report["measured"], report["failed"], report["restarts"]) == (2, 1, 3)
    assert errors == ["its process died 3 times; the last time it said: Segmentation fault in ptxas (signal 9)"]
    assert counted(sweep.spool) == once_each(["mm:2x2x2", "mm:4x4x4"])


def test_a_lane_killed_after_it_spooled_does_not_measure_twice(tmp_path: Path) -> None:
    """Its record is found on the disk, and counts."""
    with Sweep(tmp_path, [("mm:1x1x1", "spools, then dies"), "mm:2x2x2"]) as sweep:
        report = sweep.report()
    assert counted(sweep.spool) == once_each(["mm:1x1x1", "mm:2x2x2"])
    assert (report["measured"], report["failed"], report["restarts"]) == (2, 0, 1)


@pytest.mark.quick(1)
@pytest.mark.parametrize("number", [1, 4])
def test_a_kernel_that_breaks_the_device_is_left_out(tmp_path: Path, number: int) -> None:
    """Each costs a process, none costs the problem; the record says that it did not run."""
    with Sweep(tmp_path, [("mm:1x1x1", f"breaks {number}"), "mm:2x2x2"]) as sweep:
        report = sweep.report()
        notes = [note["message"] for note in sweep.of_kind("note") if "left out" in note["message"]]
    assert (report["measured"], report["failed"], report["failures"]) == (2, 0, number)
    assert len(notes) == number
    assert "a kernel broke the device and is left out: CUDA error: an illegal memory access" in notes[0]
    (broken,) = [m for m in recorded(sweep.spool) if m.problem.shape.m == 1]
    assert [timing.outcome for timing in broken.timings] == [
        *[Outcome.RUNTIME_ERROR] * number, *[Outcome.OK] * (len(CONFIGS) - number),
    ]  # fmt: skip


def test_what_breaks_one_model_is_tried_on_another(tmp_path: Path) -> None:
    """Each model measures every problem; a failure is recorded of the one that had it."""
    problems = [("mm:1x1x1", "breaks-on cuda:0")]
    with Sweep(tmp_path, problems, devices=["cuda:0", "cuda:1"], options={"lanes": 1}) as sweep:
        report = sweep.report()
    assert (report["problems"], report["measured"], report["failures"]) == (2, 2, 1)
    outcomes = {m.hardware.name: [timing.outcome for timing in m.timings] for m in recorded(sweep.spool)}
    assert outcomes == {
        "NVIDIA H200": [Outcome.RUNTIME_ERROR, *[Outcome.OK] * 4],
        "NVIDIA H100": [Outcome.OK] * 5,
    }


def test_a_tired_lane_is_replaced(tmp_path: Path) -> None:
    """One whose device does no more work goes after its problem; that is no death and loses nothing."""
    with Sweep(tmp_path, [(text, "tires") for text in PROBLEMS[:4]], options={"lanes": 2}) as sweep:
        report = sweep.report()
    assert counted(sweep.spool) == once_each(PROBLEMS[:4])
    assert (report["measured"], report["restarts"]) == (4, 0)


def test_a_lane_that_hangs_on_the_device_is_ended(tmp_path: Path) -> None:
    """Once it holds the device and says nothing for too long; it is told once, and its problem is measured."""
    with Sweep(tmp_path, [("mm:1x1x1", "hangs"), "mm:2x2x2"], stall_s=1.0) as sweep:
        report = sweep.report()
        notes = [note["message"] for note in sweep.of_kind("note")]
    assert [note for note in notes if "no sign of life" in note] == [
        "mm:1x1x1/nn/fp32: no sign of life for 1 s; its process is ended"
    ]
    assert report["measured"] == 2
    assert counted(sweep.spool) == once_each(["mm:1x1x1", "mm:2x2x2"])


@pytest.mark.quick(1)
@pytest.mark.parametrize("lanes", [1, 3])
def test_lanes_that_cannot_start_end_the_sweep(tmp_path: Path, lanes: int) -> None:
    """In one line with what they said; each was tried twice."""
    environment = {"QUICK_LANE_START": "never"}
    with Sweep(tmp_path, PROBLEMS, environment=environment, options={"lanes": lanes}) as sweep:
        error = sweep.error()
        eventually(lambda: not sweep.alive())
    assert error["kind"] == "HardwareError"
    assert error["message"] == (
        "cpu: no worker could start; it said: RuntimeError: no kernel image is available for execution on the device"
    )
    assert list(sweep.temporary.iterdir()) == []


def test_a_time_limit_begins_nothing_new(tmp_path: Path) -> None:
    """What is under way is finished, the rest counted."""
    options = {"time_limit_s": 0.3, "lanes": 2}
    with Sweep(tmp_path, PROBLEMS, environment={"QUICK_LANE_S": "0.5"}, options=options) as sweep:
        report = sweep.report()
    assert 2 <= report["measured"] <= 4
    assert report["measured"] + report["not_begun"] == len(PROBLEMS)
    assert (report["interrupted"], report["ended_by"]) == (False, "the time limit of 0.3 s")
    assert sum(counted(sweep.spool).values()) == report["measured"]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_ends_a_sweep(tmp_path: Path, number: signal.Signals, name: str) -> None:
    """At once, with a report that counts what is in the spool; no process and no file is left."""
    problems = [*PROBLEMS[:4], (PROBLEMS[4], "compiles"), (PROBLEMS[5], "compiles"), *PROBLEMS[6:]]
    with Sweep(tmp_path, problems, options={"lanes": 2}) as sweep:
        for _ in range(4):
            sweep.wait_for("result")
        eventually(lambda: len(sweep.alive()) == 4)  # two lanes, and what they started
        began = time.monotonic()
        os.killpg(sweep.process.pid, number)
        report = sweep.report()
        assert time.monotonic() - began < 30  # its compilers would go on for minutes
        eventually(lambda: not sweep.alive())
    assert (report["interrupted"], report["ended_by"]) == (True, name)
    assert report["measured"] + report["not_begun"] == len(PROBLEMS)
    assert counted(sweep.spool) == once_each(PROBLEMS[:4])
    assert list(sweep.temporary.iterdir()) == []
    with Sweep(tmp_path, PROBLEMS, options={"lanes": 2}) as sweep:
        assert sweep.report()["measured"] == len(PROBLEMS) - report["measured"]
    assert counted(sweep.spool) == once_each(PROBLEMS)


@pytest.mark.parametrize("kills", sizes(3, 40))
def test_killed_sweeps_lose_and_repeat_nothing(tmp_path: Path, kills: int) -> None:
    """After kill -9 at any moment nothing goes on running, and in the end each problem is there once."""
    chooser = random.Random(3)  # noqa: S311 - when to kill is no secret
    for _ in range(kills):
        with Sweep(tmp_path, PROBLEMS, environment={"QUICK_LANE_S": "0.15"}, options={"lanes": 2}) as sweep:
            sweep.wait_for("device")
            time.sleep(chooser.uniform(0, 0.3))
            sweep.process.kill()
            sweep.process.wait()
            eventually(lambda: not sweep.alive())
        assert max(counted(sweep.spool).values(), default=1) == 1
    with Sweep(tmp_path, PROBLEMS, options={"lanes": 2}) as sweep:
        report = sweep.report()
    assert report["skipped"] > 0
    assert report["skipped"] + report["measured"] == len(PROBLEMS)
    assert counted(sweep.spool) == once_each(PROBLEMS)
    assert list(sweep.temporary.iterdir()) == []  # a sweep killed amid its tidying leaves that to the next


def open_files(pid: int) -> list[Path]:
    """Return what a process has open; it may close some of it meanwhile."""
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(path.readlink())
    return found


@pytest.mark.long
@pytest.mark.parametrize("share_kernels", [False, True])
def test_a_killed_sweep_leaves_no_files(tmp_path: Path, *, share_kernels: bool) -> None:
    """Its lanes remove them, and where those were killed too, the next sweep; what a lane has open is in use."""
    slow, options = {"QUICK_LANE_S": "0.3"}, {"lanes": 2, "share_kernels": share_kernels}
    with Sweep(tmp_path, PROBLEMS, environment=slow, options=options) as sweep:
        sweep.wait_for("result")
        sweep.process.kill()
        eventually(lambda: not list(sweep.temporary.iterdir()))
    with Sweep(tmp_path, PROBLEMS, environment=slow, options=options) as sweep:
        sweep.wait_for("result")
        os.kill(sweep.process.pid, signal.SIGSTOP)  # or it would start new lanes
        left = sorted(sweep.temporary.iterdir())
        assert [path.suffix for path in left] == ["", MARK]
        lanes = sweep.lanes()
        assert len(lanes) == 2
        for pid in lanes:
            assert left[1] in open_files(pid)
            os.kill(pid, signal.SIGKILL)
        sweep.process.kill()
        eventually(lambda: not sweep.alive())
        assert sorted(sweep.temporary.iterdir()) == left
    with Sweep(tmp_path, PROBLEMS, options=options) as sweep:
        sweep.report()
    assert list(sweep.temporary.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("seed", [5, *(pytest.param(seed, marks=long) for seed in range(6, 15))])
def test_killed_lanes_lose_and_repeat_nothing(tmp_path: Path, seed: int) -> None:
    """While the sweep lives, its lanes may be killed at any moment; what was hit three times is for the next one."""
    chooser = random.Random(seed)  # noqa: S311 - likewise
    with Sweep(tmp_path, PROBLEMS, environment={"QUICK_LANE_S": "0.3"}, options={"lanes": 3}) as sweep:
        sweep.wait_for("device")
        for _ in range(6):
            time.sleep(chooser.uniform(0.05, 0.3))
            for pid in sweep.lanes()[:1]:
                os.kill(pid, signal.SIGKILL)
        report = sweep.report()
        failed = {result["problem"] for result in sweep.of_kind("result") if result["error"]}
    done = [text for text in PROBLEMS if f"{text}/nn/fp32" not in failed]
    assert counted(sweep.spool) == once_each(done)
    assert (report["measured"], report["failed"]) == (len(done), len(failed))
    assert report["restarts"] > 0
    assert list(sweep.temporary.iterdir()) == []
    with Sweep(tmp_path, PROBLEMS, options={"lanes": 3}) as sweep:
        assert sweep.report()["measured"] == len(failed)
    assert counted(sweep.spool) == once_each(PROBLEMS)
