"""What a page of the site is made from: one state of the lake, and what an address asks of it."""

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
    from diode_explorer.pages.questions import Answer, Question, Value


@dataclass(frozen=True)
class Visit:
    """One request for a page: what it asks for, and the state of the lake that answers it."""

    state: State
    filters: Mapping[str, Value]
    spools: Sequence[Path] = ()
    background: Background | None = None
    """None where nothing is to be begun that takes long."""

    @property
    def generation(self) -> int:
        """Return that of the state."""
        return self.state.generation

    def ask(self, question: Question) -> Answer:
        """Return what the lake answers; the errors are those of the state."""
        return self.state.ask(question)

    def work_out(self, task: Task[T]) -> Progress[T]:
        """Return how far a task is, and have it begun."""
        return Progress() if self.background is None else self.background.look(task)

    def address(self, page: str, values: Mapping[str, Value]) -> str | None:
        """Return the address of a page."""
        return rendering.address(page, values)
