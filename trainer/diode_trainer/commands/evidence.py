"""Convert the results of `diode evaluate` and `diode-train` to the content of a report."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from diode_store.command_line.render import cell_text, counted
from diode_store.devices.known import describe
from diode_store.errors import ModelError
from diode_trainer.commands.tables import card_pairs, label, left_out, titles
from diode_trainer.jobs.workflow import fold_scorer, predict_unseen
from diode_trainer.judging.calibration import calibrate_by_others, make_cases
from diode_trainer.report.evaluation.content import Evidence, Judged
from diode_trainer.report.evaluation.rows import loss_points
from diode_trainer.report.evaluation.spread import foresee, joined
from diode_trainer.scoring import Scorer
from diode_trainer.training.history import history_path, read_history

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from diode_trainer.artifact import TimingModel
    from diode_trainer.data.dataset import Examples, ExampleSet
    from diode_trainer.jobs.job import Trained
    from diode_trainer.jobs.workflow import Evaluation
    from diode_trainer.judging.assess import Assessment
    from diode_trainer.judging.standing import Standing
    from diode_trainer.report.evaluation.rows import LossPoint
    from diode_trainer.report.evaluation.spread import Foreseen
    from diode_trainer.training.history import FitHistory


def of_assessment(
    assessment: Assessment, model: TimingModel, dataset: ExampleSet, *, vendor: bool, notes: tuple[str, ...]
) -> Evidence:
    """Return the content of a report about a stored model."""
    choices = "All choices" if vendor else "Triton choices only"
    problems = counted(assessment.problems, "problem")
    history, without = _stored_history(model)
    return Evidence(
        heading=f"{model.path.stem} on {_devices(dataset)}",
        summary=f"{choices}: {problems}, ranked by a stored model.",
        judged=(judged(assessment.standing, model.path.stem, f"{choices}: {problems}"),),
        notes=notes,
        facts={"Model": _as_text({**card_pairs(model.card), "sha256": model.sha256}), "Data": _data_facts(dataset)},
        foreseen=_foreseen(model, _judged_examples(dataset, assessment.standing), vendor=vendor),
        history=history,
        no_history=without,
    )


def reporting_steps(folds: int) -> int:
    """Return the number of steps that ``of_training`` reports."""
    return 2 * folds


def of_training(trained: Trained, dataset: ExampleSet, *, on_step: Callable[[], None] = lambda: None) -> Evidence:
    """Return the content of a report about a training: its folds, pooled.

    Args:
        trained: training.
        dataset: data of the training.
        on_step: called ``reporting_steps(folds)`` times.

    Raises:
        ValueError: the training has no evaluation.
    """
    evaluation, name = trained.result.evaluation, trained.card.name
    if evaluation is None:
        raise ValueError("a training without folds has nothing to report")
    tables = titles(evaluation)
    return Evidence(
        heading=f"{name} on {_devices(dataset)}",
        summary=f"{tables[0][0]}. Every problem was judged by a fit that had not seen it.",
        judged=tuple(judged(standing, name, title) for title, standing in tables),
        facts={"Model": _as_text(card_pairs(trained.card)), "Data": _data_facts(dataset)},
        foreseen=_foreseen_by_fold(evaluation, dataset, on_step),
        history=_points(trained.histories),
    )


def judged(standing: Standing, model: str, title: str) -> Judged:
    """Return a standing with readable names."""
    baselines = standing.baselines

    def named(baseline: str) -> str:
        return label(baseline) if label(baseline) != model else f"{model} (baseline)"

    own = np.array([[*judgement.regret.values()] for judgement in standing.judgements])
    return Judged(
        title=title,
        model=model,
        reports={model: standing.model, **{named(name): report for name, report in baselines.reports.items()}},
        regrets={model: own, **{named(name): regret for name, regret in baselines.regrets.items()}},
        judgements=standing.judgements,
        left_out=tuple(left_out(standing)),
    )


def _judged_examples(dataset: ExampleSet, standing: Standing) -> list[Examples]:
    """Return the problems of a standing's judgements, in their order."""
    examples = {(e.shape, e.hardware, e.environment, e.regime): e for e in dataset}
    return [examples[j.shape, j.hardware, j.environment, j.regime] for j in standing.judgements]


def _foreseen(model: TimingModel, examples: Sequence[Examples], *, vendor: bool) -> Foreseen | None:
    """Return a model's confidence in its picks on these problems; None for a model without members."""
    if not isinstance(model.scorer, Scorer):
        return None
    return foresee(model.scorer, examples, vendor=vendor, calibration=model.card.calibration)


def _foreseen_by_fold(evaluation: Evaluation, dataset: ExampleSet, on_step: Callable[[], None]) -> Foreseen | None:
    """Return the confidence of each fold's fit in its picks on the test problems, in the order of the judgements.

    Each fold is calibrated by the others. If one cannot be calibrated (too few problems, or a single fold), none is.
    """
    cases = []
    for fitted, split in zip(evaluation.fits, evaluation.splits, strict=True):
        tested = [dataset.examples[i] for i in split.test]
        cases.append(make_cases(tested, predict_unseen(dataset, fitted, split), dataset.domain()))
        on_step()
    calibrations = calibrate_by_others(cases)
    said = []
    for fitted, split, found in zip(evaluation.fits, evaluation.splits, calibrations, strict=True):
        scorer, tested = fold_scorer(dataset, fitted, split), [dataset.examples[i] for i in split.test]
        said.append(foresee(scorer, tested, calibration=None if None in calibrations else found))
        on_step()
    return joined(said)


def _stored_history(model: TimingModel) -> tuple[tuple[LossPoint, ...], str]:
    """Return the learning curve of a stored model, and the reason if there is none."""
    if not os.path.lexists(history_path(model.path)):
        return (), f"there is no {history_path(model.path).name} beside the model; diode-train writes one"
    try:
        return _points(read_history(model.path)), ""
    except ModelError as error:
        return (), str(error)


def _points(histories: Sequence[FitHistory]) -> tuple[LossPoint, ...]:
    return tuple(loss_points((history.fit, history.epochs) for history in histories))


def _devices(dataset: ExampleSet) -> str:
    return ", ".join(sorted({example.hardware.name for example in dataset}))


def _data_facts(dataset: ExampleSet) -> Mapping[str, object]:
    """Return the origin of the data."""
    lineage = dataset.lineage
    devices = describe({example.hardware.key: example.hardware for example in dataset}.values())
    environments = [
        ", ".join(f"{name} {value}" for name, value in environment.items())
        for environment in lineage.get("environments") or ()
    ]
    return _as_text(
        {
            "hardware": devices,
            "problems": f"{len(dataset):,}",
            "timings": f"{dataset.timings:,}, of which {dataset.failures:,} failed",
            "data sets": lineage.get("datasets"),
            "measured": f"{lineage.get('measured_from')} to {lineage.get('measured_to')}",
            "environments": "; ".join(environments) or None,
        }
    )


def _as_text(facts: Mapping[str, object]) -> Mapping[str, str]:
    return {name: cell_text(value) for name, value in facts.items() if value}
