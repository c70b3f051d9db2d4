"""Which problem is measured next, so that those which are measured at a time fit into a device's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sweep_processes import Sweep, counted, once_each

from diode_collectors.problems.problem import SweepProblem
from diode_collectors.sweep.room import next_with_room

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30
ON_80_GB = {"QUICK_LANE_GIB": "80"}


def needing(gib: int) -> SweepProblem:
    """Return a problem whose tensors and their copies need so many GiB, a multiple of 3."""
    return SweepProblem("bmm", 4096, 4096, 4096, 4 * gib // 3, "float32")  # 64 MiB a matrix, in three, four times


SMALL, MIDDLE, LARGE = SweepProblem("mm", 64, 64, 64), needing(15), needing(48)


def test_what_these_need() -> None:
    """With one GiB to spare."""
    needed = [round(problem.needed_bytes(on_cpu=False) / GIB) for problem in (SMALL, MIDDLE, LARGE)]
    assert needed == [1, 16, 49]


@pytest.mark.parametrize(
    ("waiting", "beside", "expected"),
    [
        ([MIDDLE, SMALL], [], 0),
        ([MIDDLE, SMALL], [SMALL], 0),
        ([MIDDLE, SMALL], [MIDDLE, MIDDLE], 0),  # 16 + 2 of 16 are less than 60
        ([MIDDLE, SMALL], [MIDDLE, MIDDLE, MIDDLE], 1),
        ([LARGE, SMALL], [MIDDLE], 1),
        ([LARGE, MIDDLE, SMALL], [MIDDLE], 2),  # or the large one would never have its turn
        ([LARGE, MIDDLE], [MIDDLE], None),
        ([LARGE], [SMALL] * 6, 0),
        ([SMALL], [LARGE], 0),
        ([], [LARGE], None),
    ],
    ids=[
        "alone",
        "beside a small one",
        "room",
        "no room",
        "large",
        "no overtaking",
        "waits",
        "its turn",
        "small",
        "none",
    ],
)
def test_next_with_room(waiting: list[SweepProblem], beside: list[SweepProblem], expected: int | None) -> None:
    """Small ones go at once; large ones when there is room, in their order."""
    assert next_with_room(waiting, beside, memory_bytes=80 * GIB, lanes=4) == expected


def test_what_can_never_fit_is_tried() -> None:
    """Alone: the lane then says what is short. Where the memory is unknown nothing waits."""
    assert next_with_room([LARGE], [], memory_bytes=8 * GIB, lanes=4) == 0
    assert next_with_room([LARGE], [LARGE], memory_bytes=None, lanes=4) == 0


def test_large_problems_take_turns(tmp_path: Path) -> None:
    """A sweep times them one after the other, small ones beside them, and all once."""
    large = [(f"bmm:4096x4096x4096:{batch}", "alone") for batch in range(150, 156)]
    small = [f"mm:{16 * i}x32x64" for i in range(1, 13)]
    with Sweep(
        tmp_path, [*large, *small], options={"lanes": 3}, environment={**ON_80_GB, "QUICK_LANE_S": "0.2"}
    ) as sweep:
        report = sweep.report()
        order = [result["problem"] for result in sweep.of_kind("result")]
    assert counted(sweep.spool) == once_each([*(text for text, _ in large), *small])
    assert (report["measured"], report["failed"], report["not_begun"]) == (18, 0, 0)
    assert order.index(f"{small[0]}/nn/fp32") < order.index(f"{large[-1][0]}/nn/fp32")


def test_a_time_limit_ends_what_waits(tmp_path: Path) -> None:
    """Lanes that wait for a large problem are dismissed."""
    large = [(f"bmm:4096x4096x4096:{batch}", "alone") for batch in range(150, 156)]
    options = {"lanes": 3, "time_limit_s": 1.0}
    with Sweep(tmp_path, large, options=options, environment={**ON_80_GB, "QUICK_LANE_S": "0.6"}) as sweep:
        report = sweep.report()
    assert report["ended_by"] == "the time limit of 1 s"
    assert 1 <= report["measured"] < 6
    assert report["measured"] + report["not_begun"] == 6
