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
    from collections.abc import Sequence

    from diode_integration.model_set import KnownModel
    from diode_trainer.corrections.corrections import Corrections

log = logging.getLogger("diode_integration")

VARIABLE = "DIODE_CORRECTIONS"


def usable_corrections(
    path: Path | str | None, models: Sequence[KnownModel], *, enable_fallback: bool
) -> Corrections | None:
    """Return the corrections of one of ``models``, or None without any.

    Args:
        path: the file; None for the one that ``DIODE_CORRECTIONS`` names, if it does.
        models: those that may be asked.
        enable_fallback: go on without those that cannot be used, which is logged; if False, raise.

    Raises:
        ModelError: they cannot be used, and ``enable_fallback`` is False.
    """
    path = path or os.environ.get(VARIABLE)
    if not path:
        return None
    try:
        return _of_one(_expanded(Path(path)), models)
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


def _of_one(path: Path, models: Sequence[KnownModel]) -> Corrections:
    corrections = read_corrections(path)
    if corrections.model_sha256 not in {model.sha256 for model in models}:
        ours = ", ".join(f"{model.card.name} {model.sha256[:12]}…" for model in models)
        raise ModelError(
            f"{path}: these are corrections of {corrections.model_name or 'a model'} {corrections.model_sha256[:12]}…,"
            f" not of {ours}; make them again with `diode corrections`"
        )
    return corrections
