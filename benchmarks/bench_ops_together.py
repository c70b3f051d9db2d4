"""Compare one model of all ops with a model of each op alone, by the regret on unseen families of each op.

    python benchmarks/bench_ops_together.py FILE... --output results.jsonl [--op scaled_mm] [--folds 5] [--bundled]

The files are spool segments with measurements of one device. A fold is fitted to all ops (``together``), to the scaled,
grouped, summed and int8 products (``new``), and to each op alone (``alone``). ``--bundled`` adds the bundled
measurements of the device to the first. A fit of some thousand problems takes minutes. Results are appended, and
existing ones are not repeated, so a run can be resumed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import results
import shipped_data

from diode_collectors.spool.reading import measurements_in
from diode_store.command_line.console import print_rows
from diode_trainer.commands.recipes import make_recipe
from diode_trainer.data.from_file import load_measurements
from diode_trainer.data.held_out import Split
from diode_trainer.data.splits import split_up
from diode_trainer.data.tensors import pack
from diode_trainer.judging.judgement import judge_problems, summarise
from diode_trainer.judging.standing import predict
from diode_trainer.op_domain import has_own_domain
from diode_trainer.scoring import Scorer
from diode_trainer.training.train import FEWEST_PROBLEMS, fit, limited_threads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diode_trainer.data.dataset import ExampleSet
    from diode_trainer.data.splits import Fold

WAYS = ("together", "new", "alone")
_FIELDS = ("way", "fold", "op")
"""Fields that identify a result."""


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, help="spool segments")
    parser.add_argument("--output", type=Path, required=True, help="file of results, a JSON line each")
    parser.add_argument("--op", action="append", help="op to judge by, repeatable; all unless given")
    parser.add_argument("--folds", type=int, default=5, help="number of folds")
    parser.add_argument("--bundled", action="store_true", help="add the bundled measurements of the device")
    options = parser.parse_args()
    measurements = [each for path in options.files for each in measurements_in(path)]
    if options.bundled:
        measurements += shipped_data.measurements_of(measurements[0].hardware.name)
    dataset = load_measurements(measurements, "the files")
    ops = options.op or sorted({example.shape.op for example in dataset})
    with limited_threads():
        for number, fold in enumerate(split_up(dataset, Split.FAMILY, options.folds)):
            _run_fold(dataset, fold, number, ops, options.output)
    _show(options.output)
    return 0


def _run_fold(dataset: ExampleSet, fold: Fold, number: int, ops: list[str], output: Path) -> None:
    """Fit and judge what a file of results lacks of one fold."""
    known = {tuple(row[field] for field in _FIELDS) for row in results.read(output)}
    for way, trained_ops in _trainings(dataset, ops):
        judged = [op for op in ops if op in trained_ops and (way, number, op) not in known]
        if not judged:
            continue
        started = time.perf_counter()
        learned = dataset.subset([i for i in fold.train if dataset.examples[i].shape.op in trained_ops])
        if len(learned) < FEWEST_PROBLEMS:
            continue
        network = fit(pack(learned), make_recipe("deep"), seed=number).network
        seconds = round(time.perf_counter() - started, 1)
        scorer = Scorer(network, learned.domain().templates)
        for op in judged:
            tested = [dataset.examples[i] for i in fold.test if dataset.examples[i].shape.op == op]
            found = judge_problems(tested, predict(scorer, tested))
            if found:
                regrets = {f"regret_at_{k}": regret.geomean for k, regret in summarise(found).regret.items()}
                facts = {"learned": len(learned), "problems": len(found), "seconds": seconds}
                results.append(output, {"way": way, "fold": number, "op": op, **facts, **regrets})


def _trainings(dataset: ExampleSet, ops: list[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the ops of each fit."""
    there = frozenset(example.shape.op for example in dataset)
    yield WAYS[0], there
    new = frozenset(op for op in there if has_own_domain(op))
    if new != there:
        yield WAYS[1], new
    for op in ops:
        yield WAYS[2], frozenset((op,))


def _show(output: Path) -> None:
    """Print the regret of each way on each op, over all folds."""
    rows = results.read(output)
    table = []
    for op in sorted({row["op"] for row in rows}):
        for way in WAYS:
            some = [row for row in rows if (row["op"], row["way"]) == (op, way)]
            if some:
                counts = np.array([row["problems"] for row in some])
                means = [
                    float(np.exp(np.average(np.log([row[f"regret_at_{k}"] for row in some]), weights=counts)))
                    for k in (1, 3, 5)
                ]
                learned = round(float(np.mean([row["learned"] for row in some])))
                table.append((op, way, str(counts.sum()), str(learned), *(f"{mean:.4f}" for mean in means)))
    print_rows(("op", "model", "problems", "learned from", "regret@1", "@3", "@5"), table)


if __name__ == "__main__":
    sys.exit(main())
