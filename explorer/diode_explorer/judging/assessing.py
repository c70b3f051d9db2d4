"""Evaluate models on a device's measurements. This module imports torch, so it runs in its own process."""

from __future__ import annotations

import math
from collections import defaultdict
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from diode_explorer.judging.verdict import ALL, FEWEST_UNSEEN, MOST_CASES, UNSEEN, JudgedProblem, Verdict, Verdicts
from diode_store.cache.cache import cache_of
from diode_store.command_line.render import problem_text
from diode_store.errors import DatasetError, ModelError
from diode_store.ops import dimensions_of_text
from diode_store.query.analytics import open_cache
from diode_store.records import ProblemShape
from diode_trainer.artifact import load
from diode_trainer.commands.evidence import judged as named
from diode_trainer.commands.evidence import of_assessment
from diode_trainer.data.dataset import ExampleSet, canonical
from diode_trainer.data.streaming import stream_examples
from diode_trainer.judging.assess import ASSESSING_STEPS, assess
from diode_trainer.judging.rankable import rankable
from diode_trainer.judging.slices import slices
from diode_trainer.report.evaluation.content import compose

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duckdb import DuckDBPyConnection

    from diode_explorer.judging.verdict import Wanted
    from diode_trainer.artifact import TimingModel
    from diode_trainer.judging.judgement import ProblemJudgement

_MEMORY = "1GiB"
_LOADED, _READ, _JUDGED = 0.15, 0.35, 1.0
"""Approximate progress after each step."""
_CASES = """
SELECT
    c.case_id,
    lower(hex(p.key)),
    lower(hex(e.key)),
    coalesce(c.regime, '(unknown)') AS regime_name,
    c.environment_id,
    c.regime,
    {'op': p.op, 'dtype': p.dtype, 'b': p.b, 'm': p.m, 'n': p.n, 'k': p.k, 'layout': p.layout,
     'tf32': asks_for_tf32(p.dtype, p.scalars), 'dimensions': p.dimensions}
FROM cases_of('stock') AS c
JOIN hardware AS h ON h.id = c.hardware_id
JOIN problems AS p ON p.id = c.problem_id
JOIN environments AS e ON e.id = c.environment_id
WHERE h.name = $device AND p.m IS NOT NULL
    AND ($environment IS NULL OR lower(hex(e.key)) = $environment)
    AND ($regime IS NULL OR regime_name = $regime)
    AND EXISTS (
        SELECT 1 FROM measurements AS m
        WHERE m.hardware_id = c.hardware_id AND m.environment_id = c.environment_id AND m.problem_id = c.problem_id
            AND NOT is_by_vendor_alone(m.search_space)
    )
ORDER BY p.key, c.hardware_id, c.environment_id, c.regime
"""


class _Case(NamedTuple):
    """A problem in one environment and regime."""

    id: int
    problem_key: str
    environment_key: str
    regime_name: str
    like: tuple[ProblemShape, str, str | None]
    """Problem, environment and regime as examples have them; equal for problems that differ only in strides."""


def judge(wanted: Wanted, database: str, tell: Callable[[float], None]) -> Verdicts:
    """Return how models do.

    Raises:
        ModelError: a model cannot be loaded.
        DatasetError: there are no problems to evaluate models on.
        CacheError: the cache cannot be read.
    """
    models = [_loaded(path, sha256) for path, sha256 in wanted.models]
    tell(_LOADED)
    with closing(open_cache(cache_of(database), memory=_MEMORY, views=("training_timings",))) as connection:
        cases = [case for case in _cases(connection, wanted) if all(model.can_rank(case.like[0]) for model in models)]
        if not cases:
            raise DatasetError("no timings with these filters can evaluate a model; remove a filter")
        unseen = [case for case in cases if not any(model.was_trained_on(case.like[0]) for model in models)]
        is_of_unseen = wanted.problems == UNSEEN or (wanted.problems != ALL and len(unseen) >= FEWEST_UNSEEN)
        if is_of_unseen and not unseen:
            raise DatasetError("the models were trained on every problem here, so none is left to evaluate them")
        drawn = sorted((unseen if is_of_unseen else cases)[:MOST_CASES], key=lambda case: case.id)
        ids = [case.id for case in drawn]
        dataset = ExampleSet(canonical(stream_examples(connection, "WHERE list_contains(?, case_id)", [ids])))
    tell(_READ)
    remarks = []
    for model in models:
        dataset, remark = rankable(model, dataset)
        remarks.append(remark)
    verdicts: list[Verdict] = []
    for model, remark in zip(models, remarks, strict=True):
        begins, step = _share(len(verdicts), len(models)), _share(1, len(models)) - _READ
        steps = _Steps(tell, begins, step)
        verdicts.append(_verdict(model, dataset, drawn, wanted, steps, remark))
    return Verdicts(tuple(verdicts), len(cases), len(unseen), is_of_unseen)


class _Steps:
    """Report the progress of one model's evaluation."""

    def __init__(self, tell: Callable[[float], None], begins: float, length: float) -> None:
        self._tell, self._begins, self._length, self._done = tell, begins, length, 0

    def __call__(self) -> None:
        """Report one more step."""
        self._done += 1
        self._tell(self._begins + self._length * min(self._done / ASSESSING_STEPS, 1.0))


def _share(done: int, count: int) -> float:
    return _READ + (_JUDGED - _READ) * done / count


def _loaded(path: object, sha256: str) -> TimingModel:
    model = load(str(path))
    if model.sha256 != sha256:
        raise ModelError(f"{path} was just replaced; try again")
    return model


def _cases(connection: DuckDBPyConnection, wanted: Wanted) -> list[_Case]:
    """Return all cases, in the order of the draw."""
    values = {"device": wanted.device, "environment": wanted.environment, "regime": wanted.regime}
    return [
        _Case(case_id, problem, environment, name, (_shape(**shape), str(environment_id), regime))
        for case_id, problem, environment, name, environment_id, regime, shape in connection.execute(
            _CASES, values
        ).fetchall()
    ]


def _shape(dimensions: str | None, **fields: Any) -> ProblemShape:
    return ProblemShape(**fields, dimensions=dimensions_of_text(dimensions))


def _verdict(
    model: TimingModel,
    dataset: ExampleSet,
    drawn: Sequence[_Case],
    wanted: Wanted,
    steps: Callable[[], None],
    remark: str | None,
) -> Verdict:
    assessment = assess(model, dataset, vendor=wanted.vendor, fits=False, on_step=steps)
    standing = assessment.standing
    figures = named(standing, model.path.stem, "")
    notes = [] if remark is None else [remark.removeprefix("note: ")]
    if assessment.outside:
        reasons = ", ".join(assessment.outside_reasons)
        notes.append(f"{assessment.outside:,} of these problems are outside its training data ({reasons})")
    return Verdict(
        model=figures.model,
        reports=figures.reports,
        parts=slices(standing.judgements),
        judged=_judged(standing.judgements, drawn),
        learned_from=assessment.seen,
        notes=tuple(notes),
        left_out=tuple(figures.left_out),
        content=compose(of_assessment(assessment, model, dataset, vendor=wanted.vendor, notes=())),
    )


def _judged(judgements: Sequence[ProblemJudgement], drawn: Sequence[_Case]) -> tuple[JudgedProblem, ...]:
    cases: dict[tuple[ProblemShape, str, str | None], list[_Case]] = defaultdict(list)
    for case in reversed(drawn):
        cases[case.like].append(case)
    # Cases that are alike come in the order of their ids.
    found = [_of(j, cases[j.shape, j.environment, j.regime].pop()) for j in judgements]
    return tuple(sorted(found, key=lambda one: -one.regret))


def _of(judgement: ProblemJudgement, case: _Case) -> JudgedProblem:
    vendors = judgement.measured_us[judgement.is_vendor]
    return JudgedProblem(
        problem_key=case.problem_key,
        hardware=judgement.hardware.name,
        environment_key=case.environment_key,
        regime_name=case.regime_name,
        problem=problem_text(judgement.shape),
        family=judgement.family,
        regret=judgement.regret[1],
        regret_5=judgement.regret[5],
        picked=judgement.chosen.describe(),
        picked_us=judgement.chosen_us,
        predicted_us=_finite(judgement.chosen_predicted_us),
        best=judgement.best.describe(),
        best_us=judgement.best_us,
        best_predicted_us=_finite(judgement.best_predicted_us),
        vendor_us=float(np.min(vendors)) if len(vendors) else None,
        roofline_us=judgement.roofline_us,
        configs=judgement.configs,
        is_tied=judgement.within_noise,
    )


def _finite(us: float) -> float | None:
    return us if math.isfinite(us) else None
