"""Which cores a sweep's workers use, and how one process at a time holds a device."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import sys
from itertools import chain
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diode_collectors.problems.problem import parse_problem
from diode_collectors.problems.search_space import SearchSpace
from diode_collectors.sweep import engine
from diode_collectors.sweep.cores import CoreShare, cores_of_rank, lanes_for, share_cores, workers_for
from diode_collectors.sweep.lane.exclusive import DeviceLock
from diode_collectors.sweep.plan import SweepPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HOLD = """
import sys, time
from pathlib import Path
from diode_collectors.sweep.lane.exclusive import DeviceLock
with DeviceLock(Path(sys.argv[1]), "gpu"):
    print("held", flush=True)
    sys.stdin.read()
print("free", flush=True)
"""


@given(st.integers(1, 300), st.integers(1, 16))
def test_every_device_has_cores_of_its_own(count: int, devices: int) -> None:
    """No core is in two shares, each device gets as many, and few are left over; no core both compiles and times."""
    cores = list(range(1000, 1000 + count))
    shares = share_cores(cores, devices)
    assert len(shares) == devices
    for share in shares:
        assert share.benchmarking not in share.compiling
        assert share.compiling
    if count < devices:
        assert shares == [CoreShare(tuple(cores), None)] * devices
        return
    used = [core for s in shares for core in chain(s.compiling, () if s.benchmarking is None else (s.benchmarking,))]
    assert len(used) == len(set(used)) == count // devices * devices
    assert set(used) <= set(cores)


def test_neighbouring_cores_go_together() -> None:
    """Hosts number cores by socket, and GPUs likewise."""
    assert share_cores(list(range(8)), 2) == [CoreShare((1, 2, 3), 0), CoreShare((5, 6, 7), 4)]


@pytest.mark.parametrize(("count", "expected"), [(1, None), (3, None), (4, 0), (16, 0)])
def test_a_core_is_kept_for_benchmarking_where_there_are_enough(count: int, expected: int | None) -> None:
    """With less than four it would be missing too much."""
    assert share_cores(list(range(count)), 1)[0].benchmarking == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, list(range(8))),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}, [2, 3]),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, list(range(8))),
        ({"LOCAL_RANK": "9", "LOCAL_WORLD_SIZE": "16"}, list(range(8))),
        ({"LOCAL_RANK": "x", "LOCAL_WORLD_SIZE": "4"}, list(range(8))),
    ],
)
def test_ranks_of_a_host_share_its_cores(
    environment: dict[str, str], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes its part, unless the launcher has bound it to some already."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert cores_of_rank(list(range(8)), environment) == expected
    assert cores_of_rank([4, 5], environment) == [4, 5]


@pytest.mark.parametrize(
    ("cores", "device", "lanes"),
    [(15, "cuda:0", 4), (64, "cuda:0", 4), (8, "cuda:0", 2), (3, "cuda:0", 1), (1, "cuda:0", 1), (64, "cpu", 1)],
)
def test_as_many_lanes_as_the_cores_keep_busy(cores: int, device: str, lanes: int) -> None:
    """Four at most; a CPU has one, for its kernels are timed on the cores that would compile."""
    assert lanes_for(CoreShare(tuple(range(cores)), None), device) == lanes


@pytest.mark.parametrize(
    ("cores", "memory_gib", "lanes"),
    [
        (63, None, 7),
        (63, 24, 7),
        (63, 40, 10),
        (63, 80, 12),
        (24, 80, 12),
        (23, 80, 11),
        (15, 80, 7),
        (7, 80, 3),
        (1, 80, 1),
    ],
)
def test_more_lanes_where_problems_share_kernels(cores: int, memory_gib: int | None, lanes: int) -> None:
    """Or have the vendor's alone: listing is much of what they take, if there are cores and memory for it."""
    share, memory_bytes = CoreShare(tuple(range(cores)), None), memory_gib and memory_gib * 2**30
    assert lanes_for(share, "cuda:0", compiles_little=True, memory_bytes=memory_bytes) == lanes
    assert lanes_for(share, "cpu", compiles_little=True, memory_bytes=memory_bytes) == 1
    assert lanes_for(share, "cuda:0", memory_bytes=memory_bytes) <= 4


class AskedForError(Exception):
    """Ends a sweep with how many lanes its first device was to get."""


@pytest.mark.parametrize(
    ("space", "shares", "lanes"),
    [
        pytest.param("GUIDED:12", True, 12, id="shared kernels"),
        pytest.param("VENDOR", False, 7, id="the vendor's alone"),
        pytest.param("SAMPLE:72", False, 4, id="kernels of their own"),
    ],
)
def test_a_sweep_starts_the_lanes_of_its_device(
    space: str, lanes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, shares: bool
) -> None:
    """By its cores, its memory and what is timed."""

    def asked_for(_plan: object, _device: object, _share: object, lanes: int, *_: object) -> None:
        raise AskedForError(lanes)

    monkeypatch.setattr(engine, "LaneProcess", asked_for)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(32)))
    plan = SweepPlan(
        (parse_problem("mm:64x64x64"),),
        tmp_path,
        ("cuda:0",),
        SearchSpace.parse(space),
        "s",
        share_kernels=shares,
        memory_bytes={"cuda:0": 80 * 2**30},
    )
    with pytest.raises(AskedForError, match=f"^{lanes}$"):
        engine.run_sweep(plan)


@pytest.mark.parametrize(
    ("cores", "lanes", "workers"), [(31, 1, 31), (15, 4, 11), (63, 4, 45), (15, 7, 11), (31, 12, 16), (1, 7, 1)]
)
def test_workers_are_as_many_as_cores_or_as_kernels_need(cores: int, lanes: int, workers: int) -> None:
    """One lane has all cores, a few have most, and many have what the few kernels of a problem need."""
    assert workers_for(cores, lanes) == workers


class Holder:
    """Another process that holds the device until it is told."""

    def __init__(self, folder: Path) -> None:
        """Start it."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def says(self) -> str:
        """Return its next word."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def let_go(self) -> None:
        """Have it let go."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Callable[[], Holder]]:
    """Return what starts a process that wants the device."""
    holders: list[Holder] = []

    def start() -> Holder:
        holders.append(Holder(tmp_path))
        return holders[-1]

    yield start
    for one in holders:
        one.close()


def test_one_process_at_a_time_holds_a_device(holder: Callable[[], Holder]) -> None:
    """The second waits until the first lets go."""
    first = holder()
    assert first.says() == "held"
    second = holder()
    said, _, _ = select.select([second.process.stdout], [], [], 0.6)
    assert said == []
    assert second.process.poll() is None
    first.let_go()
    assert first.says() == "free"
    assert second.says() == "held"


def test_a_killed_holder_frees_the_device(holder: Callable[[], Holder]) -> None:
    """Nothing has to be cleaned up after kill -9."""
    first = holder()
    assert first.says() == "held"
    second = holder()
    first.process.send_signal(signal.SIGKILL)
    assert second.says() == "held"


def test_devices_are_held_apart(tmp_path: Path) -> None:
    """Each has a lock of its own, and it can be taken again and again."""
    with DeviceLock(tmp_path, "a"), DeviceLock(tmp_path, "b"):
        pass
    lock = DeviceLock(tmp_path, "a")
    for _ in range(3):
        with lock:
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["diode-sweep-a.lock", "diode-sweep-b.lock"]


def test_other_users_can_lock_too(tmp_path: Path) -> None:
    """Whatever the umask of who came first; reading the file is enough to lock it."""
    before = os.umask(0o077)
    try:
        with DeviceLock(tmp_path, "gpu"):
            pass
    finally:
        os.umask(before)
    path = tmp_path / "diode-sweep-gpu.lock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    path.chmod(0o444)
    with DeviceLock(tmp_path, "gpu"):
        pass


def test_the_holder_moves_to_its_core_and_back(tmp_path: Path) -> None:
    """Compiling goes on elsewhere; also after an error it returns to where it was."""
    before = os.sched_getaffinity(0)
    core = max(before)
    seen = []

    def fail_inside() -> None:
        with DeviceLock(tmp_path, "gpu", core):
            seen.append(os.sched_getaffinity(0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert seen == [{core}]
    assert os.sched_getaffinity(0) == before
