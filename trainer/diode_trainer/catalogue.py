"""Lists the models that ship with torch-diode and the user's own, and finds the best."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import NamedTuple

from diode_store.errors import DiodeError, ModelError
from diode_store.resources import trained_models_dir
from diode_trainer.card import MATMUL_PURPOSE, Card, card_path, read_card

MODEL_SUFFIX = ".pt"
"""How the names of checkpoints end."""


class ModelFile(NamedTuple):
    """A checkpoint and what its card says."""

    path: Path
    card: Card


def user_models_dir() -> Path:
    """Return the folder of the user's models, where ``diode-train`` puts new ones; it need not exist yet."""
    from diode_store.settings import data_dir  # needs platformdirs, which may be missing in a compiling process

    return data_dir() / "models"


def best_first(folder: Path) -> list[ModelFile]:
    """Return the models under ``folder``, the one with the lowest regret@1 first, and of equal ones the newest.

    Models without a figure come last; those whose card is missing or damaged are left out.
    """
    models = []
    for path in _checkpoints(folder):
        with contextlib.suppress(ModelError):
            models.append(ModelFile(path, read_card(card_path(path))))
    models.sort(key=lambda model: model.card.created_at, reverse=True)
    return sorted(models, key=lambda model: math.inf if model.card.regret_at_1 is None else model.card.regret_at_1)


def shipped_models(purpose: str = MATMUL_PURPOSE) -> list[ModelFile]:
    """Return the shipped models of a purpose, best first; ``artifact.load_shipped`` takes the first usable one.

    Raises:
        DiodeError: the installation is incomplete.
    """
    return [model for model in best_first(trained_models_dir()) if model.card.purpose == purpose]


def list_models() -> list[Path]:
    """Return every model's checkpoint, damaged ones too: the user's first, then the shipped ones."""
    found = _checkpoints(user_models_dir())
    with contextlib.suppress(DiodeError):
        found += _checkpoints(trained_models_dir())
    return found


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
    found = [model for model in models if wanted in (model.stem, f"{model.parent.name}/{model.stem}")]
    if not found:
        names = ", ".join(sorted({model.stem for model in models})) or "none; train one with `diode-train`"
        raise ModelError(f"no model {text!r}, neither a file nor a known name; available: {names}")
    if len({model.parent.name for model in found}) > 1:
        raise ModelError(f"{text!r} is the name of several models; name one: {', '.join(map(str, found))}")
    # The user's model of a name hides the shipped one.
    return found[0]
