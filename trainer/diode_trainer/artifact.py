"""A model on disk: the checkpoint ``NAME.pt`` (tensors and plain values) and its card ``NAME.json``."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import zipfile
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from diode_store.candidates.pipelining import kernels_of
from diode_store.errors import ModelError, first_line
from diode_store.system.files import read_bounded, write_durably
from diode_trainer import matmul_v1
from diode_trainer.card import MATMUL_PURPOSE, Calibration, Card, Domain, card_path, read_card, shape_digest
from diode_trainer.catalogue import shipped_models
from diode_trainer.feature_kinds import PRODUCTS, can_learn, kind_of
from diode_trainer.features import FEATURE_VERSION, WIDENED_DIMENSIONS, WIDENED_VERSION
from diode_trainer.matmul_v1 import MatmulModelV1, V1Scorer
from diode_trainer.models import NetworkDimensions, TimingNetwork, dimensions_of, model_class
from diode_trainer.scoring import Prediction, Scorer
from diode_trainer.widening import OLD_OPS, RETRAIN, check_version, widened

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

    from diode_store.candidates.columns import ConfigColumns
    from diode_store.records import Hardware, ProblemShape

_NORMALISATION = "normalisation."
_UNCERTAINTY = "uncertainty"
"""Key in a checkpoint's "calibration" (its domain) of the calibration of the members' spread."""
_PICKLE = b"\x80"
"""First byte of a file by ``pickle.dump``; a file by ``torch.save`` is a zip."""
MAX_MODEL_BYTES = 256 * 2**20
"""Largest size of a model's file, and of its unpacked content."""
_MAX_VALUES = 1_000_000
"""Limit on the plain values in a checkpoint: numbers, letters and entries outside its tensors."""


@dataclass(frozen=True, eq=False)
class TimingModel:
    """A loaded model. Immutable, so any thread may use it."""

    path: Path
    card: Card
    sha256: str
    """SHA-256 of the checkpoint."""
    network: TimingNetwork | MatmulModelV1
    scorer: Scorer | V1Scorer
    trained_on: frozenset[int]
    """Digests of the training problems; empty if the model does not list them."""

    def predict(
        self, shape: ProblemShape, hardware: Hardware, columns: ConfigColumns, *, exact: bool = False
    ) -> Prediction:
        """Predict the runtimes of n configs, with each member's prediction for the best of them.

        A runtime is inf if the tiles of a config exceed the device's shared memory, or if the model was not trained on
        its template. Unless ``exact``, all members score only the best of a long list.
        """
        if isinstance(self.scorer, V1Scorer):
            kernels = kernels_of(columns, shape, hardware.vendor)
            return Prediction.without_members(self.scorer.predict_us(shape, hardware, columns), kernels)
        return self.scorer.predict(shape, hardware, columns, exact=exact)

    def predict_us(
        self, shape: ProblemShape, hardware: Hardware, columns: ConfigColumns, *, exact: bool = False
    ) -> NDArray[np.float64]:
        """Return the runtimes of ``predict`` in microseconds, shape (n,)."""
        return self.predict(shape, hardware, columns, exact=exact).runtime_us

    @property
    def ranks_some(self) -> bool:
        """True if the model predicts only for some ops and templates."""
        return isinstance(self.network, MatmulModelV1)

    def can_rank(self, shape: ProblemShape) -> bool:
        """Return whether the model predicts anything for this problem."""
        if self.ranks_some:
            return matmul_v1.can_rank(shape)
        return can_learn(self.card.ops, shape.op)

    def was_trained_on(self, shape: ProblemShape) -> bool:
        """Return whether this problem is in the training data, so that it cannot judge the model."""
        return shape_digest(shape) in self.trained_on


def save(path: Path | str, model: TimingNetwork, card: Card, *, trained_on: Iterable[ProblemShape] = ()) -> Card:
    """Write ``model`` and its card atomically.

    Args:
        path: path of the checkpoint; the card goes beside it, as ``.json``.
        model: trained network.
        card: description of the model; its ``sha256`` is filled in here.
        trained_on: training problems.

    Returns:
        The card as written.

    Raises:
        ModelError: the files cannot be written.
    """
    path = Path(path)
    buffer = io.BytesIO()
    torch.save(_checkpoint(model, card, trained_on), buffer)
    content = buffer.getvalue()
    written = replace(card, sha256=hashlib.sha256(content).hexdigest())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably({path: content, card_path(path): written.to_json().encode()}, mode=0o644)
    except OSError as error:
        raise ModelError(f"{path}: cannot write the model ({error.strerror or error})") from error
    return written


def load(path: Path | str, *, device: str = "cpu") -> TimingModel:
    """Read a model, and check that this torch-diode can use it.

    Args:
        path: checkpoint, with its card beside it as ``.json``. Only a bare state dict and upstream's ``v1_model.pt``
            may come without a card.
        device: device of the network's tensors; scoring itself uses NumPy.

    Raises:
        ModelError: a file is missing or damaged, holds more than tensors and plain values, does not match its card, or
            was made for other features.
    """
    path = Path(path)
    content = _read(path)
    sha256 = hashlib.sha256(content).hexdigest()
    card = _card(path, sha256)
    try:
        checkpoint = _unpickle(content, device)
        if matmul_v1.is_v1(checkpoint):
            return _v1(path, card, sha256, matmul_v1.network_of(checkpoint))
        parts = _parts(checkpoint)
        check_version(parts.feature_version, parts.domain.ops)
        network = _network(_widened(parts))
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None
    if card is None:
        if parts.is_checkpoint:
            raise ModelError(f"{card_path(path)}: the model's card is missing; copy it beside {path.name}")
        card = Card(
            path.stem,
            MATMUL_PURPOSE,
            network.model_type,
            parts.feature_version,
            parts.domain,
            calibration=parts.calibration,
            sha256=sha256,
        )
    elif differing := _differing(card, parts):
        raise ModelError(
            f"{card_path(path)}: differs from the model in {', '.join(differing)}; copy the card that was written with"
            f" {path.name}, or {RETRAIN}"
        )
    if parts.feature_version == WIDENED_VERSION and not card.domain.ops:
        card = replace(card, domain=replace(card.domain, ops=OLD_OPS))
    return TimingModel(path, card, sha256, network, Scorer(network, parts.domain.templates), parts.trained_on)


def card_of(path: Path | str) -> Card:
    """Return the card beside a model, or the built-in card of a checkpoint that may come without one.

    Raises:
        ModelError: the card is damaged, or is missing and needed.
    """
    beside = card_path(Path(path))
    return read_card(beside) if os.path.lexists(beside) else load(path).card


def load_shipped(purpose: str = MATMUL_PURPOSE) -> TimingModel:
    """Load the best shipped model of a purpose that this torch-diode can use.

    Raises:
        ModelError: no model is shipped, or none can be used; the message says why.
        DiodeError: the installation is incomplete.
    """
    reasons = []
    for model in shipped_models(purpose):
        try:
            return load(model.path)
        except ModelError as error:
            reasons.append(str(error))
    missing = f"no model for {purpose} is shipped; train one with `diode-train` and pass its path"
    raise ModelError("; ".join(reasons) or missing)


def _v1(path: Path, beside: Card | None, sha256: str, network: MatmulModelV1) -> TimingModel:
    """Return upstream's model. A card beside it may name the model, but not claim a larger domain."""
    card = matmul_v1.card_of(path.stem, sha256)
    if beside is not None:
        claimed = replace(beside, model_type=card.model_type, feature_version=card.feature_version, domain=card.domain)
        if claimed != beside:
            raise ModelError(
                f"its card {card_path(path).name} is not of upstream's {MatmulModelV1.__name__}; remove it"
            )
        card = beside
    return TimingModel(path, card, sha256, network, V1Scorer(network), frozenset())


def _checkpoint(model: TimingNetwork, card: Card, trained_on: Iterable[ProblemShape]) -> dict[str, Any]:
    state = model.state_dict()
    digests = sorted({shape_digest(shape) for shape in trained_on})
    return {
        "problem_feature_dim": model.problem_feature_dim,
        "config_feature_dim": model.config_feature_dim,
        "hidden_layer_widths": list(model.hidden_layer_widths),
        "members": model.members,
        "scout_widths": list(model.scout.hidden_layer_widths) if model.scout else [],
        "model_type": model.model_type,
        "feature_version": card.feature_version,
        "model_state_dict": {name: value for name, value in state.items() if not name.startswith(_NORMALISATION)},
        "normalisation": {
            name.removeprefix(_NORMALISATION): value for name, value in state.items() if name.startswith(_NORMALISATION)
        },
        "calibration": asdict(card.domain) | ({_UNCERTAINTY: asdict(card.calibration)} if card.calibration else {}),
        "trained_on": torch.tensor(digests, dtype=torch.int64),
    }


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, MAX_MODEL_BYTES)
    except FileNotFoundError:
        raise ModelError(f"{path}: no such model; `diode models list` shows where the models are") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot read the model ({error.strerror or error})") from None


def _card(path: Path, sha256: str) -> Card | None:
    """Return the card beside ``path``, or None without one.

    Raises:
        ModelError: the card belongs to another file.
    """
    beside = card_path(path)
    if not os.path.lexists(beside):
        return None
    card = read_card(beside)
    if card.sha256 != sha256:
        raise ModelError(
            f"{path}: damaged, or not the model of its card: its SHA-256 is {sha256[:12]}…, the card says"
            f" {card.sha256[:12]}…; copy both files again"
        )
    return card


def _differing(card: Card, parts: _Parts) -> list[str]:
    """Return the fields of a card that differ from the checkpoint.

    The SHA-256 on the card guards the checkpoint, but nothing else guards the card, by which the hook abstains.
    """
    pairs: dict[str, tuple[Any, Any]] = {"feature_version": (card.feature_version, parts.feature_version)}
    if parts.is_checkpoint:  # a bare state dict has none of these
        pairs["model_type"] = card.model_type, parts.model_type
        pairs["calibration"] = card.calibration, parts.calibration
        pairs |= {
            f"domain.{f.name}": (getattr(card.domain, f.name), getattr(parts.domain, f.name)) for f in fields(Domain)
        }
    return [name for name, (said, held) in pairs.items() if said != held]


def _unpickle(content: bytes, device: str) -> dict[str, Any]:
    if content.startswith(_PICKLE):
        raise ModelError("is a bare pickle, which could run code, so it is not loaded; save a state dict instead")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        raise ModelError(f"not a whole checkpoint; copy it again or {RETRAIN}") from None
    if unpacked > MAX_MODEL_BYTES:
        raise ModelError(f"unpacks to more than {MAX_MODEL_BYTES >> 20} MiB, the limit for a model; {RETRAIN}")
    try:
        checkpoint = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    except pickle.UnpicklingError:
        raise ModelError(
            "contains more than tensors and plain values, so it is not loaded; save a state dict instead"
        ) from None
    except Exception as error:  # noqa: BLE001 - damaged bytes make torch fail in any way
        raise ModelError(f"not a readable checkpoint ({first_line(error)}); copy it again or {RETRAIN}") from None
    if not isinstance(checkpoint, dict):
        raise ModelError(f"holds a {type(checkpoint).__name__}, not a checkpoint; {RETRAIN}")
    _check_size(checkpoint)
    return checkpoint


def _check_size(checkpoint: dict[str, Any]) -> None:
    """Refuse values larger than their bytes: nested references to lists, or a tensor that repeats its storage.

    Raises:
        ModelError: there is such a value.
    """
    waiting: list[Any] = [checkpoint]
    counted = 0
    while waiting:
        value = waiting.pop()
        counted += 1
        if isinstance(value, dict):
            waiting.extend((*value.keys(), *value.values()))
        elif isinstance(value, list | tuple | set | frozenset):
            waiting.extend(value)
        elif isinstance(value, str | bytes):
            counted += len(value)
        elif isinstance(value, int):
            counted += value.bit_length()
        elif (
            isinstance(value, torch.Tensor) and value.numel() * value.element_size() > value.untyped_storage().nbytes()
        ):
            raise ModelError(f"has a tensor of {value.numel():,} elements, which its file does not hold; {RETRAIN}")
        if counted + len(waiting) > _MAX_VALUES:
            raise ModelError(f"has more than {_MAX_VALUES:,} plain values; {RETRAIN}")


class _Parts(NamedTuple):
    """Contents of a checkpoint."""

    state: dict[str, Any]
    """State dict, including the normalization."""
    dimensions: NetworkDimensions
    model_type: str
    feature_version: int
    domain: Domain
    trained_on: frozenset[int]
    calibration: Calibration | None = None
    is_checkpoint: bool = True
    """False for a bare state dict."""


def _parts(checkpoint: dict[str, Any]) -> _Parts:
    """Split a checkpoint, or a bare state dict, into its parts."""
    if "model_state_dict" not in checkpoint:
        dimensions = dimensions_of(checkpoint)
        model_type = "base" if dimensions.members == 1 else "deep"
        version = WIDENED_VERSION if dimensions[:2] == WIDENED_DIMENSIONS else FEATURE_VERSION
        return _Parts(checkpoint, dimensions, model_type, version, Domain(), frozenset(), is_checkpoint=False)
    try:
        normalisation = {_NORMALISATION + name: value for name, value in checkpoint["normalisation"].items()}
        state = {**checkpoint["model_state_dict"], **normalisation}
        declared = NetworkDimensions(
            checkpoint["problem_feature_dim"],
            checkpoint["config_feature_dim"],
            tuple(checkpoint["hidden_layer_widths"]),
            checkpoint["members"],
            tuple(checkpoint.get("scout_widths", ())),
        )
        domain = Domain.from_plain(checkpoint["calibration"])
        uncertainty = checkpoint["calibration"].get(_UNCERTAINTY)
        calibration = None if uncertainty is None else Calibration.from_plain(uncertainty)
        trained_on = frozenset(checkpoint["trained_on"].tolist())
        version, model_type = int(checkpoint["feature_version"]), checkpoint["model_type"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"the checkpoint has a missing or invalid field ({error}); {RETRAIN}") from None
    dimensions = dimensions_of(state)
    if declared != dimensions:
        raise ModelError(f"the checkpoint says {declared} but its tensors are of {dimensions}; {RETRAIN}")
    return _Parts(state, dimensions, model_type, version, domain, trained_on, calibration)


def _widened(parts: _Parts) -> _Parts:
    """Return the parts of a model of today's features."""
    if (
        kind_of(parts.domain.ops) is not PRODUCTS
        or parts.feature_version != WIDENED_VERSION
        or parts.dimensions[:2] != WIDENED_DIMENSIONS
    ):
        return parts
    state = widened(parts.state)
    return parts._replace(state=state, dimensions=dimensions_of(state))


def _network(parts: _Parts) -> TimingNetwork:
    kind = kind_of(parts.domain.ops)
    expected = len(kind.problem), len(kind.config)
    got = parts.dimensions[:2]
    if got != expected:
        raise ModelError(
            f"expected {expected[0]} problem and {expected[1]} config features, got a model of {got[0]} and {got[1]};"
            f" {RETRAIN}"
        )
    network = model_class(parts.model_type)(*parts.dimensions)
    try:
        network.load_state_dict(parts.state)
    except (RuntimeError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"its tensors do not make a model ({reason}); {RETRAIN}") from None
    if not all(bool(torch.isfinite(value).all()) for value in network.state_dict().values()):
        raise ModelError(f"its weights are not all finite numbers; {RETRAIN}")
    return network.requires_grad_(requires_grad=False).eval()
