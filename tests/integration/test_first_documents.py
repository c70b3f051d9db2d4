"""The code of the first documents, with other import paths and nothing else changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch._inductor.virtualized import V

from diode_collectors.matmul import MatmulDatasetCollector
from diode_integration.base import BaseIntegration, ModelPointer
from diode_integration.inductor_integration import create_diode_choices
from diode_integration.registry import ModelRegistry

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class YourIntegration(BaseIntegration):
    """Integration for your model type."""

    def __init__(  # the documents' own signature
        self,
        model_pointers: list[ModelPointer] | None = None,
        enable_fallback: bool = True,  # noqa: FBT001, FBT002
        **kwargs: Any,
    ) -> None:
        if model_pointers is None:
            model_pointers = [
                ModelPointer(
                    model_name="v1_model.pt",
                    relative_path="your_model_category",
                    model_purpose="your_model_purpose",
                    interface_name="torch._inductor.choices",
                    description="Your model description",
                    version="1.0",
                    dependencies=["torch._inductor", "torch._inductor.choices"],
                ),
            ]
        super().__init__(
            name="your_model_prediction",
            interface_name="torch._inductor.choices",
            model_pointers=model_pointers,
            enable_fallback=enable_fallback,
            **kwargs,
        )
        self.done: list[str] = []

    def create_dummy_function(self) -> Any:
        """Create dummy function to test interface availability."""
        self.done.append("dummy")

    def load_model(self, model_pointer: ModelPointer) -> Any:
        """Load your model from a model pointer."""
        self.done.append("load")
        return model_pointer.model_name

    def register_model(self, model: Any, model_pointer: ModelPointer) -> bool:
        """Register loaded model with target interface."""
        self.done.append(f"register {model} {model_pointer.version}")
        return True

    def enable_configs(self) -> bool:
        """Enable PyTorch configs for your models."""
        self.done.append("enable")
        return True


def test_an_integration_of_four_methods() -> None:
    """Its methods run in the documents' order."""
    integration = YourIntegration()
    assert integration.integrate()
    assert integration.done == ["dummy", "load", "register v1_model.pt 1.0", "enable"]


def test_an_integration_that_refuses() -> None:
    """False, and an interface that is missing, are reasons not to engage."""

    class Refusing(YourIntegration):
        def enable_configs(self) -> bool:
            return False

    class Missing(YourIntegration):
        def create_dummy_function(self) -> Any:
            raise ImportError("no such interface")

    refusing, missing = Refusing(), Missing()
    assert [refusing.integrate(), missing.integrate()] == [False, False]
    assert refusing.state == "not engaged: v1_model.pt: torch._inductor.choices does not take it"
    assert "no such interface" in missing.state


def test_manual_usage() -> None:
    """A handler is made for a device, and set and reset by hand."""
    choices = create_diode_choices(device="cpu", top_k_configs=5)
    old_handler = V.choices  # the documents' name for it is gone from torch
    V.set_choices_handler(choices)
    V.set_choices_handler(old_handler)
    assert choices.get_stats()["total_calls"] == 0


def test_the_registry_knows_what_ships() -> None:
    """The manifest has the shipped models."""
    manifest = ModelRegistry().manifest()
    assert manifest["total_models"] == sum(map(len, manifest["models_by_purpose"].values())) > 0


def test_a_collector_that_recorded_nothing_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The file is written, and the log says why it is empty."""
    with MatmulDatasetCollector(hardware_name="my_gpu") as collector:
        pass
    collector.save_to_file(str(tmp_path / "matmul_dataset.json"))
    said = f"{tmp_path}/matmul_dataset.json: nothing was recorded; matrix products compiled: 0"
    assert said in caplog.messages
