"""What readers of a format get besides the file, and how they report bad entries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diode_store.records import Environment, TimingMethod

if TYPE_CHECKING:
    from datetime import datetime

    from diode_store.records import Hardware

NO_HARDWARE = "the row names no hardware; give --hardware NAME (`diode hardware list` shows known names)"
"""The error of a row without hardware when the context has none either."""


@dataclass(frozen=True)
class StatedProblem:
    """The matrix product of a file's timings, where the file does not say; None is unknown."""

    op: str | None = None
    m: int | None = None
    n: int | None = None
    k: int | None = None
    dtype: str | None = None
    b: int = 1
    layout: str = "nn"
    """Two letters, for A and B: n row-major, t transposed."""
    template: str | None = None
    """What to call the kernel."""


@dataclass(frozen=True)
class ImportContext:
    """Values for all of a file's rows that do not have their own."""

    hardware: Hardware | None = None
    replaces_names: bool = True
    """Whether ``hardware`` also stands in for a file's own name of its one device; else only where it may mean it."""
    environment: Environment = field(default_factory=Environment)
    """All unknown unless it was named."""
    measured_at: datetime | None = None
    """Timezone-aware; None when unknown."""
    dataset: str | None = None
    licence: str | None = None
    search_space: str | None = None
    timing_method: TimingMethod | None = None
    """None means what the format says about itself."""
    devices: tuple[Hardware, ...] = ()
    """Those of the warehouse, which a file may name besides the known ones."""
    problem: StatedProblem = field(default_factory=StatedProblem)
    """For formats that do not name problems."""


@dataclass(frozen=True)
class BadLine:
    """A line that is not a measurement."""

    line: int
    """1-based."""
    reason: str
    """What is wrong and what to do about it, in one line."""

    def at(self, file: str) -> str:
        """Return ``FILE:LINE: reason``."""
        return f"{file}:{self.line}: {self.reason}"
