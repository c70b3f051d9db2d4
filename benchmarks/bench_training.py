"""Measure how long the shipped recipe takes to fit all bundled timings, alone and beside busy loops.

    PYTHONPATH=.:collectors:trainer python benchmarks/bench_training.py --busy 3

Prints the seconds of a fit on a quiet machine and beside ``--busy`` loops that each want a core, and their ratio. The
baseline in the same run is an earlier recipe, timed for a few epochs in one thread: 16 problems per step, 70 epochs.
``--share`` takes a part of the problems, for a quick try. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import shipped_data
import torch

from diode_trainer.commands.recipes import make_recipe, with_epochs_for
from diode_trainer.data.from_file import load_measurements
from diode_trainer.data.tensors import pack
from diode_trainer.training.fit_task import FitTask
from diode_trainer.training.fits import run_fits
from diode_trainer.training.history import FINAL
from diode_trainer.training.train import Beginning, fit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diode_trainer.data.tensors import Packed
    from diode_trainer.training.recipe import Recipe

_EPOCHS_BEFORE = 70
_EPOCHS_TIMED = 2


def main() -> int:
    """Time the fits, and print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--busy", type=int, default=3, help="loops that want a core each (default: 3)")
    parser.add_argument("--share", type=float, default=1.0, help="share of the bundled problems (default: 1)")
    options = parser.parse_args()
    dataset = load_measurements(shipped_data.measurements([*shipped_data.DATASETS]), "the bundled measurements")
    packed = pack(dataset)
    packed = packed[torch.arange(int(len(packed) * options.share))]
    recipe = with_epochs_for(make_recipe("deep"), len(packed))
    print(f"{len(packed):,} problems, {len(packed.target):,} timings, {recipe.epochs} epochs")
    quiet = _seconds(packed, recipe)
    with _busy(options.busy):
        beside = _seconds(packed, recipe)
    before = _seconds_before(packed, recipe)
    print(f"quiet: {quiet:.0f} s")
    print(f"beside {options.busy} busy loops: {beside:.0f} s, {beside / quiet:.2f} times as long")
    print(f"the recipe before, {_EPOCHS_BEFORE} epochs, quiet: {before:.0f} s by {_EPOCHS_TIMED} of them")
    print(f"ratio: {quiet / before:.2f}")
    return 0


def _seconds(packed: Packed, recipe: Recipe) -> float:
    started = time.perf_counter()
    task = FitTask(FINAL, packed, torch.arange(len(packed)), recipe, 42, "cpu", Beginning(), None)
    run_fits([task], lambda _fit, _report: None)
    return time.perf_counter() - started


def _seconds_before(packed: Packed, recipe: Recipe) -> float:
    """Estimate the seconds of 70 epochs of small batches from a few of them."""
    small = replace(recipe, batch_size=16, epochs=_EPOCHS_TIMED)
    started = time.perf_counter()
    fit(packed, small)
    return (time.perf_counter() - started) * _EPOCHS_BEFORE / _EPOCHS_TIMED


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """Keep ``count`` cores busy."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    sys.exit(main())
