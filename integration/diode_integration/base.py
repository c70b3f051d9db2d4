"""Base class of integrations of models with PyTorch, and the registry that engages them.

Engaging takes three steps: check that PyTorch has the interface, load a model, register it. A step may fail without
harm; ``get_integration_status`` reports the state of each integration.
"""

from __future__ import annotations

import importlib
import logging
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from diode_store.errors import DiodeError, ModelError
from diode_store.system.resources import trained_models_dir
from diode_store.values import safely

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

log = logging.getLogger("diode_integration")

ENTRY_POINTS = "diode.integrations"
"""Group of entry points, each a function without arguments that returns a ``BaseIntegration``."""
_BUILT_IN = {"matmul": "diode_integration.matmul:create_matmul_integration"}
_BYTES_PER_MB = 1e6


@dataclass(frozen=True)
class ModelPointer:
    """Location and purpose of a model."""

    model_name: str
    """File name."""
    relative_path: str = "."
    """Folder, relative to ``folder``."""
    model_purpose: str = ""
    interface_name: str = "torch._inductor.choices"
    description: str = ""
    version: str = ""
    dependencies: Sequence[str] = ("torch._inductor.choices",)
    """Modules that must be importable."""
    folder: Path | None = None
    """Folder of models; None for the models that ship with torch-diode."""

    @property
    def path(self) -> Path:
        """Path of the checkpoint.

        Raises:
            DiodeError: the installation is incomplete.
        """
        return (self.folder or trained_models_dir()) / self.relative_path / self.model_name

    def describe(self) -> dict[str, Any]:
        """Return the model's entry in a manifest."""
        return {
            "name": self.model_name,
            "relative_path": self.relative_path,
            "size_mb": round(self.path.stat().st_size / _BYTES_PER_MB, 3) if self.path.exists() else None,
            "version": self.version,
            "description": self.description,
        }


class BaseIntegration(ABC):
    """Engages the first usable one of its models with one interface of PyTorch."""

    def __init__(
        self,
        name: str,
        interface_name: str,
        model_pointers: Sequence[ModelPointer],
        *,
        enable_fallback: bool = True,
        execute_order: int | None = None,
    ) -> None:
        """Keep the models to integrate.

        Args:
            name: name of the integration, unique in a registry.
            interface_name: the PyTorch interface that the models serve.
            model_pointers: the models, best first.
            enable_fallback: go on without a usable model; if False, ``integrate`` raises.
            execute_order: place among several integrations, lower first; None leaves it to the registry.
        """
        self.name = name
        self.interface_name = interface_name
        self.model_pointers = tuple(model_pointers)
        self.enable_fallback = enable_fallback
        self.execute_order = execute_order
        self.state = "registered"
        """``registered``, ``engaged NAME``, or the obstacle."""

    def interface_problem(self) -> str | None:
        """Return why this PyTorch lacks the interface, as ``create_dummy_function`` raises; None if it does not."""
        try:
            self.create_dummy_function()
        except Exception as error:  # noqa: BLE001 - somebody else's class; an interface may be missing in any way
            return f"{self.interface_name} cannot be used: {safely.in_words(error)}"
        return None

    def create_dummy_function(self) -> Any:  # noqa: B027 - optional
        """Use the interface to see that it exists; does nothing unless overridden."""

    @abstractmethod
    def load_model(self, pointer: ModelPointer) -> Any:
        """Load a model.

        Raises:
            ModelError: the model cannot be used.
        """

    @abstractmethod
    def register_model(self, model: Any, pointer: ModelPointer | None = None) -> bool | None:
        """Hand a loaded model to PyTorch; return False if PyTorch does not take the model.

        Raises:
            DiodeError: PyTorch does not accept the model.
        """

    def enable_configs(self) -> bool | None:  # noqa: B027 - optional
        """Have PyTorch ask the model; return False on failure. Does nothing unless overridden."""

    def withdraw(self) -> None:  # noqa: B027 - optional
        """Undo ``register_model``; harmless without a registered model. Does nothing unless overridden."""

    def integrate(self) -> bool:
        """Engage the first usable model.

        Returns:
            Whether a model is engaged.

        Raises:
            DiodeError: no model is usable, and ``enable_fallback`` is False.
        """
        try:
            self.state = f"engaged {self._engage().model_name}"
        except DiodeError as error:
            self.state = f"not engaged: {error}"
            if not self.enable_fallback:
                raise
            return False
        return True

    def _engage(self) -> ModelPointer:
        problem = self.interface_problem()
        if problem is not None:
            raise DiodeError(problem)
        reasons = []
        for pointer in self.model_pointers:
            try:
                self._check_dependencies(pointer)
                is_taken = self.register_model(self.load_model(pointer), pointer)
                if is_taken is False or self.enable_configs() is False:
                    raise ModelError(f"{pointer.model_name}: {self.interface_name} does not take it")  # noqa: TRY301
            except ModelError as error:
                reasons.append(str(error))
            else:
                return pointer
        raise ModelError("; ".join(reasons) or f"there is no model for {self.name}; train one with `diode-train`")

    @staticmethod
    def _check_dependencies(pointer: ModelPointer) -> None:
        for module in pointer.dependencies:
            try:
                importlib.import_module(module)
            except ImportError as error:
                raise ModelError(f"{pointer.model_name} needs {module}, which cannot be imported: {error}") from None


@dataclass
class IntegrationRegistry:
    """Integrations by name, engaged in a given order.

    If two serve the same interface, such as Inductor's choices, the one engaged last is in effect.
    """

    _entries: dict[str, tuple[int, BaseIntegration]] = field(default_factory=dict)

    def register(self, integration: BaseIntegration, execute_order: int | None = None) -> None:
        """Add an integration, in place of one of the same name.

        Args:
            integration: the integration.
            execute_order: its place, lower first; equal ones follow in the order of registration. None takes the
                integration's own ``execute_order``. If that is None too, the integration comes last.
        """
        self._entries.pop(integration.name, None)
        wanted = integration.execute_order if execute_order is None else execute_order
        behind = max((order for order, _ in self._entries.values()), default=0) + 1
        self._entries[integration.name] = (behind if wanted is None else wanted, integration)

    def integrations(self) -> list[BaseIntegration]:
        """Return the integrations in the order of engagement."""
        return [entry for _, entry in sorted(self._entries.values(), key=lambda pair: pair[0])]

    def integrate_all(self) -> dict[str, bool]:
        """Engage every integration; return by name whether it now has a model.

        Raises:
            DiodeError: an integration without fallback has no model.
        """
        return {integration.name: integration.integrate() for integration in self.integrations()}

    def withdraw_all(self) -> None:
        """Withdraw every integration, last engaged first."""
        for integration in reversed(self.integrations()):
            integration.withdraw()
            integration.state = "registered"

    @contextmanager
    def restored_on_error(self) -> Iterator[None]:
        """Restore the present registrations if the block fails."""
        entries = dict(self._entries)
        try:
            yield
        except BaseException:
            self._entries = entries
            raise

    def status(self) -> dict[str, str]:
        """Return the state of each integration by name."""
        return {integration.name: integration.state for integration in self.integrations()}


_registry = IntegrationRegistry()


def register_integration(integration: BaseIntegration, execute_order: int | None = None) -> None:
    """Add an integration to the process's registry; lower orders are engaged first, None last."""
    _registry.register(integration, execute_order)


def integrate_all() -> dict[str, bool]:
    """Engage every registered integration; return by name whether it now has a model.

    Raises:
        DiodeError: an integration without fallback has no model.
    """
    return _registry.integrate_all()


def withdraw_all() -> None:
    """Withdraw every registered integration."""
    _registry.withdraw_all()


def restored_on_error() -> AbstractContextManager[None]:
    """Restore the process's present registrations if the block fails."""
    return _registry.restored_on_error()


def get_integration_status() -> dict[str, str]:
    """Return the state of each registered integration by name."""
    return _registry.status()


def discover_and_register_integrations() -> dict[str, bool]:
    """Register the built-in integrations, then by name those of other distributions.

    They get the orders 1, 2 and so on. An integration with an ``execute_order`` keeps its own.

    Returns:
        Whether each could be created, by name; failures are logged and left out.
    """
    installed = sorted((entry.name, entry.value) for entry in entry_points(group=ENTRY_POINTS))
    found = {**_BUILT_IN, **dict(installed)}
    return {name: _make_and_register(name, target, place) for place, (name, target) in enumerate(found.items(), 1)}


def _make_and_register(name: str, target: str, place: int) -> bool:
    module, _, function = target.partition(":")
    try:
        integration = getattr(importlib.import_module(module), function)()
    except Exception as error:  # noqa: BLE001 - another distribution's code; it must not take the others down
        line = f"the integration {name} ({target}) cannot be made: {safely.in_words(error)}"
        safely.log(log, logging.WARNING, line)
        return False
    _registry.register(integration, place if integration.execute_order is None else None)
    return True
