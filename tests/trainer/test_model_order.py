"""In which order models are asked, and what the user says of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from saved_models import CARD, small_network

from diode_store.errors import ModelError, SettingsError
from diode_trainer import artifact, catalogue
from diode_trainer.card import MATMUL_PURPOSE, Card, read_card
from diode_trainer.catalogue import ModelFile, in_order

if TYPE_CHECKING:
    from pathlib import Path


def judged(name: str, regret: float | None, created_at: str = "2026-01-01", **fields: Any) -> ModelFile:
    """Return a model of which there is nothing but a card."""
    from pathlib import Path

    metrics = {} if regret is None else {"all_choices": {"regret": {"1": {"geomean": regret}}}}
    card = replace(CARD, name=name, sha256=name, metrics=metrics, created_at=created_at, **fields)
    return ModelFile(Path(f"{name}.pt"), card)


def against(other: str, mine: float, its: float, problems: int = 100) -> dict[str, Any]:
    """Return what a card says of a comparison."""
    return {other: {"name": other, "problems": problems, "regret_at_1": mine, "its_regret_at_1": its}}


def order(*models: ModelFile) -> list[str]:
    """Return their names in the order in which they are asked, which must not depend on how they were listed."""
    first, again = ([model.card.name for model in in_order(listed)] for listed in (models, tuple(reversed(models))))
    assert first == again
    return first


def test_own_regret_decides_where_nothing_was_compared() -> None:
    """The lower is first, of equals the newest; a model without a figure is last."""
    models = judged("poor", 1.05), judged("none", None), judged("old", 1.02), judged("new", 1.02, "2026-02-01")
    assert order(*models) == ["new", "old", "poor", "none"]


def test_common_problems_decide_where_there_are_any() -> None:
    """A model judged by harder problems of its own comes first if it does better on those that both were judged by."""
    shipped = judged("shipped", 1.02)
    assert order(shipped, judged("mine", 1.06, compared=against("shipped", 1.06, 1.09))) == ["mine", "shipped"]
    assert order(shipped, judged("mine", 1.01, compared=against("shipped", 1.01, 1.005))) == ["shipped", "mine"]
    assert order(shipped, judged("mine", 1.06, compared=against("shipped", 1.06, 1.06))) == ["mine", "shipped"]


def test_a_third_model_changes_nothing_between_two() -> None:
    """One that beats another by common problems stays before it, whoever lies between them by their own regret."""
    best, between = judged("best", 1.02), judged("between", 1.05)
    beats = judged("beats", 1.10, compared=against("best", 1.04, 1.20))
    assert order(best, beats) == ["beats", "best"]
    assert order(best, between, beats) == ["between", "beats", "best"]


def test_a_circle_is_broken_by_own_regret() -> None:
    """Whatever the order in which the files are found."""
    ring = [judged(name, own, compared=against(next_, 1.0, 1.1)) for name, own, next_ in CIRCLE]
    assert order(*ring) == ["a", "b", "c"]


def test_another_devices_problems_do_not_count() -> None:
    """A comparison as if on another device says nothing of which to ask on its own."""
    elsewhere = replace(CARD.domain, hardware=(replace(CARD.domain.hardware[0], name="NVIDIA H100"),))
    mine = judged("mine", 1.06, compared=against("shipped", 1.06, 1.5), domain=elsewhere)
    assert order(judged("shipped", 1.02), mine) == ["shipped", "mine"]


CIRCLE = (("a", 1.01, "b"), ("b", 1.02, "c"), ("c", 1.03, "a"))


@pytest.mark.parametrize(
    "compared",
    [
        against("shipped", 1.06, 1.09, problems=9),
        {"shipped": {}},
        {"shipped": 3},
        against("another", 1.06, 1.09),
        against("shipped", 1.06, float("nan")),
        against("shipped", 1.06, 10**400),  # type: ignore[arg-type]
    ],
    ids=["few", "empty", "nonsense", "of another", "not a number", "too large"],
)
def test_what_says_too_little_does_not_decide(compared: dict[str, Any]) -> None:
    """A comparison by a few problems, a damaged one, or one with another model."""
    assert order(judged("shipped", 1.02), judged("mine", 1.06, compared=compared)) == ["shipped", "mine"]


@pytest.fixture
def three(shipped: Path) -> list[str]:
    """Save two models of the user's, one with a name that ships; return the names in the order they are asked."""
    own, ships = catalogue.user_models_dir() / MATMUL_PURPOSE, shipped / MATMUL_PURPOSE
    for folder, name, regret in ((own, "mine", 1.05), (own, "same", 1.03), (ships, "same", 1.01), (ships, "v2", 1.02)):
        card: Card = judged(name, regret).card
        artifact.save(folder / f"{name}.pt", small_network(), card)
    artifact.save(own.parent / "another_purpose" / "tune.pt", small_network(), replace(CARD, purpose="another_purpose"))
    artifact.save(own.parent / "quickstart" / "quickstart_model.pt", small_network(), judged("quickstart", 1.0).card)
    return ["v2", "same", "same", "mine"]


def names(*preferred: str) -> list[str]:
    """Return the names of the models that are known, in order."""
    return [model.path.stem for model in catalogue.known_models(preferred=preferred)]


def test_users_and_shipped_models_are_asked_together(three: list[str]) -> None:
    """A user's model comes before the shipped one of its name; one of another purpose or folder is not asked."""
    assert names() == three
    own = [model.path.is_relative_to(catalogue.user_models_dir()) for model in catalogue.known_models()]
    assert own == [False, True, False, True]


def test_defaults_are_asked_first(three: list[str]) -> None:
    """Those that the user prefers come first, in that order; a name that is gone does not matter."""
    preferred = [f"{MATMUL_PURPOSE}/{name}" for name in ("gone", "mine", "same")]
    assert names(*preferred) == ["mine", "same", "same", "v2"]


def test_defaults_are_kept(tmp_path: Path) -> None:
    """What is written is read again; without a file there are none."""
    assert catalogue.read_defaults(tmp_path) == ()
    catalogue.write_defaults(tmp_path / "new", ["p/b", "p/a"])
    assert catalogue.read_defaults(tmp_path / "new") == ("p/b", "p/a")


@pytest.mark.parametrize(
    "fields",
    [
        {"created_at": None},
        {"sha256": ["x"]},
        {"name": 3},
        {"domain": {"hardware": [{"name": "x", "arch": "y", "multiprocessors": "132"}]}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_an_odd_card_is_left_out(three: list[str], fields: dict[str, Any]) -> None:
    """Whoever wrote it; the other models are asked as ever. It is no card for those who ask for it either."""
    card = catalogue.user_models_dir() / MATMUL_PURPOSE / "mine.json"
    content = json.loads(card.read_text())
    domain = content["domain"] | fields.pop("domain", {})
    card.write_text(json.dumps(content | {"domain": domain} | fields))
    assert names() == three[:-1]
    with pytest.raises(ModelError, match="not a model card"):
        read_card(card)


def test_a_regret_that_is_no_number_is_none(three: list[str]) -> None:
    """JSON knows NaN and numbers of any size."""
    for regret in (float("nan"), 10**400, None):
        metrics = {"all_choices": {"regret": {"1": {"geomean": regret}}}}
        assert replace(CARD, metrics=metrics).regret_at_1 is None


@pytest.mark.parametrize("content", ["", "[1", "[" * 100_000, '{"models": "x"}', '{"models": [1]}', "[]", "\xff"])
def test_damaged_defaults_are_an_error_with_a_remedy(tmp_path: Path, content: str) -> None:
    """It names the file and what to do."""
    (tmp_path / "defaults.json").write_text(content, encoding="latin-1")
    with pytest.raises(SettingsError, match=r"defaults\.json: .*set them again with `diode models default NAME`"):
        catalogue.read_defaults(tmp_path)
