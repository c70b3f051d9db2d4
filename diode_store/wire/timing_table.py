"""The timings of a measurement as columns, for moving thousands of them from a record to a database.

A ``TimingTable`` is a sequence of ``Timing`` and equals the tuple of the same timings. It makes a ``Timing`` only on
demand. Checks and rows use whole columns, which costs far less.
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
    """Return whether a config occurs twice; configs that differ only in ``extra`` are one."""
    return len(set(map(_KEY, configs))) != len(configs)


class NumberedConfigs(Sequence[KernelConfig]):
    """Configs known by numbers, so that moving thousands of them need not touch the configs."""

    __slots__ = ("_by_number", "numbers")

    def __init__(self, numbers: Sequence[int], by_number: Mapping[int, KernelConfig]) -> None:
        """Hold each config's number, and a mapping from numbers to configs, which differ from one another."""
        self.numbers = numbers
        self._by_number = by_number

    def __len__(self) -> int:
        """Return the number of configs."""
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
        """Hold the columns, which the caller has checked, also for repeated configs.

        Args:
            configs: config of each timing.
            runtimes_us: runtimes; None unless the outcome is ok.
            outcomes: values of ``Outcome``, as plain text.
            estimates: true for an upper-side guess.
            repeats: number of runs; None if unknown.
            p10_us: tenth percentile of the runs; None if unknown.
            p90_us: ninetieth percentile of the runs; None if unknown.
        """
        self.configs, self.runtimes_us, self.outcomes = configs, runtimes_us, outcomes
        self.estimates, self.repeats, self.p10_us, self.p90_us = estimates, repeats, p10_us, p90_us

    @classmethod
    def of(cls, timings: Sequence[Timing]) -> TimingTable:
        """Return ``timings`` as a table; a table stays as it is.

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
        """Return the number of timings."""
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
