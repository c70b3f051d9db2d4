"""The timings of a measurement as columns: what comes from a record and goes to a database by the thousand.

A ``TimingTable`` is a sequence of ``Timing`` like a tuple of them, and equal to that tuple, but makes one only when it
is asked for: checks and rows are made from whole columns, which costs a tenth.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, overload

from diode_store.errors import RecordError
from diode_store.records import KernelConfig, Outcome, Timing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_KEY = attrgetter("key")
ONCE_EACH = "a measurement must time each config once; merge repeated ones first"
OUTCOMES = {outcome.value: outcome for outcome in Outcome}
"""An outcome by its text."""


def repeats_a_config(configs: Sequence[KernelConfig]) -> bool:
    """Whether a config occurs twice; those that differ only in ``extra`` are one."""
    return len(set(map(_KEY, configs))) != len(configs)


class NumberedConfigs(Sequence[KernelConfig]):
    """Configs that are known by numbers: what goes through by the thousand need not touch the configs themselves."""

    __slots__ = ("_by_number", "numbers")

    def __init__(self, numbers: Sequence[int], by_number: Mapping[int, KernelConfig]) -> None:
        """Hold the number of each, and what the numbers stand for; two configs never have the same number."""
        self.numbers = numbers
        self._by_number = by_number

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.numbers)

    def __iter__(self) -> Iterator[KernelConfig]:
        """Yield each."""
        return map(self._by_number.__getitem__, self.numbers)

    @overload
    def __getitem__(self, position: int) -> KernelConfig: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[KernelConfig]: ...
    def __getitem__(self, position: int | slice) -> KernelConfig | Sequence[KernelConfig]:
        """Return one, or some as a tuple."""
        return tuple(self)[position] if isinstance(position, slice) else self._by_number[self.numbers[position]]

    def __reduce__(self) -> tuple[type[tuple[KernelConfig, ...]], tuple[tuple[KernelConfig, ...]]]:
        """Leave as a tuple, without everything else that has a number."""
        return tuple, (tuple(self),)


class TimingTable(Sequence[Timing]):
    """Timings by column, all of one length; no config comes twice."""

    __slots__ = ("configs", "estimates", "outcomes", "p10_us", "p90_us", "repeats", "runtimes_us")

    def __init__(
        self,
        configs: Sequence[KernelConfig],
        runtimes_us: Sequence[float | None],
        outcomes: Sequence[str],
        estimates: Sequence[bool],
        repeats: Sequence[int | None],
        p10_us: Sequence[float | None],
        p90_us: Sequence[float | None],
    ) -> None:
        """Hold the columns, which the caller has checked, also for a config that comes twice.

        Args:
            configs: one a timing.
            runtimes_us: likewise; None unless the outcome is ok.
            outcomes: values of ``Outcome``, as plain text.
            estimates: whether the runtime is an upper-side guess.
            repeats: how many runs; None if that is not known.
            p10_us: tenth percentile of the runs; likewise.
            p90_us: ninetieth percentile of the runs; likewise.
        """
        self.configs, self.runtimes_us, self.outcomes = configs, runtimes_us, outcomes
        self.estimates, self.repeats, self.p10_us, self.p90_us = estimates, repeats, p10_us, p90_us

    @classmethod
    def of(cls, timings: Sequence[Timing]) -> TimingTable:
        """Return ``timings`` as a table; a table as it is.

        Raises:
            RecordError: a config comes twice.
        """
        if isinstance(timings, cls):
            return timings
        configs, runtimes_us, outcomes, *others = zip(*timings, strict=True)
        if repeats_a_config(configs):
            raise RecordError(ONCE_EACH)
        return cls(configs, runtimes_us, [outcome.value for outcome in outcomes], *others)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.configs)

    def __iter__(self) -> Iterator[Timing]:
        """Yield each as a ``Timing``."""
        outcomes = map(OUTCOMES.__getitem__, self.outcomes)
        others = (self.estimates, self.repeats, self.p10_us, self.p90_us)
        return map(Timing, self.configs, self.runtimes_us, outcomes, *others)

    @overload
    def __getitem__(self, position: int) -> Timing: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[Timing]: ...
    def __getitem__(self, position: int | slice) -> Timing | Sequence[Timing]:
        """Return one, or some as a tuple."""
        return tuple(self)[position]

    def __eq__(self, other: object) -> bool:
        """Compare with another table or a tuple of timings."""
        if isinstance(other, (TimingTable, tuple)):
            return tuple(self) == tuple(other)
        return NotImplemented

    def __hash__(self) -> int:
        """Hash as the tuple would."""
        return hash(tuple(self))

    def __repr__(self) -> str:
        """Return what the tuple would say."""
        return repr(tuple(self))
