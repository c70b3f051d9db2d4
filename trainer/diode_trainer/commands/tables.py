"""Convert evaluations to rows of tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from diode_store.command_line.render import counted, problem_text
from diode_store.devices.known import describe
from diode_trainer.data.held_out import Split
from diode_trainer.judging.metrics import KS, Report
from diode_trainer.judging.slices import slices

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from diode_trainer.card import Card
    from diode_trainer.jobs.workflow import Evaluation
    from diode_trainer.judging.assess import Assessment
    from diode_trainer.judging.judgement import ProblemJudgement
    from diode_trainer.judging.standing import Standing

HEADER = (
    "ranking",
    "regret@1",
    *(f"@{k}" for k in KS[1:]),
    "p95@1",
    "max@1",
    "max@5",
    "in 2%",
    "in 5%",
    "tied",
    "oracle",
    "P10",
    "min",
)
ERRORS_HEADER = ("predicted times", "rmse_log", "mse_log", "rmse_us", "mse_us")
_NAMES = {
    "inductor_default": "Inductor DEFAULT",
    "vendor_only": "vendor only",
    "config_cover": "k-config cover",
    "nearest_problem": "nearest problem",
    "fold_ranking": "ranking of other folds",
    "boosted_trees": "boosted trees",
    "nv_matmul_heuristics": "nvMatmulHeuristics",
    "random": "random",
}
_LONGEST_NAME = 22
"""Longest name in a table, wide enough for our own rows."""
_COUNTED = {
    "problems": "problems (one counts again in each regime and environment)",
    "timings": "timings",
    "measurements": "measurements",
}
"""Labels of the counts in a card's data."""


def rows(standing: Standing, model: str) -> list[tuple[object, ...]]:
    """Return the model's row and one for each baseline, in the order of ``HEADER``."""
    return [(name, *_cells(report)) for name, report in _named(standing, model)]


def error_rows(standing: Standing, model: str) -> list[tuple[object, ...]]:
    """Return the errors of the rankings that predict times, in the order of ``ERRORS_HEADER``."""
    named = ((name, report.errors) for name, report in _named(standing, model))
    return [(name, e.rmse_log, e.mse_log, e.rmse_us, e.mse_us) for name, e in named if e is not None]


def _named(standing: Standing, model: str) -> list[tuple[str, Report]]:
    baselines = standing.baselines.reports.items()
    return [(_short(model), standing.model), *((label(name), report) for name, report in baselines)]


PARTS_HEADER = ("problems", "regret@1", "@3", "@5", "@10", "max@1", "in 2%", "tied", "oracle", "of the loss")


def part_rows(parts: Mapping[str, Report]) -> list[tuple[object, ...]]:
    """Return a row for each part of the problems: its name, and the columns of ``PARTS_HEADER``."""
    losses = {part: report.problems * math.log(report.regret[1].geomean) for part, report in parts.items()}
    total = sum(losses.values())
    return [
        (
            part,
            report.problems,
            *(f"{report.regret[k].geomean:.4f}" for k in KS),
            f"{report.regret[1].max:.2f}",
            f"{report.within_2pct:.0%}",
            f"{report.within_noise:.0%}",
            f"{report.share_of_oracle.mean:.3f}",
            f"{losses[part] / total:.0%}" if total else "-",
        )
        for part, report in parts.items()
    ]


def device_rows(standing: Standing) -> list[tuple[object, ...]]:
    """Return a row for each device, as ``part_rows`` does; none if there is only one device."""
    found = slices(standing.judgements, ["device"])["device"] if standing.judgements else {}
    return part_rows(found) if len(found) > 1 else []


def left_out(standing: Standing) -> list[str]:
    """Return a line for each baseline that could not be judged on every problem."""
    baselines, problems = standing.baselines, standing.model.problems
    lines = [f"left out {label(name)}: {reason}" for name, reason in baselines.skipped.items()]
    fewer = ((label(name), report.problems) for name, report in baselines.reports.items())
    return lines + [
        f"{name} has no answer for {problems - answered:,} of {counted(problems, 'problem')}; its row leaves these out"
        for name, answered in fewer
        if answered < problems
    ]


def cautions(assessment: Assessment) -> Iterator[str]:
    """Yield warnings about the figures."""
    problems = counted(assessment.problems, "problem")
    if assessment.seen:
        remedy = (
            "give --dataset with other measurements"
            if assessment.seen == assessment.problems
            else "--unseen leaves them out"
        )
        yield f"it was trained on {assessment.seen:,} of these {problems}, so the figures flatter it; {remedy}"
    if assessment.outside:
        reasons = ", ".join(assessment.outside_reasons)
        verb = "is" if assessment.outside == 1 else "are"
        yield f"{assessment.outside:,} of {problems} {verb} outside what it was trained on ({reasons})"


def label(baseline: str) -> str:
    """Return the name of a baseline in tables; a shipped model may share the name of the judged one."""
    kind, _, name = baseline.partition(":")
    return _NAMES.get(baseline, baseline) if not name else f"{kind} {_short(name, _LONGEST_NAME - len(kind) - 1)}"


def _short(name: str, length: int = _LONGEST_NAME) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"


def titles(evaluation: Evaluation) -> list[tuple[str, Standing]]:
    """Return the title and content of each table."""
    of_families = " of families" if evaluation.held_out is Split.FAMILY else ""
    pooled = (
        f"one held-out fold{of_families}"
        if evaluation.folds == 1
        else f"pooled over {evaluation.folds} folds{of_families}"
    )
    count = evaluation.all_choices.model.problems
    found = [(f"All choices: {counted(count, 'problem')}, {pooled}", evaluation.all_choices)]
    if evaluation.triton_only is not None:
        count = evaluation.triton_only.model.problems
        found.append((f"Triton choices only: {counted(count, 'problem')}, {pooled}", evaluation.triton_only))
    return found


def _cells(report: Report) -> tuple[object, ...]:
    return (
        *(f"{report.regret[k].geomean:.4f}" for k in KS),
        f"{report.regret[1].p95:.3f}",
        f"{report.regret[1].max:.2f}",
        f"{report.regret[5].max:.2f}",
        f"{report.within_2pct:.0%}",
        f"{report.within_5pct:.0%}",
        f"{report.within_noise:.0%}",
        f"{report.share_of_oracle.mean:.3f}",
        f"{report.share_of_oracle.p10:.3f}",
        f"{report.share_of_oracle.min:.3f}",
    )


WORST_HEADER = ("problem", "regret", "chosen", "us", "predicted us", "best", "us ")


def worst_rows(worst: Sequence[ProblemJudgement]) -> list[tuple[object, ...]]:
    """Return a row for each costly choice, in the order of ``WORST_HEADER``."""
    return [
        (
            problem_text(w.shape),
            w.regret[1],
            w.chosen.describe(),
            w.chosen_us,
            w.chosen_predicted_us,
            w.best.describe(),
            w.best_us,
        )
        for w in worst
    ]


def card_pairs(card: Card) -> dict[str, object]:
    """Return the fields of a card for a person."""
    domain, data = card.domain, card.data
    return {
        "name": card.name,
        "purpose": card.purpose,
        "type": f"{card.model_type}, feature version {card.feature_version}",
        "network": _network_text(card.training),
        "hardware": [describe([device]) for device in domain.hardware],
        "devices left out": [check.describe() for check in domain.device_checks],
        "ops": list(domain.ops),
        "dtypes": list(domain.all_dtypes),
        "layouts": list(domain.layouts),
        "templates": list(domain.templates),
        "shapes": [f"{name} {low} to {high}" for name, (low, high) in domain.shapes.items()],
        **{f"domain of {op}": own.describe() for op, own in domain.of_ops.items()},
        "data": ", ".join(f"{data[name]:,} {told}" for name, told in _COUNTED.items() if name in data),
        "data sets": data.get("datasets"),
        "measured": f"{data.get('measured_from')} to {data.get('measured_to')}" if data else None,
        "evaluated": _evaluated(card.metrics),
        **{f"regret, {name}": _regret_text(card.metrics[name]) for name in _KINDS if name in card.metrics},
        "calibration": _calibration_text(card),
        "made with": card.command,
        "created": f"{card.created_at}, torch {card.torch}" if card.created_at else None,
        "sha256": card.sha256,
        "licence": card.licence,
        "notes": card.notes,
    }


def _network_text(training: Mapping[str, Any]) -> str | None:
    """Describe the members and the scout, if the card says how the model was fitted."""
    if "members" not in training:
        return None
    widths, scout = (" x ".join(map(str, training.get(name, ()))) for name in ("hidden_layer_widths", "scout_widths"))
    members = f"{counted(training['members'], 'member')} of {widths}"
    return f"{members}, a scout of {scout}" if scout else members


def _calibration_text(card: Card) -> str | None:
    calibration = card.calibration
    if calibration is None:
        return None
    return (
        f"on {counted(calibration.problems, 'held-out problem')}; the members' spread counts"
        f" {calibration.spread:.2f} times ({calibration.vendor_spread:.2f} for a slow vendor's kernel;"
        f" {math.exp(calibration.odd_spread):.2f} times that where rows are not a multiple of 16 bytes), a kernel is"
        f" worth timing for a gain of {calibration.kernel_price:.2%}"
    )


_KINDS = ("all_choices", "triton_only")


def _evaluated(metrics: Mapping[str, Any]) -> str | None:
    """Describe the evaluation behind the figures of a card."""
    if "folds" not in metrics:
        return None
    return f"{counted(metrics['folds'], 'fold')}, a {metrics.get('split', Split.PROBLEM)} in one of them"


def _regret_text(metrics: Mapping[str, Any]) -> str:
    return ", ".join(f"@{k} {figures['geomean']:.4f}" for k, figures in metrics["regret"].items())
