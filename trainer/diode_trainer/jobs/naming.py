"""Names of models, and the files that `diode-train` writes them to; needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from diode_store.devices.known import family_name
from diode_store.errors import ModelError, SettingsError
from diode_trainer import catalogue
from diode_trainer.card import card_path, read_card
from diode_trainer.data.dataset import LEARNED_ALONE
from diode_trainer.feature_kinds import kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def model_name(name: str | None, output: Path | None, devices: Iterable[str], op: str | None = None) -> str:
    """Return the name of a model: ``name``, else the stem of the file ``output``, else a name made of its devices'.

    A model that learns one op alone has the op's name behind that of its devices.

    Raises:
        SettingsError: the name cannot be the name of a file.
    """
    if name is None:
        of_op = f"-{catalogue.name_for(op)}" if op in LEARNED_ALONE else ""
        name = output.stem if is_file(output) else _hardware_name(devices) + of_op
    return checked_name(name)


def checked_name(name: str) -> str:
    """Return ``name`` without the suffix of a checkpoint.

    Raises:
        SettingsError: the name cannot be the name of a file.
    """
    if not name.strip() or name.startswith(".") or not name.isprintable() or set(name) & set("/\\"):
        raise SettingsError(f"{name!r} is not a valid model name; it must not contain / or \\ or begin with a dot")
    if name.removesuffix(catalogue.MODEL_SUFFIX).endswith(".history"):
        raise SettingsError(f"{name!r} is not a valid model name; .history is the ending of training histories")
    return name.removesuffix(catalogue.MODEL_SUFFIX)


def _hardware_name(devices: Iterable[str]) -> str:
    """Return ``nvidia-h200``, ``nvidia-h100-and-h200`` or ``nvidia-h100-and-2-more`` for one, two or more devices."""
    names = list(dict.fromkeys(devices))
    if len(names) == 1:
        return catalogue.name_for(names[0])
    short = list(dict.fromkeys(map(family_name, names)))
    if len(short) == len(names):
        names = short
    first, *others = map(catalogue.name_for, names)
    if len(others) > 1:
        return f"{first}-and-{len(others)}-more"
    return f"{first}-and-{others[0].removeprefix(first.partition('-')[0] + '-')}"


def is_file(output: Path | None) -> TypeGuard[Path]:
    """Return whether ``--output`` names a checkpoint, not a folder."""
    return output is not None and output.suffix == catalogue.MODEL_SUFFIX and not output.is_dir()


def output_path(output: Path | None, name: str, op: str | None = None) -> Path:
    """Return the path of a model called ``name``: ``output`` if it is a file, else in that folder or the user's."""
    if is_file(output):
        return output
    purpose = kind_of({op} if op else ()).purpose
    return (output or catalogue.user_models_dir() / purpose) / f"{name}{catalogue.MODEL_SUFFIX}"


def check_free(path: Path) -> None:
    """Refuse to replace a model.

    Raises:
        ModelError: a model is at ``path``; the message gives its date.
    """
    if path.exists():
        raise ModelError(f"{path}: there is a model of {_date(path)}; --force replaces it, --name adds another")


def _date(path: Path) -> str:
    try:
        return read_card(card_path(path)).created_at.partition("T")[0] or "unknown date"
    except ModelError:
        return "unknown date"
