"""Kernels of attention and convolutions by models that never saw the family, against those of a plain `torch.compile`.

Each fold leaves out one family of public models. As in the hook, a kernel has to save a share of the predicted time of
the default, which is the library's for a convolution. The default stays where a problem is outside the domain of the
fold's data.

    python benchmarks/bench_alone.py [--op flex_decoding] [--split problem]
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from diode_integration.decide.alone import is_clear, member_ratios
from diode_integration.inductor.attention import as_if_cuda
from diode_integration.inductor.convolutions import VENDOR
from diode_store.candidates.columns import ConfigColumns
from diode_store.candidates.convolution_space import why_not_trusted
from diode_store.ops import OPS
from diode_trainer.commands.recipes import make_recipe
from diode_trainer.data.dataset import LEARNED_ALONE
from diode_trainer.data.from_warehouse import ExampleFilter
from diode_trainer.data.held_out import Split
from diode_trainer.data.sources import load_bundled
from diode_trainer.jobs.workflow import Judging, fit_and_judge, predict_unseen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from diode_trainer.data.dataset import Examples, ExampleSet
    from diode_trainer.scoring import Prediction

MEMBERS, EPOCHS = 12, 100
"""Those of the shipped models."""
SLOWER = 1.01, 1.02
"""Shares of the default's time from which a choice counts as slower."""


class Outcome(NamedTuple):
    """Times of one problem in microseconds."""

    chosen_us: float
    default_us: float
    best_us: float


def outcomes(data: ExampleSet, split: Split, folds: int, seed: int) -> Iterator[Outcome]:
    """Yield the outcome of each problem whose default config was measured."""
    recipe = replace(make_recipe("deep", members=MEMBERS), epochs=EPOCHS)
    found = fit_and_judge(data, recipe, folds, seed=seed, judging=Judging(split, is_quick=True)).evaluation
    if found is None:  # without folds
        return
    for fitted, fold in zip(found.fits, found.splits, strict=True):
        domain = data.subset(fold.train).domain()
        for index, prediction in zip(fold.test, predict_unseen(data, fitted, fold), strict=True):
            example = data.examples[index]
            default = default_of(example)
            if default is not None:
                is_known = not any(domain.misses(example.shape, example.hardware, near=True))
                chosen = chosen_of(example, prediction, default) if is_known else default
                times = example.runtime_us
                best_us = times[example.ran & _usable(example)].min()
                yield Outcome(float(times[chosen]), float(times[default]), float(best_us))


def default_of(example: Examples) -> int | None:
    """Return the position of the kernel that a plain compile takes; None if it was not measured, or failed."""
    if OPS[example.shape.op].vendors:
        is_vendor = example.columns.template_mask(VENDOR.template.__eq__)
        return next(iter(np.flatnonzero(is_vendor & example.ran).tolist()), None)
    default, *_ = as_if_cuda(example.shape, example.hardware)
    wanted = ConfigColumns.from_configs([default])
    columns = example.columns
    is_it = columns.num_stages == wanted.num_stages
    is_it &= (columns.num_warps == wanted.num_warps) & (columns.block_n == wanted.block_n)
    if default.block_m:
        is_it &= columns.block_m == wanted.block_m
    if columns.gradient_blocks is not None and wanted.gradient_blocks is not None:
        is_it &= (columns.gradient_blocks == wanted.gradient_blocks).all(1)
    return next(iter(np.flatnonzero(is_it & example.ran).tolist()), None)


def chosen_of(example: Examples, prediction: Prediction, default: int) -> int:
    """Return the position of the kernel that the hook would keep."""
    predicted = np.where(example.ran & _usable(example), prediction.runtime_us, np.inf)
    best = int(predicted.argmin())
    ratios = member_ratios(prediction.finalists, prediction.member_logs, best, default)
    return best if is_clear(example.shape.op, predicted[default], predicted[best], ratios) else default


def _usable(example: Examples) -> NDArray[np.bool_]:
    """Return the configs that the hook may keep, shape (n,)."""
    columns = example.columns
    trusted = [why_not_trusted(example.shape, columns.config(i)) is None for i in range(len(columns))]
    return np.array(trusted, dtype=np.bool_)


def main() -> None:
    """Print a line for each op."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", choices=LEARNED_ALONE, help="only this op")
    parser.add_argument("--split", choices=[Split.FAMILY.value, Split.PROBLEM.value], default=Split.FAMILY.value)
    parser.add_argument("--hardware", default="h200", help="device of the timings")
    parser.add_argument("--seed", type=int, default=42, help="seed of the fits; folds are always the same")
    asked = parser.parse_args()
    split = Split(asked.split)
    print("op                       problems  of the fastest  of the default  worst of the default  slower by 1%, 2%")
    for op in [asked.op] if asked.op else LEARNED_ALONE:
        data = load_bundled(ExampleFilter(asked.hardware, op)).dataset
        folds = len({example.family for example in data}) if split is Split.FAMILY else 8
        found = list(outcomes(data, split, folds, asked.seed))
        chosen, default, best = (np.array(times) for times in zip(*found, strict=True))
        of_default = chosen / default
        means = (float(np.exp(np.log(chosen / other).mean())) for other in (best, default))
        slower = ", ".join(str(int((of_default > least).sum())) for least in SLOWER)
        shown = "".join(f"{mean:16.3f}" for mean in means)
        print(f"{op:24} {len(found):8}{shown}{of_default.max():22.2f}{slower:>18}", flush=True)


if __name__ == "__main__":
    main()
