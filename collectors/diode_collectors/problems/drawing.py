"""Random problems. The same seed draws the same problems, and a longer draw begins with the shorter one."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol

from diode_collectors.problems.problem import SweepProblem
from diode_store.command_line.render import counted
from diode_store.errors import SettingsError
from diode_store.ops import OPS
from diode_store.values.units import GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_BATCHES = (2, 4, 8, 16, 32, 64)
_MULTIPLE = 8
_FAILURES_IN_A_ROW = 20_000
_LARGEST_LOG = 40.0


class Sizes(Protocol):
    """A source of sizes M, N and K."""

    def draw(self, chooser: random.Random) -> tuple[int, int, int]:
        """Return the next M, N and K."""


@dataclass(frozen=True)
class UniformSizes:
    """Sizes M, N and K drawn evenly between two bounds.

    Raises:
        SettingsError: no size is left.
    """

    min_size: int = 32
    max_size: int = 4096
    power_of_two: bool = False
    rectangular: bool = True
    """Let M, N and K differ."""
    odd_sizes: bool = True
    """Let sizes be odd."""

    def __post_init__(self) -> None:
        """Reject bounds that contradict each other."""
        _check_bounds(self.min_size, self.max_size)
        between = f"from {self.min_size} to {self.max_size}"
        if not self._choices():
            kind = "power of two" if self.power_of_two else "even size"
            raise SettingsError(f"there is no {kind} {between}; widen --min-size and --max-size")

    def draw(self, chooser: random.Random) -> tuple[int, int, int]:
        """Return the next M, N and K."""
        if not self.rectangular:
            size = self._draw(chooser)
            return size, size, size
        return self._draw(chooser), self._draw(chooser), self._draw(chooser)

    def _draw(self, chooser: random.Random) -> int:
        return chooser.choice(self._choices())

    def _choices(self) -> Sequence[int]:
        if self.power_of_two:
            exponents = range((self.min_size - 1).bit_length(), self.max_size.bit_length())
            first = 0 if self.odd_sizes else 1
            return [2**exponent for exponent in exponents if exponent >= first]
        if self.odd_sizes:
            return range(self.min_size, self.max_size + 1)
        return range(self.min_size + self.min_size % 2, self.max_size + 1, 2)


@dataclass(frozen=True)
class LogNormalSizes:
    """Log-normal sizes M, N and K, rounded to a multiple of 8, or of a number drawn for each size from several.

    The defaults are those of torch-diode's first toolkit: natural logarithms of sizes in models.

    Raises:
        SettingsError: a parameter describes no distribution, or the bounds hold no such multiple.
    """

    m_mean: float = 6.5725472164323095
    m_std: float = 2.556199441605505
    n_mean: float = 5.913930073563466
    n_std: float = 1.66968141897024
    k_mean: float = 6.204916071423808
    k_std: float = 2.1646646856090177
    min_size: int = _MULTIPLE
    max_size: int = 2**20
    multiples: tuple[int, ...] = (_MULTIPLE,)

    def __post_init__(self) -> None:
        """Reject parameters that describe no distribution."""
        for parameter in fields(self)[:6]:
            value = getattr(self, parameter.name)
            least = 0.0 if parameter.name.endswith("std") else -_LARGEST_LOG
            if not least <= value <= _LARGEST_LOG:
                option = f"--log-normal-{parameter.name.replace('_', '-')}"
                raise SettingsError(f"{option} {value} is not from {least:g} to {_LARGEST_LOG:g}, as logarithms are")
        _check_bounds(self.min_size, self.max_size)
        largest = max(self.multiples)
        if math.ceil(self.min_size / largest) * largest > self.max_size:
            raise SettingsError(
                f"log-normal sizes are multiples of {largest}, and there is none from {self.min_size} to "
                f"{self.max_size}; widen --min-size and --max-size"
            )

    def draw(self, chooser: random.Random) -> tuple[int, int, int]:
        """Return the next M, N and K."""
        return (
            self._draw(chooser, self.m_mean, self.m_std),
            self._draw(chooser, self.n_mean, self.n_std),
            self._draw(chooser, self.k_mean, self.k_std),
        )

    def _draw(self, chooser: random.Random, mean: float, std: float) -> int:
        multiple = chooser.choice(self.multiples) if len(self.multiples) > 1 else self.multiples[0]
        least, most = math.ceil(self.min_size / multiple), self.max_size // multiple
        count = round(math.exp(min(chooser.normalvariate(mean, std), _LARGEST_LOG)) / multiple)
        return min(max(count, least), most) * multiple


@dataclass(frozen=True)
class Limits:
    """Upper limits of problems. Larger problems are passed over."""

    flops: float = math.inf
    memory_bytes: float = 8 * GIB

    def allow(self, problem: SweepProblem) -> bool:
        """Return whether ``problem`` is within the limits."""
        return problem.flops <= self.flops and problem.memory_bytes <= self.memory_bytes

    def __str__(self) -> str:
        """Return the limits as text."""
        flops = "" if self.flops == math.inf else f"{self.flops:g} operations and "
        return f"{flops}{self.memory_bytes / GIB:g} GiB"


def draw_problems(
    count: int,
    seed: int,
    sizes: Sizes,
    *,
    ops: Sequence[str] = ("mm", "addmm", "bmm"),
    dtypes: Sequence[tuple[str, bool]] = (("bfloat16", False),),
    layouts: Sequence[str] = ("nn",),
    limits: Limits | None = None,
    wanted: Callable[[SweepProblem], bool] = lambda _problem: True,
) -> list[SweepProblem]:
    """Return ``count`` different problems; ops, dtypes and layouts take turns.

    Args:
        count: Number of problems.
        seed: Seed of the draw.
        sizes: Source of M, N and K.
        ops: Ops to take in turn.
        dtypes: Dtypes as ``parse_dtype`` returns them.
        layouts: Layouts of two letters each.
        limits: Upper limits of the problems.
        wanted: Filter that passes over a problem by returning False.

    Raises:
        SettingsError: there are fewer such problems.
    """
    limits = limits or Limits()
    chooser = random.Random(seed)  # noqa: S311 - shapes are no secret
    turns = itertools.cycle(itertools.product(layouts, dtypes, ops))
    found: dict[SweepProblem, None] = {}
    failures = too_large = 0
    while len(found) < count and failures < _FAILURES_IN_A_ROW:
        layout, (dtype, tf32), op = next(turns)
        m, n, k = sizes.draw(chooser)
        batch = chooser.choice(_BATCHES) if OPS[op].is_batched else 1
        problem = SweepProblem(op, m, n, k, batch, dtype, layout, tf32, f"drawn/{seed}")
        is_allowed = limits.allow(problem)
        if problem not in found and is_allowed and wanted(problem):
            found[problem] = None
            failures = too_large = 0
        else:
            failures += 1
            too_large += not is_allowed
    if len(found) < count:
        few = f"found only {len(found):,} of {counted(count, 'problem')}"
        if 2 * too_large > failures:
            raise SettingsError(f"{few} within {limits}; ask for fewer, or for smaller sizes")
        raise SettingsError(f"{few}: these sizes give no others; ask for fewer, or widen the sizes")
    return list(found)


def _check_bounds(least: int, most: int) -> None:
    if least < 1:
        raise SettingsError(f"--min-size {least} is not a size; it must be at least 1")
    if least > most:
        raise SettingsError(f"--min-size {least} is more than --max-size {most}; lower it, or raise --max-size")
