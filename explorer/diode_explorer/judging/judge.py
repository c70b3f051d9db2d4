"""The task that judges models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diode_explorer.background import Task
from diode_explorer.judging.verdict import Verdicts

if TYPE_CHECKING:
    from collections.abc import Callable

    from diode_explorer.judging.verdict import Wanted


@dataclass(frozen=True)
class Judge(Task[Verdicts]):
    """Judges models by what was measured on a device."""

    wanted: Wanted
    generation: int = field(default=0, compare=False)

    def work(self, database: str, tell: Callable[[float], None]) -> Verdicts:
        """Return how they do."""
        from diode_explorer.judging.assessing import judge

        return judge(self.wanted, database, tell)
