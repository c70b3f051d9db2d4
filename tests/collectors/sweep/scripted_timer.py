"""A timer that says what a test wants, and kernels that take the time they are told to."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from diode_collectors.inductor.timer import Sampled
from diode_collectors.sweep.lane.benchmark import Candidate
from diode_store.candidates.names import kernel_config
from diode_store.records import READ_FLUSH, TimingMethod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

CONFIG = kernel_config("triton_mm", {"BLOCK_M": 16})


class Kernel:
    """What a candidate runs: it has a time, and noise that is drawn by run."""

    def __init__(self, name: str, us: float, luck: Sequence[float] = ()) -> None:
        """Take ``us`` a run; the first runs take ``us`` times the factors of ``luck`` instead."""
        self.name, self.us = name, us
        self.luck = list(luck)

    def __call__(self) -> None:
        """Run; nothing to do."""

    def next_us(self) -> float:
        """Return how long the next timed run takes."""
        return self.us * (self.luck.pop(0) if self.luck else 1.0)


class ScriptedTimer:
    """Times kernels by what they say; remembers which were timed, in order, and how often."""

    overhead_us = 0.0
    late_launches = 0

    def __init__(self) -> None:
        """Have timed nothing yet."""
        self.timed: list[tuple[str, int]] = []
        self.warmed: list[str] = []
        self.asked_for: list[float] = []

    def active(self) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return contextlib.nullcontext()

    def method_for(self, best_us: float) -> TimingMethod:
        """Return the method whose name says how fast the fastest was."""
        self.asked_for.append(best_us)
        return TimingMethod("median", flush_l2=True, launch_hidden=True, regime=READ_FLUSH)

    def sampled(
        self,
        run: Callable[[], object],
        rotation: object,  # noqa: ARG002 - there are no operands
        us: float,
        method: TimingMethod,
    ) -> Sampled:
        """Return the kernel itself."""
        assert us > 0
        assert method.regime == READ_FLUSH
        return Sampled(run)

    def warm_up(self, function: Callable[[], object], for_us: float) -> None:
        """Note what was warmed up with."""
        assert isinstance(function, Kernel)
        assert for_us > 0
        self.warmed.append(function.name)

    def runs_us(self, function: Callable[[], object], count: int) -> list[float]:
        """Return the kernel's next times."""
        assert isinstance(function, Kernel)
        self.timed.append((function.name, count))
        return [function.next_us() for _ in range(count)]

    def synchronize(self) -> None:
        """Do nothing."""

    def order(self) -> list[str]:
        """Return the names in the order in which they were first timed."""
        return list(dict.fromkeys(name for name, _ in self.timed))

    def runs(self, name: str) -> int:
        """Return how often a kernel was timed."""
        return sum(count for timed, count in self.timed if timed == name)


def candidates_of(kernels: Iterable[Kernel], vendors: Iterable[str] = ("vendor",)) -> list[Candidate]:
    """Return a candidate for each kernel."""
    return [Candidate(k.name, k.name in set(vendors), lambda k=k: k) for k in kernels]  # type: ignore[misc]
