"""What a model is to be good at: the problems that are asked for, or a standard set of them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from diode_collectors.problems.drawing import Limits, LogNormalSizes
from diode_collectors.problems.families import families
from diode_collectors.problems.problem import OPS
from diode_collectors.problems.selection import ProblemRequest, select_problems

if TYPE_CHECKING:
    from diode_collectors.problems.problem import SweepProblem
    from diode_collectors.sweep.devices import SweepDevice

_DTYPES = {"bf16": 4, "fp16": 2, "tf32": 1}
"""How often a problem of the standard set has each; bf16 is what is run most."""
_CPU_DTYPES = {"fp32": 1}
_CPU_LIMITS = Limits(flops=2e8)
"""Which a CPU computes in a few milliseconds."""
_DRAWN = 600
_LAYOUTS = ("nn", "nt", "tn")
_MOST = 2000
"""Problems of a standard set; more would not be measured in any budget."""
_SEED = 0


def target_problems(request: ProblemRequest, device: SweepDevice) -> list[SweepProblem]:
    """Return the different problems of a request, or of the standard set if it names none, those that fit a device.

    Raises:
        SettingsError: something cannot be understood, or none of what is named is left.
    """
    if request.shapes or request.shapesets or request.families:
        found = select_problems(replace(request, default_dtype="fp32" if device.is_cpu else "bf16"))
    else:
        found = _standard(device, request.dtypes)
    return [problem for problem in found if device.fits(problem)]


def _standard(device: SweepDevice, dtypes: tuple[str, ...]) -> list[SweepProblem]:
    """Return layers of all families and drawn problems, each in one dtype, in an order that is drawn."""
    shares = dict.fromkeys(dtypes, 1) or (_CPU_DTYPES if device.is_cpu else _DTYPES)
    limits = _CPU_LIMITS if device.is_cpu else Limits()
    sizes = LogNormalSizes(max_size=512) if device.is_cpu else LogNormalSizes()
    draws = random.Random(_SEED)  # noqa: S311 - not cryptography
    found: dict[SweepProblem, None] = {}
    for name, share in shares.items():
        layers = ProblemRequest(families=tuple(family.name for family in families()), dtypes=(name,))
        drawn = ProblemRequest(num_shapes=_DRAWN, sizes=sizes, ops=OPS, layouts=_LAYOUTS, dtypes=(name,), limits=limits)
        listed = {**dict.fromkeys(select_problems(layers)), **dict.fromkeys(select_problems(drawn))}
        small = [problem for problem in listed if limits.allow(problem)]
        part = round(_MOST * share / sum(shares.values()))
        found |= dict.fromkeys(draws.sample(small, min(part, len(small))))
    return draws.sample(list(found), len(found))
