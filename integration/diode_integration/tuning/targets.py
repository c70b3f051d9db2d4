"""What a model is to be good at: the problems that are asked for and their like, or a standard set of them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from diode_collectors.problems.drawing import Limits, LogNormalSizes
from diode_collectors.problems.families import families
from diode_collectors.problems.kinds import ACCESS_BYTES
from diode_collectors.problems.problem import parse_dtype
from diode_collectors.problems.selection import ProblemRequest, select_problems
from diode_integration.tuning.choosing import nearest
from diode_store.operands import dtype_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from diode_collectors.problems.problem import SweepProblem
    from diode_collectors.sweep.devices import SweepDevice

_DTYPES = {"bf16": 4, "fp16": 2, "tf32": 1}
"""How often a problem of a standard set has each; bf16 is what is run most."""
_CPU_DTYPES = {"fp32": 1}
_CPU_LIMITS = Limits(flops=2e8)
"""Which a CPU computes in a few milliseconds."""
_GPU_LIMITS = Limits(flops=2e12)
"""Which an H200 computes in some milliseconds; the sweeps by which costs are reckoned have hardly any larger."""
_DRAWN_LIMITS = Limits(flops=2.5e11)
"""Of 1,056 odd problems that were drawn without it a quarter took over 134 us, and one in twenty over 1.8 ms (an H100),
for which others have to wait; of those that are judged by, half take less than 6 us."""
_WHOLE_SHARE, _ODD_SHARE = 0.15, 0.5
"""Which shares of a standard set are drawn with rows of whole 16 bytes, and with odd ones, some of which come out
whole; the rest are layers. A problem with odd rows loses several times as much as another: of 3,508 that two H200s
timed in 13 minutes 638 were odd, and their model lost 1.2% on whole rows and 7.4% on odd ones; with 1,355 bundled odd
problems for these 638 it lost 4.1% (two seeds, 455 problems of 26 other families and drawn ones). Replayed, layers
alone lost 1.28 times as much as layers and as many drawn problems, and drawn problems alone 1.44 times
(``benchmarks/bench_tune.py``)."""
_ODD_MULTIPLES = ((1,), (2,), (4,), (1, 2, 4, 16), (1, 2, 4, 16), (1, 2, 4, 16))
"""What sizes of odd rows are multiples of, in equal parts, but where that makes whole 16 bytes: half of the problems
have sizes of one kind, the others of any. Of sizes that are drawn from all, one in eight is a multiple of 4 and not of
8, so that ten minutes on an H200 brought no large addmm of the kind; the model took such patch embeddings (K = 588) to
be as fast by cuBLAS as aligned ones, and lost half of their time."""
_ODD_SIZES = LogNormalSizes(m_mean=5.7, m_std=2.4, n_mean=5.5, n_std=1.9, k_mean=5.8, k_std=2.0, min_size=2)
"""Between the sizes of models' layers, which ``LogNormalSizes`` has, and the smaller ones that odd problems of tables,
graphs and recommenders have."""
_DRAWN_OPS = ("mm", "addmm", "mm", "bmm", "mm", "addmm", "baddbmm")
_DRAWN_LAYOUTS = ("nn", "nt", "tn", "nt", "nn")
"""In turn, about as often as models have each."""
_MOST = 10_000
"""Problems of a standard set: two H200s with 32 virtual cores timed 2,805 in ten minutes, so they last 36."""
_SEED = 0


def is_any_named(request: ProblemRequest) -> bool:
    """Whether a request names products; else the standard set is meant."""
    return bool(request.shapes or request.shapesets or request.families)


def named_problems(request: ProblemRequest, device: SweepDevice) -> list[SweepProblem]:
    """Return the different problems of a request that fit a device; none if it names none.

    Raises:
        SettingsError: something cannot be understood.
    """
    if not is_any_named(request):
        return []
    found = select_problems(replace(request, default_dtype="fp32" if device.is_cpu else "bf16"))
    return [problem for problem in found if device.fits(problem)]


def companions(
    named: Sequence[SweepProblem],
    device: SweepDevice,
    count: int,
    wanted: Callable[[SweepProblem], bool] = lambda _problem: True,
) -> list[SweepProblem]:
    """Return problems of the standard set that are like those named, in turn for each, ``count`` wanted ones in all."""
    if not named or count <= 0:
        return []
    dtypes = tuple(dict.fromkeys(problem.short_dtype for problem in named))
    known = {problem.problem().key for problem in named}
    others = [
        problem
        for problem in standard_problems(device, dtypes)
        if problem.problem().key not in known and wanted(problem)
    ]
    return [others[i] for i in nearest(others, named, count)]


def standard_problems(device: SweepDevice, dtypes: tuple[str, ...]) -> list[SweepProblem]:
    """Return layers of all families and drawn problems that fit a device, each in one dtype, in an order that is drawn.

    Raises:
        SettingsError: a dtype is unknown.
    """
    shares = dict.fromkeys(dtypes, 1) or (_CPU_DTYPES if device.is_cpu else _DTYPES)
    limits = _CPU_LIMITS if device.is_cpu else _GPU_LIMITS
    drawn_limits = _CPU_LIMITS if device.is_cpu else _DRAWN_LIMITS
    largest = 512 if device.is_cpu else LogNormalSizes.max_size
    draws = random.Random(_SEED)  # noqa: S311 - not cryptography
    found: list[SweepProblem] = []
    for name, share in shares.items():
        part = round(_MOST * share / sum(shares.values()))
        request = ProblemRequest(ops=_DRAWN_OPS, layouts=_DRAWN_LAYOUTS, dtypes=(name,), limits=drawn_limits)
        drawn: dict[SweepProblem, None] = {}
        for seed, (sizes, share_drawn) in enumerate(_sizes_drawn(name)):
            # With one seed the draws of two kinds of sizes would have problems in common.
            within = replace(sizes, max_size=largest)
            some = replace(request, num_shapes=round(part * share_drawn), sizes=within, seed=seed)
            drawn |= dict.fromkeys(select_problems(some))
        layers = ProblemRequest(families=tuple(family.name for family in families()), dtypes=(name,))
        small = [problem for problem in select_problems(layers) if limits.allow(problem)]
        found += [*drawn, *draws.sample(small, len(small))[: part - len(drawn)]]
    return [problem for problem in draws.sample(found, len(found)) if device.fits(problem)]


def _sizes_drawn(dtype: str) -> list[tuple[LogNormalSizes, float]]:
    """Return how the sizes of problems of a dtype are drawn, and which share of a set so."""
    item_bytes = dtype_bytes(parse_dtype(dtype)[0])
    odd = [multiples for multiples in _ODD_MULTIPLES if min(multiples) * item_bytes % ACCESS_BYTES]
    of_each = _ODD_SHARE / len(odd)
    return [(LogNormalSizes(), _WHOLE_SHARE), *((replace(_ODD_SIZES, multiples=each), of_each) for each in odd)]
