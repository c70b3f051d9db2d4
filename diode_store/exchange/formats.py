"""The file formats, and how one is recognised: by a file's first bytes, else by its name."""

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
    """Inductor's lists of kernels, by what ``max_autotune_gemm_search_space`` calls them."""

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
"""Suffix → format. Several formats are JSON, so ``.json`` is not listed."""

_START_BYTES = 64
_SHOWN_BYTES = 16
_STARTS: Iterable[tuple[re.Pattern[bytes], ImportFormat]] = (
    (re.compile(re.escape(MAGIC)), ImportFormat.RECORDS),
    # A map whose first key is "v": a record of the wire format.
    (re.compile(rb"(?:[\x80-\x8f]|\xde..|\xdf....)\xa1v", re.DOTALL), ImportFormat.RECORDS),
    (re.compile(rb"PAR1"), ImportFormat.PARQUET),
    (re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"(?:results"\s*:\s*\[|schema_version"\s*:)'), ImportFormat.T4),
)
_PICKS = re.compile(rb'\s*\{\s*"format":\s*"torch-diode picks"')
_LOOKUP_TABLE = re.compile(rb'\s*\{\s*"[^"]*\(\(torch\.')


def format_named(name: str) -> str | None:
    """Return the format of a file name's suffix, in any case, which .gz may follow; None for an unknown suffix."""
    return SUFFIXES.get(PurePath(name.lower().removesuffix(".gz")).suffix)


def detect(file: str, stream: IO[bytes]) -> ImportFormat:
    """Return the format of a file that was just opened; nothing is taken from ``stream``.

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
    if _LOOKUP_TABLE.match(start):
        raise ImportFileError(f"{file} is a lookup table of Inductor's, which has no times; import what it was made of")
    if _PICKS.match(start):
        raise ImportFileError(f"{file} is a picks file, which has the winners' times alone; import what it was made of")
    named = format_named(file)
    text = start.lstrip()[:_SHOWN_BYTES]
    if named == ExportFormat.CSV:
        if not text.startswith(b"{"):
            raise ImportFileError(f"{file} is CSV, which cannot be imported; export Parquet or jsonl, and import that")
        named = None
    if named is None and text and not text.startswith(b"{"):
        raise ImportFileError(f"{file}: unknown format (it begins with {text!r}); name it with --format jsonl")
    return ImportFormat(named or ImportFormat.JSONL)
