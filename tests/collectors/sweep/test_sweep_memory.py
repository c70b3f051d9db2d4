"""What memory of a device a lane needs and leaves, where torch says what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from diode_collectors.inductor import indexing
from diode_collectors.problems.problem import SweepProblem, parse_problem
from diode_collectors.problems.search_space import SearchSpace
from diode_collectors.sweep.lane import measuring, memory
from diode_collectors.sweep.lane.measuring import Measuring, MeasuringOptions
from diode_collectors.sweep.lane.memory import check_indexing, check_memory, give_back
from diode_collectors.sweep.plan import DEFAULT_MODE
from diode_store.errors import HardwareError

if TYPE_CHECKING:
    from pathlib import Path

TOTAL = 80 * 2**30


@pytest.fixture
def emptied(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Have torch say that a device has 80 GiB, 2 of them free; the list grows when it is told to free more."""
    found: list[bool] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (2 * 2**30, TOTAL))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: found.append(True))
    return found


@pytest.mark.parametrize(
    ("gib", "lanes", "is_given"), [(21, 1, True), (19, 1, False), (6, 4, True), (4, 4, False), (3, 7, True)]
)
def test_what_is_kept(
    monkeypatch: pytest.MonkeyPatch, emptied: list[bool], gib: int, lanes: int, *, is_given: bool
) -> None:
    """No more than a quarter of a lane's share of the device."""
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: gib * 2**30)
    give_back("cuda:0", lanes)
    assert emptied == [True] * is_given


def test_a_cpu_has_nothing_to_give(emptied: list[bool]) -> None:
    """Torch is not asked about a device that is not there."""
    give_back("cpu", 1)
    assert emptied == []


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Have nobody sleep; the list has for how long they would have."""
    found: list[float] = []
    monkeypatch.setattr(memory.time, "sleep", found.append)
    return found


def test_what_does_not_fit_is_refused(emptied: list[bool], naps: list[float]) -> None:
    """It says how much is needed and how much is free; a lane that is alone waits for nobody."""
    check_memory(SweepProblem("mm", 64, 64, 64), "cuda:0")
    with pytest.raises(HardwareError, match=r"^mm:32768x.* needs about .* GiB of memory and 2\.0 GiB are free on"):
        check_memory(SweepProblem("mm", 32768, 32768, 32768), "cuda:0")
    assert (emptied, naps) == ([], [])


def test_what_other_lanes_hold_for_a_moment_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, emptied: list[bool], naps: list[float]
) -> None:
    """Once they have given it back, the problem is measured; what the lane itself keeps goes first."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (TOTAL if len(naps) == 3 else 2 * 2**30, TOTAL))
    check_memory(SweepProblem("mm", 32768, 32768, 32768), "cuda:0", lanes=7)
    assert (emptied, len(naps)) == ([True], 3)


def test_what_stays_held_is_waited_for_a_while(
    monkeypatch: pytest.MonkeyPatch, emptied: list[bool], naps: list[float]
) -> None:
    """Then it is refused, as if the lane were alone."""
    monkeypatch.setattr(memory.time, "monotonic", lambda: float(len(naps)))
    with pytest.raises(HardwareError, match=r"2\.0 GiB are free on the device"):
        check_memory(SweepProblem("mm", 32768, 32768, 32768), "cuda:0", lanes=7)
    assert (emptied, len(naps)) == ([True], 20)


def test_what_the_device_cannot_hold_is_refused_at_once(emptied: list[bool], naps: list[float]) -> None:
    """Waiting would not help."""
    with pytest.raises(HardwareError, match=r"2\.0 GiB are free on the device"):
        check_memory(SweepProblem("mm", 2**17, 2**17, 2**17), "cuda:0", lanes=7)
    assert (emptied, naps) == ([], [])


def test_what_kernels_would_read_beyond_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says why and what to do instead; C++ has no such limit, nor have later versions of torch."""
    beyond, within = parse_problem("mm:46x120401x20327/tn/bf16"), parse_problem("mm:46x120401x20327/nt/bf16")
    monkeypatch.setattr(indexing, "k_has_32_bits", lambda: True)
    with pytest.raises(
        HardwareError, match=r"beyond the matrices of mm:46x120401x20327/tn/bf16, .* torch 2\.12 or later$"
    ):
        check_indexing(beyond, "cuda:0")
    check_indexing(within, "cuda:0")
    check_indexing(beyond, "cpu")
    monkeypatch.setattr(indexing, "k_has_32_bits", lambda: False)
    check_indexing(beyond, "cuda:0")


@pytest.mark.quick(1)
@pytest.mark.parametrize("space", ["DEFAULT", "SAMPLE:12", "GUIDED:12", "EXHAUSTIVE", "VENDOR"])
def test_such_a_problem_is_timed_by_the_vendors_kernels_alone(
    space: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is compiled, unless nothing else is asked for."""
    monkeypatch.setattr(indexing, "k_has_32_bits", lambda: True)
    monkeypatch.setattr(indexing, "MOST_INDEXED", 1)
    # As on a GPU: only the check asks.
    monkeypatch.setattr(measuring, "check_indexing", lambda problem, _device: check_indexing(problem, "cuda:0"))
    options = MeasuringOptions("cpu", SearchSpace.parse(space), "s", 0, True, DEFAULT_MODE, tmp_path)  # noqa: FBT003 - no words for it here
    problem = parse_problem("mm:16x24x32", dtype="float32")
    with Measuring(options) as opened:
        if space == "VENDOR":
            assert opened.measure(problem).measurement is not None
        else:
            with pytest.raises(HardwareError, match="Triton's kernels of this torch"):
                opened.measure(problem)
