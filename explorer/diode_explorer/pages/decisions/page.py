"""The hook's decisions in deployed compiles, and their measured cost."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any

from diode_collectors.problems.problem import SweepProblem
from diode_explorer.judging.models import known_models
from diode_explorer.pages import cases
from diode_explorer.pages.decisions import questions
from diode_explorer.pages.page import Page, Parameter
from diode_store.command_line.render import counted
from diode_store.errors import SettingsError
from diode_trainer.report.evaluation.pictures import predicted_against_measured, regret_ecdf
from diode_trainer.report.evaluation.rows import BEYOND, WITHIN, CurvePoint, PickPoint
from diode_trainer.report.parts import (
    COUNT,
    NUMBER,
    PROSE,
    TIME,
    Column,
    Command,
    Fact,
    Facts,
    Link,
    Note,
    Picture,
    Table,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from diode_explorer.pages.page import Asked
    from diode_trainer.report.parts import Part
    from diode_trainer.report.questions import Value

_MOST = 20
"""Maximum rows of a table of picks."""
_MOST_SHAPES = 20
"""Maximum problems of one command."""
_SOME = 1.05
_DECISIONS, _PROBLEMS = Column("decisions", "decisions", COUNT), Column("problems", "problems", COUNT)
_LAST = Column("last_at", "last, UTC", TIME)
_DEVICE, _MODEL = Column("hardware", "device"), Column("model", "model", link=Link({"model": "model_sha256"}))
_PICK = Column("pick", "pick")
_REGRET = Column("regret", "regret", NUMBER, 3)
_PREDICTED = Column("predicted_us", "predicted, us", NUMBER, 2)


def _parts(asked: Asked) -> Iterator[Part]:
    ((decisions, *_),) = asked.ask(questions.decided(asked.filters)).rows
    if not decisions and not asked.filters:
        yield Note(
            "Nothing yet. Set `DIODE_SPOOL` so that the hook records its decisions, then run `diode-ingest --once`."
        )
        return
    yield _facts(asked)
    yield _policies(asked.filters)
    yield _curves(asked.filters)
    yield _worst(asked.filters)
    yield _scatter(asked)
    yield from _unmeasured(asked)
    yield _abstentions(asked.filters)
    yield from _failures(asked)


def _facts(asked: Asked) -> Facts:
    (made,) = asked.ask(questions.decided(asked.filters)).dicts()
    (cost,) = asked.ask(questions.cost(asked.filters)).dicts()
    total = made["decisions"]
    facts = [
        Fact("decisions", f"{total:,}", f"on {counted(made['problems'], 'problem')}"),
        Fact(
            "by a model",
            _share(made["by_model"], total),
            f"{_share(made['alone'], made['by_model'])} of them kept one kernel",
        ),
        Fact("by a picks file", _share(made["by_picks"], total)),
        Fact(
            "by neither",
            _share(made["by_vendor"] + made["by_stock"], total),
            f"vendor's kernel {_share(made['by_vendor'], total)}, stock Inductor {_share(made['by_stock'], total)}",
        ),
    ]
    if cost["measured"]:
        of_measured = f"geometric mean of {counted(cost['measured'], 'measured pick')}"
        facts += [
            Fact("regret", f"{cost['regret']:.4f}", of_measured),
            Fact("within 2%", f"{100 * cost['within']:.1f}%", f"{100 * cost['tied']:.1f}% tied with the best"),
            Fact("worst", f"{cost['worst']:.2f}"),
        ]
    if cost["of_vendor"] is not None:
        facts.append(Fact("relative to the vendor", f"{cost['of_vendor']:.3f}", "geometric mean"))
    facts.append(Fact("not measured yet", counted(cost["unmeasured"], "pick")))
    if made["failed"]:
        facts.append(Fact("not compiled", f"{made['failed']:,}"))
    if made["seconds"] is not None:
        facts.append(Fact("the hook took", f"{1e3 * made['seconds']:.1f} ms", "median"))
    facts += _model_fact(asked)
    return Facts("summary", "Decisions", tuple(facts))


def _model_fact(asked: Asked) -> list[Fact]:
    """Return a link to the page of the filtered model, if the model is here."""
    sha256 = asked.filters.get("model")
    found = [model for model in known_models() if model.card is not None and model.card.sha256 == sha256]
    return [Fact("its page", model.name, address=asked.address("model", {"model": model.name})) for model in found]


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"


def _policies(filters: Mapping[str, Value]) -> Table:
    return Table(
        "policies",
        "By model and policy",
        "Regret is a geometric mean of the latest picks' times over the best known times.",
        (
            Column("decided_by", "decided by", link=Link({"decided_by": "decided_by"})),
            _MODEL,
            Column("mode", "mode", link=Link({"mode": "mode"})),
            Column("policy", "policy", link=Link({"policy": "policy"})),
            _DECISIONS,
            Column("kept", "kernels kept", NUMBER, 2),
            Column("measured", "picks measured", COUNT),
            Column("regret", "regret", NUMBER, 4),
            Column("within_pct", "in 2%, %", NUMBER, 1),
            Column("worst", "worst", NUMBER, 2),
            Column("of_vendor", "pick / vendor", NUMBER, 3),
            _LAST,
        ),
        questions.by_policy(filters),
    )


def _curves(filters: Mapping[str, Value]) -> Picture:
    return Picture(
        "regret",
        "Share of picks by loss",
        f"Percentiles of the losses against the best known times, for the {questions.MOST_CURVES} models with most"
        " picks. Higher and further left is better.",
        questions.curves(filters),
        _curves_spec,
        "No pick was measured yet.",
    )


def _curves_spec(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    # Of equal losses, the last gives the share.
    shares = {(row["ranking"], row["loss_pct"]): row["share_pct"] for row in rows}
    return regret_ecdf([CurvePoint(*of, share) for of, share in shares.items()])


def _worst(filters: Mapping[str, Value]) -> Table:
    return Table(
        "worst",
        "The costliest picks",
        "Latest picks that are slowest against the best known times. Ties with the best are bold.",
        (
            Column("problem", "problem", link=cases.TO_PROBLEM),
            _DEVICE,
            _MODEL,
            _PICK,
            _REGRET,
            Column("picked_us", "pick, us", NUMBER, 2),
            _PREDICTED,
            cases.BEST_US,
            Column("best_template", "best"),
            cases.VENDOR_US,
            Column("mode", "mode"),
            Column("decided_at", "decided, UTC", TIME),
            _DECISIONS,
        ),
        questions.worst(filters),
        "No pick was measured yet.",
        most=_MOST,
        marked="is_tie",
    )


def _scatter(asked: Asked) -> Picture:
    return Picture(
        "predicted",
        "Predicted against measured time of the picks",
        "Points on the line are right. If there are many picks, the costliest are shown."
        " Click one to open its problem.",
        questions.worst(asked.filters),
        lambda rows: _scatter_spec(asked, rows),
        "No pick was measured yet.",
    )


def _scatter_spec(asked: Asked, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    known = [row for row in reversed(rows) if row["predicted_us"] is not None]
    points = [
        PickPoint(
            row["problem"],
            row["pick"],
            row["predicted_us"],
            row["picked_us"],
            row["best_us"],
            100 * (row["regret"] - 1),
            BEYOND if row["regret"] > _SOME else WITHIN,
        )
        for row in known
    ]
    spec = predicted_against_measured([], points)
    spec["layer"] = [layer for layer in spec["layer"] if layer["data"]["values"]]
    for row, point in zip(known, spec["layer"][-1]["data"]["values"], strict=True) if known else ():
        values = {name: row[column] for name, column in cases.TO_PROBLEM.values.items()}
        point["address"] = asked.address(str(cases.TO_PROBLEM.page), values)
    return spec


def _unmeasured(asked: Asked) -> Iterator[Part]:
    question = questions.unmeasured(asked.filters)
    rows = asked.ask(question).dicts()
    if not rows:
        return
    yield Table(
        "unmeasured",
        "Picks without measurements",
        "Their cost is unknown. The most frequent come first.",
        (
            Column("problem", "problem", link=cases.TO_PROBLEM),
            _DEVICE,
            _MODEL,
            _PICK,
            _PREDICTED,
            cases.BEST_US,
            cases.CONFIGS,
            _DECISIONS,
            Column("decided_at", "decided, UTC", TIME),
        ),
        question,
        most=_MOST,
    )
    if command := _command(rows):
        yield command


def _command(rows: Sequence[Mapping[str, Any]]) -> Command | None:
    """Return the command that measures the picks of the device with most of them."""
    device, _ = Counter(row["hardware"] for row in rows).most_common(1)[0]
    shapes: dict[str, None] = {}
    for row in rows:
        if row["m"] is None:
            continue  # a sweep cannot time an unknown op
        try:
            problem = SweepProblem.of_shape(cases.shape_of(row))
        except SettingsError:
            continue
        if row["hardware"] == device:
            shapes[str(problem)] = None
    some = list(shapes)[:_MOST_SHAPES]
    if not some:
        return None
    words = ["diode-collect", *(word for shape in some for word in ("--shape", shape)), "--search-space", "EXHAUSTIVE"]
    what = "all of them" if len(some) == len(shapes) else f"the first {len(some)} of {counted(len(shapes), 'problem')}"
    text = f"Run this on a machine with {device}, then `diode-ingest --once`. It measures {what}."
    return Command("measure", "Measure them", text, shlex.join(words))


def _abstentions(filters: Mapping[str, Value]) -> Table:
    return Table(
        "abstentions",
        "Why no model decided",
        "A model abstains outside its domain. The hook then keeps the vendor kernel, or stock Inductor chooses.",
        (
            Column("why", "why"),
            Column("decided_by", "who chose", link=Link({"decided_by": "decided_by"})),
            _DECISIONS,
            _PROBLEMS,
            Column("example", "most common reason", PROSE),
            _LAST,
        ),
        questions.abstentions(filters),
        "No model abstained.",
    )


def _failures(asked: Asked) -> Iterator[Part]:
    question = questions.failures(asked.filters)
    if asked.ask(question).rows:
        yield Table(
            "failures",
            "Picks that could not be compiled",
            "These picks were never deployed and have no regret.",
            (Column("failure", "why", PROSE), _DECISIONS, _LAST),
            question,
            most=_MOST,
        )


_MADE = "FROM decisions AS d JOIN hardware AS h ON h.id = d.hardware_id JOIN problems AS p ON p.id = d.problem_id"


def _options(expression: str) -> str:
    return f"SELECT DISTINCT {expression} AS value {_MADE} ORDER BY value"


def _models(_filters: Mapping[str, Value]) -> str:
    return (
        f"SELECT DISTINCT model_sha256, {questions.model_sql()} AS model FROM decisions"  # noqa: S608 - as above
        " WHERE model_sha256 IS NOT NULL ORDER BY model"
    )


DECISIONS = Page(
    "decisions",
    "Decisions",
    "The hook's decisions in deployed compiles, and their measured cost.",
    (
        Parameter("device", "device", options=_options("h.name")),
        Parameter("model", "model", options=_models),
        Parameter("decided_by", "decided by", options=_options("d.decided_by")),
        Parameter("mode", "mode", options=_options("d.mode")),
        Parameter("policy", "policy", options=_options("d.policy")),
        Parameter("op", "op", options=_options("p.op")),
        Parameter(
            "dtype",
            "dtype",
            options=_options("CASE WHEN asks_for_tf32(p.dtype, p.scalars) THEN 'tf32' ELSE p.dtype END"),
        ),
        Parameter("machine", "machine", options=_options(f"coalesce(d.host, '{questions.UNKNOWN}')")),
    ),
    _parts,
)
