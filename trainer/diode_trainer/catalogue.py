"""Lists the models that ship with torch-diode and the user's own, in the order in which they are asked."""

from __future__ import annotations

import contextlib
import math
from functools import cmp_to_key
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


def best_first(folder: Path) -> list[ModelFile]:
    """Return the models under ``folder``, best first; those whose card is missing or damaged are left out."""
    models = []
    for path in _checkpoints(folder):
        with contextlib.suppress(ModelError):
            models.append(ModelFile(path, read_card(card_path(path))))
    return in_order(models)


def shipped_models(purpose: str = MATMUL_PURPOSE) -> list[ModelFile]:
    """Return the shipped models of a purpose, best first; ``artifact.load_shipped`` takes the first usable one.

    Raises:
        DiodeError: the installation is incomplete.
    """
    return [model for model in best_first(trained_models_dir()) if model.card.purpose == purpose]


def known_models(purpose: str = MATMUL_PURPOSE, *, preferred: Sequence[str] = ()) -> list[ModelFile]:
    """Return the user's models and the shipped ones of a purpose, in the order in which they are asked.

    They lie in the folder of their purpose: one that was written elsewhere is not asked unless it is named. A user's
    model hides the shipped one of its name.

    Args:
        purpose: what they are for.
        preferred: those to ask first, as ``defaults.read_defaults`` returns them; the others follow, best first.

    Raises:
        DiodeError: the installation is incomplete.
    """
    own = []
    with contextlib.suppress(ImportError):  # platformdirs may be missing in a compiling process
        own = best_first(user_models_dir())
    names = {long_name(model.path) for model in own}
    shipped = [model for model in best_first(trained_models_dir()) if long_name(model.path) not in names]
    known = in_order(model for model in own + shipped if model.card.purpose == purpose == model.path.parent.name)
    places = {name: place for place, name in enumerate(preferred)}
    return sorted(known, key=lambda model: places.get(long_name(model.path), len(places)))


def in_order(models: Iterable[ModelFile]) -> list[ModelFile]:
    """Return models in the order in which they are asked about what several of them know, best first.

    Of two that were judged by the same problems, which the card of the later one says, it is the one with the lower
    regret@1 there; of others the one with the lower regret@1 of its own, and of equal ones the newest. Models without a
    figure come last.
    """
    newest_first = sorted(models, key=lambda model: model.card.created_at, reverse=True)
    by_regret = sorted(newest_first, key=_own_regret)
    return sorted(by_regret, key=cmp_to_key(_compare))


def _own_regret(model: ModelFile) -> float:
    return math.inf if model.card.regret_at_1 is None else model.card.regret_at_1


def _compare(one: ModelFile, other: ModelFile) -> int:
    """Return a number below 0 where ``one`` is to be asked before ``other``, above 0 where it is the other way."""
    for card, its, sign in ((one.card, other.card, 1), (other.card, one.card, -1)):
        if (ranks_better := _ranks_better(card, its)) is not None:
            return -sign if ranks_better else sign
    mine, theirs = _own_regret(one), _own_regret(other)
    return (mine > theirs) - (mine < theirs)


def _ranks_better(card: Card, other: Card) -> bool | None:
    """Return whether regret is no higher on the problems that both were judged by; None if ``card`` does not say."""
    found = card.compared.get(other.sha256)
    try:
        if found is None or found["problems"] < _FEWEST_COMPARED:
            return None
        return float(found["regret_at_1"]) <= float(found["its_regret_at_1"])
    except (KeyError, TypeError, ValueError):  # a card that somebody wrote
        return None


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
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ModelError(f"{path}: this is none of your own models, which are in {folder}")
    return path


def files_of(path: Path) -> list[Path]:
    """Return the files of a model that there are: its checkpoint, its card and its history."""
    files = (path, card_path(path), path.with_name(f"{path.stem}.history.json"))
    return [file for file in files if file.exists()]


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
