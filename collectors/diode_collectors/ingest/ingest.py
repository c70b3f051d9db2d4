"""Move records from a spool into the warehouse in one pass that stores every record exactly once.

A batch is committed durably before its segments are removed. A crash in between delivers a segment again; the unique
uids of its records turn the second delivery into a look-up. Damaged data goes to quarantine, and the rest is ingested.
An error of the database ends the pass and leaves the segments where they are.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from diode_collectors.ingest.batches import Batch, Committing, Pending
from diode_collectors.ingest.report import LISTED_REJECTIONS, IngestProgress, IngestReport, Rejection, remedy
from diode_collectors.spool.files import unreadable
from diode_collectors.spool.quarantine import BY_WORTH
from diode_collectors.spool.spool import Spool
from diode_store.errors import CodecError, SegmentError, SpoolError
from diode_store.records import Measurement
from diode_store.values.checks import other_content
from diode_store.wire.segment_layout import FRAME_BYTES, MAX_PAYLOAD_BYTES
from diode_store.wire.segments import OPEN_SUFFIX, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from diode_store.warehouse.store import Store
    from diode_store.wire.segments import Frame

_CHUNK_FRAMES = 500
_CHUNK_BYTES = 4 * 2**20
MOST_ENTRIES = 100
"""Limit on the rejections of one segment that become files of their own. With more, the whole segment is kept too."""
MOST_ENTRY_BYTES = MAX_PAYLOAD_BYTES + FRAME_BYTES
"""Largest rejection that becomes a file of its own, in bytes."""

_WOULD_GO = "ingesting would put it into quarantine"


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

    Two passes at once do no harm, but gain nothing; ``Spool.lock`` keeps others out.

    Args:
        spool_dir: the spool; a missing folder counts as empty.
        store: the warehouse.
        dry_run: only count; change neither the spool nor the warehouse.
        should_stop: called between batches; once it returns True, the pass ends with what it has committed.
        on_progress: called now and then with the progress of the pass.
        leave_out: names of segments to skip.

    Raises:
        DatabaseError: the database failed; uncommitted records are still in the spool.
        SpoolError: the spool cannot be read or written; uncommitted records are still there.
    """
    work = _Pass(Spool(spool_dir), store, dry_run=dry_run, should_stop=should_stop, leave_out=leave_out)
    return work.run(on_progress or (lambda _progress: None))


class _Tally:
    """Counts of a running pass."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.rejections: list[Rejection] = []
        self.doubts: list[str] = []
        self.unknown_ops: Counter[str] = Counter()
        self.unreadable: list[str] = []
        self.stopped = False

    def reject(self, rejection: Rejection) -> None:
        self.reasons[rejection.reason.value] += 1
        if len(self.rejections) < LISTED_REJECTIONS:
            self.rejections.append(rejection)

    def doubt(self, lines: Sequence[str]) -> None:
        self.counts["doubtful"] += len(lines)
        self.doubts += lines[: LISTED_REJECTIONS - len(self.doubts)]

    def report(self) -> IngestReport:
        counts = self.counts
        return IngestReport(
            segments=counts["segments"],
            measurements=counts["measurements"],
            duplicates=counts["duplicates"],
            timings=counts["timings"],
            decisions=counts["decisions"],
            doubtful=counts["doubtful"],
            doubts=tuple(self.doubts),
            unknown_ops=dict(self.unknown_ops),
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
        # Uids that a dry run would have stored.
        self._seen: set[bytes] = set()
        # Segments with a part that could not be quarantined, for example on a full disk. They stay in the spool.
        self._left: dict[Path, SpoolError] = {}
        self._put_aside: Counter[Path] = Counter()
        # Segments with too many rejections for files of their own. They go into quarantine whole after ingesting.
        self._crowded: dict[Path, tuple[Reason, str]] = {}

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
        """Decode frames and commit full batches. Replays are decoded too: their uid may stand for something else."""
        decoded = []
        for frame in chunk:
            if frame.error is not None:
                self._reject(path, frame, frame.reason or Reason.NO_MARKER, frame.error)
                continue
            try:
                pending = Pending(frame.record(), path, frame)
            except (SegmentError, CodecError) as error:
                self._reject(path, frame, Reason.of(error), str(error))
                continue
            if self._dry_run:
                decoded.append(pending)
                continue
            self._batch.add(pending)
            if self._batch.is_full():
                self._commit()
        self._count(decoded)

    def _count(self, decoded: Sequence[Pending]) -> None:
        """Count records as a dry run."""
        known = self._store.known(pending.record.uid for pending in decoded)
        others = set(map(id, self._store.contradicted(pending.record for pending in decoded)))
        for record, path, frame in decoded:
            if id(record) in others:
                self._reject(path, frame, Reason.OTHER_CONTENT, other_content(record.uid))
            elif record.uid in known or record.uid in self._seen:
                self._tally.counts["duplicates"] += 1
            elif isinstance(record, Measurement):
                self._tally.counts.update(measurements=1, timings=len(record.timings))
                self._tally.unknown_ops.update([record.problem.op] if record.problem.is_unknown else [])
            else:
                self._tally.counts.update(decisions=1)
            self._seen.add(record.uid)

    def _commit(self) -> None:
        """Finish the batch before, then start to commit this one."""
        self._finish()
        batch, self._batch = self._batch, Batch()
        self._committing.start(batch)
        if not self._committing.overlaps:
            self._finish()

    def _finish(self) -> None:
        """Count the committed records, quarantine the refused ones, and remove the finished segments."""
        written = self._committing.finish()
        if written is None:
            return
        self._tally.counts.update(written.counts)
        self._tally.doubt(written.doubts)
        self._tally.unknown_ops += written.unknown_ops
        for pending, reason, message in written.refused:
            try:
                self._reject(pending.segment, pending.frame, reason, message)
            except SpoolError as error:
                self._left.setdefault(pending.segment, error)
        for path in written.batch.completes:
            if path in self._left:
                continue
            if not self._dry_run:
                try:
                    self._remove(path)
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
                self._put(path, frame, reason, rejection.message)
        self._tally.reject(rejection)

    def _put(self, path: Path, frame: Frame, reason: Reason, message: str) -> None:
        """Put a frame into quarantine, or note that its whole segment goes there."""
        self._put_aside[path] += 1
        if self._put_aside[path] <= MOST_ENTRIES and frame.size <= MOST_ENTRY_BYTES:
            self._spool.quarantine(path, frame, reason, message)
        elif path not in self._crowded or _worth(reason) > _worth(self._crowded[path][0]):
            self._crowded[path] = reason, message

    def _remove(self, path: Path) -> None:
        """Remove an ingested segment, or quarantine it if not all of its rejections are there."""
        crowded = self._crowded.pop(path, None)
        if crowded is None:
            self._spool.remove(path)
        else:
            self._spool.quarantine_segment(path, *crowded)
        del self._put_aside[path]

    def _reject_segment(self, path: Path, message: str) -> None:
        if path.suffix == OPEN_SUFFIX:
            # Only in a dry run: otherwise the segment could not be adopted either.
            self._tally.unreadable.append(f"{path}: {message}")
            return
        reason = Reason.NEWER_FORMAT
        rejection = Rejection(path.name, 0, reason, f"{message}; {self._what_next(reason)}")
        if not self._dry_run:
            self._spool.quarantine_segment(path, reason, rejection.message)
        self._tally.reject(rejection)

    def _what_next(self, reason: Reason) -> str:
        return _WOULD_GO if self._dry_run else remedy(reason)


def _worth(reason: Reason) -> int:
    """Return how useful the bytes may still be; damage is removed first when room is needed."""
    return BY_WORTH.index(reason) if reason in BY_WORTH else -1


def _chunks(frames: Iterable[Frame]) -> Iterator[list[Frame]]:
    """Group frames so that few are in memory and one look-up serves many."""
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
        return path.lstat().st_size
    except OSError:
        return 0
