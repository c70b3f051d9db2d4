"""A request for a page: one state of the cache, and the parameters of the address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from diode_explorer import rendering
from diode_explorer.background import Progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from diode_explorer.background import Background, T, Task
    from diode_explorer.feed import State
    from diode_trainer.report.questions import Answer, Question, Value


@dataclass(frozen=True)
class Visit:
    """A request for a page, and the state of the cache that answers it."""

    state: State
    filters: Mapping[str, Value]
    spools: Sequence[Path] = ()
    background: Background | None = None
    """Runs long tasks; None for no such tasks."""

    @property
    def generation(self) -> int:
        """Return the generation of the state."""
        return self.state.generation

    def ask(self, question: Question) -> Answer:
        """Return the cache's answer; raises what the state raises."""
        return self.state.ask(question)

    def work_out(self, task: Task[T]) -> Progress[T]:
        """Return the progress of a background task, starting it if needed."""
        return Progress() if self.background is None else self.background.look(task)

    def address(self, page: str, values: Mapping[str, Value]) -> str | None:
        """Return the address of a page."""
        return rendering.address(page, values)
