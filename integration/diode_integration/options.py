"""What the hook's options ask for, and the environment variables that stand in for those that are not given.

| variable | option |
|---|---|
| DIODE_MODE | ``mode`` |
| DIODE_TOP_K | ``top_k_configs`` |
| DIODE_UNKNOWN | ``unknown`` |
| DIODE_SIMILAR | ``similar`` |
| DIODE_MODEL | the model: a path, or the name of one |
| DIODE_PICKS | ``picks``, see ``picked`` |

An option of ``mode``'s kind that is given in code counts alone: then neither DIODE_MODE nor DIODE_TOP_K is read.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from diode_integration.corrected import usable_corrections
from diode_integration.model_set import KnownModel, ModelSet, known_files
from diode_integration.policy import Mode, Policy, make_policy
from diode_integration.predictor import Model
from diode_integration.unknown import Unknown, parse_unknown
from diode_store import safely
from diode_store.devices import known_device
from diode_store.errors import DiodeError, HardwareError, ModelError, SettingsError
from diode_trainer import artifact, catalogue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_store.records import Hardware

log = logging.getLogger("diode_integration")

MODE, TOP_K, UNKNOWN, MODEL = "DIODE_MODE", "DIODE_TOP_K", "DIODE_UNKNOWN", "DIODE_MODEL"
SIMILAR = "DIODE_SIMILAR"


def policy_for(
    models: ModelSet | None,
    mode: Mode | str | None,
    top_k_configs: int | None,
    performance_threshold: float | None,
    kernel_price: float | None,
) -> Policy:
    """Return the policy that is asked for, and log where the model cannot follow it.

    Raises:
        SettingsError: an option or a variable has a value that cannot be used.
    """
    is_sure = models is not None and models.know_their_spread
    given = (mode, top_k_configs, performance_threshold, kernel_price)
    if all(option is None for option in given):
        policy = _policy_of_environment(knows_its_spread=is_sure)
    else:
        policy = make_policy(*given, knows_its_spread=is_sure)
    if policy.mode is Mode.ADAPTIVE and models is not None and not is_sure:
        what = f"adaptive mode keeps {policy.top_k_configs} candidates like top_k mode"
        remedy = "train one of several members with `diode-train --folds 5`"
        safely.log(log, logging.WARNING, f"the model does not say how sure it is, so {what}; {remedy}")
    return policy


def unknown_for(unknown: Unknown | str | None, mode: Mode) -> Unknown:
    """Return who chooses where the model is not believed.

    Raises:
        SettingsError: the option or the variable has a value that cannot be used.
    """
    if unknown is not None or not os.environ.get(UNKNOWN):
        return parse_unknown(unknown, mode)
    try:
        return parse_unknown(os.environ[UNKNOWN], mode)
    except SettingsError as error:
        raise SettingsError(f"{UNKNOWN}: {error}") from None


def asks_similar(similar: str | None, mode: Mode) -> bool:
    """Return whether models of a similar device are asked: never in zero mode, in which nothing is benchmarked.

    Raises:
        SettingsError: the option or the variable has a value that cannot be used.
    """
    asked, name = (os.environ.get(SIMILAR) or "", SIMILAR) if similar is None else (similar, "similar")
    if asked not in {"", Mode.TOP_K}:
        raise SettingsError(f'{name} must be "top_k", or empty for no model of a similar device, not {asked!r}')
    if asked and mode is Mode.ZERO:
        safely.log(log, logging.WARNING, "zero mode asks no model of a similar device, as nothing would be benchmarked")
    return bool(asked) and mode is not Mode.ZERO


def model_named(model: Path | str | None) -> Path | None:
    """Return the checkpoint that is asked for: a path or a model's name; None where none is named.

    Raises:
        ModelError: there is no such model.
    """
    if model is not None:
        return _checkpoint(model)
    text = os.environ.get(MODEL)
    if not text:
        return None
    try:
        return _checkpoint(text)
    except ModelError as error:
        raise ModelError(f"{MODEL}: {error}") from None


def hardware_named(hardware: Hardware | str | None) -> Hardware | None:
    """Return the device that is asked for; None for the one that compiles.

    Raises:
        HardwareError: it is unknown.
    """
    if not isinstance(hardware, str):
        return hardware
    known = known_device(hardware)
    if known is None:
        raise HardwareError(f"no device is known by the name {hardware!r}; pass a Hardware record instead")
    return known


def usable_models(
    model: Model | Sequence[KnownModel] | None,
    model_path: Path | str | None,
    corrections: Path | str | None,
    hardware: Hardware | None,
    *,
    ranks_all: bool,
    enable_fallback: bool,
) -> tuple[ModelSet | None, str]:
    """Return the models to ask; or, with ``enable_fallback``, None and the reason.

    Args:
        model: a loaded one, or those to ask in their order.
        model_path: else a checkpoint, or a model's name; when None what DIODE_MODEL says, else all that are known.
        corrections: of one of them; when None what DIODE_CORRECTIONS says.
        hardware: the device that is asked about; None for the one that compiles.
        ranks_all: whether they rank Inductor's EXHAUSTIVE list, which is logged of those that know little of it.
        enable_fallback: go on without a model when none can be used.

    Raises:
        DiodeError: there is none, and ``enable_fallback`` is False.
    """
    try:
        known = models_asked_for(model, model_path, hardware)
        usable = usable_corrections(corrections, known, enable_fallback=enable_fallback)
        return ModelSet(known, usable, _note_narrow if ranks_all else lambda _model: None), ""
    except DiodeError as error:
        if not enable_fallback:
            raise
        safely.log(log, logging.WARNING, f"no usable model: {error}")
        return None, str(error)


def models_asked_for(
    model: Model | Sequence[KnownModel] | None, model_path: Path | str | None, hardware: Hardware | None
) -> Sequence[KnownModel]:
    """Return the models that are asked for, in the order in which they are asked; for options as above.

    Raises:
        DiodeError: there is no such model, or it cannot be used.
    """
    if model is None:
        path = model_named(model_path)
        if path is not None:
            return [KnownModel.loaded(artifact.load(path))]
        return [KnownModel.of_file(file) for file in known_files(hardware)]
    return [KnownModel.loaded(model)] if isinstance(model, Model) else model


def _note_narrow(model: Model) -> None:
    if model.card.narrow_note is not None:
        safely.log(log, logging.WARNING, f"the model {model.card.name}: {model.card.narrow_note}")


def _policy_of_environment(*, knows_its_spread: bool) -> Policy:
    mode, text = os.environ.get(MODE) or None, os.environ.get(TOP_K) or None
    if text is not None and not text.isdecimal():
        raise SettingsError(f"{TOP_K}: must be a whole number of at least 1, not {text!r}")
    try:
        return make_policy(mode, None if text is None else int(text), knows_its_spread=knows_its_spread)
    except SettingsError as error:
        named = [name for name, value in ((MODE, mode), (TOP_K, text)) if value is not None]
        raise SettingsError(f"{' and '.join(named)}: {error}") from None


def _checkpoint(model: Path | str) -> Path:
    if isinstance(model, Path) or os.sep in model:
        try:
            return Path(model).expanduser()
        except RuntimeError as error:
            raise ModelError(f"{model}: cannot find the model ({error}); write the folder out") from None
    return catalogue.find_model(model)
