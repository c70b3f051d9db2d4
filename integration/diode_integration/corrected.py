"""Which corrections the hook uses: those of a file that is named to it, if they are of its model."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from diode_store import safely
from diode_store.errors import DiodeError, ModelError
from diode_trainer.corrections.corrections import read_corrections

if TYPE_CHECKING:
    from diode_integration.predictor import Model
    from diode_trainer.corrections.corrections import Corrections

log = logging.getLogger("diode_integration")

VARIABLE = "DIODE_CORRECTIONS"


def usable_corrections(path: Path | str | None, model: Model, *, enable_fallback: bool) -> Corrections | None:
    """Return the corrections of ``model``, or None without any.

    Args:
        path: the file; None for the one that ``DIODE_CORRECTIONS`` names, if it does.
        model: what is corrected.
        enable_fallback: go on without those that cannot be used, which is logged; if False, raise.

    Raises:
        ModelError: they cannot be used, and ``enable_fallback`` is False.
    """
    path = path or os.environ.get(VARIABLE)
    if not path:
        return None
    try:
        return _of_model(_expanded(Path(path)), model)
    except DiodeError as error:
        if not enable_fallback:
            raise
        safely.log(log, logging.WARNING, f"predictions are not corrected: {error}")
        return None


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ModelError(f"{path}: cannot find the corrections ({error}); write the folder out") from None


def _of_model(path: Path, model: Model) -> Corrections:
    corrections = read_corrections(path)
    if corrections.model_sha256 != model.sha256:
        raise ModelError(
            f"{path}: these are corrections of {corrections.model_name or 'a model'} {corrections.model_sha256[:12]}…,"
            f" not of {model.card.name} {model.sha256[:12]}…; make them again with `diode corrections`"
        )
    return corrections
