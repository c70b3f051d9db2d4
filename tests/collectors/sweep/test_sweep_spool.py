"""How a sweep gets on with its spool, and what it leaves in the process that ran it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from daemon_samples import PROGRAM
from sweep_processes import HERE, Sweep, counted, once_each

from diode_collectors.problems.problem import parse_problem
from diode_collectors.problems.search_space import SearchSpace
from diode_collectors.sweep import lanes
from diode_collectors.sweep.engine import run_sweep
from diode_collectors.sweep.plan import SilentListener, SweepPlan
from diode_store.errors import HardwareError, SpoolError
from samples import sql
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("sweeps")

MOUNT, UMOUNT = (shutil.which(name) or name for name in ("mount", "umount"))
PROBLEMS = [f"bmm:{16 * i}x32x64:2" for i in range(1, 13)]


def bytes_in(folder: Path) -> int:
    """Return what the files of a folder take, though one may be renamed meanwhile."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            return sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.long
def test_a_full_spool_is_waited_for(tmp_path: Path, database_path: Path) -> None:
    """The sweep says so, goes on whenever `diode-ingest` has made room, and loses nothing."""
    with Sweep(tmp_path, PROBLEMS, options={"lanes": 2, "spool_bytes": 3000}) as sweep:
        note = sweep.wait_for("note")
        assert note["message"] == f"waiting for room in the spool {sweep.spool}; run diode-ingest"
        filled = bytes_in(sweep.spool)
        assert 1500 < filled < 6000  # each lane looks at the others' records once a second
        done = threading.Event()

        def ingest() -> None:
            while not done.wait(0.2):
                command = [PROGRAM, "--once", "--spool", sweep.spool, "--database", database_path]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        thread = threading.Thread(target=ingest)
        thread.start()
        try:
            report = sweep.report()
        finally:
            done.set()
            thread.join()
    subprocess.run(
        [PROGRAM, "--once", "--spool", sweep.spool, "--database", database_path], check=True, stdout=subprocess.DEVNULL
    )
    assert report["measured"] == len(PROBLEMS)
    assert sql(database_path, "SELECT count(*), count(DISTINCT problem_id) FROM measurements") == [(12, 12)]


def test_one_that_waits_for_room_can_be_interrupted(tmp_path: Path) -> None:
    """What is spooled is safe; what is not is measured by the next one."""
    with Sweep(tmp_path, PROBLEMS, options={"lanes": 2, "spool_bytes": 3000}) as sweep:
        sweep.wait_for("note")
        sweep.process.send_signal(signal.SIGINT)
        report = sweep.report()
    assert report["interrupted"]
    assert sum(counted(sweep.spool).values()) == report["measured"] > 0
    with Sweep(tmp_path, PROBLEMS) as sweep:
        assert sweep.report()["measured"] == len(PROBLEMS) - report["measured"]
    assert counted(sweep.spool) == once_each(PROBLEMS)


def test_records_are_handed_over_by_chunks(tmp_path: Path) -> None:
    """A segment is sealed every so many problems, and at the end."""
    with Sweep(tmp_path, PROBLEMS, options={"chunk_size": 5}) as sweep:
        sweep.report()
    assert sorted(path.suffix for path in sweep.spool.iterdir()) == [".seg"] * 3


@contextlib.contextmanager
def small_disk(path: Path, size: str) -> Iterator[None]:
    """Mount a file system of ``size`` at ``path``."""
    path.mkdir(parents=True)
    mounted = subprocess.run(
        [MOUNT, "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", path], check=False, capture_output=True
    )
    if mounted.returncode:  # not root, or not allowed to
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run([UMOUNT, "--lazy", path], check=True)


def test_a_full_disk_ends_the_sweep(tmp_path: Path) -> None:
    """With one line that says where; what was spooled before is intact, and the rest is measured once there is room."""
    with small_disk(tmp_path / "spool", "16k"):
        with Sweep(tmp_path, PROBLEMS * 9, options={"lanes": 2, "chunk_size": 1}) as sweep:
            error = sweep.error()
            done = len(sweep.of_kind("result"))
            eventually(lambda: not sweep.alive())
        assert error["kind"] == "SpoolError"
        assert error["message"].startswith(str(sweep.spool))
        assert error["message"].endswith(
            "No space left on device; make room, or start `diode-ingest` to empty the spool"
        )
        assert "\n" not in error["message"]
        kept = counted(sweep.spool)
        assert 0 < done <= sum(kept.values()) < len(PROBLEMS)
        assert max(kept.values()) == 1
        subprocess.run([MOUNT, "-o", "remount,size=1M", tmp_path / "spool"], check=True)
        with Sweep(tmp_path, PROBLEMS) as sweep:
            assert sweep.report()["measured"] == len(PROBLEMS) - sum(kept.values())
        assert counted(sweep.spool) == once_each(PROBLEMS)


def plan_of(spool: Path, **options: Any) -> SweepPlan:
    """Return a plan of three problems."""
    problems = tuple(parse_problem(text, dtype="float32") for text in PROBLEMS[:3])
    return SweepPlan(problems, spool, ("cpu",), SearchSpace(), "s", **options)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Have no more rights than a user without any."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def test_a_spool_of_another_user_is_refused_at_once() -> None:
    """In one line, before any process is started."""
    with tempfile.TemporaryDirectory() as folder:
        spool = Path(folder) / "spool"
        spool.mkdir(mode=0o755)
        Path(folder).chmod(0o755)
        spool.chmod(0o555)
        with (
            pytest.raises(SpoolError, match=f"{spool}: cannot write the spool: Permission denied; ") as refused,
            as_nobody(),
        ):
            run_sweep(plan_of(spool))
        assert "\n" not in str(refused.value)
        with pytest.raises(SpoolError, match="cannot create the spool folder: Permission denied"), as_nobody():
            run_sweep(plan_of(spool / "below"))


class Quick:
    """Runs sweeps of quick lanes in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        monkeypatch.setattr(lanes, "_SERVE", "quick_lane:serve")
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        monkeypatch.setenv("TMPDIR", str(folder))
        monkeypatch.setenv("QUICK_LANE_STATE", str(folder))
        monkeypatch.setenv("PYTHONPATH", f"{HERE.parents[1]}:{os.environ.get('PYTHONPATH', '')}")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Quick:
    """Have lanes make their measurements up."""
    return Quick(monkeypatch, tmp_path)


def descriptors() -> set[str]:
    """Return what this process has open."""
    return {f"{path.name} {path.readlink()}" for path in Path("/proc/self/fd").iterdir() if path.exists()}


@pytest.mark.long
def test_a_sweep_leaves_its_process_as_it_was(quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor, no child, no zombie, no signal handler, no file; whether it ends well or not."""

    def state() -> tuple[object, ...]:
        children = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()
        handlers = (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
        return descriptors(), children, handlers, sorted(path.name for path in tmp_path.glob("diode-sweep-*"))

    before = state()
    assert run_sweep(plan_of(tmp_path / "spool", lanes=3)).measured == 3
    assert state() == before
    monkeypatch.setenv("QUICK_LANE_START", "never")
    with pytest.raises(HardwareError):
        run_sweep(plan_of(tmp_path / "spool", lanes=3))
    assert state() == before


def test_an_error_of_the_listener_ends_every_lane(quick: Quick, tmp_path: Path) -> None:
    """Whoever is told may fail; nothing goes on behind its back."""

    class Failing(SilentListener):
        def on_begin(self, total: int, skipped: int) -> None:
            assert (total, skipped) == (3, 0)
            raise ZeroDivisionError

    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = set(children.read_text().split())  # of tests that compiled in this process
    with pytest.raises(ZeroDivisionError):
        run_sweep(plan_of(tmp_path / "spool", lanes=2), Failing())
    assert set(children.read_text().split()) <= before
    assert list(tmp_path.glob("diode-sweep-*")) == []


def test_a_sweep_works_in_a_thread(quick: Quick, tmp_path: Path) -> None:
    """There are no signals for it there."""
    reports = []
    thread = threading.Thread(target=lambda: reports.append(run_sweep(plan_of(tmp_path / "spool"))))
    thread.start()
    thread.join()
    assert [report.measured for report in reports] == [3]


def test_a_process_that_cannot_be_started_is_told(
    quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In our words, with the reason; nothing is left open."""
    before = descriptors()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(HardwareError, match=r"cpu: a process of the sweep cannot be started: .*No such file"):
        run_sweep(plan_of(tmp_path / "spool"))
    assert descriptors() == before


@pytest.mark.parametrize(
    ("device", "visible", "expected"),
    [
        ("cpu", None, {}),
        ("cuda", None, {"CUDA_VISIBLE_DEVICES": "0"}),
        ("cuda:3", None, {"CUDA_VISIBLE_DEVICES": "3"}),
        ("cuda:1", "5, 7", {"CUDA_VISIBLE_DEVICES": "7"}),
        ("cuda:1", "GPU-aa,GPU-bb", {"CUDA_VISIBLE_DEVICES": "GPU-bb"}),
    ],
)
def test_a_lane_sees_its_gpu_only(
    monkeypatch: pytest.MonkeyPatch, device: str, visible: str | None, expected: dict[str, str]
) -> None:
    """Counted among those that the sweep sees itself."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert lanes._visible(device) == expected
