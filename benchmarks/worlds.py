"""What a model is judged by, and what may be measured or is known for it: a device that is new, in data that are there.

Some bundled problems are only judged by (listed): those timed exhaustively as deployed, and three families; so are
455 problems of 26 families and drawn ones that nothing learns from (held back). They are timed on an NVIDIA H200; on an
NVIDIA H100 by some 30 kernels each, of which half were the fastest there.
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
    """A device that is new, and what is known of others."""

    pool: tuple[Examples, ...]
    """What can be measured."""
    tested: dict[str, tuple[Examples, ...]]
    """What is judged by."""
    known: tuple[Examples, ...] = ()
    """In an order that is drawn."""

    @cached_property
    def base(self) -> TimingNetwork:
        """Return a model of what is known."""
        return fit(pack(ExampleSet(self.known)), make_recipe("deep"), seed=0).network


def _device(measurements: list[Measurement]) -> World:
    """Nothing is known."""
    listed, pool = _parted(measurements)
    return World(tuple(pool), {"listed": tuple(listed), "held back": _held_back()})


def _tf32(measurements: list[Measurement]) -> World:
    """TF32 is new; the rest is known, and nothing of it is judged by."""
    listed, pool = _parted(measurements)
    new, judged, held_back = (
        tuple(example for example in examples if example.shape.arithmetic == TF32)
        for examples in (pool, listed, _held_back())
    )
    known = [example for example in pool if example.shape.arithmetic != TF32]
    return World(new, {"listed": judged, "held back": held_back}, _drawn(known))


def _h100(measurements: list[Measurement]) -> World:
    """An H100 is new, of which real runs measured some; of an H200 all is known that is not judged by."""
    _, pool = _parted(measurements)
    runs = [run.whole() for run in REAL_RUNS.values() if run.new == H100]
    new = {example.shape: example for of_run in runs for example in of_run}
    return World(tuple(new.values()), judged_on_h100(), _drawn(pool))


WORLDS: dict[str, Callable[[list[Measurement]], World]] = {DEVICE: _device, TF32: _tf32, H100: _h100}


@cache
def world(new: str) -> World:
    """Return the world in which something is new."""
    return WORLDS[new](shipped_data.measurements([*shipped_data.DATASETS]))


def judged_on_h200() -> dict[str, tuple[Examples, ...]]:
    """Return what is judged by on an H200, by name."""
    return world(DEVICE).tested


def judged_on_h100() -> dict[str, tuple[Examples, ...]]:
    """Return the same problems as they were timed on an H100, but for two whose clock was unsteady."""
    found = load_measurements(list(measurements_in(_ON_H100)), str(_ON_H100))
    shapes = {name: {example.shape for example in of} for name, of in judged_on_h200().items()}
    return {name: tuple(example for example in found if example.shape in of) for name, of in shapes.items()}


def _drawn(examples: list[Examples]) -> tuple[Examples, ...]:
    return tuple(examples[i] for i in np.random.default_rng(0).permutation(len(examples)))


def _parted(measurements: list[Measurement]) -> tuple[list[Examples], list[Examples]]:
    """Return the problems that are judged by, and the others, each as it is timed today if it was."""
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
