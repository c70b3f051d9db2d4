"""The measurements in whatever a person names: a spool or another folder of segments, a segment, a file."""

from __future__ import annotations

import contextlib
import logging
import re
from typing import TYPE_CHECKING

from diode_collectors.files import spool_errors
from diode_collectors.segment import OPEN_SUFFIX, SEALED_SUFFIX, read_segment
from diode_collectors.spool import Spool
from diode_store.codec import decode
from diode_store.errors import CodecError, ImportFileError, SegmentError, SpoolError
from diode_store.exchange.context import BadLine, ImportContext
from diode_store.exchange.files import open_binary
from diode_store.render import counted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from diode_store.records import Measurement

log = logging.getLogger(__name__)

_START = 4096
"""How much of a file is looked at to tell its format, in bytes."""


def measurements_in(path: Path, context: ImportContext | None = None) -> Iterator[Measurement]:
    """Yield the measurements of a folder of segments, of a segment, or of an exchange format's file.

    A damaged record of a segment is left out with a warning. Takes no lock, so a writer at work is not disturbed;
    a segment of a folder that is ingested meanwhile is left out, one that is sealed meanwhile is not.

    Args:
        path: the folder or file: JSON Lines or upstream's data set (``.msgpack``, or ``.json``).
        context: what a file does not say itself.

    Raises:
        SpoolError: the folder holds no segment, or a segment cannot be read.
        ImportFileError: the file cannot be read, or a line or problem of it is bad.
    """
    if path.is_dir():
        yield from _in_folder(path)
    elif path.suffix in (SEALED_SUFFIX, OPEN_SUFFIX):
        with spool_errors(path, "read the segment"):
            yield from _in_segment(path)
    else:
        yield from measurements_in_file(path, context or ImportContext())


def measurements_in_file(path: Path, context: ImportContext) -> Iterator[Measurement]:
    """Yield the measurements of a file of JSON Lines or of upstream's data set, of which everything must be good.

    Raises:
        ImportFileError: it cannot be read, or something in it is bad.
    """
    if _is_dataset(path):
        from diode_store.exchange.torch_diode import measurements_of
        from diode_store.exchange.torch_diode_files import read_file
        from diode_store.exchange.torch_diode_types import Dataset

        for item in measurements_of(read_file(path, Dataset), context):
            if isinstance(item, BadLine):
                raise ImportFileError(item.at(str(path)))
            yield item
    else:
        from diode_store.importing import read_strictly

        yield from read_strictly(str(path), context)


def _is_dataset(path: Path) -> bool:
    """Tell upstream's data set, whose JSON begins with its hardware, from our JSON Lines."""
    if path.suffix == ".msgpack":
        return True
    if path.suffix != ".json":
        return False
    with open_binary(str(path)) as stream:
        return re.match(rb'\s*\{\s*"hardware"\s*:\s*\{\s*"[^"]*"\s*:\s*\{', stream.read(_START)) is not None


def _in_folder(path: Path) -> Iterator[Measurement]:
    spool = Spool(path)
    unsealed = spool.unsealed()  # before the sealed ones, so that none is missed that is sealed in between
    sealed = spool.sealed()
    if not sealed and not unsealed:
        raise SpoolError(f"{path} holds no segment; name a spool that was not ingested yet, or exported files")
    for segment in (*sealed, *(s for s in unsealed if s.with_suffix(SEALED_SUFFIX) not in sealed)):
        with spool_errors(segment, "read the segment"):
            for name in (segment, segment.with_suffix(SEALED_SUFFIX)):
                with contextlib.suppress(FileNotFoundError):  # sealed meanwhile, or ingested
                    yield from _in_segment(name)
                    break


def _in_segment(path: Path) -> Iterator[Measurement]:
    unread = 0
    for frame in read_segment(path):
        try:
            measurement = decode(frame.record_bytes())
        except (SegmentError, CodecError):
            unread += 1
            continue
        yield measurement
    if unread:
        log.warning("%s: left out %s that cannot be read", path, counted(unread, "record"))
