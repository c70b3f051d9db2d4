"""The models that a handler may ask, and which of them is asked about a matrix product on a device.

The first that knows the device and the product is. What a model knows is on its card, so that only the first is loaded
at once, and another when it is needed.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from diode_integration.predictor import AbstentionError, Predictor, check_domain
from diode_store import safely
from diode_store.devices import describe
from diode_store.errors import ModelError, SettingsError
from diode_trainer import artifact, catalogue
from diode_trainer.card import MATMUL_PURPOSE, similar_device
from diode_trainer.defaults import known_defaults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from diode_integration.predictor import Model
    from diode_store.records import Hardware, Problem
    from diode_trainer.card import Card
    from diode_trainer.catalogue import ModelFile
    from diode_trainer.corrections.corrections import Corrections

log = logging.getLogger("diode_integration")

_announced: set[bytes] = set()
"""Keys of devices of which it was said, in this process, that models of a similar one rank for them."""


@dataclass(frozen=True, eq=False)
class KnownModel:
    """A model of which the card has been read."""

    card: Card
    sha256: str
    load: Callable[[], Model]
    """Raises ``ModelError`` where it cannot be used."""
    path: Path | None = None
    """Where it is loaded from; None of one that has been loaded."""

    @classmethod
    def loaded(cls, model: Model) -> KnownModel:
        """Return a model that has been loaded."""
        return cls(model.card, model.sha256, lambda: model)

    @classmethod
    def of_file(cls, file: ModelFile) -> KnownModel:
        """Return a model that is loaded when it is needed, once."""
        return cls(file.card, file.card.sha256, cache(partial(_load, file)), file.path)


class ModelSet:
    """Models in the order in which they are asked; safe to share between threads."""

    def __init__(
        self,
        models: Iterable[KnownModel],
        corrections: Corrections | None = None,
        on_load: Callable[[Model], None] = lambda _model: None,
    ) -> None:
        """Load the first that can be used; those before it are left out, which is logged.

        Args:
            models: in order.
            corrections: of one of them.
            on_load: called with each model that is loaded.

        Raises:
            ModelError: none can be used; the message says why.
        """
        self._lock = threading.RLock()
        self._predictors: dict[int, Predictor | None] = {}
        self._similar: dict[tuple[int, str], Predictor] = {}
        self._on_load = on_load
        self._lacking: list[str] = []
        self.corrections = corrections
        self.known = tuple(models)
        first = next((found for model in self.known if (found := self._first(model)) is not None), None)
        if first is None:
            raise ModelError(self._why_none())
        self.first = first
        self.known = tuple(model for model in self.known if self._is_whole(model))

    @property
    def key(self) -> str:
        """What tells it from another in a cache key: the SHA-256 of its model, or of those of all its models."""
        if len(self.known) == 1:
            return self.known[0].sha256
        return hashlib.sha256("".join(model.sha256 for model in self.known).encode()).hexdigest()

    @property
    def know_their_spread(self) -> bool:
        """Whether one of them says how far its members disagree, and what that is worth."""
        return self.first.knows_its_spread or any(model.card.calibration is not None for model in self.known[1:])

    def asked_about(
        self, problem: Problem, hardware: Hardware, others: Sequence[Problem] = (), *, similar: bool = False
    ) -> Predictor:
        """Return the predictor of the first that knows a matrix product on a device.

        Args:
            problem: the product.
            hardware: the device.
            others: what it has to serve as well; one that knows them all comes before one that does not.
            similar: of a device that none knows, ask those of the nearest one of its architecture.

        Raises:
            AbstentionError: none does; the reason is that of the first which knows the device.
        """
        asked = [model for model in self.known if model.card.domain.covers(hardware)]
        stands_in = "" if asked else similar_device([model.card for model in self.known], hardware)
        if stands_in and similar:
            self._announce(hardware, stands_in)
            asked = [model for model in self.known if _knows(model, stands_in)]
        elif not asked:
            raise self._no_such_device(problem, hardware, stands_in)
        misses = {id(model): _miss(model, problem, hardware, stands_in) for model in asked}
        knowing = [model for model in asked if misses[id(model)] is None]
        # Stable: those that know the others as well come first, each part in its order.
        knowing.sort(key=lambda model: any(_miss(model, other, hardware, stands_in) for other in others))
        for model in knowing:
            if (predictor := self._predictor(model, stands_in)) is not None:
                return predictor
        reason = next((miss for miss in misses.values() if miss is not None), None)
        raise reason or AbstentionError("no_model", self._why_none())

    def _announce(self, hardware: Hardware, stands_in: str) -> None:
        with self._lock:
            if hardware.key in _announced:
                return
            _announced.add(hardware.key)
        how = f"models of {stands_in} rank its kernels, and benchmarks on the device have the last word"
        safely.log(log, logging.WARNING, f"no model knows {hardware.name}: {how} (logged once)")

    def _no_such_device(self, problem: Problem, hardware: Hardware, stands_in: str) -> AbstentionError:
        if stands_in:
            how = "DIODE_SIMILAR=top_k has its models rank, and benchmarks decide (not in zero mode)"
            hint = f"; {stands_in} is similar: {how}"
            return AbstentionError("hardware", self._no_such_device(problem, hardware, "").detail + hint)
        if len(self.known) == 1 and (miss := _miss(self.known[0], problem, hardware, "")) is not None:
            return miss
        names = dict.fromkeys(device.name for model in self.known for device in model.card.hardware)
        return AbstentionError("hardware", f"the models know {', '.join(names)}, not {describe([hardware])}")

    def _why_none(self) -> str:
        return "; ".join(self._lacking) or f"there is no model for {MATMUL_PURPOSE}; train one with `diode-train`"

    def _predictor(self, model: KnownModel, stands_in: str = "") -> Predictor | None:
        """Return what asks a model, loaded once; None where it cannot be used, which is logged."""
        with self._lock:
            if id(model) not in self._predictors:
                self._predictors[id(model)] = _in_a_thread(partial(self._loaded, model))
            found = self._predictors[id(model)]
            if found is None or not stands_in:
                return found
            return self._similar.setdefault((id(model), stands_in), Predictor(found.model, similar_to=stands_in))

    def _first(self, model: KnownModel) -> Predictor | None:
        found = self._predictors[id(model)] = self._loaded(model)
        return found

    def _is_whole(self, model: KnownModel) -> bool:
        """Whether the file is still the one that the card is of; what cannot be used must not be part of the key."""
        if id(model) in self._predictors or model.path is None:
            return self._predictors.get(id(model), self.first) is not None
        try:
            whole = hashlib.sha256(model.path.read_bytes()).hexdigest() == model.sha256
        except OSError:
            whole = False
        if not whole:
            self._leave_out(f"{model.path}: damaged, or another model than its card's")
        return whole

    def _leave_out(self, reason: str) -> None:
        self._lacking.append(reason)
        if len(self.known) > 1:
            safely.log(log, logging.WARNING, f"a model is left out: {reason}")

    def _loaded(self, model: KnownModel) -> Predictor | None:
        try:
            loaded = model.load()
        except ModelError as error:
            self._leave_out(str(error))
            return None
        self._on_load(loaded)
        return Predictor(loaded, self._corrections_of(model))

    def _corrections_of(self, model: KnownModel) -> Corrections | None:
        corrections = self.corrections
        return corrections if corrections is not None and corrections.model_sha256 == model.sha256 else None


def _load(file: ModelFile) -> Model:
    """Load a model, which must be the one whose card was read: what it knows and how it is cached hang on that."""
    model = artifact.load(file.path)
    if model.sha256 != file.card.sha256:
        raise ModelError(f"{file.path}: replaced since this process found it; a new process will ask it")
    return model


def _in_a_thread(load: Callable[[], Predictor | None]) -> Predictor | None:
    """Load in a thread of its own: that which compiles has modes in which tensors are not real."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(load).result()


def _miss(model: KnownModel, problem: Problem, hardware: Hardware, stands_in: str) -> AbstentionError | None:
    """Return why a model does not know a product on a device, or on the one that stands in for it; None if it does."""
    try:
        check_domain(problem.shape, hardware, model.card.domain, on_any_device=bool(stands_in))
    except AbstentionError as miss:
        return miss
    return None


def _knows(model: KnownModel, device: str) -> bool:
    return any(known.name == device for known in model.card.hardware)


def known_files(hardware: Hardware | None) -> list[ModelFile]:
    """Return the user's and the shipped models in the order in which they are asked.

    Args:
        hardware: leave out those that do not know it, unless none does; None for all.

    Raises:
        DiodeError: the installation is incomplete.
    """
    files = catalogue.known_models(preferred=_preferred())
    if hardware is None:
        return files
    return [file for file in files if file.card.domain.covers(hardware)] or files


def _preferred() -> tuple[str, ...]:
    try:
        return known_defaults()
    except ImportError:  # platformdirs may be missing in a compiling process
        return ()
    except SettingsError as error:
        safely.log(log, logging.WARNING, str(error))
        return ()
