"""The integration of matrix-product models with Inductor's kernel choices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diode_integration import install
from diode_integration.base import BaseIntegration, ModelPointer
from diode_integration.registry import ModelRegistry
from diode_trainer import artifact
from diode_trainer.card import MATMUL_PURPOSE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_trainer.artifact import TimingModel


class MatmulIntegration(BaseIntegration):
    """Installs ``DiodeInductorChoices`` with the best shipped model."""

    def __init__(
        self,
        model_pointers: Sequence[ModelPointer] | None = None,
        *,
        enable_fallback: bool = True,
        execute_order: int | None = None,
        **options: Any,
    ) -> None:
        """Keep what to install.

        Args:
            model_pointers: the models, best first; the shipped ones when None.
            enable_fallback: go on without a model when none can be used.
            execute_order: its place among several integrations.
            options: of ``DiodeInductorChoices``.

        Raises:
            DiodeError: the installation is incomplete.
        """
        if model_pointers is None:
            model_pointers = ModelRegistry.shipped().models(MATMUL_PURPOSE)
        super().__init__(
            MATMUL_PURPOSE,
            "torch._inductor.choices",
            model_pointers,
            enable_fallback=enable_fallback,
            execute_order=execute_order,
        )
        self._options = options
        self._installation: install.Installation | None = None

    def interface_problem(self) -> str | None:
        """Return what this PyTorch is missing for the choices hook, or None."""
        return install.missing_capability()

    def load_model(self, pointer: ModelPointer) -> TimingModel:
        """Load a checkpoint.

        Raises:
            ModelError: it cannot be used.
        """
        return artifact.load(pointer.path)

    def register_model(self, model: Any) -> None:
        """Install the hook, process-wide.

        Raises:
            DiodeError: an option has a value that cannot be used, or PyTorch has no hook.
        """
        from diode_integration.choices import DiodeInductorChoices  # imports Inductor, which may be missing

        self._installation = install.install(DiodeInductorChoices(model=model, **self._options))

    def withdraw(self) -> None:
        """Uninstall the hook, unless another was installed since."""
        if self._installation is not None:
            self._installation.close()
            self._installation = None


def create_matmul_integration(
    *, enable_fallback: bool = True, execute_order: int | None = None, **options: Any
) -> MatmulIntegration:
    """Return the integration of the shipped models; ``options`` are those of ``DiodeInductorChoices``.

    Raises:
        DiodeError: the installation is incomplete.
    """
    return MatmulIntegration(enable_fallback=enable_fallback, execute_order=execute_order, **options)
