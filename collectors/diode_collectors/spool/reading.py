"""Read measurements from a spool or another folder of segments, from a segment, or from another file."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from diode_collectors.spool.files import open_to_read, spool_errors
from diode_collectors.spool.spool import Spool
from diode_store.command_line.render import counted, printable
from diode_store.errors import (
    CodecError,
    ImportFileError,
    OtherKindError,
    SegmentError,
    SpoolError,
    UnknownVersionError,
)
from diode_store.exchange.context import BadLine, ImportContext
from diode_store.exchange.inputs import is_upstream_dataset, open_binary
from diode_store.records import Measurement
from diode_store.wire.segments import OPEN_SUFFIX, SEALED_SUFFIX, SegmentReader, bytes_of_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from diode_store.wire.codec import Record
    from diode_store.wire.segments import Frame

log = logging.getLogger(__name__)

SEGMENT_SUFFIXES = (SEALED_SUFFIX, OPEN_SUFFIX)
NO_SEGMENT = "holds no segment; name a spool that was not ingested yet, or exported files"


def measurements_in(path: Path, context: ImportContext | None = None) -> Iterator[Measurement]:
    """Yield the measurements of a folder of segments, of a segment, or of an exchange format's file.

    A damaged record of a segment is left out with a warning. Others may use the spool meanwhile, see ``segments_of``.

    Args:
        path: the folder or file: JSON Lines or upstream's data set (``.msgpack``, or ``.json``).
        context: values that a file lacks.

    Raises:
        SpoolError: the folder holds no segment, or a segment cannot be read.
        ImportFileError: the file cannot be read, or a line or problem in it is bad.
    """
    if not path.is_dir() and path.suffix not in SEGMENT_SUFFIXES:
        yield from _in_file(path, context or ImportContext())
        return
    found = False
    for segment, frames in segments_of(path):
        found = True
        yield from decoded(segment, frames)
    if not found:
        raise SpoolError(f"{path} {NO_SEGMENT}")


def segments_of(
    path: Path, *, since: float | None = None, strict: bool = False
) -> Iterator[tuple[Path, Iterator[Frame]]]:
    """Yield the open segments of a folder, sealed ones first, or the one segment at ``path``.

    This takes no lock, so it disturbs no writer. A segment that is sealed meanwhile is found under its new name; one
    that is ingested meanwhile is left out. A missing folder has no segments.

    Args:
        path: the folder or segment.
        since: leave out segments last written before this time, in seconds since the epoch.
        strict: fail if a segment of a folder cannot be read; otherwise leave it out with a warning.

    Yields:
        The name and the frames, which must be read before the next segment is asked for. Reading them raises
        ``SegmentError`` for a format that this version does not know.

    Raises:
        SpoolError: the folder cannot be read, or a segment that must be good cannot be.
    """
    is_segment = path.suffix in SEGMENT_SUFFIXES and not path.is_dir()
    for names in [(path,)] if is_segment else _listed(path):
        try:
            with spool_errors(path, "read the segment"):
                opened = _opened(names, must_exist=is_segment)
        except SpoolError as error:
            if is_segment or strict:
                raise
            log.warning("%s; it is left out", printable(str(error)))
            continue
        if opened is None:
            continue
        name, fd = opened
        try:
            if since is None or os.fstat(fd).st_mtime >= since:
                yield name, _frames(name, fd, strict=is_segment or strict)
        finally:
            os.close(fd)


def decoded(segment: Path, frames: Iterable[Frame]) -> Iterator[Measurement]:
    """Yield a segment's measurements, not its decisions; leave out damaged records with a warning."""
    unread = 0
    for frame in frames:
        try:
            measurement = frame.measurement()
        except OtherKindError:
            continue
        except (SegmentError, CodecError):
            unread += 1
            continue
        yield measurement
    if unread:
        log.warning("%s: left out %s that cannot be read", printable(str(segment)), counted(unread, "record"))


def strictly_decoded(segment: Path, frames: Iterable[Frame]) -> Iterator[Measurement]:
    """Yield the measurements, not the decisions, of a segment that must be free of damage.

    Raises:
        ImportFileError: a record is damaged, or newer than this version.
    """
    return (record for record in records_of(segment, frames) if isinstance(record, Measurement))


def records_of(segment: Path, frames: Iterable[Frame]) -> Iterator[Record]:
    """Yield the records of every kind of a segment that must be free of damage.

    Raises:
        ImportFileError: a record is damaged, or newer than this version.
    """
    try:
        for frame in frames:
            yield _decoded(frame, segment)
    except SegmentError as error:
        raise ImportFileError(f"{segment}: {error}") from error


def _in_file(path: Path, context: ImportContext) -> Iterator[Measurement]:
    if _is_dataset(path):
        from diode_store.exchange.foreign.torch_diode import measurements_of
        from diode_store.exchange.foreign.torch_diode_files import read_file
        from diode_store.exchange.foreign.torch_diode_types import Dataset

        for item in measurements_of(read_file(path, Dataset), context):
            if isinstance(item, BadLine):
                raise ImportFileError(item.at(str(path)))
            yield item
    else:
        from diode_store.exchange.importing import read_strictly

        yield from read_strictly(str(path), context)


def _is_dataset(path: Path) -> bool:
    """Return True for upstream's data set, whose JSON begins with its hardware; False for our JSON Lines."""
    if path.suffix == ".msgpack":
        return True
    if path.suffix != ".json":
        return False
    with open_binary(str(path)) as stream:
        return is_upstream_dataset(stream)


def _listed(folder: Path) -> list[tuple[Path, ...]]:
    """Return the names under which each segment of a folder may be found."""
    spool = Spool(folder)
    unsealed = spool.unsealed()  # listed first, so that a segment that is sealed in between is not missed
    sealed = spool.sealed()
    still_open = [(path, path.with_suffix(SEALED_SUFFIX)) for path in unsealed]
    return [*((path,) for path in sealed), *(names for names in still_open if names[1] not in sealed)]


def _opened(names: Iterable[Path], *, must_exist: bool) -> tuple[Path, int] | None:
    """Open the first of these files that exists; return its name and descriptor."""
    for name in names:
        try:
            return name, open_to_read(name)
        except FileNotFoundError:
            if must_exist or name.is_symlink():
                raise
    return None


def _frames(path: Path, fd: int, *, strict: bool) -> Iterator[Frame]:
    try:
        with spool_errors(path, "read the segment"):
            yield from SegmentReader(bytes_of_file(fd), sealed=path.suffix != OPEN_SUFFIX).frames()
    except SegmentError:
        raise
    except SpoolError as error:
        if strict:
            raise
        log.warning("%s; the rest of it is left out", printable(str(error)))


def _decoded(frame: Frame, segment: Path) -> Record:
    try:
        return frame.record()
    except UnknownVersionError as error:
        raise ImportFileError(f"{segment}: {error}") from error
    except (SegmentError, CodecError) as error:
        remedy = "leave the segment out, or ingest it, which keeps what is good, and export that"
        raise ImportFileError(f"{segment}: a record is damaged: {error}; {remedy}") from error
