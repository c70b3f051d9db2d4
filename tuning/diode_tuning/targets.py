"""Target problems of a model: the requested products and problems like them, or a standard set."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from diode_collectors.problems.drawing import Limits, LogNormalSizes
from diode_collectors.problems.families import families
from diode_collectors.problems.problem import parse_dtype
from diode_collectors.problems.selection import ProblemRequest, select_problems
from diode_collectors.sweep.devices import with_kernels
from diode_store.candidates.operands import ACCESS_BYTES
from diode_store.command_line.console import print_note
from diode_store.ops import standard_ops
from diode_store.ops.work import itemsize
from diode_tuning.choosing import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from diode_collectors.problems.problem import SweepProblem
    from diode_collectors.sweep.devices import SweepDevice

_DTYPES = {"bf16": 4, "fp16": 2, "tf32": 1}
"""Relative frequencies of the dtypes in a standard set; people run bf16 most."""
_CPU_DTYPES = {"fp32": 1}
_CPU_LIMITS = Limits(flops=2e8)
"""Problems that a CPU computes in a few milliseconds."""
_GPU_LIMITS = Limits(flops=2e12)
"""Problems that a datacenter GPU computes in a few milliseconds. The costs of larger problems are hardly known."""
_DRAWN_LIMITS = Limits(flops=2.5e11)
"""Limit of drawn problems. Larger odd problems take long, and typical ones are far smaller."""
_WHOLE_SHARE, _ODD_SHARE = 0.15, 0.5
"""Shares of a standard set drawn with rows of a multiple of 16 bytes, and with odd rows; the rest are layers of models.
Some odd draws turn out as such multiples. Models lose most on odd rows, so half of the set has them
(docs/results/tune-runs.md).
"""
_ODD_MULTIPLES = ((1,), (2,), (4,), (1, 2, 4, 16), (1, 2, 4, 16), (1, 2, 4, 16))
"""Multiples for the sizes of odd rows, in equal parts, without those that make rows a multiple of 16 bytes.

Half of the problems have sizes of one kind, the others of any. Draws from all kinds alone would bring too few multiples
of 4 that are not multiples of 8, such as patch embeddings.
"""
_ODD_SIZES = LogNormalSizes(m_mean=5.7, m_std=2.4, n_mean=5.5, n_std=1.9, k_mean=5.8, k_std=2.0, min_size=2)
"""Sizes between those of model layers (``LogNormalSizes``) and the smaller ones of tables, graphs and recommenders."""
_DRAWN_OPS = ("mm", "addmm", "mm", "bmm", "mm", "addmm", "baddbmm")
_DRAWN_LAYOUTS = ("nn", "nt", "tn", "nt", "nn")
"""Layouts in turn, about as often as models have each."""
_MOST = 10_000
"""Number of problems of a standard set: enough for the longest budgets in practice."""
_SEED = 0


def is_any_named(request: ProblemRequest) -> bool:
    """Return whether a request names products; otherwise the standard set is meant."""
    return bool(request.shapes or request.shapesets or request.families)


def named_problems(request: ProblemRequest, device: SweepDevice) -> list[SweepProblem]:
    """Return the different problems of a request that fit a device; none if the request names none.

    Raises:
        SettingsError: the request cannot be understood.
        HardwareError: the device has no kernels to choose from for any requested op.
    """
    if not is_any_named(request):
        return []
    found = select_problems(replace(request, default_dtype="fp32" if device.is_cpu else "bf16"))
    found, left_out = with_kernels(found, [device])
    if left_out:
        print_note(left_out)
    return [problem for problem in found if device.fits(problem)]


def companions(
    named: Sequence[SweepProblem],
    device: SweepDevice,
    count: int,
    wanted: Callable[[SweepProblem], bool] = lambda _problem: True,
) -> list[SweepProblem]:
    """Return ``count`` wanted problems that are like the named ones, in turn for each.

    They are of the standard set. Ops that it does not have get layers of model families.
    """
    if not named or count <= 0:
        return []
    dtypes = tuple(dict.fromkeys(problem.short_dtype for problem in named if problem.entry.is_standard))
    ops = tuple(dict.fromkeys(problem.op for problem in named if not problem.entry.is_standard))
    pool = [*(standard_problems(device, dtypes) if dtypes or not ops else ()), *_layers_of(ops, device)]
    known = {problem.problem().key for problem in named}
    others = [problem for problem in pool if problem.problem().key not in known and wanted(problem)]
    return [others[i] for i in nearest(others, named, count)]


def standard_problems(device: SweepDevice, dtypes: tuple[str, ...]) -> list[SweepProblem]:
    """Return model layers and drawn problems that fit a device, each in one dtype, in a drawn order.

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
            # With one seed for both, the draws of two kinds of sizes would overlap.
            within = replace(sizes, max_size=largest)
            some = replace(request, num_shapes=round(part * share_drawn), sizes=within, seed=seed)
            drawn |= dict.fromkeys(select_problems(some))
        names = tuple(family.name for family in families())
        layers = ProblemRequest(families=names, dtypes=(name,), ops=standard_ops())
        small = [problem for problem in select_problems(layers) if limits.allow(problem)]
        found += [*drawn, *draws.sample(small, len(small))[: part - len(drawn)]]
    return [problem for problem in draws.sample(found, len(found)) if device.fits(problem)]


def _layers_of(ops: tuple[str, ...], device: SweepDevice) -> list[SweepProblem]:
    """Return the layers of model families of some ops that fit a device; none without ops."""
    if not ops:
        return []
    found = select_problems(ProblemRequest(families=tuple(family.name for family in families()), ops=ops))
    return [problem for problem in found if _GPU_LIMITS.allow(problem) and device.fits(problem)]


def _sizes_drawn(dtype: str) -> list[tuple[LogNormalSizes, float]]:
    """Return the ways to draw the sizes of problems in a dtype, each with its share of a set."""
    item_bytes = itemsize(parse_dtype(dtype)[0])
    odd = [multiples for multiples in _ODD_MULTIPLES if min(multiples) * item_bytes % ACCESS_BYTES]
    of_each = _ODD_SHARE / len(odd)
    return [(LogNormalSizes(), _WHOLE_SHARE), *((replace(_ODD_SIZES, multiples=each), of_each) for each in odd)]
