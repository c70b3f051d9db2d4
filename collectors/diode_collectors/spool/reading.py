"""The measurements in a spool or another folder of segments, in a segment, or in another file."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from diode_collectors.spool.files import open_regular, spool_errors
from diode_collectors.spool.spool import Spool
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
from diode_store.render import counted
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

    A damaged record of a segment is left out with a warning. Others may use the spool meanwhile, see
    ``segments_of``.

    Args:
        path: the folder or file: JSON Lines or upstream's data set (``.msgpack``, or ``.json``).
        context: what a file does not say itself.

    Raises:
        SpoolError: the folder holds no segment, or a segment cannot be read.
        ImportFileError: the file cannot be read, or a line or problem of it is bad.
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


def segments_of(path: Path, *, since: float | None = None) -> Iterator[tuple[Path, Iterator[Frame]]]:
    """Yield the segments of a spool or another folder, sealed ones first, or the one that ``path`` is; each is open.

    Takes no lock, so it disturbs no writer. Of a folder's segments one that is sealed meanwhile is found under its
    new name, and one that is ingested meanwhile is left out. A folder that does not exist has none.

    Args:
        path: the folder or segment.
        since: leave out segments that were last written before, in seconds since the epoch.

    Yields:
        The name and the frames, which must be read before the next segment is asked for. Reading them raises
        ``SegmentError`` for a format that this version does not know.

    Raises:
        SpoolError: the folder or a segment cannot be read, or the one segment is not there.
    """
    is_segment = path.suffix in SEGMENT_SUFFIXES and not path.is_dir()
    for names in [(path,)] if is_segment else _listed(path):
        with spool_errors(path, "read the segment"):
            opened = _opened(names, must_exist=is_segment)
        if opened is None:
            continue
        name, fd = opened
        try:
            if since is None or os.fstat(fd).st_mtime >= since:
                yield name, _frames(name, fd)
        finally:
            os.close(fd)


def decoded(segment: Path, frames: Iterable[Frame]) -> Iterator[Measurement]:
    """Yield the measurements of a segment, not its decisions; a damaged record is left out with a warning."""
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
        log.warning("%s: left out %s that cannot be read", segment, counted(unread, "record"))


def strictly_decoded(segment: Path, frames: Iterable[Frame]) -> Iterator[Measurement]:
    """Yield the measurements of a segment that must be free of damage, not its decisions.

    Raises:
        ImportFileError: something in it is damaged, or newer than this version.
    """
    return (record for record in records_of(segment, frames) if isinstance(record, Measurement))


def records_of(segment: Path, frames: Iterable[Frame]) -> Iterator[Record]:
    """Yield the records of a segment, of every kind, that must be free of damage.

    Raises:
        ImportFileError: something in it is damaged, or newer than this version.
    """
    try:
        for frame in frames:
            yield _decoded(frame, segment)
    except SegmentError as error:
        raise ImportFileError(f"{segment}: {error}") from error


def _in_file(path: Path, context: ImportContext) -> Iterator[Measurement]:
    if _is_dataset(path):
        from diode_store.exchange.torch_diode import measurements_of
        from diode_store.exchange.torch_diode_files import read_file
        from diode_store.exchange.torch_diode_types import Dataset

        for item in measurements_of(read_file(path, Dataset), context):
            if isinstance(item, BadLine):
                raise ImportFileError(item.at(str(path)))
            yield item
    else:
        from diode_store.exchange.importing import read_strictly

        yield from read_strictly(str(path), context)


def _is_dataset(path: Path) -> bool:
    """Distinguish upstream's data set, whose JSON begins with its hardware, from our JSON Lines."""
    if path.suffix == ".msgpack":
        return True
    if path.suffix != ".json":
        return False
    with open_binary(str(path)) as stream:
        return is_upstream_dataset(stream)


def _listed(folder: Path) -> list[tuple[Path, ...]]:
    """Return the names under which each segment of a folder may be found."""
    spool = Spool(folder)
    unsealed = spool.unsealed()  # before the sealed ones, so that none is missed that is sealed in between
    sealed = spool.sealed()
    still_open = [(path, path.with_suffix(SEALED_SUFFIX)) for path in unsealed]
    return [*((path,) for path in sealed), *(names for names in still_open if names[1] not in sealed)]


def _opened(names: Iterable[Path], *, must_exist: bool) -> tuple[Path, int] | None:
    """Open the first of these files that is there; return its name and file descriptor."""
    for name in names:
        try:
            return name, open_regular(name, os.O_RDONLY)
        except FileNotFoundError:
            if must_exist:
                raise
    return None


def _frames(path: Path, fd: int) -> Iterator[Frame]:
    with spool_errors(path, "read the segment"):
        yield from SegmentReader(bytes_of_file(fd), sealed=path.suffix != OPEN_SUFFIX).frames()


def _decoded(frame: Frame, segment: Path) -> Record:
    try:
        return frame.record()
    except UnknownVersionError as error:
        raise ImportFileError(f"{segment}: {error}") from error
    except (SegmentError, CodecError) as error:
        remedy = "leave the segment out, or ingest it, which keeps what is good, and export that"
        raise ImportFileError(f"{segment}: a record is damaged: {error}; {remedy}") from error
