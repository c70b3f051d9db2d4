"""Integration of matrix-product models with Inductor's kernel choices."""

from __future__ import annotations

import difflib
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from diode_integration import install
from diode_integration.base import BaseIntegration, ModelPointer
from diode_integration.decide.models import KnownModel, ModelSet, known_files
from diode_integration.inductor.process import missing_capability
from diode_integration.registry import pointer_to
from diode_integration.settings import HookSettings
from diode_store.errors import DiodeError, ModelError, SettingsError
from diode_trainer import artifact
from diode_trainer.card import MATMUL_PURPOSE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from diode_store.exchange.picks import Picks
    from diode_trainer.artifact import TimingModel


class MatmulIntegration(BaseIntegration):
    """Installs ``DiodeInductorChoices`` with the user's and the shipped models, or with a named one."""

    def __init__(
        self,
        model_pointers: Sequence[ModelPointer] | None = None,
        *,
        model: Path | str | None = None,
        model_path: Path | str | None = None,
        enable_fallback: bool = True,
        execute_order: int | None = None,
        **options: Any,
    ) -> None:
        """Keep the models and options to install.

        Args:
            model_pointers: the models, best first; the first usable one decides. None to use ``model``, or without it
                the user's and the shipped models.
            model: a checkpoint or a model's name; None for DIODE_MODEL, if that is set.
            model_path: another name of ``model``.
            enable_fallback: go on without a usable model.
            execute_order: place among several integrations.
            options: fields of ``diode_integration.settings.HookSettings``.

        Raises:
            DiodeError: the installation is incomplete.
        """
        self._no_such_model: ModelError | None = None
        self._together: list[KnownModel] = []
        if model_pointers is None:
            try:
                path = HookSettings.of(model_path=model if model is not None else model_path).checkpoint()
                files = known_files(None) if path is None else []
                self._together = [KnownModel.of_file(file) for file in files]
                model_pointers = [pointer_to(file) for file in files] if path is None else [_pointer(path)]
            except ModelError as error:
                self._no_such_model, model_pointers = error, ()
        super().__init__(
            MATMUL_PURPOSE,
            "torch._inductor.choices",
            model_pointers,
            enable_fallback=enable_fallback,
            execute_order=execute_order,
        )
        self._options = options
        self._is_model_named = model is not None or model_path is not None
        self._installation: install.Installation | None = None

    def _engage(self) -> ModelPointer:
        try:
            if self._no_such_model is not None:
                raise self._no_such_model
            return self._engage_together() if self._together else super()._engage()
        except ModelError:
            picks = None if self._is_model_named else self._usable_picks()
            if picks is None:
                raise
        self.register_model(None)
        return ModelPointer(f"{picks.file or 'the given picks'}, without a model")

    def _engage_together(self) -> ModelPointer:
        """Engage all usable models; each is asked about products that it knows."""
        problem = self.interface_problem()
        if problem is not None:
            raise DiodeError(problem)
        usable = ModelSet(self._together).known
        self.register_model(usable)
        places = {pointer.path: pointer for pointer in self.model_pointers}
        return next(places[known.path] for known in usable if known.path is not None)

    def interface_problem(self) -> str | None:
        """Return what this PyTorch is missing for the choices hook, or None."""
        return missing_capability()

    def load_model(self, pointer: ModelPointer) -> TimingModel:
        """Load a checkpoint.

        Raises:
            ModelError: the checkpoint cannot be used.
        """
        return artifact.load(pointer.path)

    def register_model(self, model: Any, pointer: ModelPointer | None = None) -> None:  # noqa: ARG002 - not needed
        """Install the hook, process-wide.

        Raises:
            DiodeError: an option is unknown or has a value that cannot be used, or PyTorch has no place for the hook.
        """
        from diode_integration.choices import DiodeInductorChoices  # imports Inductor, which may be missing

        options = dict(self._options)
        _check_names(options, [option.name for option in fields(HookSettings) if option.name != "from_environment"])
        if not self.enable_fallback:  # an unusable option raises; an unusable environment variable is logged
            if options.get("picks"):
                options["picks"] = self._usable_picks()
            options["enable_fallback"] = options.get("corrections") is None
        self._installation = install.install(DiodeInductorChoices(model=model, **options))

    def _usable_picks(self) -> Picks | None:
        """Return the picks that the hook would use; None without any.

        Raises:
            DiodeError: picks that are given as an option cannot be used, and ``enable_fallback`` is False.
        """
        given = self._options.get("picks")
        settings = HookSettings.of(picks=given, hardware=self._options.get("hardware"))
        try:
            return settings.read_picks(settings.device())
        except DiodeError:
            if given and not self.enable_fallback:
                raise
            return None

    def withdraw(self) -> None:
        """Uninstall the hook, unless another was installed since."""
        if self._installation is not None:
            self._installation.close()
            self._installation = None


def _check_names(options: Iterable[str], known: Iterable[str]) -> None:
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            remedy = f"did you mean {close[0]}?" if close else f"the options are {', '.join(sorted(known))}"
            raise SettingsError(f"torch_diode.install() has no option {name}; {remedy}")


def _pointer(path: Path) -> ModelPointer:
    return ModelPointer(path.name, model_purpose=MATMUL_PURPOSE, folder=path.parent)


def create_matmul_integration(
    *, enable_fallback: bool = True, execute_order: int | None = None, **options: Any
) -> MatmulIntegration:
    """Return the integration of the shipped models, or of ``model``; ``options`` are fields of ``HookSettings``.

    Raises:
        DiodeError: the installation is incomplete.
    """
    return MatmulIntegration(enable_fallback=enable_fallback, execute_order=execute_order, **options)
