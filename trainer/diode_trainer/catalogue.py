"""Lists the models that ship with torch-diode and the user's own, in the order in which they are asked."""

from __future__ import annotations

import contextlib
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from diode_store.errors import DiodeError, ModelError
from diode_store.resources import trained_models_dir
from diode_trainer.card import MATMUL_PURPOSE, Card, card_path, read_card

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MODEL_SUFFIX = ".pt"
"""How the names of checkpoints end."""
_FEWEST_COMPARED = 10
"""Problems of a comparison; fewer say little of which model is better."""


class ModelFile(NamedTuple):
    """A checkpoint and what its card says."""

    path: Path
    card: Card


def user_models_dir() -> Path:
    """Return the folder of the user's models, where ``diode-train`` puts new ones; it need not exist yet."""
    from diode_store.settings import data_dir  # needs platformdirs, which may be missing in a compiling process

    return data_dir() / "models"


def name_for(device: str) -> str:
    """Return what the model of a device is called: ``nvidia-h200`` for NVIDIA H200."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def best_first(folder: Path) -> list[ModelFile]:
    """Return the models under ``folder``, best first; those whose card is missing or damaged are left out."""
    return in_order(_with_cards(folder))


def shipped_models(purpose: str = MATMUL_PURPOSE) -> list[ModelFile]:
    """Return the shipped models of a purpose, best first; ``artifact.load_shipped`` takes the first usable one.

    Raises:
        DiodeError: the installation is incomplete.
    """
    return [model for model in best_first(trained_models_dir()) if model.card.purpose == purpose]


def known_models(purpose: str = MATMUL_PURPOSE, *, preferred: Sequence[str] = ()) -> list[ModelFile]:
    """Return the user's models and the shipped ones of a purpose, in the order in which they are asked.

    They lie in the folder of their purpose: one that was written elsewhere is not asked unless it is named. A shipped
    model comes behind the user's one of its name.

    Args:
        purpose: what they are for.
        preferred: those to ask first, as ``defaults.read_defaults`` returns them; the others follow, best first.

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


def in_order(models: Iterable[ModelFile]) -> list[ModelFile]:
    """Return models in the order in which they are asked about what several of them know, best first.

    Of two that were judged by the same problems of a device that both know, which the card of the later one says, it is
    the one with the lower regret@1 there. Of those that none left is known to beat, the one with the lowest regret@1 of
    its own comes next, and of equal ones the newest. Models without a figure come last.
    """
    newest_first = sorted(models, key=lambda model: model.card.created_at, reverse=True)
    left = sorted(newest_first, key=_own_regret)
    worse_than = {id(model): [other for other in left if _ranks_better(other.card, model.card)] for model in left}
    ordered: list[ModelFile] = []
    while left:
        still = {id(model) for model in left}
        # Comparisons may go round in a circle; then the one with the lowest regret of its own breaks it.
        unbeaten = [model for model in left if not any(id(better) in still for better in worse_than[id(model)])]
        ordered.append((unbeaten or left)[0])
        left.remove(ordered[-1])
    return ordered


def _own_regret(model: ModelFile) -> float:
    return math.inf if model.card.regret_at_1 is None else model.card.regret_at_1


def _ranks_better(card: Card, other: Card) -> bool:
    """Return whether one of the two says that ``card`` has the lower regret on problems that both were judged by.

    At equal regret it is the one that says so, being the later one.
    """
    devices = {(device.name, device.arch, device.multiprocessors) for device in card.hardware}
    if not devices & {(device.name, device.arch, device.multiprocessors) for device in other.hardware}:
        return False
    own, its = _compared(card, other), _compared(other, card)
    return own[0] <= own[1] if own is not None else its is not None and its[0] > its[1]


def _compared(card: Card, other: Card) -> tuple[float, float] | None:
    """Return regret@1 of both on the problems that ``card`` says they were judged by; None if it says too little."""
    try:
        found = card.compared[other.sha256]
        regrets = float(found["regret_at_1"]), float(found["its_regret_at_1"])
        enough = found["problems"] >= _FEWEST_COMPARED
    except (KeyError, TypeError, ValueError, OverflowError):  # not compared, or a card that somebody wrote
        return None
    return regrets if enough and all(map(math.isfinite, regrets)) else None


def list_models() -> list[Path]:
    """Return every model's checkpoint, damaged ones too: the user's first, then the shipped ones."""
    found = _checkpoints(user_models_dir())
    with contextlib.suppress(DiodeError):
        found += _checkpoints(trained_models_dir())
    return found


def long_name(path: Path) -> str:
    """Return ``PURPOSE/NAME`` of a checkpoint."""
    return f"{path.parent.name}/{path.stem}"


def asked_first(preferred: Sequence[str] = ()) -> list[Path]:
    """Return every model's checkpoint, those that are asked in their order, then all others."""
    asked: list[Path] = []
    with contextlib.suppress(DiodeError):
        asked = [model.path for model in known_models(preferred=preferred)]
    return list(dict.fromkeys([*asked, *list_models()]))


def find_own_model(text: str) -> Path:
    """Return the checkpoint of the user's model that ``text`` means: ``NAME`` or ``PURPOSE/NAME``.

    Raises:
        ModelError: it is unknown, or none of the user's.
    """
    path, folder = find_model(text), user_models_dir()
    if path.suffix != MODEL_SUFFIX or not path.parent.resolve().is_relative_to(folder.resolve()):
        raise ModelError(f"{path}: this is none of your own models, which are in {folder}")
    return path


def remove(path: Path) -> None:
    """Remove the files of a model.

    Raises:
        ModelError: one cannot be removed.
    """
    for file in files_of(path):
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise ModelError(f"{file}: cannot remove it ({error.strerror or error})") from None


def files_of(path: Path) -> list[Path]:
    """Return the files of a model that there are: its checkpoint, its card and its history."""
    files = (path, card_path(path), path.with_name(f"{path.stem}.history.json"))
    return [file for file in files if file.exists() or file.is_symlink()]


def _with_cards(folder: Path) -> list[ModelFile]:
    """Return the models under ``folder`` whose card can be read."""
    models = []
    for path in _checkpoints(folder):
        with contextlib.suppress(ModelError):
            models.append(ModelFile(path, read_card(card_path(path))))
    return models


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.rglob(f"*{MODEL_SUFFIX}"))


def find_model(text: str) -> Path:
    """Return the checkpoint that ``text`` means: a path, ``NAME`` or ``PURPOSE/NAME``.

    Raises:
        ModelError: it is unknown, or several have that name; the message lists them.
    """
    path = Path(text).expanduser()
    if path.is_file():
        return path
    models = list_models()
    wanted = text.removesuffix(MODEL_SUFFIX)
    found = [model for model in models if wanted in (model.stem, long_name(model))]
    if not found:
        names = ", ".join(sorted({model.stem for model in models})) or "none; train one with `diode-train`"
        raise ModelError(f"no model {text!r}, neither a file nor a known name; available: {names}")
    if len({model.parent.name for model in found}) > 1:
        raise ModelError(f"{text!r} is the name of several models; name one: {', '.join(map(str, found))}")
    # The user's model of a name hides the shipped one.
    return found[0]
