"""The file formats, and how to recognize them: by a file's first bytes, else by its name."""

from __future__ import annotations

import re
import zlib
from enum import StrEnum
from pathlib import PurePath
from typing import IO, TYPE_CHECKING, Any, cast

from diode_store.errors import ImportFileError
from diode_store.exchange.inputs import is_upstream_dataset
from diode_store.wire.segment_layout import MAGIC

if TYPE_CHECKING:
    from collections.abc import Iterable


class ImportFormat(StrEnum):
    """Formats that can be imported."""

    AUTO = "auto"
    JSONL = "jsonl"
    RECORDS = "records"
    PARQUET = "parquet"
    TORCH_DIODE = "torch-diode"
    T4 = "t4"


class ExportFormat(StrEnum):
    """Formats that can be exported."""

    JSONL = "jsonl"
    RECORDS = "records"
    PARQUET = "parquet"
    CSV = "csv"
    TORCH_DIODE = "torch-diode"
    T4 = "t4"
    INDUCTOR_LUT = "inductor-lut"
    MAX_AUTOTUNE_SOLUTION = "max-autotune-solution"


class InductorSpace(StrEnum):
    """Inductor's lists of kernels, by their names in ``max_autotune_gemm_search_space``."""

    DEFAULT = "DEFAULT"
    EXHAUSTIVE = "EXHAUSTIVE"


SUFFIXES: dict[str, str] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".csv": "csv",
    ".seg": "records",
    ".records": "records",
    ".msgpack": "torch-diode",
}
"""Format of each suffix; ``.json`` is missing because several formats are JSON."""

_START_BYTES = 256
_BOM = b"\xef\xbb\xbf"
_SHOWN_BYTES = 16
_STARTS: Iterable[tuple[re.Pattern[bytes], ImportFormat]] = (
    (re.compile(re.escape(MAGIC)), ImportFormat.RECORDS),
    # A map with the first key "v" is a record of the wire format.
    (re.compile(rb"(?:[\x80-\x8f]|\xde..|\xdf....)\xa1v", re.DOTALL), ImportFormat.RECORDS),
    (re.compile(rb"PAR1"), ImportFormat.PARQUET),
    (re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"(?:results"\s*:\s*\[|schema_version"\s*:)'), ImportFormat.T4),
)
_WITHOUT_TIMES: Iterable[tuple[re.Pattern[bytes], str]] = (
    (re.compile(rb'\{\s*"[^"]*\(\(torch\.'), "is a lookup table of Inductor's, which has no times"),
    (
        re.compile(rb'\{\s*(?:"name"\s*:\s*"[^"]*",\s*|"\w+"\s*:\s*\{\s*)?"configs?"\s*:\s*\['),
        "is a max-autotune solution, which has no times; `diode compare` reads it",
    ),
    (re.compile(rb'\{\s*"format":\s*"torch-diode picks"'), "is a picks file, which has the winners' times alone"),
)
"""Beginnings of files with other content, and what they are."""
_SEVERAL_LINES = re.compile(rb'\{\s*\n\s*"|\[\s*\n')


def format_named(name: str) -> str | None:
    """Return the format of a file name's suffix, in any case and before an optional .gz; None for an unknown suffix."""
    return SUFFIXES.get(PurePath(name.lower().removesuffix(".gz")).suffix)


def refuse_foreign(file: str, stream: IO[bytes], *, by_lines: bool = True) -> None:
    """Refuse a known kind of file without measurements once, instead of line by line; ``stream`` keeps its position.

    Args:
        file: name of the file.
        stream: its content.
        by_lines: the format has one measurement per line, not one JSON value per file.

    Raises:
        ImportFileError: the file is of such a kind.
    """
    try:
        start = bytes(cast("Any", stream).peek(_START_BYTES)).removeprefix(_BOM).lstrip()
    except (OSError, EOFError, zlib.error):
        return  # the reader reports what is wrong
    for pattern, what in _WITHOUT_TIMES:
        if pattern.match(start):
            raise ImportFileError(f"{file} {what}; import the measurements behind it")
    if by_lines and _SEVERAL_LINES.match(start):
        what = "is one JSON value over several lines, and jsonl has a measurement a line"
        raise ImportFileError(f"{file} {what}; import the measurements behind it")


def detect(file: str, stream: IO[bytes]) -> ImportFormat:
    """Return the format of a newly opened file; ``stream`` keeps its position.

    Raises:
        ImportFileError: neither its first bytes nor its name fit a known format, or it cannot be read.
    """
    if is_upstream_dataset(stream):
        return ImportFormat.TORCH_DIODE
    try:
        start = bytes(cast("Any", stream).peek(_START_BYTES))
    except (OSError, EOFError, zlib.error) as error:
        raise ImportFileError(f"{file} cannot be read: {error}; get a whole copy of it") from error
    for pattern, found in _STARTS:
        if pattern.match(start):
            return found
    refuse_foreign(file, stream)
    named = format_named(file)
    text = start.lstrip()[:_SHOWN_BYTES]
    if named == ExportFormat.CSV:
        if not text.startswith(b"{"):
            raise ImportFileError(f"{file} is CSV, which cannot be imported; export Parquet or jsonl, and import that")
        named = None
    if named is None and text and not text.startswith(b"{"):
        raise ImportFileError(f"{file}: unknown format (it begins with {text!r}); name it with --format jsonl")
    return ImportFormat(named or ImportFormat.JSONL)
