"""The integration of matrix-product models with Inductor's kernel choices."""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING, Any

from diode_integration import install
from diode_integration.base import BaseIntegration, ModelPointer
from diode_integration.model_set import KnownModel, ModelSet, known_files
from diode_integration.options import hardware_named, model_named
from diode_integration.registry import pointer_to
from diode_store.errors import DiodeError, ModelError, SettingsError
from diode_trainer import artifact
from diode_trainer.card import MATMUL_PURPOSE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from diode_store.exchange.picks import Picks
    from diode_trainer.artifact import TimingModel


class MatmulIntegration(BaseIntegration):
    """Installs ``DiodeInductorChoices`` with the user's models and the shipped ones, or with one that is named."""

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
        """Keep what to install.

        Args:
            model_pointers: the models, best first, of which the first usable one is asked; when None ``model``, or the
                user's and the shipped ones.
            model: a checkpoint or a model's name; when None the one that DIODE_MODEL names, if it does.
            model_path: another name of ``model``.
            enable_fallback: go on without a model when none can be used.
            execute_order: its place among several integrations.
            options: of ``DiodeInductorChoices``.

        Raises:
            DiodeError: the installation is incomplete.
        """
        self._no_such_model: ModelError | None = None
        self._together: list[KnownModel] = []
        if model_pointers is None:
            try:
                path = model_named(model if model is not None else model_path)
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
        """Engage all models that can be used, each of which is asked about what it knows."""
        problem = self.interface_problem()
        if problem is not None:
            raise DiodeError(problem)
        usable = ModelSet(self._together).known
        self.register_model(usable)
        places = {pointer.path: pointer for pointer in self.model_pointers}
        return next(places[known.path] for known in usable if known.path is not None)

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
            DiodeError: there is no such option, or it has a value that cannot be used, or PyTorch has no hook.
        """
        from diode_integration.choices import DiodeInductorChoices  # imports Inductor, which may be missing

        options = dict(self._options)
        _check_names(options, inspect.signature(DiodeInductorChoices).parameters)
        if not self.enable_fallback:  # what is given raises; what stands in for it in the environment is logged
            if options.get("picks"):
                options["picks"] = self._usable_picks()
            options["enable_fallback"] = options.get("corrections") is None
        self._installation = install.install(DiodeInductorChoices(model=model, **options))

    def _usable_picks(self) -> Picks | None:
        """Return the picks that the hook would obey; None without any.

        Raises:
            DiodeError: they are given as an option and cannot be used, and ``enable_fallback`` is False.
        """
        from diode_integration.picked import picks_named, read_for  # imports Inductor, which may be missing

        given = self._options.get("picks")
        named = picks_named(given)
        try:
            return read_for(named, hardware_named(self._options.get("hardware"))) if named else None
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
            remedy = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(known))}"
            raise SettingsError(f"torch_diode.install() has no option {name}; {remedy}")


def _pointer(path: Path) -> ModelPointer:
    return ModelPointer(path.name, model_purpose=MATMUL_PURPOSE, folder=path.parent)


def create_matmul_integration(
    *, enable_fallback: bool = True, execute_order: int | None = None, **options: Any
) -> MatmulIntegration:
    """Return the integration of the shipped models, or of ``model``; other ``options`` are of ``DiodeInductorChoices``.

    Raises:
        DiodeError: the installation is incomplete.
    """
    return MatmulIntegration(enable_fallback=enable_fallback, execute_order=execute_order, **options)
