from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import jsonschema
import numpy as np
import pytest
import vl_convert

from diode_trainer.report.drawing import as_image
from diode_trainer.report.evaluation import calibration_pictures, pictures, rows
from diode_trainer.report.evaluation.content import Content, Evidence, compose
from diode_trainer.report.parts import Note, flat
from diode_trainer.report.theme import DARK, LIGHT, vega_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diode_trainer.judging.judgement import ProblemJudgement

ALL = (
    "regret-by-ranking",
    "regret-ecdf",
    "predicted-against-measured",
    "regret-map",
    "calibration-of-ratios",
    "calibration-of-spread",
    "calibration-of-certainty",
    "regret-by-alignment",
    "regret-by-size",
    "regret-by-time",
    "regret-by-winner",
    "regret-by-family",
    "worst-times",
    "learning-curve",
)


@pytest.fixture(scope="module")
def specs(evidence: Evidence) -> dict[str, dict[str, Any]]:
    """Return every picture of a whole report."""
    return {picture.name: picture.draw([]) for picture in compose(evidence).pictures}


@cache
def schema() -> Any:
    """Return Vega-Lite's own schema, as Altair ships it."""
    text = files("altair.vegalite.v6.schema").joinpath("vega-lite-schema.json").read_text(encoding="utf-8")
    return jsonschema.Draft7Validator(json.loads(text))


def test_every_picture_is_there(specs: Mapping[str, Any]) -> None:
    """A whole report shows all of them; what all problems have in common has none."""
    assert set(specs) == set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_pictures_are_valid(specs: Mapping[str, Any], name: str) -> None:
    """Each is a specification by Vega-Lite's schema, of the version that it names."""
    assert specs[name]["$schema"] == "https://vega.github.io/schema/vega-lite/v6.json"
    assert [error.message for error in schema().iter_errors(specs[name])] == []


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_themes_are_valid(palette: Any) -> None:
    """A theme is a configuration by Vega-Lite's schema."""
    spec = {"mark": "point", "data": {"values": []}, "encoding": {}, "config": vega_config(palette)}
    assert [error.message for error in schema().iter_errors(spec)] == []


@pytest.mark.parametrize("name", ALL)
def test_pictures_compile_without_a_warning(
    specs: Mapping[str, Any], name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Vega-Lite has nothing to say about them."""
    vl_convert.vegalite_to_vega({**specs[name], "width": 400}, show_warnings=True)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ALL)
def test_titles_say_what_is_good(specs: Mapping[str, Any], name: str) -> None:
    """Each says what one sees, and which direction is good; screen readers hear both."""
    title = specs[name]["title"]
    assert title["text"]
    assert re.search(r"better|right|good|bad|lost|perfect|should", title["subtitle"])
    assert specs[name]["description"] == f"{title['text']}. {title['subtitle']}."


@pytest.mark.parametrize("name", ALL)
def test_pictures_name_no_colour(specs: Mapping[str, Any], name: str) -> None:
    """Colours are the theme's, so that a picture suits a light page and a dark one."""
    text = json.dumps({**specs[name], "data": None})
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b|\"(?:red|green|blue|black|white|gr[ae]y)\"", text) == []


def test_numbers_are_finite(specs: Mapping[str, Any]) -> None:
    """JSON has neither NaN nor infinity."""
    assert json.dumps(specs, allow_nan=False)


def test_a_picture_is_a_png_in_either_theme(specs: Mapping[str, Any]) -> None:
    """The same specification is drawn in two palettes."""
    light, dark = (as_image(specs["regret-by-ranking"], palette) for palette in (LIGHT, DARK))
    assert light[:8] == dark[:8] == b"\x89PNG\r\n\x1a\n"
    assert light != dark


def test_pictures_of_a_single_problem(judgements: tuple[ProblemJudgement, ...]) -> None:
    """The smallest evaluation has pictures too."""
    one = judgements[:1]
    found = [
        pictures.predicted_against_measured(rows.density_cells(one), rows.pick_points(one)),
        pictures.regret_map(rows.map_cells(one)),
        calibration_pictures.calibration_of_ratios(rows.ratio_bands(one)),
        pictures.worst_times(rows.worst_times(one)),
        pictures.regret_ecdf([]),
        pictures.learning_curve([]),
    ]
    for spec in found:
        assert [error.message for error in schema().iter_errors(spec)] == []
        assert as_image(spec)


def test_axes_of_parts_can_be_compared(specs: Mapping[str, Any]) -> None:
    """Pictures of parts, which stand beside each other, have the same axis; it has room for the greatest loss."""
    parts = [spec for name, spec in specs.items() if name.startswith("regret-by-") and name != "regret-by-ranking"]
    domains = {tuple(spec["encoding"]["x"]["scale"]["domain"]) for spec in parts}
    ((low, high),) = domains
    losses = [row["loss_pct"] for spec in parts for row in spec["data"]["values"]]
    assert (low, high >= max(10, *losses)) == (0.01, True)


@pytest.mark.parametrize("name", ["regret-by-ranking", "regret-by-size", "regret-ecdf"])
def test_ticks_are_on_the_axis(specs: Mapping[str, Any], name: str) -> None:
    """An axis that is clamped draws a tick beyond its end at its end, where it would be a lie."""
    layer = specs[name].get("layer", [specs[name]])[-1]
    x = layer["encoding"]["x"]
    assert 10.0 in x["axis"]["values"]
    assert max(x["axis"]["values"]) <= x["scale"]["domain"][1]


def test_an_ecdf_begins_below_the_lowest_share() -> None:
    """The axis of shares leaves out what no curve reaches."""
    curve = [rows.CurvePoint("a", 0.0, 73.0), rows.CurvePoint("a", 4.0, 100.0)]
    layers = pictures.regret_ecdf(curve)["layer"]
    assert layers[-1]["encoding"]["y"]["scale"]["domain"] == [70, 100]


def test_baselines_without_an_answer(evidence: Evidence) -> None:
    """A baseline has a curve of the problems for which it has an answer; one that has none has no curve."""
    main = evidence.judged[0]
    some, none = (np.full_like(main.regrets["quick"], np.nan) for _ in range(2))
    some[0] = 1.5
    judged = replace(main, regrets={"quick": main.regrets["quick"], "careless": none, "random": some})
    (ecdf,) = (p.draw([]) for p in compose(replace(evidence, judged=(judged,))).pictures if p.name == "regret-ecdf")
    points = [row for row in ecdf["data"]["values"] if not row["ranking"].startswith("quick")]
    assert points == [{"ranking": "random", "loss_pct": 50.0, "share_pct": 100.0}]


@pytest.mark.parametrize(("is_calibrated", "source"), [(True, "(calibrated)"), (False, "(members, not calibrated)")])
def test_titles_say_whether_certainty_is_calibrated(evidence: Evidence, *, is_calibrated: bool, source: str) -> None:
    """What raw members say is not taken for what a calibrated model says."""
    assert evidence.foreseen is not None
    foreseen = replace(evidence.foreseen, is_calibrated=is_calibrated)
    found = {picture.name: picture for picture in compose(replace(evidence, foreseen=foreseen)).pictures}
    pair = [found[name] for name in ("calibration-of-spread", "calibration-of-certainty")]
    assert [picture.title.endswith(source) for picture in pair] == [True, True]
    axes = [picture.draw([])["layer"][-1]["encoding"]["x"]["title"] for picture in pair]
    assert [("members" not in axis) for axis in axes] == [is_calibrated, is_calibrated]


def test_left_out_pictures_are_named(evidence: Evidence) -> None:
    """Without members that disagree, and without a history, a line says so."""
    content = compose(replace(evidence, foreseen=None, history=(), no_history="nobody kept it"))
    texts = [part.text for part in flat(content.parts) if isinstance(part, Note)]
    assert "Left out: nobody kept it." in texts
    assert "The model has one member, so it predicts no loss of its own." in texts
    assert isinstance(content, Content)
