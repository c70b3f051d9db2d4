"""Pack the records of spools, segments or jsonl files into sealed segments that can be shipped.

The same input gives the same bytes (with the same zlib), because the writer id is a digest of the records.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from diode_collectors.spool.files import spool_errors
from diode_collectors.spool.reading import NO_SEGMENT, SEGMENT_SUFFIXES, records_of, segments_of
from diode_collectors.spool.writer import DEFAULT_SEGMENT_BYTES
from diode_store.errors import ImportFileError
from diode_store.exchange.importing import read_strictly
from diode_store.records import Measurement, Outcome
from diode_store.system.files import write_durably
from diode_store.wire.codec import encode
from diode_store.wire.segment_layout import Header, end_to_bytes, frame_to_bytes, pack_payload
from diode_store.wire.segments import SEALED_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from diode_store.exchange.context import ImportContext
    from diode_store.wire.codec import Record

_TO_BE_SHIPPED = 0o644
"""File mode of packed segments, which everybody may read. A spool's own segments are private."""


@dataclass(frozen=True)
class Unsaid:
    """Values for measurements that lack them."""

    families: Mapping[bytes, str] = field(default_factory=dict)
    """Family that each problem was swept for, by the problem's key."""
    regime: str | None = None
    """Regime in which the kernels were timed."""

    def told(self, record: Record) -> Record:
        """Return a measurement with its missing values filled in, or a decision unchanged."""
        if not isinstance(record, Measurement):
            return record
        measurement = record
        method = measurement.timing_method
        return replace(
            measurement,
            family=measurement.family or self.families.get(measurement.problem.key),
            timing_method=replace(method, regime=method.regime or self.regime),
        )


class PackReport(NamedTuple):
    """Counts of the packed records."""

    segments: tuple[Path, ...]
    measurements: int
    timings: int
    failures: int
    """Timings whose outcome is not ok."""
    of_a_family: int
    """Measurements that name the family they were swept for."""
    decisions: int
    """Decisions of the hook, which are packed unchanged."""


@dataclass
class _Totals:
    measurements: int = 0
    decisions: int = 0
    timings: int = 0
    failures: int = 0
    of_a_family: int = 0


def pack(
    files: Sequence[Path],
    output: Path,
    context: ImportContext,
    *,
    name: str,
    unsaid: Unsaid = Unsaid(),
    anonymous: bool = False,
    segment_bytes: int = DEFAULT_SEGMENT_BYTES,
    on_progress: Callable[[float], None] = lambda _measurements: None,
) -> PackReport:
    """Write records as sealed segments: ``NAME-0000.seg``, ``NAME-0001.seg`` and so on.

    Args:
        files: spools, segments, or files in the format of ``diode_store.exchange.jsonl``, which may be gzipped.
        output: the folder; made if missing. Segments of the same names are replaced.
        context: values that the files lack. Its data set and license also replace the values in measurements from
            spools and segments.
        name: beginning of the segments' names.
        unsaid: values for measurements that lack them.
        anonymous: leave out the host and its GPUs.
        segment_bytes: size at which the next segment begins.
        on_progress: called with the number of records just packed.

    Raises:
        ImportFileError: a file cannot be read, or a line or record is bad; nothing was written.
        SpoolError: a spool cannot be read, or the output cannot be written.
    """
    totals = _Totals()
    found: Iterator[Record] = (unsaid.told(record) for path in files for record in _records(path, context))
    if anonymous:
        found = map(_anonymous, found)
    frames = _told(_frames(found, totals), on_progress)
    contents = [_segment(group, i) for i, group in enumerate(_groups(frames, segment_bytes))]
    with spool_errors(output, "write the segments"):
        output.mkdir(parents=True, exist_ok=True)
        paths = tuple(output / f"{name}-{i:04d}{SEALED_SUFFIX}" for i in range(len(contents)))
        write_durably(dict(zip(paths, contents, strict=True)), mode=_TO_BE_SHIPPED)
    return PackReport(paths, totals.measurements, totals.timings, totals.failures, totals.of_a_family, totals.decisions)


def _anonymous(record: Record) -> Record:
    if isinstance(record, Measurement):
        return replace(record, host=None, device_uuid=None)
    # A compiler's message can name files and folders of the host.
    return replace(record, host=None, failure=None if record.failure is None else "could not be compiled")


def _records(path: Path, context: ImportContext) -> Iterator[Record]:
    if not path.is_dir() and path.suffix not in SEGMENT_SUFFIXES:
        yield from read_strictly(str(path), context)
        return
    said = {name: value for name in ("dataset", "licence") if (value := getattr(context, name)) is not None}
    found = False
    for segment, frames in segments_of(path, strict=True):
        found = True
        for record in records_of(segment, frames):
            yield replace(record, **said) if isinstance(record, Measurement) else record
    if not found:
        raise ImportFileError(f"{path} {NO_SEGMENT}")


def _frames(records: Iterable[Record], totals: _Totals) -> Iterator[tuple[bytes, bytes]]:
    """Yield the uid and the frame of each record, without repeated records."""
    seen = set()
    for record in records:
        if record.uid in seen:
            continue
        seen.add(record.uid)
        _count(record, totals)
        payload = pack_payload(encode(record), compress=True)
        yield record.uid, frame_to_bytes(record.uid, payload)


def _count(record: Record, totals: _Totals) -> None:
    if not isinstance(record, Measurement):
        totals.decisions += 1
        return
    totals.measurements += 1
    totals.of_a_family += record.family is not None
    totals.timings += len(record.timings)
    totals.failures += sum(timing.outcome is not Outcome.OK for timing in record.timings)


def _told(frames: Iterable[tuple[bytes, bytes]], on_progress: Callable[[float], None]) -> Iterator[tuple[bytes, bytes]]:
    for frame in frames:
        on_progress(1)
        yield frame


def _groups(frames: Iterable[tuple[bytes, bytes]], limit: int) -> Iterator[list[tuple[bytes, bytes]]]:
    group: list[tuple[bytes, bytes]] = []
    size = 0
    for uid, frame in frames:
        if group and size + len(frame) > limit:
            yield group
            group, size = [], 0
        group.append((uid, frame))
        size += len(frame)
    if group:
        yield group


def _segment(frames: Sequence[tuple[bytes, bytes]], sequence: int) -> bytes:
    writer_id = hashlib.blake2b(b"".join(uid for uid, _ in frames), digest_size=16).digest()
    header = Header(writer_id, sequence, compressed=True)
    return b"".join((header.to_bytes(), *(frame for _, frame in frames), end_to_bytes(len(frames))))
