"""Values that readers get besides the file, and their reports of bad entries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diode_store.records import Environment, TimingMethod

if TYPE_CHECKING:
    from datetime import datetime

    from diode_store.records import Hardware

ESTIMATE_FACTOR = 3
"""Ratio to the problem's best time above which a time is a first look, unless the file says otherwise."""
ASSUMED = "assumed"
"""Name in a measurement's ``extra`` of what a reader assumed about upstream's data sets, which have no uids."""
NO_HARDWARE = "the row names no hardware; give --hardware NAME (`diode hardware list` shows known names)"
"""Error for a row without hardware if the context has none either."""


@dataclass(frozen=True)
class StatedProblem:
    """The matrix product of a file's timings, for files that do not name it; None means unknown."""

    op: str | None = None
    m: int | None = None
    n: int | None = None
    k: int | None = None
    dtype: str | None = None
    b: int = 1
    layout: str = "nn"
    """Two letters, for A and B: n row-major, t transposed."""
    template: str | None = None
    """Name for the kernel."""


@dataclass(frozen=True)
class ImportContext:
    """Values for a file's rows that lack their own."""

    hardware: Hardware | None = None
    replaces_names: bool = True
    """True if ``hardware`` replaces a file's own name of its one device; False if the name must be able to mean it."""
    environment: Environment = field(default_factory=Environment)
    """Environment of the timings; unknown unless given."""
    measured_at: datetime | None = None
    """Time of the measurements with a time zone; None means unknown."""
    dataset: str | None = None
    licence: str | None = None
    search_space: str | None = None
    timing_method: TimingMethod | None = None
    """None means the format's own statement."""
    devices: tuple[Hardware, ...] = ()
    """Devices of the warehouse, which a file may name besides the known devices."""
    problem: StatedProblem = field(default_factory=StatedProblem)
    """Problem of the timings, for formats that do not name problems."""


@dataclass(frozen=True)
class BadLine:
    """A line that is not a measurement."""

    line: int
    """Line number, from 1."""
    reason: str
    """Error and remedy in one line."""

    def at(self, file: str) -> str:
        """Return ``FILE:LINE: reason``."""
        return f"{file}:{self.line}: {self.reason}"


@dataclass(frozen=True)
class BadProblem(BadLine):
    """A problem of a document that is not a measurement; ``line`` is its number in the file, from 1."""

    def at(self, file: str) -> str:
        """Return ``FILE: PLACE: reason``; the reason begins with the place."""
        return f"{file}: {self.reason}"


def with_remedy(reason: str, remedy: str) -> str:
    """Return ``reason`` with ``remedy`` after a semicolon, unless it has a remedy already."""
    return reason if "; " in reason else f"{reason}; {remedy}"
