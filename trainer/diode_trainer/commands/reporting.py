"""`--report` of `diode evaluate` and `diode-train`: what was found, as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diode_store.console import print_note, progress
from diode_store.devices import describe
from diode_store.render import cell_text, counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from diode_trainer.artifact import TimingModel
    from diode_trainer.assess import Assessment
    from diode_trainer.data.dataset import ExampleSet
    from diode_trainer.report.content import Evidence, Judged
    from diode_trainer.report.output import Destination
    from diode_trainer.workflow import Standing

ReportOption = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE", help="Write the evaluation as one HTML page, with pictures."),
]
PicturesOption = Annotated[
    Path | None,
    typer.Option(
        "--report-pictures", metavar="DIR", help="Write the pictures of the report, as PNG and as Vega-Lite JSON."
    ),
]


def destination(page: Path | None, pictures: Path | None) -> Destination:
    """Return where the report goes, checked before any work is done for it.

    Raises:
        ReportError: it cannot be made or written.
    """
    from diode_trainer.report.output import Destination

    to = Destination(page, pictures)
    to.check()
    return to


def write(evidence: Evidence, to: Destination) -> None:
    """Write what was asked for, and say where it is."""
    from diode_trainer.report.output import write_report

    with progress("drawing pictures") as advance:
        paths = write_report(evidence, to, lambda: advance(1))
    for path in paths:
        print_note(f"report: {path}")


def of_assessment(
    assessment: Assessment, model: TimingModel, dataset: ExampleSet, *, vendor: bool, notes: tuple[str, ...]
) -> Evidence:
    """Return what is reported of a stored model."""
    from diode_trainer.report.content import Evidence

    choices = "All choices" if vendor else "Triton choices only"
    return Evidence(
        heading=f"{model.path.stem} on {_devices(dataset)}",
        summary=f"{choices} of {counted(assessment.problems, 'measured problem')}, ranked by a stored model.",
        judged=(judged(assessment.standing, model.path.stem, choices),),
        notes=notes,
        facts={"Model": _model_facts(model), "Data": data_facts(dataset)},
        expected=_expected(model, dataset, assessment.standing, vendor=vendor),
        no_history="the training history is not stored with the model",
    )


def judged(standing: Standing, model: str, title: str) -> Judged:
    """Return a standing under the names that people read."""
    import numpy as np

    from diode_trainer.commands.tables import label, left_out
    from diode_trainer.report.content import Judged

    baselines = standing.baselines
    own = np.array([[*judgement.regret.values()] for judgement in standing.judgements])
    return Judged(
        title=title,
        model=model,
        reports={model: standing.model, **{label(name): report for name, report in baselines.reports.items()}},
        regrets={model: own, **{label(name): regret for name, regret in baselines.regrets.items()}},
        judgements=standing.judgements,
        left_out=tuple(left_out(standing)),
    )


def _expected(model: TimingModel, dataset: ExampleSet, standing: Standing, *, vendor: bool) -> NDArray[Any] | None:
    """Return the loss that the members of a model expect on each judged problem."""
    from diode_trainer.report.spread import expected_losses

    examples = {(e.shape, e.hardware, e.environment, e.regime): e for e in dataset}
    of_judgements = [examples[j.shape, j.hardware, j.environment, j.regime] for j in standing.judgements]
    return expected_losses(model.scorer, of_judgements, vendor=vendor)


def _devices(dataset: ExampleSet) -> str:
    return ", ".join(sorted({example.hardware.name for example in dataset}))


def _model_facts(model: TimingModel) -> Mapping[str, object]:
    from diode_trainer.commands.tables import card_pairs

    return _as_text({**card_pairs(model.card), "sha256": model.sha256})


def data_facts(dataset: ExampleSet) -> Mapping[str, object]:
    """Return where the data is from."""
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
