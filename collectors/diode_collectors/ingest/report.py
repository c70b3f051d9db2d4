"""Hold the counts of a pass over a spool, and its rejections."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from diode_store.wire.segments import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

LISTED_REJECTIONS = 100
DOUBTS_SHOWN = 3
"""Limit on the implausible values that a pass shows, beside their number."""
_UPGRADE = "then move it from the quarantine back into the spool"
_DAMAGED = "what is left of it is in the quarantine; measure again what it held"
_REPORT = "it is in the quarantine; report it to the author of the collector"
_REMEDIES = {
    Reason.NEWER_FORMAT: _UPGRADE,
    Reason.NEWER_RECORD: _UPGRADE,
    Reason.BAD_RECORD: _REPORT,
    Reason.OTHER_CONTENT: _REPORT,
}


class Rejection(NamedTuple):
    """A part of a segment that is not a record."""

    segment: str
    """Name of the segment."""
    offset: int
    """First byte of the part, counted from the segment's start."""
    reason: Reason
    message: str
    """The problem and its remedy, in one line."""

    def __str__(self) -> str:
        """Return one line with place, problem and remedy."""
        return f"{self.segment} at offset {self.offset}: {self.message}"


@dataclass(frozen=True)
class IngestReport:
    """Result of a pass; for a dry run, the result that a pass would have had."""

    segments: int = 0
    """Segments read to their end and removed."""
    measurements: int = 0
    """New measurements in the warehouse."""
    duplicates: int = 0
    """Records of either kind that were there already."""
    timings: int = 0
    """Timings of the new measurements."""
    decisions: int = 0
    """New decisions of the hook in the warehouse."""
    rejected: int = 0
    """Frames and stretches of damage that went to quarantine."""
    rejected_by_reason: Mapping[str, int] = field(default_factory=dict)
    rejections: tuple[Rejection, ...] = ()
    """First hundred rejections."""
    doubtful: int = 0
    """Implausible values of the new measurements: impossible times, and clocks that were off."""
    doubts: tuple[str, ...] = ()
    """A line for each of the first hundred implausible values."""
    unknown_ops: Mapping[str, int] = field(default_factory=dict)
    """Number of new measurements by op, for the ops that this version does not know."""
    torn_bytes: int = 0
    """Bytes of unfinished writes that were cut off segments of dead writers."""
    unreadable: tuple[str, ...] = ()
    """A line for each segment that could not be read and stays where it is."""
    stopped: bool = False
    """True if the pass was asked to end early."""

    def __add__(self, other: IngestReport) -> IngestReport:
        """Return the sum of two passes."""
        reasons = Counter(self.rejected_by_reason) + Counter(other.rejected_by_reason)
        return IngestReport(
            segments=self.segments + other.segments,
            measurements=self.measurements + other.measurements,
            duplicates=self.duplicates + other.duplicates,
            timings=self.timings + other.timings,
            decisions=self.decisions + other.decisions,
            rejected=self.rejected + other.rejected,
            rejected_by_reason=dict(reasons),
            rejections=(self.rejections + other.rejections)[:LISTED_REJECTIONS],
            doubtful=self.doubtful + other.doubtful,
            doubts=(self.doubts + other.doubts)[:LISTED_REJECTIONS],
            unknown_ops=dict(Counter(self.unknown_ops) + Counter(other.unknown_ops)),
            torn_bytes=self.torn_bytes + other.torn_bytes,
            unreadable=self.unreadable + other.unreadable,
            stopped=self.stopped or other.stopped,
        )


class IngestProgress(NamedTuple):
    """Progress of a pass."""

    report: IngestReport
    done_bytes: int
    total_bytes: int


def remedy(reason: Reason) -> str:
    """Return the remedy for data that was quarantined for ``reason``."""
    return _REMEDIES.get(reason, _DAMAGED)
