"""Make the writer of decisions. This module imports little, because most hooks have no spool."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from diode_store.errors import DiodeError, SpoolError
from diode_store.system.files import expanded
from diode_store.values import safely

if TYPE_CHECKING:
    from pathlib import Path

    from diode_integration.decide.models import ModelSet
    from diode_integration.record.log import Stats
    from diode_integration.record.recorder import Recorder
    from diode_trainer.policy import Policy

log = logging.getLogger("diode_integration")


def recorder_for(
    spool: Path | str | None,
    stats: Stats,
    policy: Policy,
    models: ModelSet | None,
    hook_version: int,
    *,
    may_fail: bool,
) -> Recorder | None:
    """Return the writer of a handler's decisions; None without a spool.

    Args:
        spool: the folder; None or empty for none.
        stats: counts the decisions that are recorded and dropped.
        policy: the handler's policy.
        models: the handler's models.
        hook_version: version of the hook.
        may_fail: log that the spool cannot be used, and go on without it; the environment may name any folder.

    Raises:
        SpoolError: the spool cannot be used, and ``may_fail`` is False.
    """
    if not spool:
        return None
    from diode_integration.record.recorder import Chooser, Recorder

    # With several models, each decision says which model made it.
    only = models.known[0].sha256 if models and len(models.known) == 1 else None
    chooser = Chooser(policy.key, str(policy.mode), only, hook_version)
    try:
        return Recorder(expanded(spool, SpoolError), chooser, stats)
    except DiodeError as error:
        if not may_fail:
            raise
        safely.log(log, logging.WARNING, f"DIODE_SPOOL: decisions are not recorded: {error}")
        return None
