"""Losses of a model's fits by epoch, in ``NAME.history.json`` beside the model.

The final fit learns from all data. The other fits are the folds that judge the recipe.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from diode_store.errors import ModelError, first_line
from diode_store.system.files import read_bounded, write_durably
from diode_trainer.training.train import EpochReport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from diode_trainer.training.train import Fit

SUFFIX = ".history.json"
FINAL = "final"
_VERSION = 1
_DIGITS = 6


@dataclass(frozen=True)
class FitHistory:
    """Losses of one fit."""

    fit: str
    """``final``, or ``fold 1`` and so on."""
    epochs_kept: int
    """Epoch whose weights were kept."""
    epochs: tuple[EpochReport, ...]


class LossAfterEpoch(NamedTuple):
    """One point of a loss curve."""

    fit: str
    member: int | None
    """Number of the member, from 1; None for the mean of all members."""
    epoch: int
    training_loss: float | None
    validation_loss: float | None
    """None after epochs without validation."""


def fit_name(part: int) -> str:
    """Return ``final`` for part 0, else the name of the fold."""
    return f"fold {part}" if part else FINAL


def histories_of(final: Fit, folds: Sequence[Fit] = ()) -> tuple[FitHistory, ...]:
    """Return the history of each fit of a model, the final one first."""
    return tuple(FitHistory(fit_name(part), fit.epochs, fit.history) for part, fit in enumerate((final, *folds)))


def curves(histories: Sequence[FitHistory], *, members: bool = False) -> Iterator[LossAfterEpoch]:
    """Yield the points of each fit's curve; with ``members`` also one curve for each of several members."""
    for history in histories:
        for report in history.epochs:
            yield LossAfterEpoch(history.fit, None, report.epoch, report.training_loss, report.validation_loss)
            if members and len(report.member_training_losses) > 1:
                validation = report.member_validation_losses or (None,) * len(report.member_training_losses)
                for number, losses in enumerate(zip(report.member_training_losses, validation, strict=True), 1):
                    yield LossAfterEpoch(history.fit, number, report.epoch, *losses)


def history_path(checkpoint: Path) -> Path:
    """Return the path of a model's history."""
    return checkpoint.with_suffix(SUFFIX)


def write_history(checkpoint: Path, histories: Sequence[FitHistory]) -> None:
    """Write the history of a model beside the model.

    Raises:
        ModelError: the file cannot be written.
    """
    plain = {"version": _VERSION, "model": checkpoint.stem, "fits": [_to_plain(history) for history in histories]}
    path = history_path(checkpoint)
    try:
        write_durably({path: json.dumps(plain, allow_nan=False).encode() + b"\n"}, mode=0o644)
    except OSError as error:
        raise ModelError(f"{path}: cannot write the history ({error.strerror or error})") from None


def read_history(checkpoint: Path) -> tuple[FitHistory, ...]:
    """Read the history of a model.

    Raises:
        ModelError: the history is missing or damaged.
    """
    path = history_path(checkpoint)
    try:
        return tuple(_from_plain(fit) for fit in _fits(json.loads(read_bounded(path))))
    except FileNotFoundError:
        raise ModelError(f"{path}: the model has no history; `diode-train` writes one with each model") from None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ModelError(f"{path}: not a history of fits ({first_line(error)}); train again") from None


def _to_plain(history: FitHistory) -> dict[str, Any]:
    epochs = [
        {
            "epoch": report.epoch,
            "training_loss": _short(report.training_loss),
            "validation_loss": _short(report.validation_loss),
            "member_training_losses": [_short(loss) for loss in report.member_training_losses],
            "member_validation_losses": None
            if report.member_validation_losses is None
            else [_short(loss) for loss in report.member_validation_losses],
        }
        for report in history.epochs
    ]
    planned = history.epochs[-1].epochs if history.epochs else 0
    return {"fit": history.fit, "epochs_kept": history.epochs_kept, "epochs_planned": planned, "epochs": epochs}


def _fits(plain: dict[str, Any]) -> list[dict[str, Any]]:
    if plain["version"] != _VERSION:
        raise ValueError(f"version {plain['version']!r}, expected {_VERSION}")
    fits: list[dict[str, Any]] = plain["fits"]
    return fits


def _from_plain(fit: dict[str, Any]) -> FitHistory:
    epochs = (
        EpochReport(
            epoch["epoch"],
            fit["epochs_planned"],
            epoch["training_loss"],
            epoch["validation_loss"],
            tuple(epoch["member_training_losses"]),
            None if epoch["member_validation_losses"] is None else tuple(epoch["member_validation_losses"]),
        )
        for epoch in fit["epochs"]
    )
    return FitHistory(fit["fit"], fit["epochs_kept"], tuple(epochs))


def _short(loss: float | None) -> float | None:
    """Return a rounded loss; None for NaN (a member without validation problems), which JSON lacks."""
    return None if loss is None or not math.isfinite(loss) else float(f"{loss:.{_DIGITS}g}")
