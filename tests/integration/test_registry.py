"""Which models there are, and how integrations find and engage them."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hooked import compile_op

from diode_integration import base, install, matmul
from diode_integration.base import (
    BaseIntegration,
    IntegrationRegistry,
    ModelPointer,
    discover_and_register_integrations,
    get_integration_status,
    integrate_all,
    register_integration,
)
from diode_integration.choices import DiodeInductorChoices
from diode_integration.inductor import process
from diode_integration.matmul import create_matmul_integration
from diode_integration.registry import ModelRegistry
from diode_store.errors import DiodeError, ModelError
from diode_trainer.artifact import load_shipped
from diode_trainer.card import MATMUL_PURPOSE
from stand_ins import DOMAIN

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import SaveModel


class Recorder(BaseIntegration):
    """Takes every model but those called ``broken`` and remembers what it did."""

    done: list[str]

    def __init__(self, name: str, *models: str, lacking: str | None = None, **options: Any) -> None:
        pointers = [ModelPointer(model, dependencies=()) for model in models]
        super().__init__(name, "an interface", pointers, **options)
        self.done = []
        self.lacking = lacking

    def interface_problem(self) -> str | None:
        """Return what the test says is lacking."""
        return self.lacking

    def load_model(self, pointer: ModelPointer) -> str:
        """Return the model's name."""
        if pointer.model_name.startswith("broken"):
            raise ModelError(f"{pointer.model_name} is damaged")
        return pointer.model_name

    def register_model(self, model: str, pointer: ModelPointer | None = None) -> None:  # noqa: ARG002
        """Remember it."""
        self.done.append(model)

    def withdraw(self) -> None:
        """Remember it."""
        self.done.append("withdrawn")


def regret(geomean: float) -> dict[str, Any]:
    """Return the metrics of a card."""
    return {"all_choices": {"regret": {"1": {"geomean": geomean}}}}


def names(registry: ModelRegistry) -> list[str]:
    """Return the models' file names, best first."""
    return [pointer.model_name for pointer in registry.models()]


def test_models_are_found_by_their_cards(models_folder: Path, save_model: SaveModel) -> None:
    """Every checkpoint with a card is found, with what the card says of it."""
    path = save_model("v1", created_at="2026-11-20T10:00:00+00:00")
    (pointer,) = ModelRegistry.of_folder(models_folder).models()
    assert pointer == ModelPointer(
        "v1.pt",
        MATMUL_PURPOSE,
        MATMUL_PURPOSE,
        description="base model of mm, addmm, bmm on NVIDIA H200",
        version="2026-11-20T10:00:00+00:00",
        folder=models_folder,
    )
    assert pointer.path == path


def test_best_ranking_model_comes_first(save_model: SaveModel, models_folder: Path) -> None:
    """The model with the least regret is the default; without known regret the newest is."""
    save_model("old", created_at="2026-01-01")
    save_model("new", created_at="2026-02-01")
    assert names(ModelRegistry.of_folder(models_folder)) == ["new.pt", "old.pt"]
    save_model("good", created_at="2025-01-01", metrics=regret(1.02))
    save_model("fair", created_at="2026-03-01", metrics=regret(1.05))
    assert names(ModelRegistry.shipped()) == ["good.pt", "fair.pt", "new.pt", "old.pt"]
    assert load_shipped().path.name == "good.pt"


def test_the_shipped_model_is_the_best_that_can_be_used(save_model: SaveModel) -> None:
    """A damaged model is passed over by whoever asks for the shipped one, and named if there is no other."""
    save_model("good", metrics=regret(1.02)).write_bytes(b"damaged")
    with pytest.raises(ModelError, match=r"good\.pt: "):
        load_shipped()
    save_model("fair", metrics=regret(1.05))
    assert load_shipped().path.name == "fair.pt"


def test_damaged_cards_are_left_out(save_model: SaveModel, models_folder: Path) -> None:
    """A card that is no card, or has no checkpoint beside it, is no model."""
    save_model("v1")
    save_model("gone").unlink()
    (models_folder / "notes.json").write_text("{}")
    (models_folder / "notes.pt").write_bytes(b"")
    assert names(ModelRegistry.of_folder(models_folder)) == ["v1.pt"]


def test_no_shipped_model_is_an_error(models_folder: Path) -> None:
    """Without a shipped model, the default is an error that names the remedy."""
    with pytest.raises(ModelError) as refused:
        load_shipped()
    assert str(refused.value) == (
        f"no model for {MATMUL_PURPOSE} is shipped; train one with `diode-train` and pass its path"
    )


def test_default_model_is_used_without_a_path(save_model: SaveModel) -> None:
    """A handler that is given no path takes the best shipped model."""
    save_model("v1", metrics=regret(1.02))
    save_model("v2", metrics=regret(1.5))
    handler = DiodeInductorChoices(hardware="NVIDIA H200")
    assert handler.model is not None
    assert handler.model.card.name == "v1"


def test_registering_by_hand(tmp_path: Path) -> None:
    """A model can be registered by hand, found by purpose and name, and replaced."""
    registry = ModelRegistry()
    registry.register_model(ModelPointer("mine.pt", "here", "my purpose", version="1", folder=tmp_path))
    registry.register_model(ModelPointer("mine.pt", "here", "my purpose", version="2", folder=tmp_path))
    found = registry.get_model("my purpose", "mine.pt")
    assert found is not None
    assert (found.version, found.path) == ("2", tmp_path / "here" / "mine.pt")
    assert registry.get_model("my purpose", "yours.pt") is None
    assert registry.models("another purpose") == []


def test_manifest_lists_models_by_purpose(tmp_path: Path) -> None:
    """The manifest counts the models and describes each as plain values."""
    (tmp_path / "a.pt").write_bytes(bytes(1_234_567))
    registry = ModelRegistry([ModelPointer("a.pt", ".", "x", version="1.0", folder=tmp_path)])
    registry.register_model(ModelPointer("b.pt", ".", "y", description="not there", folder=tmp_path))
    assert registry.manifest() == {
        "total_models": 2,
        "models_by_purpose": {
            "x": [{"name": "a.pt", "relative_path": ".", "size_mb": 1.235, "version": "1.0", "description": ""}],
            "y": [
                {"name": "b.pt", "relative_path": ".", "size_mb": None, "version": "", "description": "not there"},
            ],
        },
    }


def test_first_usable_model_is_engaged() -> None:
    """Damaged models are passed over, and only one is registered."""
    integration = Recorder("recorder", "broken.pt", "good.pt", "better.pt")
    assert integration.integrate() is True
    assert (integration.done, integration.state) == (["good.pt"], "engaged good.pt")


@pytest.mark.parametrize(
    ("models", "lacking", "state"),
    [
        (["good.pt"], "no such interface here", "not engaged: no such interface here"),
        (
            ["broken.pt", "broken-too.pt"],
            None,
            "not engaged: broken.pt is damaged; broken-too.pt is damaged",
        ),
        ([], None, "not engaged: there is no model for recorder; train one with `diode-train`"),
    ],
    ids=["interface", "damaged", "none"],
)
def test_without_a_usable_model_the_state_says_why(models: list[str], lacking: str | None, state: str) -> None:
    """An integration without interface or model does nothing; without fallback it raises the same reason."""
    integration = Recorder("recorder", *models, lacking=lacking)
    assert integration.integrate() is False
    assert (integration.done, integration.state) == ([], state)
    with pytest.raises(DiodeError) as refused:
        Recorder("recorder", *models, lacking=lacking, enable_fallback=False).integrate()
    assert f"not engaged: {refused.value}" == state


def test_missing_dependency_is_named() -> None:
    """A model that needs a module which is not there is passed over."""
    integration = Recorder("recorder", "good.pt")
    integration.model_pointers = (replace(integration.model_pointers[0], dependencies=("no_such_module",)),)
    integration.integrate()
    assert integration.state == (
        "not engaged: good.pt needs no_such_module, which cannot be imported: No module named 'no_such_module'"
    )


def engaged_order(*orders: tuple[str, int | None, int | None]) -> list[str]:
    """Return what engaging and withdrawing does for integrations of (name, own order, order of registration)."""
    order: list[str] = []

    class Ordered(Recorder):
        def register_model(self, _model: str, _pointer: ModelPointer | None = None) -> None:
            order.append(self.name)

        def withdraw(self) -> None:
            order.append(f"not {self.name}")

    registry = IntegrationRegistry()
    for name, own, given in orders:
        registry.register(Ordered(name, "m.pt", execute_order=own), execute_order=given)
    engaged = registry.integrate_all()
    assert engaged == dict.fromkeys(order, True)
    assert list(engaged) == order
    registry.withdraw_all()
    assert registry.status() == dict.fromkeys(engaged, "registered")
    return order


def test_integrations_are_engaged_in_order() -> None:
    """Lower orders come first, equal ones as they were registered; withdrawing goes backwards."""
    order = engaged_order(("b", None, 2), ("a", None, 2), ("c", None, 1))
    assert order == ["c", "b", "a", "not a", "not b", "not c"]


def test_without_an_order_an_integration_comes_last() -> None:
    """One that is registered without an order comes behind all that are there, and those that come later behind it."""
    assert engaged_order(("b", None, 7), ("a", None, None), ("c", None, 3), ("d", None, None))[:4] == list("cbad")


def test_an_integration_has_an_order_of_its_own() -> None:
    """What it was made with counts unless its registration says otherwise."""
    assert engaged_order(("a", 3, None), ("b", 1, None), ("c", 9, 2))[:3] == ["b", "c", "a"]


def test_an_integration_that_is_replaced_leaves_its_place() -> None:
    """Of two with one name the second counts, once."""
    assert engaged_order(("a", None, 1), ("b", None, 2), ("a", None, 3))[:2] == ["b", "a"]


def test_the_later_of_two_hooks_is_in_effect(registered: IntegrationRegistry, save_model: SaveModel) -> None:
    """Of two integrations that install a choices handler, the one with the higher order has the last word."""
    save_model("v1")
    mine = create_matmul_integration(execute_order=2, mode="zero")
    mine.name = "mine"
    register_integration(mine)
    register_integration(create_matmul_integration(), execute_order=1)
    assert integrate_all() == {MATMUL_PURPOSE: True, "mine": True}
    handler = install.installed()
    assert handler is not None
    assert handler.policy.mode == "zero"


def test_manual_integration(registered: IntegrationRegistry) -> None:
    """An integration registered by hand is engaged with the rest, and the status says how far it came."""
    register_integration(Recorder("mine", "good.pt"), execute_order=1)
    register_integration(Recorder("yours", "broken.pt"))
    assert get_integration_status() == {"yours": "registered", "mine": "registered"}
    assert integrate_all() == {"yours": False, "mine": True}
    assert get_integration_status() == {"yours": "not engaged: broken.pt is damaged", "mine": "engaged good.pt"}


def test_discovery_finds_built_in_and_installed_ones(
    registered: IntegrationRegistry, models_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Discovery registers the built-in integration and those of other distributions; bad ones are left out."""
    package = tmp_path / "site"
    metadata = package / "other_diode-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: other-diode\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[diode.integrations]\nother = other_diode:create\nbad = other_diode:nothing\n"
    )
    (package / "other_diode.py").write_text(
        "from diode_integration.matmul import MatmulIntegration\n"
        "def create():\n"
        "    integration = MatmulIntegration([])\n"
        "    integration.name = 'other'\n"
        "    return integration\n"
    )
    monkeypatch.syspath_prepend(str(package))
    importlib.invalidate_caches()
    assert discover_and_register_integrations() == {"bad": False, "matmul": True, "other": True}
    assert list(registered.status()) == [MATMUL_PURPOSE, "other"]


def test_what_is_registered_by_hand_follows_what_was_discovered(
    registered: IntegrationRegistry, save_model: SaveModel
) -> None:
    """However often the built-in integrations are discovered, yours stays behind them."""
    save_model("v1")
    discover_and_register_integrations()
    register_integration(Recorder("mine", "good.pt"))
    discover_and_register_integrations()
    assert list(registered.status()) == [MATMUL_PURPOSE, "mine"]


def test_matmul_integration_installs_the_best_model(registered: IntegrationRegistry, save_model: SaveModel) -> None:
    """Engaged, the built-in integration has installed a handler with the shipped model; withdrawn, it has not."""
    save_model("v1")
    register_integration(create_matmul_integration(hardware="NVIDIA H200", mode="zero"))
    assert integrate_all() == {MATMUL_PURPOSE: True}
    assert get_integration_status() == {MATMUL_PURPOSE: "engaged v1.pt"}
    handler = install.installed()
    assert handler is not None
    assert handler.policy.mode == "zero"
    base.withdraw_all()
    assert install.installed() is None


def test_matmul_integration_survives_a_damaged_model(registered: IntegrationRegistry, save_model: SaveModel) -> None:
    """A checkpoint that is damaged is passed over for the next one."""
    damaged = save_model("v2", metrics=regret(1.0))
    save_model("v1", metrics=regret(1.1))
    damaged.write_bytes(b"damaged")
    register_integration(create_matmul_integration())
    assert integrate_all() == {MATMUL_PURPOSE: True}
    assert get_integration_status() == {MATMUL_PURPOSE: "engaged v1.pt"}


def test_matmul_integration_without_the_hook(
    registered: IntegrationRegistry, save_model: SaveModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a torch without the hook the integration says so and installs nothing."""
    save_model("v1")
    monkeypatch.setattr(process, "InductorChoices", object)
    register_integration(create_matmul_integration())
    assert integrate_all() == {MATMUL_PURPOSE: False}
    assert "has no hook for kernel choices" in get_integration_status()[MATMUL_PURPOSE]


def test_withdrawing_leaves_a_later_install(registered: IntegrationRegistry, save_model: SaveModel) -> None:
    """A handler that the user installed after the integration stays when the integration is withdrawn."""
    path = save_model("v1")
    integration = matmul.MatmulIntegration()
    register_integration(integration)
    integrate_all()
    mine = DiodeInductorChoices(path, mode="zero")
    with install.install(mine):
        integration.withdraw()
        assert install.installed() is mine


def test_real_artifact_decides_a_compile(save_model: SaveModel) -> None:
    """A checkpoint from disk ranks a real compile's candidates; what it keeps is what it predicts to be fastest."""
    handler = DiodeInductorChoices(save_model("v1"), hardware="NVIDIA H200", performance_threshold=100.0)
    watch = compile_op("mm", handler)
    (decision,) = handler.decisions()
    predicted = [candidate.predicted_us for candidate in decision.chosen]
    assert predicted == sorted(predicted)
    assert len(watch.left[0]) == len(predicted) in {3, 4}
    assert handler.get_stats()["model_selections"] == 1


def test_real_artifact_declines_what_its_card_excludes(save_model: SaveModel) -> None:
    """The domain on the card of a real artifact is what decides about abstaining."""
    path = save_model("half", domain=replace(DOMAIN, dtypes=("bfloat16",)))
    handler = DiodeInductorChoices(path, hardware="NVIDIA H200")
    compile_op("mm", handler)
    assert handler.get_stats()["fallback_dtype"] == 1
