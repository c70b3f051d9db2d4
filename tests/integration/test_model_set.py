"""Which of several models the hook asks."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hooked import compile_op

from diode_collectors.inductor.adapter import POLICY_ANNOTATION
from diode_integration import install
from diode_integration.base import integrate_all, register_integration
from diode_integration.choices import DiodeInductorChoices
from diode_integration.decide.models import KnownModel, ModelSet
from diode_integration.matmul import create_matmul_integration
from diode_store.devices.known import known_device
from diode_store.errors import ModelError
from diode_store.records import Problem, TensorSpec
from diode_trainer import catalogue
from diode_trainer.card import MATMUL_PURPOSE
from diode_trainer.catalogue import write_defaults
from diode_trainer.covered import CoveredHardware
from stand_ins import DOMAIN, H200, AbstainedError, TileModel, asked_about, card_of

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import SaveModel
    from diode_integration.base import IntegrationRegistry
    from diode_trainer.card import Domain

H100 = known_device("NVIDIA H100 80GB HBM3")
A10G = known_device("NVIDIA A10G")
assert H200 is not None
assert H100 is not None
assert A10G is not None
OF_H100 = replace(DOMAIN, hardware=(CoveredHardware(H100.name, H100.arch, H100.multiprocessors),))


def problem(op: str = "mm", size: int = 256) -> Problem:
    """Return a product of square matrices, or a batch of them."""
    sizes = (size, size) if op == "mm" else (4, size, size)
    strides = (size, 1) if op == "mm" else (size * size, size, 1)
    return Problem.create(op, (TensorSpec("bfloat16", sizes, strides),) * 2)


def model(digit: str, domain: Domain = DOMAIN, **options: Any) -> TileModel:
    """Return a stand-in with a SHA-256 of one digit."""
    return TileModel(sha256=digit * 64, card=replace(card_of(domain), name=f"model {digit}"), **options)


def known(*models: TileModel) -> list[KnownModel]:
    """Return models that have been loaded."""
    return [KnownModel.loaded(each) for each in models]


def broken(digit: str, domain: Domain = DOMAIN) -> KnownModel:
    """Return a model with a card, of which the checkpoint is damaged."""

    def load() -> TileModel:
        raise ModelError(f"{digit}.pt: damaged")

    return KnownModel(replace(card_of(domain), name=f"model {digit}"), digit * 64, load)


def test_the_first_that_knows_the_device_and_the_product_is_asked() -> None:
    """One of another device is passed over, and one that does not know the op; each other question has its own."""
    without_bmm = replace(DOMAIN, ops=("mm",))
    models = ModelSet(known(model("1", OF_H100), model("2", without_bmm), model("3")))
    asked = [
        asked_about(models, problem(op), device).model.sha256[0]
        for op, device in (("mm", H200), ("bmm", H200), ("mm", H100))
    ]
    assert asked == ["2", "3", "1"]


def test_over_a_range_one_that_knows_all_of_it_comes_first() -> None:
    """Before one that knows only the size at hand, which is asked where none knows more."""
    small = replace(DOMAIN, shapes={**DOMAIN.shapes, "m": (1, 512)})
    models = ModelSet(known(model("1", small), model("2")))
    within, beyond = problem(size=512), problem(size=2048)
    asked = [asked_about(models, problem(), H200, others).model.sha256[0] for others in ([within], [within, beyond])]
    assert asked == ["1", "2"]
    alone = ModelSet(known(model("1", small)))
    assert asked_about(alone, problem(), H200, [beyond]).model.sha256 == "1" * 64


def test_where_none_knows_it_the_reason_is_that_of_the_first_of_the_device() -> None:
    """Or, of a device that none knows, which devices the models know."""
    only_mm = [replace(domain, ops=("mm",)) for domain in (OF_H100, DOMAIN)]
    models = ModelSet(known(model("1", only_mm[0]), model("2", only_mm[1])))
    with pytest.raises(AbstainedError, match=r"^op: the model knows mm, not bmm$"):
        asked_about(models, problem("bmm"), H200)
    with pytest.raises(
        AbstainedError,
        match=r"^hardware: the models know the architectures sm_90 \(NVIDIA H100 80GB HBM3, NVIDIA H200\), not",
    ):
        asked_about(models, problem("mm"), A10G)
    with pytest.raises(
        AbstainedError, match=r"^hardware: the model knows the architecture sm_90 \(NVIDIA H200\), not NVIDIA A10G"
    ):
        asked_about(ModelSet(known(model("1"))), problem("mm"), A10G)


def test_damaged_models_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """At once if it is the first, in the compile that needs it if it is another; each is logged once."""
    models = ModelSet([broken("1"), *known(model("2", OF_H100)), broken("3"), *known(model("4"))])
    assert models.first.model.sha256 == "2" * 64
    for _ in range(2):
        assert asked_about(models, problem("mm"), H200).model.sha256 == "4" * 64
    logged = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert logged == ["a model is left out: 1.pt: damaged", "a model is left out: 3.pt: damaged"]
    with pytest.raises(ModelError, match=r"^1\.pt: damaged; 2\.pt: damaged$"):
        ModelSet([broken("1"), broken("2")])
    alone = ModelSet([*known(model("2", OF_H100)), broken("3")])
    with pytest.raises(AbstainedError, match=r"^no_model: 3\.pt: damaged$"):
        asked_about(alone, problem("mm"), H200)


def test_only_what_is_asked_is_loaded() -> None:
    """A user may have many models."""
    loaded = []
    third = model("3", OF_H100)

    def load() -> TileModel:
        loaded.append(third)
        return third

    models = ModelSet([*known(model("1")), KnownModel(third.card, third.sha256, load)])
    asked_about(models, problem("mm"), H200)
    assert loaded == []
    for _ in range(2):
        asked_about(models, problem("mm"), H100)
    assert loaded == [third]


def test_the_cache_key_follows_from_all_models_and_their_order() -> None:
    """Of one it is its own, as ever."""
    one, two = model("1"), model("2")
    keys = [ModelSet(known(*models)).key for models in ((one,), (one, two), (two, one))]
    assert keys[0] == one.sha256
    assert len(set(keys)) == 3
    handlers = [DiodeInductorChoices(model=known(*models)) for models in ((one,), (one, two))]
    assert handlers[0].uuid() == DiodeInductorChoices(model=one).uuid()
    assert handlers[0].uuid() != handlers[1].uuid()


def test_choices_and_decisions_say_whose_they_are() -> None:
    """Of several models, the one that ranked: in a real compile, on the choice that collectors see and in decisions."""
    handler = DiodeInductorChoices(
        model=known(model("1", OF_H100), model("2", vendor_us=30.0)), hardware=H200, mode="zero"
    )
    watch = compile_op("mm", handler, run_vendor=True)
    (choice,) = watch.kept[0]
    assert choice.annotations[POLICY_ANNOTATION] == "hook:" + "2" * 64
    (decision,) = handler.decisions()
    assert decision.model_sha256 == "2" * 64


def test_equal_weights_with_different_cards_are_two_models() -> None:
    """A copy may be of another device, or damaged; what it is does not hang on the other."""
    models = ModelSet([broken("2"), *known(model("2")), *known(model("2", OF_H100))])
    assert asked_about(models, problem(), H200).model.card.domain == DOMAIN
    assert asked_about(models, problem(), H100).model.card.domain == OF_H100


# --- the user's models


def regret(geomean: float) -> dict[str, Any]:
    """Return the metrics of a card."""
    return {"all_choices": {"regret": {"1": {"geomean": geomean}}}}


def own(save_model: SaveModel, name: str, **card: Any) -> Path:
    """Save a model among the user's; where nothing tells their folder there are none."""
    pytest.importorskip("platformdirs")
    path, target = save_model(name, **card), catalogue.user_models_dir() / MATMUL_PURPOSE
    target.mkdir(parents=True, exist_ok=True)
    for file in (path, path.with_suffix(".json")):
        file.rename(target / file.name)
    return target / path.name


def test_a_users_model_is_asked_without_being_named(save_model: SaveModel, registered: IntegrationRegistry) -> None:
    """On its device; the shipped one on its own. That is so of a handler, and of ``import torch_diode``."""
    save_model("ships", metrics=regret(1.01))
    own(save_model, "mine", domain=OF_H100, metrics=regret(1.04))
    register_integration(create_matmul_integration())
    assert integrate_all() == {MATMUL_PURPOSE: True}
    for handler in (DiodeInductorChoices(), install.installed()):
        assert handler is not None
        assert handler.models is not None
        names = [asked_about(handler.models, problem("mm"), device).model.card.name for device in (H100, H200)]
        assert names == ["mine", "ships"]
    on_h100 = DiodeInductorChoices(hardware=H100)
    assert on_h100.models is not None
    assert [each.card.name for each in on_h100.models.known] == ["mine", "ships"]


def test_a_model_is_loaded_amid_a_compile(save_model: SaveModel) -> None:
    """There tensors are not real in the thread that compiles; the checkpoint's are."""
    first = model("1", OF_H100)
    saved = KnownModel.of_file(catalogue.best_first(save_model("mine").parent)[0])
    handler = DiodeInductorChoices(model=[*known(first), saved], hardware=H200, mode="zero")
    compile_op("mm", handler, run_vendor=True)
    (decision,) = handler.decisions()
    assert decision.model_sha256 == saved.sha256
    assert handler.get_stats().get("fallback_error", 0) == 0


def test_a_default_counts_more_than_regret(
    save_model: SaveModel, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And DIODE_MODEL more than a default; a damaged file of defaults is logged, and the order is that without it."""
    save_model("ships", metrics=regret(1.01))
    own(save_model, "mine", metrics=regret(1.04))

    def first() -> str:
        handler = DiodeInductorChoices()
        assert handler.model is not None
        return handler.model.card.name

    assert first() == "ships"
    write_defaults(catalogue.user_models_dir(), [f"{MATMUL_PURPOSE}/mine"])
    assert first() == "mine"
    monkeypatch.setenv("DIODE_MODEL", "ships")
    assert first() == "ships"
    monkeypatch.delenv("DIODE_MODEL")
    (catalogue.user_models_dir() / "defaults.json").write_text("{")
    assert first() == "ships"
    assert "cannot read the default models" in caplog.text


def test_a_model_of_a_narrow_space_is_said(save_model: SaveModel, caplog: pytest.LogCaptureFixture) -> None:
    """Unless it ranks only Inductor's DEFAULT list, or learned from enough, or does not say."""
    save_model("narrow", data={"triton_configs": 21})
    DiodeInductorChoices(search_space="DEFAULT")
    assert caplog.text == ""
    DiodeInductorChoices()
    (record,) = caplog.records
    assert record.getMessage().startswith("the model narrow: only 21 Triton configs were measured, and the hook ranks")
    caplog.clear()
    for data in ({"triton_configs": 800}, {"triton_configs": 0}, {}):
        save_model("narrow", data=data)
        DiodeInductorChoices()
    assert caplog.text == ""


def test_a_damaged_model_is_passed_over_when_installed(
    save_model: SaveModel, registered: IntegrationRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """Though it has the name of the shipped one, and comes first; the log says so, and so it is in the cache key."""
    save_model("same", metrics=regret(1.01))
    sound = DiodeInductorChoices().uuid()
    damaged = own(save_model, "same", metrics=regret(1.0))
    save_model("same", metrics=regret(1.01))
    damaged.write_bytes(damaged.read_bytes()[:-9])
    register_integration(create_matmul_integration())
    assert integrate_all() == {MATMUL_PURPOSE: True}
    handler = install.installed()
    assert handler is not None
    assert handler.uuid() == sound
    logged = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [message.partition(":")[0] for message in logged] == ["a model is left out"]


def test_a_users_model_of_a_shipped_name_is_engaged(save_model: SaveModel, registered: IntegrationRegistry) -> None:
    """Before the shipped one, which is still asked about what the user's does not know."""
    own(save_model, "same", domain=OF_H100, metrics=regret(1.04))
    save_model("same", metrics=regret(1.01))
    register_integration(create_matmul_integration())
    assert integrate_all() == {MATMUL_PURPOSE: True}
    handler = install.installed()
    assert handler is not None
    assert handler.models is not None
    known = [each.card.hardware[0].name for each in handler.models.known]
    assert known == [H100.name, H200.name]


def test_a_model_that_is_replaced_meanwhile_is_not_asked(save_model: SaveModel) -> None:
    """What it knows, and what is cached, hang on the card that was read."""
    save_model("ships", domain=OF_H100, metrics=regret(1.01))
    mine = own(save_model, "mine", metrics=regret(1.04))
    handler = DiodeInductorChoices()
    assert handler.models is not None
    mine.unlink()
    save_model("other", metrics=regret(1.0)).rename(mine)
    (mine.parent / "mine.json").write_text((mine.parent / "mine.json").read_text())
    with pytest.raises(AbstainedError, match=r"^no_model: .*mine\.(pt|json): "):
        asked_about(handler.models, problem(), H200)


def test_a_damaged_file_is_no_part_of_the_cache_key(save_model: SaveModel) -> None:
    """It is found when the handler is made, though nothing has asked for it."""
    save_model("ships", metrics=regret(1.01))
    alone = DiodeInductorChoices().uuid()
    mine = own(save_model, "mine", domain=OF_H100, metrics=regret(1.04))
    both = DiodeInductorChoices().uuid()
    mine.write_bytes(b"")
    assert DiodeInductorChoices().uuid() == alone
    assert both != alone
