"""The page of a problem: what a model says of its configs, beside what was measured."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import samples
from diode_collectors.problems.problem import parse_problem
from diode_explorer.background import Background
from diode_explorer.feed import Feed
from diode_explorer.pages.page import NotThereError
from diode_explorer.pages.problem.page import PROBLEM
from diode_explorer.visit import Visit
from diode_store.candidates.columns import ConfigColumns
from diode_store.candidates.names import kernel_config
from diode_store.devices.known import require_device
from diode_store.records import Timing, TimingMethod
from diode_store.system.resources import trained_models_dir
from diode_store.warehouse.store import Store
from diode_trainer import artifact
from diode_trainer.card import MATMUL_PURPOSE
from diode_trainer.catalogue import user_models_dir
from diode_trainer.report.parts import Command, Facts, Note, Picture, Table
from diode_trainer.report.questions import Extended

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from diode_store.records import Hardware
    from diode_trainer.report.parts import Part

SHIPPED = trained_models_dir() / MATMUL_PURPOSE / "v4_model.pt"
MODEL = artifact.load(SHIPPED)
PRODUCT = samples.matmul(1024, 2048, 512)
CONFIGS = (kernel_config("mm", {}), *(samples.triton_config(block) for block in (16, 64, 128)))
PREDICTED = MODEL.predict_us(PRODUCT.shape, samples.H200, ConfigColumns.from_configs(CONFIGS), exact=True)
ORDER = [int(place) for place in np.argsort(PREDICTED)]
"""The model's: what it puts first was measured slower than what it puts second by a fifth."""
MEASURED = dict(zip(ORDER, (12.0, 10.0, 20.0, 40.0), strict=True))


def write(database: str, hardware: Hardware = samples.H200) -> None:
    """Write one measurement of the four configs."""
    times = {config: MEASURED[place] for place, config in enumerate(CONFIGS)}
    with Store.open(database) as store:
        store.write([samples.measurement(problem=PRODUCT, timings=samples.timings_of(times), hardware=hardware)])


@pytest.fixture
def background(database_url: str) -> Iterator[Background]:
    """Return what loads models."""
    with Background(database_url) as found:
        yield found


def parts(feed: Feed, background: Background | None, **filters: str) -> list[Part]:
    """Return the parts of the page once no model is being loaded any more."""
    visit = Visit(feed.state, {"problem": PRODUCT.key.hex(), **filters}, background=background)
    ends = time.monotonic() + 60
    found = list(PROBLEM.parts(visit))
    while any(isinstance(part, Note) and part.is_passing for part in found):
        assert time.monotonic() < ends
        time.sleep(0.05)
        found = list(PROBLEM.parts(visit))
    return found


def notes(found: list[Part]) -> list[str]:
    """Return the texts of the notes."""
    return [part.text for part in found if isinstance(part, Note)]


def said(found: list[Part]) -> Mapping[str, tuple[str, str]]:
    """Return what the model says: label → value and note."""
    return {
        fact.label: (fact.value, fact.note)
        for part in found
        if isinstance(part, Facts) and part.name == "ranking"
        for fact in part.facts
    }


def rows(feed: Feed, found: list[Part], name: str) -> list[dict[str, Any]]:
    """Return the rows of a part, with what a model adds."""
    (part,) = [part for part in found if isinstance(part, Table | Picture) and part.name == name]
    assert isinstance(part.source, Extended)
    return part.source.extend(feed.state.ask(part.source.question)).dicts()


@pytest.mark.long
def test_the_models_ranking_is_beside_the_times(database_url: str, background: Background) -> None:
    """Each config has its predicted time and its place by it; the facts say what following the model costs."""
    write(database_url)
    with Feed(database_url) as feed:
        visit = Visit(feed.state, {"problem": PRODUCT.key.hex()}, background=background)
        assert "v4_model is loading. Its ranking will appear here." in notes(list(PROBLEM.parts(visit)))
        found = parts(feed, background)
        table, picture = rows(feed, found, "configs"), rows(feed, found, "times")
    facts = said(found)
    assert table == picture
    by_measured = sorted(range(4), key=MEASURED.__getitem__)
    assert [row["runtime_us"] for row in table] == [10.0, 12.0, 20.0, 40.0]
    assert [row["predicted_us"] for row in table] == pytest.approx([PREDICTED[place] for place in by_measured])
    assert [row["model_place"] for row in table] == [2, 1, 3, 4]
    assert facts["model"] == ("v4_model", "the hook's choice")
    assert facts["its first pick"][1] == f"{PREDICTED.min():,.2f} us predicted, 12.00 us measured"
    assert facts["lost by its first pick"] == ("20.0%", "regret@1 1.2000")
    assert facts["lost by the best of 5"] == ("0.0%", "regret@5 1.0000, tried together")
    assert facts["place of the best"] == ("2", "of 4 configs")
    assert facts["vendor kernel"] == (f"{PREDICTED[0]:,.2f} us predicted", f"{MEASURED[0]:,.2f} us measured")
    assert notes(found) == []


@pytest.mark.long
def test_predictions_are_in_the_regime_of_the_times(database_url: str, background: Background) -> None:
    """Behind a flush that writes, a kernel takes 4 us more than deployed."""
    times = samples.timings_of({config: MEASURED[place] for place, config in enumerate(CONFIGS)})
    flushed = TimingMethod(regime="write_flush")
    with Store.open(database_url) as store:
        store.write([samples.measurement(problem=PRODUCT, timings=times, timing_method=flushed)])
    with Feed(database_url) as feed:
        found = parts(feed, background)
        table = rows(feed, found, "configs")
    by_measured = sorted(range(4), key=MEASURED.__getitem__)
    assert [row["predicted_us"] for row in table] == pytest.approx([PREDICTED[place] + 4 for place in by_measured])
    assert said(found)["its first pick"][1] == f"{PREDICTED.min() + 4:,.2f} us predicted, 12.00 us measured"
    assert any(note.startswith("Predictions are for the regime write_flush") for note in notes(found))


def test_nothing_is_loaded_where_nothing_may_take_long(database_url: str) -> None:
    """Such as when pages are made before anybody asks for them."""
    write(database_url)
    with Feed(database_url) as feed:
        found = parts(feed, None)
    assert (said(found), notes(found)) == ({}, [])


@pytest.mark.long
def test_which_model_is_asked(database_url: str, background: Background, tmp_path: Path) -> None:
    """The one that is chosen, none, or that of the device; one that is only near to the device says so."""
    write(database_url, samples.H100_PCIE)
    copy = user_models_dir() / MATMUL_PURPOSE / "mine.pt"
    copy.parent.mkdir(parents=True)
    for suffix in (".pt", ".json"):
        shutil.copy(SHIPPED.with_suffix(suffix), copy.with_suffix(suffix))
    (copy.parent / "torn.pt").write_bytes(b"")
    (copy.parent / "torn.json").write_text("{")
    with Feed(database_url) as feed:
        asked = parts(feed, background)
        assert notes(parts(feed, background, model="(none)")) == []
        chosen = parts(feed, background, model="mine")
        with pytest.raises(NotThereError, match="there is no model 'yours'"):
            parts(feed, background, model="yours")
        torn = parts(feed, background, model="torn")
        copy.write_bytes(copy.read_bytes()[:-1])
        with Background(database_url) as another:
            damaged = parts(feed, another, model="mine")
    assert said(asked)["model"] == ("mine", "the hook's choice")
    assert said(chosen)["model"] == ("mine", "chosen above")
    (outside,) = notes(chosen)
    assert outside.startswith("This problem is outside the training data of mine: number of multiprocessors 114 is ")
    assert notes(asked) == notes(chosen)
    assert "torn cannot be loaded: " in notes(torn)[0]
    assert "not a model card" in notes(torn)[0]
    assert "mine cannot be loaded: " in notes(damaged)[0]
    assert "damaged, or not the model of its card" in notes(damaged)[0]
    assert tmp_path in copy.parents


def test_no_model_is_asked_about_another_architecture(database_url: str, background: Background) -> None:
    """Nothing carries over from one to another."""
    write(database_url, require_device("a100-80gb"))
    with Feed(database_url) as feed:
        found = parts(feed, background)
    assert said(found) == {}
    assert "No model covers this problem on this device" in notes(found)[0]


def test_a_convolution_is_ranked_by_a_model_of_its_own(database_url: str, background: Background) -> None:
    """The model knows the library's kernel beside the templates."""
    problem = parse_problem("convolution:8x4x64x64:320x3x3/padding1").problem()
    blocks = {"BLOCK_M": 256, "BLOCK_N": 64, "BLOCK_K": 16, "num_stages": 2, "num_warps": 4}
    configs = kernel_config("triton::convolution2d", blocks), kernel_config("aten::convolution", {})
    timings = tuple(map(Timing, configs, (18.0, 37.0)))
    with Store.open(database_url) as store:
        store.write([samples.measurement(problem=problem, hardware=require_device("h200"), timings=timings)])
    with Feed(database_url) as feed:
        found = parts(feed, background, problem=problem.key.hex())
        times = [row["predicted_us"] for row in rows(feed, found, "configs")]
    assert said(found)["model"] == ("convolution_v1", "the hook's choice")
    assert times == pytest.approx([18.0, 37.0], rel=0.1)


@pytest.mark.parametrize(("regime", "more"), [("graph", ""), ("write_flush", " --timing write-flush")])
def test_it_is_measured_again_in_its_regime(database_url: str, regime: str, more: str) -> None:
    """The command times as the page's timings were made."""
    with Store.open(database_url) as store:
        store.write([samples.measurement(problem=PRODUCT, timing_method=TimingMethod("median", regime=regime))])
    with Feed(database_url) as feed:
        found = list(PROBLEM.parts(Visit(feed.state, {"problem": PRODUCT.key.hex(), "model": "(none)"})))
    (command,) = (part.command for part in found if isinstance(part, Command))
    assert command == f"diode-collect --shape mm:1024x2048x512/nn/bf16 --search-space EXHAUSTIVE{more}"
