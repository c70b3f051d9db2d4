"""The background task that evaluates models."""

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
    """Evaluate models on a device's measurements."""

    wanted: Wanted
    generation: int = field(default=0, compare=False)

    def __str__(self) -> str:
        """Return the task's description for the log."""
        names = " and ".join(path.stem for path, _ in self.wanted.models)
        return f"evaluating {names} on {self.wanted.device}"

    def work(self, database: str, tell: Callable[[float], None]) -> Verdicts:
        """Return how the models do."""
        from diode_explorer.judging.assessing import judge

        return judge(self.wanted, database, tell)
