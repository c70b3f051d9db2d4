"""Evaluation of a model on measured problems, alone or beside another."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from diode_explorer.judging.judge import Judge
from diode_explorer.judging.models import known_models, model_named, names_sql
from diode_explorer.judging.verdict import ALL, MOST_CASES, UNSEEN, Wanted
from diode_explorer.pages import cases
from diode_explorer.pages.model.pair import pair_parts
from diode_explorer.pages.model.report import report_parts
from diode_explorer.pages.page import NotThereError, Page, Parameter
from diode_store.command_line.render import cell_text, counted
from diode_store.errors import FIRST_STEP
from diode_trainer.card import MATMUL_PURPOSE
from diode_trainer.commands.tables import card_pairs
from diode_trainer.judging.slices import SLICES
from diode_trainer.report.parts import COUNT, NUMBER, Column, Command, Fact, Facts, Link, Note, Table
from diode_trainer.report.questions import Answer, Question, where

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from diode_explorer.background import Progress
    from diode_explorer.judging.models import KnownModel
    from diode_explorer.judging.verdict import Verdict, Verdicts
    from diode_explorer.pages.page import Asked
    from diode_trainer.card import Card
    from diode_trainer.report.parts import Part
    from diode_trainer.report.questions import Value

_YES, _NO = "yes", "no"
_BY = SLICES[0]
_DAY = len("2026-11-22")
_NOTHING_YET = "nothing is measured yet, so no model can be evaluated"
_MODELS = (
    Column("name", "model", link=Link({"model": "name"})),
    Column("hardware", "devices"),
    Column("problems", "training problems", COUNT),
    Column("regret_1", "regret@1, held out", NUMBER, 4),
    Column("type", "type"),
    Column("purpose", "purpose"),
    Column("created_at", "created"),
    Column("sha256", "SHA-256"),
)


def _parts(asked: Asked) -> Iterator[Part]:
    if "model" not in asked.filters:
        yield from _list()
        return
    names = dict.fromkeys(asked.filters[name] for name in ("model", "other") if name in asked.filters)
    models = [_model(name) for name in names]
    for model in models:
        yield _card_facts(asked, model)
    device = _device(asked, models)
    task = _task(asked, models, device)
    progress = asked.work_out(task)
    yield from _under_way(progress, models, device)
    if progress.result is not None:
        yield from _judged(asked, models, device, progress.result)
    yield from _list()


def _model(name: Value) -> KnownModel:
    model = model_named(name)
    if model is None:
        raise NotThereError(f"there is no model {name!r}; `diode models list` shows all models")
    if model.card is None:
        raise NotThereError(f"{model.name} cannot be evaluated: {model.error}")
    return model


def _card(model: KnownModel) -> Card:
    assert model.card is not None  # noqa: S101 - looked up by _model
    return model.card


def _device(asked: Asked, models: Sequence[KnownModel]) -> str:
    """Return the device of the address, else a measured one that a model covers, else the most measured one.

    Raises:
        NotThereError: nothing matches. The check comes before a process is started.
    """
    chosen = {name: value for name, value in asked.filters.items() if name in {"environment", "regime"}}
    condition = where(cases.CONDITIONS, chosen)
    sql = f"SELECT hardware FROM best_times\n{condition}GROUP BY hardware ORDER BY count(*) DESC, hardware"  # noqa: S608 - our own text
    measured = [str(name) for (name,) in asked.ask(Question(sql, chosen)).rows]
    remedy = "; remove the environment or regime" if chosen else ""
    if "device" in asked.filters:
        wanted = str(asked.filters["device"])
        if wanted not in measured:
            raise NotThereError(f"nothing was timed on {wanted!r}{' with these filters' if chosen else ''}{remedy}")
        return wanted
    known = [device.name for model in models for device in _card(model).hardware]
    found = next((name for name in known if name in measured), next(iter(measured), None))
    if found is None:
        raise NotThereError(
            f"nothing was timed with these filters{remedy}" if chosen else f"{_NOTHING_YET}; {FIRST_STEP}"
        )
    return found


def _task(asked: Asked, models: Sequence[KnownModel], device: str) -> Judge:
    chosen = {name: str(value) for name, value in asked.filters.items()}
    wanted = Wanted(
        models=tuple((model.path, _card(model).sha256) for model in models),
        device=device,
        environment=chosen.get("environment"),
        regime=chosen.get("regime"),
        vendor=chosen.get("vendor") != _NO,
        problems=chosen.get("problems"),
    )
    return Judge(wanted, asked.generation)


def _under_way(progress: Progress[Verdicts], models: Sequence[KnownModel], device: str) -> Iterator[Note]:
    names = " and ".join(model.name for model in models)
    if progress.error:
        yield Note(f"{names}: {progress.error}", is_alarm=True)
    elif progress.is_under_way:
        verb = "being evaluated" if progress.result is None else "being evaluated again, with new measurements,"
        share = f"{100 * progress.share:.0f}%"
        of = f"at most {MOST_CASES:,} problems of {device}"
        yield Note(f"{names}: {verb} on {of}, {share} done. Results will appear here.", is_passing=True)


def _judged(asked: Asked, models: Sequence[KnownModel], device: str, found: Verdicts) -> Iterator[Part]:
    yield Note(_drawn(found, device))
    for model, verdict in zip(models, found.models, strict=True):
        yield from _flattered(model, verdict)
    by = str(asked.filters.get("by", _BY))
    if len(found.models) == 1:
        yield from report_parts(asked, found.models[0], by)
    else:
        yield from pair_parts(asked, [model.name for model in models], found.models, by)
    yield _command(asked, models[0], device, found)


def _drawn(found: Verdicts, device: str) -> str:
    judged, there = len(found.models[0].judged), found.unseen if found.is_of_unseen else found.there
    some = f"{judged:,} of the {counted(there, 'problem')}" if judged < there else counted(judged, "problem")
    seen = " that no model was trained on" if found.is_of_unseen else ""
    how = ", the same sample for every model" if judged < there else ""
    return f"Evaluated on {some} of {device}{seen}{how}. A problem counts once per environment and regime."


def _flattered(model: KnownModel, verdict: Verdict) -> Iterator[Note]:
    """Yield a warning if a model is evaluated on its own training problems."""
    judged = len(verdict.judged)
    if not verdict.learned_from:
        return
    some = "all of them" if verdict.learned_from == judged else f"{verdict.learned_from:,} of them"
    held_out = _card(model).regret_at_1
    card = f" Its card says {held_out:.4f} on held-out problems." if held_out is not None else ""
    yield Note(
        f"{model.name} was trained on {some}, so the figures flatter it: regret@1 is"
        f" {verdict.reports[verdict.model].regret[1].geomean:.4f}.{card}",
        is_alarm=True,
    )


def _card_facts(asked: Asked, model: KnownModel) -> Facts:
    card = _card(model)
    pairs = {name: cell_text(value) for name, value in card_pairs(card).items() if value}
    held_out, data = card.regret_at_1, card.data
    counts = [f"{data[name]:,} {name}" for name in ("problems", "timings") if isinstance(data.get(name), int)]
    measured = [str(data[name])[:_DAY] for name in ("measured_from", "measured_to") if data.get(name)]
    facts = [
        Fact("devices", pairs.get("hardware", "any device"), ", ".join((*card.ops, *card.dtypes))),
        Fact("learned from", ", ".join(counts) or "unknown", " to ".join(measured)),
        Fact(
            "regret@1, held out",
            "-" if held_out is None else f"{held_out:.4f}",
            pairs.get("evaluated", "not evaluated"),
        ),
        Fact("type", pairs["type"], pairs.get("network", "")),
        Fact("made", card.created_at[:_DAY] or "unknown", f"torch {card.torch}" if card.torch else ""),
        Fact("purpose", card.purpose, f"SHA-256 {card.sha256}"),
    ]
    address = asked.address("model", {"model": model.name}) if "other" in asked.filters else None
    if address:
        facts.insert(0, Fact("its own page", model.name, address=address))
    return Facts(f"card-{model.name.replace('/', '-')}", model.name, tuple(facts))


def _list() -> Iterator[Part]:
    """Yield the known models, and the errors of unreadable ones."""
    rows = []
    for model in known_models():
        if model.card is None:
            continue
        card, problems = model.card, model.card.data.get("problems")
        hardware = ", ".join(device.name for device in card.hardware) or "any device"
        about = (hardware, problems if isinstance(problems, int) else None, card.regret_at_1, card.model_type)
        rows.append((model.name, *about, card.purpose, card.created_at[:_DAY], card.sha256[:12]))
    yield Table(
        "models",
        "Models",
        "Shipped models and your own, in the order in which the hook asks them. Choose one to evaluate it."
        " `diode-train` makes a new one.",
        _MODELS,
        Answer(tuple(column.name for column in _MODELS), tuple(rows)),
        "There are no models yet.",
    )
    for model in known_models():
        if model.card is None:
            yield Note(f"{model.name} cannot be read: {model.error}", is_alarm=True)


def _command(asked: Asked, model: KnownModel, device: str, found: Verdicts) -> Command:
    by = asked.filters.get("by")
    words = ["diode", "evaluate", "--model", model.name, "--hardware", device]
    is_alone = model.card is not None and model.card.purpose != MATMUL_PURPOSE
    words += ["--op", model.card.ops[0]] if model.card is not None and is_alone else []
    words += ["--no-vendor"] if asked.filters.get("vendor") == _NO else []
    words += ["--unseen"] if found.is_of_unseen else []
    words += ["--by", str(by)] if by else []
    return Command(
        "evaluate",
        "Evaluate it on all problems",
        "Over all environments and regimes, with the slow baselines. The report has the same pictures.",
        shlex.join([*words, "--report", f"{model.path.stem}.html"]),
    )


def _only_model() -> dict[str, Value]:
    """Return the model of matrix products if there is only one."""
    cards = ((model.name, model.card) for model in known_models())
    readable = [name for name, card in cards if card is not None and card.purpose == MATMUL_PURPOSE]
    return {"model": readable[0]} if len(readable) == 1 else {}


def _fields(filters: Mapping[str, Value]) -> Sequence[str]:
    if "model" not in filters:
        return ("model",)
    more = ("device", "environment", "regime", "vendor", "problems", "by")
    return ("model", *more) if _only_model() else ("model", *more, "other")


MODEL = Page(
    "model",
    "Model",
    "A model's choices against the best measured configs.",
    (
        Parameter("model", "model", options=lambda _filters: names_sql(), unset="(choose one)"),
        Parameter("other", "beside", options=lambda filters: names_sql(without=filters.get("model")), unset="(none)"),
        replace(cases.DEVICE, unset="the model's"),
        cases.ENVIRONMENT,
        cases.REGIME_OF,
        Parameter("vendor", "vendor kernels count", options=(_YES, _NO), unset=_YES),
        Parameter("problems", "problems", options=(UNSEEN, ALL), unset="unseen if enough"),
        Parameter("by", "parts by", options=SLICES, unset=_BY),
    ),
    _parts,
    fields=_fields,
    implied=_only_model,
)
