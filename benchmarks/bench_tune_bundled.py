r"""Measure what models of `diode tune` lose on thousands of bundled problems, beside models of bundled problems.

    PYTHONPATH=.:collectors:trainer:integration:tuning python benchmarks/bench_tune_bundled.py --output results.jsonl \
        --model nvidia-h200.pt [--model ...] [--problems 1247] [--draws 4] [--time-limit-s 3000]

The listed problems of `worlds.py` are so few that one pick may be a fifth of the loss. Here each draw fits a model, by
the shipped recipe, to ``--problems`` bundled problems of the H200. This model and the given ones are judged by the
other problems that are timed as deployed and that no model learned from. A fit takes minutes, so results are appended,
and existing ones of the same models are not repeated.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

import results
import shipped_data
from bench_tune import regrets
from real_runs import DEVICE
from worlds import world

from diode_store.command_line.console import print_rows
from diode_store.errors import DiodeError
from diode_trainer import artifact
from diode_trainer.commands.recipes import make_recipe
from diode_trainer.data.dataset import ExampleSet
from diode_trainer.data.tensors import pack
from diode_trainer.scoring import Scorer
from diode_trainer.training.train import fit, limited_threads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_trainer.data.dataset import Examples
    from diode_trainer.scoring import Prediction

_FIRST_SET = 1_247
"""Number of problems in the first data set, whose replay set the goals of `diode tune`."""
_DRAWN = "bundled, drawn"
_RANKS = ("1", "3", "5")


def main() -> int:
    """Fit, judge, append and print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="file to append results to")
    parser.add_argument("--model", type=Path, action="append", required=True, help="model to judge; repeatable")
    parser.add_argument(
        "--problems", type=int, default=_FIRST_SET, help="problems per draw (default: 1247, as in the first data set)"
    )
    parser.add_argument("--draws", type=int, default=4, help="number of draws (default: 4)")
    parser.add_argument("--time-limit-s", type=float, default=math.inf, help="start no fit after this many seconds")
    options = parser.parse_args()
    began = time.monotonic()
    try:
        models = {str(path): artifact.load(path) for path in options.model}
    except DiodeError as error:
        parser.error(str(error))
    pool = world(DEVICE).pool
    judges = [
        i
        for i, e in enumerate(pool)
        if e.regime in shipped_data.DEPLOYED and not any(model.was_trained_on(e.shape) for model in models.values())
    ]
    if not judges or options.problems >= len(pool):
        parser.error(f"nothing is left to judge by, of {len(pool)} problems")
    of = {"problems": options.problems, "models": {name: model.card.sha256 for name, model in models.items()}}

    def there() -> list[dict[str, Any]]:
        return [line for line in results.read(options.output) if of.items() <= line.items()]

    done = {line["draw"] for line in there()}
    left = [draw for draw in range(options.draws) if draw not in done]
    predicted = {
        name: dict(zip(judges, _said(model, [pool[i] for i in judges]), strict=True))
        for name, model in models.items()
        if left
    }
    for draw in left:
        if time.monotonic() - began > options.time_limit_s:
            break
        results.append(options.output, {"draw": draw, **of, **_judged(draw, options.problems, pool, judges, predicted)})
    _show(there())
    return 0


def _judged(
    draw: int,
    problems: int,
    pool: Sequence[Examples],
    judges: Sequence[int],
    predicted: dict[str, dict[int, Prediction]],
) -> dict[str, Any]:
    """Return the regret of a draw's model and of the others on the remaining problems, by rank."""
    order = random.Random(draw).sample(range(len(pool)), len(pool))  # noqa: S311 - no secret
    learned = ExampleSet(tuple(pool[i] for i in order[:problems]))
    scorer = Scorer(fit(pack(learned), make_recipe("deep"), seed=draw).network)
    may_judge = set(judges)
    rest = [i for i in order[problems:] if i in may_judge]
    judged = [pool[i] for i in rest]
    said = {_DRAWN: _said(scorer, judged)} | {name: [of[i] for i in rest] for name, of in predicted.items()}
    regret = {name: {k: v for k, v in regrets(judged, of).items() if k in _RANKS} for name, of in said.items()}
    return {"judged": len(judged), "regret": regret}


def _said(model: artifact.TimingModel | Scorer, examples: Sequence[Examples]) -> list[Prediction]:
    with limited_threads():
        return [model.predict(e.shape, e.hardware, e.columns, exact=True) for e in examples]


def _show(lines: list[dict[str, Any]]) -> None:
    """Print the mean regret over draws, and the loss relative to the drawn models."""
    if not lines:
        return
    rows = []
    mean = {
        name: {k: geometric_mean(line["regret"][name][k] for line in lines) for k in _RANKS}
        for name in lines[0]["regret"]
    }
    for name, regret in mean.items():
        times = [f"{(regret[k] - 1) / (mean[_DRAWN][k] - 1):.2f}" for k in ("1", "5")]
        rows.append((name, *(f"{regret[k]:.4f}" for k in _RANKS), *times))
    least, most = (number(line["judged"] for line in lines) for number in (min, max))
    title = f"Regret on {least} to {most} bundled problems; drawn: {lines[0]['problems']} others, {len(lines)} times"
    print_rows(("model", "regret@1", "@3", "@5", "loss@1 / drawn", "loss@5 / drawn"), rows, title=title)


if __name__ == "__main__":
    sys.exit(main())
