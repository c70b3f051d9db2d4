"""Run a command's work on several spools, one after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from diode_store.errors import SpoolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class SpoolOutcome(Generic[_Result]):
    """A spool's result or error."""

    spool: Path
    result: _Result | None = None
    error: SpoolError | None = None


def in_json(shown: Sequence[Mapping[str, object]], sums: Mapping[str, object]) -> Mapping[str, object]:
    """Return what ``--json`` prints: the object of the only spool, or the sums with each spool in ``spools``."""
    return shown[0] if len(shown) == 1 else {**sums, "spools": shown}


def on_each(spools: Sequence[Path], work: Callable[[Path], _Result]) -> list[SpoolOutcome[_Result]]:
    """Call ``work`` with each spool. A failure does not stop the other spools.

    Raises:
        SpoolError: ``work`` failed, and there is one spool only.
    """
    outcomes: list[SpoolOutcome[_Result]] = []
    for spool in spools:
        try:
            outcomes.append(SpoolOutcome(spool, work(spool)))
        except SpoolError as error:
            if len(spools) == 1:
                raise
            outcomes.append(SpoolOutcome(spool, error=error))
    return outcomes
