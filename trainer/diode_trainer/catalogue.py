"""Find the models that ship with torch-diode and the user's own, and order them by preference."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from diode_store.errors import DiodeError, ModelError, SettingsError, first_line
from diode_store.system.files import entries_below, expanded, read_bounded, real_path, write_durably
from diode_store.system.resources import trained_models_dir
from diode_trainer.card import MATMUL_PURPOSE, Card, card_path, read_card

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from diode_trainer.covered import CoveredHardware

MODEL_SUFFIX = ".pt"
"""Suffix of checkpoints."""
_FEWEST_COMPARED = 10
"""Fewest problems of a comparison that decides which model is better."""
_DEFAULTS_FILE = "defaults.json"
_SET_AGAIN = "set them again with `diode models default NAME`, after removing the file"


class ModelFile(NamedTuple):
    """Checkpoint with its card."""

    path: Path
    card: Card


def user_models_dir() -> Path:
    """Return the folder of the user's models, which need not exist; ``diode-train`` writes there."""
    from diode_store.system.settings import data_dir  # needs platformdirs, which may be missing in a compiling process

    return data_dir() / "models"


def user_picks_dir() -> Path:
    """Return the folder of the picks files by `diode tune`, which need not exist."""
    return user_models_dir().with_name("picks")


def user_picks(device: str) -> Path:
    """Return the path of the picks file by `diode tune` for a device, which need not exist."""
    return user_picks_dir() / f"{name_for(device)}.json"


def name_for(device: str) -> str:
    """Return the default name of a device's model: ``nvidia-h200`` for NVIDIA H200."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def best_first(folder: Path) -> list[ModelFile]:
    """Return the models under ``folder`` with a readable card, best first."""
    return in_order(_with_cards(folder))


def shipped_models(purpose: str = MATMUL_PURPOSE) -> list[ModelFile]:
    """Return the shipped models of a purpose, best first; ``artifact.load_shipped`` takes the first usable one.

    Raises:
        DiodeError: the installation is incomplete.
    """
    return [model for model in best_first(trained_models_dir()) if model.card.purpose == purpose]


def known_models(purpose: str = MATMUL_PURPOSE, *, preferred: Sequence[str] = ()) -> list[ModelFile]:
    """Return the user's and the shipped models of a purpose in the order in which the hook asks them.

    Only models in the folder of their purpose count; models elsewhere must be named. A shipped model follows the user's
    model of the same name.

    Args:
        purpose: purpose of the models.
        preferred: models to put first, as ``read_defaults`` returns them; the others follow, best first.

    Raises:
        DiodeError: the installation is incomplete.
    """
    folders = [trained_models_dir()]
    with contextlib.suppress(ImportError):  # platformdirs may be missing in a compiling process
        folders.insert(0, user_models_dir())
    of_folders = [_with_cards(folder / purpose) for folder in folders]
    known = in_order(model for files in of_folders for model in files if model.path.parent.name == purpose)
    names = {long_name(model.path): model for model in of_folders[0]}
    places = {name: place for place, name in enumerate(preferred)}
    known.sort(key=lambda model: places.get(long_name(model.path), len(places)))
    for model in [model for model in known if names.get(long_name(model.path), model) is not model]:
        known.remove(model)
        known.insert(known.index(names[long_name(model.path)]) + 1, model)
    return [model for model in known if model.card.purpose == purpose]


def covered_devices() -> Iterator[CoveredHardware]:
    """Yield the devices of the known models in their order; nothing if the models are missing."""
    with contextlib.suppress(DiodeError):
        for model in known_models():
            yield from model.card.hardware


def in_order(models: Iterable[ModelFile]) -> list[ModelFile]:
    """Order models by how well they rank, best first.

    If two models were evaluated on the same unseen problems of a device that both know, the one with lower regret@1
    there comes first; the later card has this comparison. Among models that no remaining model beats, the lowest own
    regret@1 comes first, then the newest. Models without a figure come last.
    """
    newest_first = sorted(models, key=lambda model: model.card.created_at, reverse=True)
    left = sorted(newest_first, key=_own_regret)
    worse_than = {id(model): [other for other in left if _ranks_better(other.card, model.card)] for model in left}
    ordered: list[ModelFile] = []
    while left:
        still = {id(model) for model in left}
        # If comparisons form a circle, the model with the lowest own regret comes first.
        unbeaten = [model for model in left if not any(id(better) in still for better in worse_than[id(model)])]
        ordered.append((unbeaten or left)[0])
        left.remove(ordered[-1])
    return ordered


def _own_regret(model: ModelFile) -> float:
    return math.inf if model.card.regret_at_1 is None else model.card.regret_at_1


def _ranks_better(card: Card, other: Card) -> bool:
    """Return whether a comparison on either card gives ``card`` the lower regret.

    If both regrets are equal, the card with the comparison wins, as the later one.
    """
    if not any(card.domain.covers(device) for device in other.hardware) and not any(
        other.domain.covers(device) for device in card.hardware
    ):
        return False
    own, its = _compared(card, other), _compared(other, card)
    return own[0] <= own[1] if own is not None else its is not None and its[0] > its[1]


def _compared(card: Card, other: Card) -> tuple[float, float] | None:
    """Return regret@1 of both models from the comparison on ``card``; None without a usable comparison."""
    try:
        found = card.compared[other.sha256]
        regrets = float(found["regret_at_1"]), float(found["its_regret_at_1"])
        enough = found["problems"] >= _FEWEST_COMPARED
    except (KeyError, TypeError, ValueError, OverflowError):  # no comparison, or a card written by hand
        return None
    return regrets if enough and all(map(math.isfinite, regrets)) else None


def list_models() -> list[Path]:
    """Return the checkpoints of all models, damaged ones included: the user's first, then the shipped ones."""
    found = _checkpoints(user_models_dir())
    with contextlib.suppress(DiodeError):
        found += _checkpoints(trained_models_dir())
    return found


def long_name(path: Path) -> str:
    """Return ``PURPOSE/NAME`` of a checkpoint."""
    return f"{path.parent.name}/{path.stem}"


def asked_first(preferred: Sequence[str] = ()) -> list[Path]:
    """Return the checkpoints of all models: first those that the hook asks, in its order, then the others."""
    asked: list[Path] = []
    with contextlib.suppress(DiodeError):
        asked = [model.path for model in known_models(preferred=preferred)]
    return list(dict.fromkeys([*asked, *list_models()]))


def find_own_model(text: str) -> Path:
    """Return the checkpoint of the user's model with a ``NAME`` or ``PURPOSE/NAME``.

    Raises:
        ModelError: the model does not exist, or is not one of the user's.
    """
    path, folder = find_model(text), user_models_dir()
    if path.suffix != MODEL_SUFFIX or not real_path(path.parent).is_relative_to(real_path(folder)):
        raise ModelError(f"{path}: not one of your own models, which are in {folder}")
    return path


def remove(path: Path) -> None:
    """Remove the files of a model.

    Raises:
        ModelError: a file cannot be removed.
    """
    for file in files_of(path):
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise ModelError(f"{file}: cannot remove it ({error.strerror or error})") from None


def files_of(path: Path) -> list[Path]:
    """Return the existing files of a model: checkpoint, card and history."""
    files = (path, card_path(path), path.with_name(f"{path.stem}.history.json"))
    return [file for file in files if os.path.lexists(file)]


def _with_cards(folder: Path) -> list[ModelFile]:
    """Return the models under ``folder`` with a readable card."""
    models = []
    for path in _checkpoints(folder):
        with contextlib.suppress(ModelError):
            models.append(ModelFile(path, read_card(card_path(path))))
    return models


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(Path(entry.path) for entry, _ in entries_below(folder) if entry.name.endswith(MODEL_SUFFIX))


def find_model(text: str) -> Path:
    """Return the checkpoint for a path, ``NAME`` or ``PURPOSE/NAME``.

    Raises:
        ModelError: no model has this name, or several have it; the message lists them.
    """
    path = expanded(text, ModelError)
    if os.path.isfile(path):  # noqa: PTH113 - unlike Path.is_file, it raises nothing
        return path
    models = list_models()
    wanted = text.removesuffix(MODEL_SUFFIX)
    found = [model for model in models if wanted in (model.stem, long_name(model))]
    if not found:
        names = ", ".join(sorted({model.stem for model in models})) or "none; train one with `diode-train`"
        raise ModelError(f"no model {text!r}, neither a file nor a known name; known models: {names}")
    if len({model.parent.name for model in found}) > 1:
        raise ModelError(f"{text!r} is the name of several models; name one: {', '.join(map(str, found))}")
    # The user's model hides a shipped model of the same name.
    return found[0]


def read_defaults(folder: Path) -> tuple[str, ...]:
    """Return the default models as ``PURPOSE/NAME``, the latest first; none without a file.

    Args:
        folder: folder of the user's models.

    Raises:
        SettingsError: the file cannot be read, or is not a list of models.
    """
    path = folder / _DEFAULTS_FILE
    try:
        content = json.loads(read_bounded(path))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: cannot read the default models ({first_line(error)}); {_SET_AGAIN}") from None
    names = content.get("models") if isinstance(content, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SettingsError(f"{path}: not a list of default models; {_SET_AGAIN}")
    return tuple(names)


def known_defaults() -> tuple[str, ...]:
    """Return the default models of the user.

    Raises:
        SettingsError: the file cannot be read, or is not a list of models.
    """
    return read_defaults(user_models_dir())


def write_defaults(folder: Path, names: Sequence[str]) -> None:
    """Replace the list of default models.

    Raises:
        SettingsError: the file cannot be written.
    """
    path = folder / _DEFAULTS_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_durably({path: (json.dumps({"models": list(names)}, indent=2) + "\n").encode()}, mode=0o644)
    except OSError as error:
        raise SettingsError(f"{path}: cannot write the default models ({error.strerror or error})") from None
