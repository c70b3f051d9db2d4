"""A device that no model knows, ranked by the models of a similar one."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hooked import compile_op
from stand_ins import H200
from test_model_set import A10G, H100, OF_H100, known, model, problem

from diode_integration import model_set, uncovered
from diode_integration.choices import DiodeInductorChoices
from diode_integration.hook_checks import hook_finding
from diode_integration.model_set import ModelSet
from diode_integration.predictor import AbstentionError
from diode_integration.stats import DecidedBy
from diode_store.errors import SettingsError
from diode_trainer.card import similar_device

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import SaveModel
    from diode_integration.stats import Decision

FAST_TEMPLATES: dict[str, Any] = {"vendor_us": 30.0}


def decision_of(hardware: Any = H100, **options: Any) -> tuple[Decision, int]:
    """Compile one mm as if on a device that the only model does not know; return what was decided, and timed."""
    handler = DiodeInductorChoices(model=known(model("2", **FAST_TEMPLATES)), hardware=hardware, **options)
    watch = compile_op("mm", handler, run_vendor=True)
    (decision,) = handler.decisions()
    return decision, len(watch.left[0])


def test_it_is_asked_for_and_announced_once(caplog: pytest.LogCaptureFixture) -> None:
    """A few are kept to be benchmarked, the vendor's among them, whatever the mode; the reason says by whom."""
    for mode in (None, "adaptive", "top_k"):
        decision, left = decision_of(similar="top_k", mode=mode)
        assert (decision.decided_by, left) == (DecidedBy.MODEL, 4)
        assert decision.reason.endswith("kept; the vendor's kernel is kept too; by a model of NVIDIA H200")
        assert decision.p_within_2pct is None
        assert decision.policy is not None
        assert decision.policy.mode == "top_k"
    models = ModelSet(known(model("2")))
    model_set._announced.clear()
    caplog.clear()
    for _ in range(2):
        models.asked_about(problem(), H100, similar=True)
    (record,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert record.getMessage() == (
        "no model knows NVIDIA H100 80GB HBM3: models of NVIDIA H200 rank its kernels, and benchmarks on the device"
        " have the last word (logged once)"
    )


def test_benchmarks_decide_even_where_the_vendors_is_far_ahead() -> None:
    """A template is kept beside it, and so it is where only one candidate is asked for."""
    for options in ({}, {"top_k_configs": 1}):
        handler = DiodeInductorChoices(model=known(model("2")), hardware=H100, similar="top_k", **options)
        watch = compile_op("mm", handler, run_vendor=True)
        (decision,) = handler.decisions()
        kept = [choice.config.is_vendor for choice in decision.chosen]
        assert kept == [True] + [False] * (len(watch.left[0]) - 1)
        assert len(kept) == (2 if options else 3)


def test_unless_it_is_asked_for_the_hook_abstains() -> None:
    """And says that it could be."""
    decision, _ = decision_of()
    assert decision.abstained
    assert "; NVIDIA H200 is similar: DIODE_SIMILAR=top_k has its models rank, and benchmarks decide" in decision.reason


def test_never_in_zero_mode(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing would be benchmarked there, so nothing would have the last word: it abstains as ever."""
    decision, left = decision_of(similar="top_k", mode="zero")
    assert (decision.decided_by, left) == (DecidedBy.VENDOR, 1)
    assert "zero mode asks no model of a similar device" in caplog.text


def test_not_of_another_architecture() -> None:
    """What is fast there says nothing here."""
    decision, _ = decision_of(A10G, similar="top_k")
    assert decision.abstained
    assert "similar" not in decision.reason


def test_a_model_of_the_device_itself_is_asked_first() -> None:
    """The similar one only where no model knows the device; outside its domain it abstains, as on its own."""
    models = ModelSet(known(model("2"), model("1", OF_H100)))
    assert models.asked_about(problem(), H100, similar=True).model.sha256 == "1" * 64
    assert models.asked_about(problem(), H100, similar=True).similar_to == ""
    alone = ModelSet(known(model("2")))
    assert alone.asked_about(problem(), H100, similar=True).similar_to == "NVIDIA H200"
    assert alone.asked_about(problem(), H200, similar=True).similar_to == ""
    with pytest.raises(AbstentionError, match=r"^shape: "):
        alone.asked_about(problem(size=8192), H100, similar=True)


def test_the_nearest_is_that_with_as_many_multiprocessors() -> None:
    """H100 PCIe has 114, H100 SXM and H200 have 132."""
    from dataclasses import replace

    small = replace(OF_H100.hardware[0], name="a smaller one", multiprocessors=78)
    cards = [each.card for each in known(model("1", replace(OF_H100, hardware=(small,))), model("2"))]
    assert similar_device(cards, H100) == "NVIDIA H200"
    assert similar_device(cards, replace(H100, multiprocessors=80)) == "a smaller one"
    assert similar_device(cards, A10G) == ""


def test_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """DIODE_SIMILAR stands in for the option, which counts more; it is part of the cache key; nonsense is refused."""
    ours = known(model("2"))
    without = DiodeInductorChoices(model=ours)
    monkeypatch.setenv("DIODE_SIMILAR", "top_k")
    assert DiodeInductorChoices(model=ours).uuid() == f"{without.uuid()}/similar"
    assert DiodeInductorChoices(model=ours, similar="").uuid() == without.uuid()
    monkeypatch.setenv("DIODE_SIMILAR", "zero")
    with pytest.raises(SettingsError, match=r"^DIODE_SIMILAR must be \"top_k\", or empty"):
        DiodeInductorChoices(model=ours)
    with pytest.raises(SettingsError, match=r"^similar must be"):
        DiodeInductorChoices(model=ours, similar="adaptive")


def test_the_import_says_what_could_be_asked_for(
    save_model: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On an H100 with a model of an H200; where it is asked for, the hook announces it instead. `diode doctor` too."""
    path = save_model("v1")
    folder = tmp_path / "gpus" / "0"
    folder.mkdir(parents=True)
    (folder / "information").write_text(f"Model: \t\t {H100.name}\n")
    monkeypatch.setattr(uncovered, "_NVIDIA", tmp_path / "gpus")
    monkeypatch.setattr(uncovered, "_said", threading.Lock())
    monkeypatch.setenv("DIODE_SIMILAR", "top_k")
    uncovered.say_at_import()
    assert caplog.text == ""
    monkeypatch.delenv("DIODE_SIMILAR")
    uncovered.say_at_import()
    assert "(NVIDIA H200 is similar: DIODE_SIMILAR=top_k has its models rank, and benchmarks decide)" in caplog.text
    from diode_trainer.artifact import load

    monkeypatch.setenv("DIODE_SIMILAR", "top_k")
    cards = [load(path).card]
    found = hook_finding(cards, H100)
    assert found.text == "models of NVIDIA H200 rank for NVIDIA H100 80GB HBM3, and benchmarks decide (DIODE_SIMILAR)"
    monkeypatch.setenv("DIODE_MODE", "zero")
    remedy = str(hook_finding(cards, H100).remedy)
    assert remedy.endswith("; or set DIODE_SIMILAR=top_k, so that models of NVIDIA H200 rank and benchmarks decide")
