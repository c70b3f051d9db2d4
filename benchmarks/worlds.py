"""Worlds for benchmarks of tuning: what is new, what may be measured, what is known, and what tests a model.

Some bundled problems of the H200 only test (listed): those timed exhaustively as deployed, and three families. Further
problems of 26 families and drawn ones never train (held back). They are timed on an NVIDIA H200, and on an NVIDIA H100
by some 30 kernels each, half of them the fastest there. No world learns from the bundled data set
`h100-2026-11-deployed`, which has some of the listed problems.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import shipped_data
from real_runs import DATA, DEVICE, H100, REAL_RUNS

from diode_collectors.problems.problem import FLOAT32, TF32
from diode_collectors.spool.reading import measurements_in
from diode_trainer.commands.recipes import make_recipe
from diode_trainer.data.dataset import ExampleSet
from diode_trainer.data.from_file import load_measurements
from diode_trainer.data.tensors import pack
from diode_trainer.training.train import fit

if TYPE_CHECKING:
    from collections.abc import Callable

    from diode_store.records import Measurement
    from diode_trainer.data.dataset import Examples
    from diode_trainer.models import TimingNetwork

FAMILIES = frozenset({"llama3.2-3b", "vit-h14", "t5-base"})
_ON_H100 = DATA / "h100-2026-11-judged-0000.seg"


@dataclass(frozen=True, eq=False)
class World:
    """A new device, and knowledge of others."""

    pool: tuple[Examples, ...]
    """Problems that can be measured."""
    tested: dict[str, tuple[Examples, ...]]
    """Test problems by name."""
    known: tuple[Examples, ...] = ()
    """Known problems, in random order."""

    @cached_property
    def base(self) -> TimingNetwork:
        """Return a model of the known problems."""
        return fit(pack(ExampleSet(self.known)), make_recipe("deep"), seed=0).network


def _device(measurements: list[Measurement]) -> World:
    """Return a world in which nothing is known."""
    listed, pool = _parted(measurements)
    return World(tuple(pool), {"listed": tuple(listed), "held back": _held_back()})


def _tf32(measurements: list[Measurement]) -> World:
    """Return a world in which TF32 is new and alone tested, and the rest is known."""
    listed, pool = _parted(measurements)
    new, judged, held_back = (
        tuple(example for example in examples if example.shape.arithmetic == TF32)
        for examples in (pool, listed, _held_back())
    )
    known = [example for example in pool if example.shape.arithmetic != TF32]
    return World(new, {"listed": judged, "held back": held_back}, _drawn(known))


def _h100(measurements: list[Measurement]) -> World:
    """Return a world in which an H100 with measurements of real runs is new, and an H200 is known."""
    _, pool = _parted(measurements)
    runs = [run.whole() for run in REAL_RUNS.values() if run.new == H100]
    new = {example.shape: example for of_run in runs for example in of_run}
    return World(tuple(new.values()), judged_on_h100(), _drawn(pool))


WORLDS: dict[str, Callable[[list[Measurement]], World]] = {DEVICE: _device, TF32: _tf32, H100: _h100}


@cache
def world(new: str) -> World:
    """Return the world in which something is new."""
    return WORLDS[new](shipped_data.measurements_of(shipped_data.H200))


def judged_on_h200() -> dict[str, tuple[Examples, ...]]:
    """Return the test problems on an H200, by name."""
    return world(DEVICE).tested


def judged_on_h100() -> dict[str, tuple[Examples, ...]]:
    """Return the same problems timed on an H100, except two with an unsteady clock."""
    found = load_measurements(list(measurements_in(_ON_H100)), str(_ON_H100))
    shapes = {name: {example.shape for example in of} for name, of in judged_on_h200().items()}
    return {name: tuple(example for example in found if example.shape in of) for name, of in shapes.items()}


def _drawn(examples: list[Examples]) -> tuple[Examples, ...]:
    return tuple(examples[i] for i in np.random.default_rng(0).permutation(len(examples)))


def _parted(measurements: list[Measurement]) -> tuple[list[Examples], list[Examples]]:
    """Return the test problems and the others, each in its deployed regime if possible."""
    exhaustive = {m.problem.shape for m in measurements if m.search_space == "EXHAUSTIVE"}
    dataset = load_measurements(measurements, "the bundled measurements")
    judged = {example.shape for example in dataset if example.shape in exhaustive or example.family in FAMILIES}
    tested = [example for example in dataset if example.shape in judged and example.regime in shipped_data.DEPLOYED]
    pool: dict[Any, Examples] = {}
    for example in dataset:
        is_slow = example.shape.arithmetic == FLOAT32  # the standard set has none
        if (
            example.shape not in judged
            and not is_slow
            and (example.regime in shipped_data.DEPLOYED or example.shape not in pool)
        ):
            pool[example.shape] = example
    return tested, list(pool.values())


def _held_back() -> tuple[Examples, ...]:
    measurements = [m for path in sorted(DATA.glob("h200-*-held-back*.seg")) for m in measurements_in(path)]
    return load_measurements(measurements, str(DATA)).examples
