"""Whether decisions go into a spool, and into which; light, as most handlers have none."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from diode_store import safely
from diode_store.errors import DiodeError, SpoolError

if TYPE_CHECKING:
    from diode_integration.model_set import ModelSet
    from diode_integration.policy import Policy
    from diode_integration.recording import Recorder
    from diode_integration.stats import Stats

log = logging.getLogger("diode_integration")

SPOOL = "DIODE_SPOOL"
"""The variable that names the collectors' spool, too."""


def recorder_for(
    spool: Path | str | None, stats: Stats, policy: Policy, models: ModelSet | None, hook_version: int
) -> Recorder | None:
    """Return what writes a handler's decisions to ``spool``, or to the one that DIODE_SPOOL names; None without either.

    Raises:
        SpoolError: the spool that ``spool`` names cannot be used; one of the variable's is logged and left out.
    """
    named = spool if spool is not None else os.environ.get(SPOOL)
    if not named:
        return None
    from diode_integration.recording import Chooser, Recorder

    # Of several models each decision says which made it; that none did says nothing of any of them.
    only = models.known[0].sha256 if models and len(models.known) == 1 else None
    chooser = Chooser(policy.key, str(policy.mode), only, hook_version)
    try:
        return Recorder(_folder(named), chooser, stats)
    except DiodeError as error:
        if spool is not None:
            raise
        safely.log(log, logging.WARNING, f"{SPOOL}: decisions are not recorded: {error}")
        return None


def _folder(named: Path | str) -> Path:
    try:
        return Path(named).expanduser()
    except RuntimeError as error:
        raise SpoolError(f"{named}: cannot find the spool ({error}); write the folder out") from None
