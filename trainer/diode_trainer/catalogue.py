"""Where models are: those that ship with torch-diode and the user's own."""

from __future__ import annotations

import contextlib
from pathlib import Path

from diode_store.errors import DiodeError, ModelError
from diode_store.resources import trained_models_dir
from diode_store.settings import data_dir

_SUFFIX = ".pt"


def user_models_dir() -> Path:
    """Return the folder of the user's models, where ``diode-train`` puts new ones; it need not exist yet."""
    return data_dir() / "models"


def shipped_models() -> list[Path]:
    """Return the checkpoints that ship with torch-diode, by name; none if the installation lacks them."""
    with contextlib.suppress(DiodeError):
        return _checkpoints(trained_models_dir())
    return []


def list_models() -> list[Path]:
    """Return every model's checkpoint: the user's first, then the shipped ones."""
    return [*_checkpoints(user_models_dir()), *shipped_models()]


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.rglob(f"*{_SUFFIX}"))


def find_model(text: str) -> Path:
    """Return the checkpoint that ``text`` means: a path, ``NAME`` or ``PURPOSE/NAME``.

    Raises:
        ModelError: there is none, or several of that name; the message lists them.
    """
    path = Path(text).expanduser()
    if path.is_file():
        return path
    models = list_models()
    wanted = text.removesuffix(_SUFFIX)
    found = [model for model in models if wanted in (model.stem, f"{model.parent.name}/{model.stem}")]
    if not found:
        names = ", ".join(sorted({model.stem for model in models})) or "none yet; train one with `diode-train`"
        raise ModelError(f"no model {text!r}, neither a file nor a name; there is: {names}")
    if len({model.parent.name for model in found}) > 1:
        raise ModelError(f"{text!r} is the name of several models; name one: {', '.join(map(str, found))}")
    # The user's model of a name hides the shipped one.
    return found[0]
