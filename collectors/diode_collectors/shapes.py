"""Matrix products to measure: parsed from what a person types, or drawn at random. Needs no torch."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass

from diode_store.errors import SettingsError
from diode_store.normalise import DTYPES

OPS = ("mm", "addmm", "bmm")
_DTYPES = {short: DTYPES[short] for short in ("bf16", "fp16", "fp32")}
_SHAPE = re.compile(r"(\w+):(\d+)x(\d+)x(\d+)(?::(\d+))?")
_SMALLEST, _LARGEST = 16, 8192
_MULTIPLE = 8
_BATCHES = (2, 4, 8, 16, 32, 64)
_ATTEMPTS = 1000


@dataclass(frozen=True)
class SweepProblem:
    """(B, M, K) x (B, K, N), row-major."""

    op: str
    m: int
    n: int
    k: int
    b: int
    dtype: str
    """As torch names it: ``bfloat16``."""

    def __str__(self) -> str:
        """Return what ``parse_shape`` takes."""
        return f"{self.op}:{self.m}x{self.n}x{self.k}" + (f":{self.b}" if self.op == "bmm" else "")

    @property
    def flops(self) -> int:
        """How many multiplications and additions it takes."""
        return 2 * self.b * self.m * self.n * self.k


def parse_shape(text: str, dtype: str) -> SweepProblem:
    """Return the problem that ``OP:MxNxK`` or ``OP:MxNxK:B`` means.

    Raises:
        SettingsError: it means none; the message says what was expected.
    """
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise SettingsError(
            f"{text!r} is no shape; write OP:MxNxK, or OP:MxNxK:B with a batch, such as mm:512x768x1024"
        )
    op, batch = match.group(1), match.group(5)
    m, n, k = (int(size) for size in match.group(2, 3, 4))
    if op not in OPS:
        raise SettingsError(f"unknown op {op!r} in {text!r}; known ops: {', '.join(OPS)}")
    if batch is not None and op != "bmm":
        raise SettingsError(f"{text!r}: only bmm has a batch")
    if min(m, n, k, int(batch or 1)) < 1:
        raise SettingsError(f"{text!r}: sizes must be positive")
    return SweepProblem(op, m, n, k, int(batch or 1), dtype)


def parse_dtype(name: str) -> str:
    """Return torch's name of a dtype.

    Raises:
        SettingsError: it is none that can be swept.
    """
    if name in _DTYPES.values():
        return name
    if name not in _DTYPES:
        raise SettingsError(f"unknown dtype {name!r}; known dtypes: {', '.join(_DTYPES)}")
    return _DTYPES[name]


def random_problems(count: int, seed: int, dtype: str, *, max_flops: float = math.inf) -> list[SweepProblem]:
    """Return ``count`` different problems, the same ones for the same arguments.

    Sizes are log-uniform multiples of 8 between 16 and 8192.

    Raises:
        SettingsError: there are not as many within ``max_flops``.
    """
    chooser = random.Random(seed)  # noqa: S311 - shapes are no secret
    found: dict[SweepProblem, None] = {}
    for _ in range(count * _ATTEMPTS):
        if len(found) == count:
            break
        problem = _random_problem(chooser, dtype)
        if problem.flops <= max_flops:
            found[problem] = None
    if len(found) < count:
        raise SettingsError(
            f"found only {len(found)} of {count} problems within {max_flops:g} operations; ask for fewer"
        )
    return list(found)


def _random_problem(chooser: random.Random, dtype: str) -> SweepProblem:
    op = chooser.choice(OPS)
    m, n, k = (_random_size(chooser) for _ in range(3))
    return SweepProblem(op, m, n, k, chooser.choice(_BATCHES) if op == "bmm" else 1, dtype)


def _random_size(chooser: random.Random) -> int:
    size = math.exp(chooser.uniform(math.log(_SMALLEST), math.log(_LARGEST)))
    return round(size / _MULTIPLE) * _MULTIPLE
