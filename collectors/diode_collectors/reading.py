"""The measurements in whatever a person names: a spool or another folder of segments, a segment, a file."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from diode_collectors.files import spool_errors
from diode_collectors.segment import OPEN_SUFFIX, SEALED_SUFFIX, read_segment
from diode_collectors.spool import Spool
from diode_store.codec import decode
from diode_store.errors import CodecError, SegmentError, SpoolError
from diode_store.exchange.context import ImportContext
from diode_store.render import counted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from diode_store.records import Measurement

log = logging.getLogger(__name__)


def measurements_in(path: Path, context: ImportContext | None = None) -> Iterator[Measurement]:
    """Yield the measurements of a folder of segments, of a segment, or of a file that ``diode import`` reads.

    A damaged record of a segment is left out with a warning. Takes no lock; a writer at work is not disturbed.

    Args:
        path: the folder or file.
        context: what a file does not say itself.

    Raises:
        SpoolError: the folder holds no segment, or a segment cannot be read.
        ImportFileError: the file cannot be read, or a line of it is bad.
    """
    if path.is_dir():
        spool = Spool(path)
        segments = [*spool.sealed(), *spool.unsealed()]
        if not segments:
            raise SpoolError(f"{path} holds no segment; name a spool that was not ingested yet, or exported files")
        for segment in segments:
            yield from _in_segment(segment)
    elif path.suffix in (SEALED_SUFFIX, OPEN_SUFFIX):
        yield from _in_segment(path)
    else:
        from diode_store.importing import read_strictly

        yield from read_strictly(str(path), context or ImportContext())


def _in_segment(path: Path) -> Iterator[Measurement]:
    unread = 0
    with spool_errors(path, "read the segment"):
        for frame in read_segment(path):
            try:
                measurement = decode(frame.record_bytes())
            except (SegmentError, CodecError):
                unread += 1
                continue
            yield measurement
    if unread:
        log.warning("%s: left out %s that cannot be read", path, counted(unread, "record"))
