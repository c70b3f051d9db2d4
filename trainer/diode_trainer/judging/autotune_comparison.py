"""Compare a model's choices with max-autotune's by problem, in the figures of upstream's comparison.

Max-autotune takes the fastest timed kernel that a solution names. The model takes the fastest of its first n choices. A
**speedup ratio** is max-autotune's time over the model's: above 1 the model's choice is faster.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_store.command_line.render import counted
from diode_store.errors import DatasetError
from diode_store.exchange.foreign.torch_diode import upstream_shape
from diode_store.kernels import INT_COLUMNS
from diode_store.values.units import US_PER_MS
from diode_trainer.judging.as_compiled import predict_as_compiled
from diode_trainer.judging.metrics import eligible, judgeable, regrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from diode_store.exchange.foreign.max_autotune_solution import MaxAutotuneSolution
    from diode_store.records import ProblemShape
    from diode_trainer.artifact import TimingModel
    from diode_trainer.data.dataset import Examples, ExampleSet

    Floats = NDArray[np.float64]

TOP_NS = (1, 5, 10, 20, 50, 100, 500)
"""Numbers of first choices that the model tries, as in upstream's comparison."""
_PERCENTILES = (10, 25, 50, 75, 90, 95, 99)


@dataclass(frozen=True)
class Compared:
    """Comparison on one problem."""

    shape: ProblemShape
    autotune_us: float
    model_us: tuple[float, ...]
    """Time of the model's choice for each of ``TOP_NS``."""


@dataclass(frozen=True)
class Comparison:
    """Problems on which both sides have a choice, and the numbers of the others."""

    problems: tuple[Compared, ...]
    not_in_solution: int = 0
    """Problems without a timed kernel of the solution."""
    not_ranked: int = 0
    """Problems with fewer than two choices, or without one that the model can rank."""

    def by_op(self) -> dict[str, list[Compared]]:
        """Return the problems by op."""
        found: dict[str, list[Compared]] = defaultdict(list)
        for problem in self.problems:
            found[problem.shape.op].append(problem)
        return dict(sorted(found.items()))


def compare_with_autotune(
    model: TimingModel, dataset: ExampleSet, solution: MaxAutotuneSolution, *, vendor: bool = True
) -> Comparison:
    """Compare the choices of ``model`` and of max-autotune among the measured kernels.

    Args:
        model: model to judge.
        dataset: measured problems.
        solution: kernels that max-autotune chose among.
        vendor: True if both may choose vendor kernels; max-autotune always times them as well.

    Raises:
        DatasetError: there is no problem on which both have a choice.
    """
    problems = []
    not_in_solution = not_ranked = 0
    for example in dataset:
        counted_ones = eligible(example, vendor=vendor)
        named = named_by(solution, example) & counted_ones
        prediction = predict_as_compiled(model, example)
        turns = prediction.turns(np.flatnonzero(counted_ones))
        if not judgeable(example, vendor=vendor) or not np.isfinite(turns).any():
            not_ranked += 1
        elif not named.any():
            not_in_solution += 1
        else:
            tried = named | (example.is_vendor & counted_ones)
            runtime = example.runtime_us[counted_ones]
            chosen = regrets(runtime, turns, TOP_NS) * runtime.min()
            problems.append(Compared(example.shape, float(example.runtime_us[tried].min()), tuple(chosen.tolist())))
    if not problems:
        raise DatasetError(
            f"on none of {counted(len(dataset), 'problem')} both have a choice: on {not_in_solution} no kernel of the"
            f" solution was timed, of {not_ranked} the model ranks no choice;"
            " give a solution that was made from such problems"
        )
    return Comparison(tuple(problems), not_in_solution, not_ranked)


def named_by(solution: MaxAutotuneSolution, example: Examples) -> NDArray[np.bool_]:
    """Return a mask of a problem's configs that the solution names, shape (n,)."""
    shape, columns = example.shape, example.columns
    wanted: dict[tuple[str, ...], set[tuple[object, ...]]] = defaultdict(set)
    for choice in solution.of(shape):
        for numbers in choice.variants(shape):
            names = tuple(name for name in INT_COLUMNS if name in numbers)
            wanted[names].add((choice.template(shape.op), *(numbers[name] for name in names)))
    found = np.zeros(len(example), dtype=np.bool_)
    templates = [columns.templates[i] for i in columns.template_index]
    for names, kernels in wanted.items():
        rows = zip(templates, *(getattr(columns, name).tolist() for name in names), strict=True)
        found |= [row in kernels for row in rows]
    return found


def analysis(comparison: Comparison) -> dict[str, Any]:
    """Return the figures by op and overall, in the form of upstream's ``model_performance_analysis_by_op.json``.

    Times are in milliseconds, as there. ``worst_slowdown`` is the lowest ratio; upstream swaps the two.
    ``geomean_speedup_ratio`` is our addition.
    """
    per_op: dict[str, Any] = {
        op: {
            f"top_{n}": {"op": op, **_figures(problems, i), "shape_details": list(_details(problems, i))}
            for i, n in enumerate(TOP_NS)
        }
        for op, problems in comparison.by_op().items()
    }
    overall = {
        f"top_{n}": {
            **_figures(comparison.problems, i),
            "shape_details": [
                {"op": problem.shape.op, **detail}
                for problem, detail in zip(comparison.problems, _details(comparison.problems, i), strict=True)
            ],
        }
        for i, n in enumerate(TOP_NS)
    }
    return {"per_op": per_op, "overall": overall}


def _figures(problems: Sequence[Compared], i: int) -> dict[str, Any]:
    autotune, model = _times(problems, i)
    ratio = autotune / model
    better, worse = ratio[ratio > 1], ratio[ratio < 1]
    return {
        "top_n": TOP_NS[i],
        "shapes_analyzed": len(problems),
        "performance_breakdown": {
            "model_better": {
                **_share(better, problems),
                "avg_speedup": _or_zero(better, np.mean),
                "best_speedup": _or_zero(better, np.max),
            },
            "model_worse": {
                **_share(worse, problems),
                "avg_slowdown": _or_zero(worse, np.mean),
                "best_slowdown": _or_zero(worse, np.max),
                "worst_slowdown": _or_zero(worse, np.min),
            },
            "model_equal": _share(ratio[ratio == 1], problems),
        },
        "overall_metrics": {
            "avg_speedup_ratio": float(ratio.mean()),
            "geomean_speedup_ratio": float(np.exp(np.log(ratio).mean())),
            "median_speedup_ratio": float(np.median(ratio)),
            "std_speedup_ratio": float(ratio.std()),
            "total_time_saved_pct": float(100 * (autotune.sum() - model.sum()) / autotune.sum()),
            "best_case": _or_zero(better, np.max),
            "worst_case": float(ratio.min()),
        },
        "distribution": {f"p{p}": float(np.percentile(ratio, p)) for p in _PERCENTILES},
        "raw_times": {"total_model_time": float(model.sum()), "total_ma_time": float(autotune.sum())},
    }


def _times(problems: Iterable[Compared], i: int) -> tuple[Floats, Floats]:
    """Return the times of max-autotune and of the model, in milliseconds."""
    pairs = np.array([(problem.autotune_us, problem.model_us[i]) for problem in problems])
    autotune, model = (pairs / US_PER_MS).T
    return autotune, model


def _share(some: Floats, problems: Sequence[Compared]) -> dict[str, float]:
    return {"count": len(some), "percentage": 100 * len(some) / len(problems)}


def _or_zero(ratios: Floats, figure: Any) -> float:
    return float(figure(ratios)) if len(ratios) else 0.0


def _details(problems: Sequence[Compared], i: int) -> Iterator[dict[str, Any]]:
    for problem, autotune, model in zip(problems, *_times(problems, i), strict=True):
        ratio = float(autotune / model)
        yield {
            "shape": upstream_shape(problem.shape).as_key(),
            "model_time": float(model),
            "ma_time": float(autotune),
            "speedup_ratio": ratio,
            "performance": "better" if ratio > 1 else "worse" if ratio < 1 else "equal",
        }
