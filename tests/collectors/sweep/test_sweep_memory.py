"""What memory of a device a lane needs and leaves, where torch says what there is."""

from __future__ import annotations

import pytest
import torch

from diode_collectors.problems.problem import SweepProblem
from diode_collectors.sweep.lane import memory
from diode_collectors.sweep.lane.memory import check_memory, give_back
from diode_store.errors import HardwareError

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


def test_what_does_not_fit_is_refused(emptied: list[bool]) -> None:
    """It says how much is needed and how much is free."""
    check_memory(SweepProblem("mm", 64, 64, 64), "cuda:0")
    with pytest.raises(HardwareError, match=r"^mm:32768x.* needs about .* GiB of memory and 2\.0 GiB are free on"):
        check_memory(SweepProblem("mm", 32768, 32768, 32768), "cuda:0")
    assert emptied == []


@pytest.mark.parametrize("polls", [1, 3])
def test_what_other_lanes_hold_for_a_moment_is_waited_for(monkeypatch: pytest.MonkeyPatch, polls: int) -> None:
    """It is measured once they have given it back."""
    monkeypatch.setattr(memory, "_POLL_S", 0.01)
    answers = iter([2 * 2**30] * polls)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (next(answers, TOTAL), TOTAL))
    check_memory(SweepProblem("mm", 32768, 32768, 32768), "cuda:0", lanes=7)
    assert next(answers, None) is None


@pytest.mark.parametrize(("size", "patience_s"), [(32768, 0.05), (2**17, 3600.0)])
def test_what_never_fits_is_refused_beside_others(
    monkeypatch: pytest.MonkeyPatch, emptied: list[bool], size: int, patience_s: float
) -> None:
    """After a while, or at once if the device could not hold it either."""
    monkeypatch.setattr(memory, "_POLL_S", 0.01)
    monkeypatch.setattr(memory, "_PATIENCE_S", patience_s)
    with pytest.raises(HardwareError, match=r"2\.0 GiB are free on the device"):
        check_memory(SweepProblem("mm", size, size, size), "cuda:0", lanes=7)
    assert emptied == []
