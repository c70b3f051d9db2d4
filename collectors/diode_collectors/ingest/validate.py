"""Check segments frame by frame, as ingesting does, without changing anything."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diode_collectors.spool.files import check_one_name, open_segment, open_to_read, unreadable
from diode_collectors.spool.spool import Spool
from diode_store.errors import CodecError, SegmentError, SpoolError
from diode_store.records import Measurement
from diode_store.wire.segments import OPEN_SUFFIX, Reason, SegmentReader, bytes_of_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from diode_store.wire.codec import Record
    from diode_store.wire.segments import Frame

_INGEST = "`diode-ingest` keeps the good records and puts this into quarantine"


@dataclass(frozen=True)
class Validation:
    """Contents of a segment."""

    file: Path
    frames: int
    """Number of good records."""
    timings: int
    decisions: int
    """Number of records that are decisions of the hook."""
    torn_bytes: int
    """Bytes of an unfinished write at the end of an unsealed segment. Not an error: ingesting cuts them off."""
    problems: tuple[str, ...]
    """A line for each problem: place, problem and remedy."""


def segments_of(paths: Iterable[Path]) -> list[Path]:
    """Return ``paths`` with each folder replaced by its segments.

    Raises:
        SpoolError: there are no segments.
    """
    paths = list(paths)
    segments = [segment for path in paths for segment in _segments(path)]
    if not segments:
        names = ", ".join(str(path) for path in paths)
        raise SpoolError(
            f"{names}: no segments there; name segments (.seg or .open), a spool, or its quarantine folder"
        )
    return segments


def validate(path: Path, *, is_named: bool = False) -> Validation:
    """Check one segment, sealed or still being written.

    Args:
        path: the segment.
        is_named: a user named it, so it may be a symbolic link and lie anywhere.
    """
    try:
        fd = _open_named(path) if is_named else open_segment(path, os.O_RDONLY)
    except FileNotFoundError as error:
        return Validation(path, 0, 0, 0, 0, (f"cannot be read: {error.strerror}; check the path",))
    except OSError as error:
        return Validation(path, 0, 0, 0, 0, (unreadable(error),))
    try:
        return _validate(path, SegmentReader(bytes_of_file(fd), sealed=path.suffix != OPEN_SUFFIX))
    except SegmentError as error:
        return Validation(path, 0, 0, 0, 0, (f"offset 0: {error}",))
    except OSError as error:
        return Validation(path, 0, 0, 0, 0, (unreadable(error),))
    finally:
        os.close(fd)


def _open_named(path: Path) -> int:
    fd = open_to_read(path)
    try:
        check_one_name(path, os.fstat(fd))
    except OSError:
        os.close(fd)
        raise
    return fd


def _segments(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    spool = Spool(path)
    return [*spool.sealed(), *spool.unsealed()]


def _validate(path: Path, reader: SegmentReader) -> Validation:
    frames = timings = decisions = 0
    problems = []
    for frame in reader.frames():
        found = _record_in(frame)
        if isinstance(found, str):
            problems.append(f"offset {frame.offset}: {found}")
            continue
        frames += 1
        if isinstance(found, Measurement):
            timings += len(found.timings)
        else:
            decisions += 1
    return Validation(path, frames, timings, decisions, reader.torn_bytes, tuple(problems))


def _record_in(frame: Frame) -> Record | str:
    """Return the record in a frame, or the reason why it is bad."""
    if frame.error is not None:
        return f"{frame.error}; {_INGEST}"
    try:
        return frame.record()
    except (SegmentError, CodecError) as error:
        return str(error) if Reason.of(error) is Reason.NEWER_RECORD else f"{error}; {_INGEST}"
