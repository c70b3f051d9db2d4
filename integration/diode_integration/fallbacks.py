"""Counts the calls in which the model did not decide, and logs each reason once."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from diode_integration import uncovered
from diode_integration.stats import DecidedBy
from diode_store import safely

if TYPE_CHECKING:
    from diode_integration.predictor import AbstentionError
    from diode_integration.stats import Stats

log = logging.getLogger("diode_integration")


class Fallbacks:
    """Those of one handler, safe to share between threads."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._logged: set[str] = set()
        self._lock = threading.Lock()

    def abstained(self, abstention: AbstentionError, device_type: str, chooser: DecidedBy) -> None:
        """Count an abstention; warn of an unknown GPU, unless that was done at import."""
        unknown_gpu = abstention.reason == "hardware" and device_type != "cpu"
        if unknown_gpu and uncovered.first_time():
            detail = f"{abstention}; {uncovered.REMEDY}"
            self.count(abstention.reason, detail, logging.WARNING, chooser=chooser)
        else:
            self.count(abstention.reason, str(abstention), logging.INFO, chooser=chooser)

    def count(
        self,
        reason: str,
        detail: str,
        level: int,
        error: Exception | None = None,
        chooser: DecidedBy = DecidedBy.STOCK,
    ) -> None:
        """Count a call in which the model did not decide, and log the reason the first time."""
        self._stats.count(f"fallback_{reason}")
        with self._lock:
            first = reason not in self._logged
            self._logged.add(reason)
        if first:
            what = "stock Inductor chooses" if chooser is DecidedBy.STOCK else "the vendor's kernel is kept"
            safely.log(log, level, f"{what}: {detail} (logged once for each reason)", error)
