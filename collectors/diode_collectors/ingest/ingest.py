"""From a spool into the warehouse: one pass, which stores every record exactly once.

A batch is committed durably before the segments it came from are removed, so a crash in between delivers a
segment again; the records' unique uids make the second delivery a look-up. What is not a record goes to quarantine
and the rest is ingested. The database's errors end the pass and leave its segments where they are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from diode_collectors.ingest.batches import Batch, Committing, Pending
from diode_collectors.spool.files import unreadable
from diode_collectors.spool.spool import Spool
from diode_store.errors import CodecError, SegmentError, SpoolError
from diode_store.records import Measurement
from diode_store.wire.segments import OPEN_SUFFIX, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from diode_store.warehouse.store import Store
    from diode_store.wire.segments import Frame

_CHUNK_FRAMES = 500
_WORTH_A_LOOK = 8
_CHUNK_BYTES = 4 * 2**20
_LISTED_REJECTIONS = 100

_UPGRADE = "then move it from the quarantine back into the spool"
_DAMAGED = "what is left of it is in the quarantine; measure again what it held"
_WOULD_GO = "ingesting would put it into quarantine"
_REMEDIES = {
    Reason.NEWER_FORMAT: _UPGRADE,
    Reason.NEWER_RECORD: _UPGRADE,
    Reason.BAD_RECORD: "it is in the quarantine; report it to the author of the collector",
}


class Rejection(NamedTuple):
    """A part of a segment that is not a record."""

    segment: str
    """The segment's name."""
    offset: int
    """Where it begins in there, in bytes."""
    reason: Reason
    message: str
    """The problem and its remedy, in one line."""

    def __str__(self) -> str:
        """Return one line with place, problem and remedy."""
        return f"{self.segment} at offset {self.offset}: {self.message}"


@dataclass(frozen=True)
class IngestReport:
    """What a pass did; in a dry run, what it would have done."""

    segments: int = 0
    """Segments read to their end, and removed."""
    measurements: int = 0
    """New ones that are now in the warehouse."""
    duplicates: int = 0
    """Records that were there already, of either kind."""
    timings: int = 0
    """Timings of the new measurements."""
    decisions: int = 0
    """New decisions of the hook that are now in the warehouse."""
    rejected: int = 0
    """Frames and stretches of damage that went to quarantine."""
    rejected_by_reason: Mapping[str, int] = field(default_factory=dict)
    rejections: tuple[Rejection, ...] = ()
    """The first hundred of them."""
    torn_bytes: int = 0
    """Unfinished writes that were cut off segments whose writer died."""
    unreadable: tuple[str, ...] = ()
    """A line for each segment that could not be read; it was left where it is."""
    stopped: bool = False
    """Whether it was asked to end early."""

    def __add__(self, other: IngestReport) -> IngestReport:
        """Return what both passes did together."""
        reasons = Counter(self.rejected_by_reason) + Counter(other.rejected_by_reason)
        return IngestReport(
            segments=self.segments + other.segments,
            measurements=self.measurements + other.measurements,
            duplicates=self.duplicates + other.duplicates,
            timings=self.timings + other.timings,
            decisions=self.decisions + other.decisions,
            rejected=self.rejected + other.rejected,
            rejected_by_reason=dict(reasons),
            rejections=(self.rejections + other.rejections)[:_LISTED_REJECTIONS],
            torn_bytes=self.torn_bytes + other.torn_bytes,
            unreadable=self.unreadable + other.unreadable,
            stopped=self.stopped or other.stopped,
        )


class IngestProgress(NamedTuple):
    """How far a pass has come."""

    report: IngestReport
    done_bytes: int
    total_bytes: int


def ingest_once(
    spool_dir: Path,
    store: Store,
    *,
    dry_run: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    on_progress: Callable[[IngestProgress], None] | None = None,
    leave_out: Collection[str] = (),
) -> IngestReport:
    """Ingest everything that waits in a spool.

    Two at once do no harm, but gain nothing: take ``Spool.lock`` to be the only one.

    Args:
        spool_dir: the spool; one that does not exist is empty.
        store: where to.
        dry_run: only count; neither the spool nor the warehouse is changed.
        should_stop: called between batches; once it returns True, the pass ends with what it has committed.
        on_progress: called now and then with the progress of the pass.
        leave_out: names of segments to skip.

    Raises:
        DatabaseError: the database failed; what was not committed is still in the spool.
        SpoolError: the spool cannot be read or written; likewise.
    """
    work = _Pass(Spool(spool_dir), store, dry_run=dry_run, should_stop=should_stop, leave_out=leave_out)
    return work.run(on_progress or (lambda _progress: None))


def remedy(reason: Reason) -> str:
    """Return what to do about something that was put into quarantine for ``reason``."""
    return _REMEDIES.get(reason, _DAMAGED)


class _Tally:
    """The counts of a pass while it runs."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.rejections: list[Rejection] = []
        self.unreadable: list[str] = []
        self.stopped = False

    def reject(self, rejection: Rejection) -> None:
        self.reasons[rejection.reason.value] += 1
        if len(self.rejections) < _LISTED_REJECTIONS:
            self.rejections.append(rejection)

    def report(self) -> IngestReport:
        counts = self.counts
        return IngestReport(
            segments=counts["segments"],
            measurements=counts["measurements"],
            duplicates=counts["duplicates"],
            timings=counts["timings"],
            decisions=counts["decisions"],
            torn_bytes=counts["torn_bytes"],
            rejected=self.reasons.total(),
            rejected_by_reason=dict(self.reasons),
            rejections=tuple(self.rejections),
            unreadable=tuple(self.unreadable),
            stopped=self.stopped,
        )


class _Pass:
    """One pass over a spool."""

    def __init__(
        self,
        spool: Spool,
        store: Store,
        *,
        dry_run: bool,
        should_stop: Callable[[], bool],
        leave_out: Collection[str],
    ) -> None:
        self._spool = spool
        self._leave_out = leave_out
        self._store = store
        self._dry_run = dry_run
        self._should_stop = should_stop
        self._tally = _Tally()
        self._batch = Batch()
        self._committing = Committing(store)
        # Uids that the store cannot know of yet: those not committed, in a dry run those of the whole pass.
        self._seen: set[bytes] = set()
        # Segments with a part that could not be put aside, on a full disk say; they stay, the others are ingested.
        self._left: dict[Path, SpoolError] = {}

    def run(self, on_progress: Callable[[IngestProgress], None]) -> IngestReport:
        try:
            return self._run(on_progress)
        finally:
            self._committing.close()

    def _run(self, on_progress: Callable[[IngestProgress], None]) -> IngestReport:
        segments = [path for path in self._segments() if path.name not in self._leave_out]
        sizes = [_size(path) for path in segments]
        done, total = 0, sum(sizes)
        for path, size in zip(segments, sizes, strict=True):
            for offset in self._read(path):
                on_progress(IngestProgress(self._tally.report(), done + offset, total))
            done += size
            if self._tally.stopped:
                break
        self._commit()
        self._finish()
        on_progress(IngestProgress(self._tally.report(), done, total))
        if self._left:
            raise next(iter(self._left.values()))
        return self._tally.report()

    def _segments(self) -> list[Path]:
        if self._dry_run:
            return sorted((*self._spool.sealed(), *self._spool.unsealed()))
        for adopted in self._spool.adopt_idle():
            self._tally.counts["torn_bytes"] += adopted.torn_bytes
            self._tally.unreadable.extend([adopted.problem] if adopted.problem else [])
        return self._spool.sealed()

    def _read(self, path: Path) -> Iterator[int]:
        """Read a segment into batches; yield the offsets reached."""
        try:
            yield from self._read_whole(path)
        except SpoolError as error:
            self._left.setdefault(path, error)

    def _read_whole(self, path: Path) -> Iterator[int]:
        try:
            with self._spool.reader(path) as reader:
                if reader is None:
                    return
                for chunk in _chunks(reader.frames()):
                    if self._is_asked_to_stop():
                        return
                    self._take(path, chunk)
                    yield chunk[-1].offset + chunk[-1].size
                self._tally.counts["torn_bytes"] += reader.torn_bytes if self._dry_run else 0
        except SegmentError as error:
            self._reject_segment(path, str(error))
        except OSError as error:
            self._tally.unreadable.append(f"{path}: {unreadable(error)}")
        else:
            self._batch.completes.append(path)

    def _is_asked_to_stop(self) -> bool:
        self._tally.stopped = self._tally.stopped or self._should_stop()
        return self._tally.stopped

    def _take(self, path: Path, chunk: Sequence[Frame]) -> None:
        """Decode what is new of some frames; commit whenever a batch is full."""
        # A few records are cheaper to decode than to ask for; storing asks once more, for a whole batch.
        asks = self._dry_run or len(chunk) >= _WORTH_A_LOOK
        known = self._store.known(frame.uid for frame in chunk if frame.uid is not None) if asks else set()
        for frame in chunk:
            if frame.error is not None:
                self._reject(path, frame, frame.reason or Reason.NO_MARKER, frame.error)
            elif frame.uid in known or frame.uid in self._seen:
                self._tally.counts["duplicates"] += 1
            else:
                self._decode(path, frame)
            if self._batch.is_full():
                self._commit()

    def _decode(self, path: Path, frame: Frame) -> None:
        try:
            record = frame.record()
        except (SegmentError, CodecError) as error:
            self._reject(path, frame, Reason.of(error), str(error))
            return
        self._seen.add(record.uid)
        if not self._dry_run:
            self._batch.add(Pending(record, path, frame))
        elif isinstance(record, Measurement):
            self._tally.counts.update(measurements=1, timings=len(record.timings))
        else:
            self._tally.counts.update(decisions=1)

    def _commit(self) -> None:
        """Have the batch committed after the one before it."""
        self._finish()
        batch, self._batch = self._batch, Batch()
        self._committing.start(batch)
        if not self._committing.overlaps:
            self._finish()

    def _finish(self) -> None:
        """Count what was committed, put aside what was refused, and remove the finished segments."""
        written = self._committing.finish()
        if written is None:
            return
        batch, counts, refused = written
        self._tally.counts.update(counts)
        for pending, message in refused:
            try:
                self._reject(pending.segment, pending.frame, Reason.BAD_RECORD, message)
            except SpoolError as error:
                self._left.setdefault(pending.segment, error)
        if not self._dry_run:
            self._seen -= batch.uids()
        for path in batch.completes:
            if path in self._left:
                continue
            if not self._dry_run:
                try:
                    self._spool.remove(path)
                except SpoolError as error:
                    self._left[path] = error
                    continue
            self._tally.counts["segments"] += 1

    def _reject(self, path: Path, frame: Frame, reason: Reason, message: str) -> None:
        rejection = Rejection(path.name, frame.offset, reason, f"{message}; {self._what_next(reason)}")
        if not self._dry_run:
            if frame.size == _size(path):
                self._spool.quarantine_segment(path, reason, rejection.message)
            else:
                self._spool.quarantine(path, frame, reason, rejection.message)
        self._tally.reject(rejection)

    def _reject_segment(self, path: Path, message: str) -> None:
        if path.suffix == OPEN_SUFFIX:
            # Only in a dry run: otherwise adopting it has failed already.
            self._tally.unreadable.append(f"{path}: {message}")
            return
        reason = Reason.NEWER_FORMAT
        rejection = Rejection(path.name, 0, reason, f"{message}; {self._what_next(reason)}")
        if not self._dry_run:
            self._spool.quarantine_segment(path, reason, rejection.message)
        self._tally.reject(rejection)

    def _what_next(self, reason: Reason) -> str:
        return _WOULD_GO if self._dry_run else remedy(reason)


def _chunks(frames: Iterable[Frame]) -> Iterator[list[Frame]]:
    """Group frames so that one look-up serves many and few are in memory."""
    chunk: list[Frame] = []
    size = 0
    for frame in frames:
        chunk.append(frame)
        size += len(frame.payload or b"")
        if len(chunk) >= _CHUNK_FRAMES or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
