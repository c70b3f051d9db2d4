"""The page of a model: how it does on what was measured, alone and beside another."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import samples
from diode_explorer.background import Background
from diode_explorer.feed import Feed
from diode_explorer.judging.assessing import judge
from diode_explorer.judging.verdict import ALL, UNSEEN, Wanted
from diode_explorer.ordering import Order, asked_order
from diode_explorer.pages import PAGES
from diode_explorer.pages.model.page import MODEL
from diode_explorer.pages.page import NotThereError
from diode_explorer.rendering import linked, shown
from diode_explorer.visit import Visit
from diode_store.cache.cache import cache_of
from diode_store.cache.sync import sync
from diode_store.candidates.columns import ConfigColumns
from diode_store.candidates.names import kernel_config
from diode_store.errors import DatasetError
from diode_store.records import Problem, TensorSpec
from diode_store.system.resources import trained_models_dir
from diode_store.warehouse.store import Store
from diode_trainer import artifact
from diode_trainer.card import MATMUL_PURPOSE, PURPOSES
from diode_trainer.catalogue import user_models_dir
from diode_trainer.report.parts import Command, Facts, Note, Picture, Section, Table, flat
from diode_trainer.report.questions import Answer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from diode_trainer.report.parts import Part

SHIPPED = artifact.load(trained_models_dir() / MATMUL_PURPOSE / "v4_model.pt")
CONFIGS = (kernel_config("mm", {}), *(samples.triton_config(block) for block in (16, 64, 128)))
PROBLEMS = [samples.matmul(1000 + 3 * number, 2001, 515) for number in range(4)]
LOST = (1.0, 1.5, 1.0, 1.2)
"""By what the shipped model's first pick is slower than its second, which is the best where it is not the first."""
LEARNED = Problem.create(
    "mm", (TensorSpec("bfloat16", (1536, 448), (1, 1536)), TensorSpec("bfloat16", (448, 384), (384, 1)))
)
"""One that the shipped model has learned from."""


def order(problem: Problem) -> list[int]:
    """Return the shipped model's ranking."""
    predicted = SHIPPED.predict_us(problem.shape, samples.H200, ConfigColumns.from_configs(CONFIGS), exact=True)
    return [int(place) for place in np.argsort(predicted)]


def measured(number: int, problem: Problem, lost: float, **fields: Any) -> Any:
    """Return a measurement in which the model's first pick loses so much; its last takes four times the best."""
    times = dict(zip(order(problem), (10.0 * lost, 10.0 if lost > 1 else 11.0, 20.0, 40.0), strict=True))
    timings = samples.timings_of({CONFIGS[place]: us for place, us in times.items()})
    return samples.measurement(number, problem=problem, timings=timings, **fields)


@pytest.fixture
def database(database_url: str) -> str:
    """Return a warehouse of four problems that no model has learned from."""
    with Store.open(database_url) as store:
        for number, (problem, lost) in enumerate(zip(PROBLEMS, LOST, strict=True)):
            store.write([measured(number, problem, lost, family=("even", "odd")[number % 2])])
    return database_url


@pytest.fixture
def background(database: str) -> Iterator[Background]:
    """Return what judges."""
    with Background(database) as found:
        yield found


@pytest.fixture
def contrary() -> Path:
    """Return a model of the user's that ranks the other way round."""
    network = copy.deepcopy(SHIPPED.network)
    network.out_weight.data.neg_()  # type: ignore[operator, union-attr]
    path = user_models_dir() / MATMUL_PURPOSE / "contrary.pt"
    artifact.save(path, network, replace(SHIPPED.card, name="contrary", metrics={}))  # type: ignore[arg-type]
    return path


def visit(feed: Feed, background: Background | None = None, **filters: str) -> Visit:
    """Return a request for the page."""
    return Visit(feed.state, MODEL.parse([*filters.items()]), background=background)


def judged(asked: Visit) -> list[Part]:
    """Return the parts of the page once nothing is being judged any more."""
    ends = time.monotonic() + 100
    found = list(flat(MODEL.parts(asked)))
    while any(isinstance(part, Note) and part.is_passing for part in found):
        assert time.monotonic() < ends
        time.sleep(0.1)
        found = list(flat(MODEL.parts(asked)))
    return found


def table(found: Sequence[Part], name: str) -> list[dict[str, Any]]:
    """Return the rows of a table or picture."""
    (part,) = [part for part in found if isinstance(part, Table | Picture) and part.name == name]
    assert isinstance(part.source, Answer)
    return part.source.dicts()


def notes(found: Sequence[Part]) -> list[str]:
    """Return all notes."""
    return [part.text for part in found if isinstance(part, Note)]


def facts(found: Sequence[Part], name: str) -> dict[str, str]:
    """Return facts: label → value."""
    (part,) = [part for part in found if isinstance(part, Facts) and part.name == name]
    return {fact.label: fact.value for fact in part.facts}


def test_the_models_there_are(database: str) -> None:
    """The shipped one links to itself; one that cannot be read is a line; nothing is judged."""
    torn = user_models_dir() / MATMUL_PURPOSE / "torn.pt"
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b"")
    with Feed(database) as feed:
        asked = visit(feed)
        found = list(MODEL.parts(asked))
        row, *others = table(found, "models")
        (part,) = [part for part in found if isinstance(part, Table)]
        link = part.columns[0].link
        assert link is not None
        assert linked(link, row, MODEL, asked, PAGES) == "/model?model=v4_model"
        with pytest.raises(NotThereError, match=r"torn cannot be evaluated: .*the model's card is missing"):
            list(MODEL.parts(visit(feed, model="torn")))
    assert (row["name"], row["hardware"], row["sha256"]) == (
        "v4_model",
        "NVIDIA H100 80GB HBM3, NVIDIA H200",
        SHIPPED.sha256[:12],
    )
    assert {other["purpose"] for other in others} == {*PURPOSES} - {MATMUL_PURPOSE}
    assert len(notes(found)) == 1
    assert "torn cannot be read: " in notes(found)[0]


def test_a_single_model_is_shown_at_once() -> None:
    """The shipped model alone needs no choice; a user's model beside it makes one."""
    assert MODEL.implied() == {"model": "v4_model"}


def test_two_models_are_a_choice(contrary: Path) -> None:
    """Neither is shown before one is chosen."""
    assert contrary.exists()
    assert MODEL.implied() == {}


@pytest.mark.long
def test_how_a_model_does(database: str, background: Background) -> None:
    """Its figures are those of its picks, the worst problem leads to its page, and the pictures are a report's."""
    with Feed(database) as feed:
        asked = visit(feed, background, model="v4_model", by="op")
        (waits,) = [part.text for part in MODEL.parts(asked) if isinstance(part, Note)]
        assert "v4_model: being evaluated on at most 1,000 problems of NVIDIA H200, 0% done." in waits
        found = judged(asked)
        sections = [part for part in MODEL.parts(asked) if isinstance(part, Section)]
        cut = judged(visit(feed, background, model="v4_model", by="family"))
        drawn = [each for each in shown(found, asked) if each.spec]
        for each in (part for part in found if isinstance(part, Table)):
            order = Order(each.name, each.columns[0].name, is_descending=True)
            assert asked_order(Visit(feed.state, {"sort": str(order)})) == order
    ids = [part.name for part in (*sections, *found) if not isinstance(part, Note)]
    assert [name for name in ids if ids.count(name) > 1] == []
    (row,) = [row for row in table(found, "rankings-1") if row["is_model"]]
    assert (row["ranking"], row["problems"], row["max_1"]) == ("v4_model", 4, pytest.approx(1.5))
    assert row["regret_1"] == pytest.approx((1.5 * 1.2) ** 0.25)
    assert row["regret_3"] == 1.0
    assert row["within_2"] == 50.0
    problems = table(found, "problems")
    assert [row["regret"] for row in problems] == pytest.approx([1.5, 1.2, 1.0, 1.0])
    assert (problems[0]["problem_key"], problems[0]["best_us"]) == (PROBLEMS[1].key.hex(), 10.0)
    (alike,) = [part for part in sections if part.name == "parts"]
    assert (alike.text, alike.parts) == ("All problems are alike in op: mm.", ())
    by_family = {row["part"]: (row["problems"], row["max_1"]) for row in table(cut, "parts-by-family")}
    assert by_family == {"even": (2, 1.0), "odd": (2, pytest.approx(1.5))}
    names = {each.part.name for each in drawn}
    assert {"regret-by-ranking", "regret-ecdf", "predicted-against-measured", "regret-map", "worst-times"} <= names
    (worst,) = [each.spec for each in drawn if each.part.name == "worst-times"]
    first = worst["data"]["values"][0]
    assert f"/problem?problem={PROBLEMS[1].key.hex()}&device=NVIDIA+H200" in first["address"]
    assert notes(found)[0].startswith("Evaluated on 4 problems of NVIDIA H200.")
    assert not [text for text in notes(found) if "was trained on" in text]
    (command,) = [part.command for part in found if isinstance(part, Command)]
    assert command == "diode evaluate --model v4_model --hardware 'NVIDIA H200' --by op --report v4_model.html"


@pytest.mark.long
def test_two_models(database: str, background: Background, contrary: Path) -> None:
    """Both are judged by the same problems: who is faster where, by how much."""
    assert contrary.exists()
    with Feed(database) as feed:
        asked = visit(feed, background, model="v4_model", other="contrary")
        found = judged(asked)
        scatter = next(each.spec for each in shown(found, asked) if each.part.name == "losses")
    assert [row["regret_1"] for row in table(found, "rankings")[:2]] == pytest.approx([(1.5 * 1.2) ** 0.25, 4.0])
    beside = facts(found, "beside")
    assert beside["v4_model is faster on"] == "4 problems"
    assert beside["contrary is faster on"] == "0 problems"
    assert beside["first picks on average"] == f"{100 * (4 / 1.8**0.25 - 1):.2f}%"
    assert sorted(row["ratio"] for row in table(found, "better-1")) == pytest.approx([4 / 1.5, 4 / 1.2, 4.0, 4.0])
    assert table(found, "better-2") == []
    assert {point["better"] for point in scatter["data"]["values"]} == {"v4_model is faster"}
    assert sorted(point["first_pct"] for point in scatter["data"]["values"]) == pytest.approx([0, 0, 20, 50])


def test_by_which_problems(database: str) -> None:
    """All, or those alone that it has not learned from; in one regime or all; with the vendor's kernels or without."""
    assert SHIPPED.was_trained_on(LEARNED.shape)
    models = ((SHIPPED.path, SHIPPED.sha256),)
    method = samples.EVERY_FIELD["timing_method"]
    with Store.open(database) as store:
        store.write([measured(10, LEARNED, 1.1), measured(11, PROBLEMS[0], 1.3, timing_method=method)])
    sync(database, cache_of(database))

    def judges(**fields: Any) -> Any:
        return judge(Wanted(models, "NVIDIA H200", **fields), database, lambda _share: None)

    everything, unseen, flushed = judges(), judges(problems=UNSEEN), judges(regime="read_flush")
    (of_all,) = everything.models
    assert (everything.there, everything.unseen, everything.is_of_unseen) == (6, 5, False)
    assert (len(of_all.judged), of_all.learned_from) == (6, 1)
    assert (len(unseen.models[0].judged), unseen.models[0].learned_from) == (5, 0)
    assert [(one.regime_name, one.regret) for one in flushed.models[0].judged] == [("read_flush", pytest.approx(1.3))]
    assert judges(problems=ALL).is_of_unseen is False
    assert "left out boosted trees: fitting them takes a minute; `diode evaluate` does" in of_all.left_out
    without = judges(vendor=False)
    assert {one.picked for one in without.models[0].judged} <= {config.describe() for config in CONFIGS[1:]}
    with pytest.raises(DatasetError, match="no timings with these filters can evaluate a model"):
        judges(regime="graph")
    told: list[float] = []
    judge(Wanted(models, "NVIDIA H200"), database, told.append)
    assert told == sorted(told)
    assert 0 < told[0] < told[-1] <= 1


@pytest.mark.long
def test_a_model_that_has_learned_from_what_it_is_judged_by(database_url: str) -> None:
    """It is said, with what its card says of problems that were held out."""
    with Store.open(database_url) as store:
        store.write([measured(1, LEARNED, 1.1)])
    with Feed(database_url) as feed, Background(database_url) as background:
        found = judged(visit(feed, background, model="v4_model"))
        none = judged(visit(feed, background, model="v4_model", problems="unseen"))
        with pytest.raises(NotThereError, match="nothing was timed on 'NVIDIA H100'"):
            list(MODEL.parts(visit(feed, background, model="v4_model", device="NVIDIA H100")))
        with pytest.raises(
            NotThereError, match=r"nothing was timed with these filters; remove the environment or regime$"
        ):
            list(MODEL.parts(visit(feed, background, model="v4_model", regime="graph")))
        with pytest.raises(NotThereError, match="there is no model 'x'"):
            list(MODEL.parts(visit(feed, background, model="x")))
    (flattered,) = [text for text in notes(found) if "was trained on" in text]
    assert flattered == (
        "v4_model was trained on all of them, so the figures flatter it: regret@1 is 1.1000. Its card says"
        f" {SHIPPED.card.regret_at_1:.4f} on held-out problems."
    )
    assert notes(none) == ["v4_model: the models were trained on every problem here, so none is left to evaluate them"]
