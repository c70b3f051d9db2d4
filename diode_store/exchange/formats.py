"""The formats that can be imported, and which one a file is in: its first bytes tell, else its name."""

from __future__ import annotations

import re
import zlib
from enum import StrEnum
from typing import IO, TYPE_CHECKING, Any, cast

from diode_store.errors import ImportFileError
from diode_store.exchange.files import is_upstream_dataset
from diode_store.wire.segment_layout import MAGIC

if TYPE_CHECKING:
    from collections.abc import Iterable


class Format(StrEnum):
    """Formats that can be imported."""

    AUTO = "auto"
    JSONL = "jsonl"
    RECORDS = "records"
    PARQUET = "parquet"
    TORCH_DIODE = "torch-diode"
    T4 = "t4"


SUFFIXES: dict[str, Format] = {
    ".jsonl": Format.JSONL,
    ".json": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".parquet": Format.PARQUET,
    ".seg": Format.RECORDS,
    ".records": Format.RECORDS,
}
"""What a file is in that begins like nothing we know."""

_START_BYTES = 64
_SHOWN_BYTES = 16
_STARTS: Iterable[tuple[re.Pattern[bytes], Format]] = (
    (re.compile(re.escape(MAGIC)), Format.RECORDS),
    # A map whose first key is "v": a record of the wire format.
    (re.compile(rb"(?:[\x80-\x8f]|\xde..|\xdf....)\xa1v", re.DOTALL), Format.RECORDS),
    (re.compile(rb"PAR1"), Format.PARQUET),
    (re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"(?:results"\s*:\s*\[|schema_version"\s*:)'), Format.T4),
)
_LOOKUP_TABLE = re.compile(rb'\s*\{\s*"[^"]*\(\(torch\.')


def detect(file: str, stream: IO[bytes]) -> Format:
    """Return the format of a file that was just opened; nothing is taken from ``stream``.

    Raises:
        ImportFileError: it begins like none and is not named like one either, or it cannot be read.
    """
    if is_upstream_dataset(stream):
        return Format.TORCH_DIODE
    try:
        start = bytes(cast("Any", stream).peek(_START_BYTES))
    except (OSError, EOFError, zlib.error) as error:
        raise ImportFileError(f"{file} cannot be read: {error}; get a whole copy of it") from error
    for pattern, found in _STARTS:
        if pattern.match(start):
            return found
    if _LOOKUP_TABLE.match(start):
        raise ImportFileError(f"{file} is a lookup table of Inductor's, which has no times; import what it was made of")
    named = next((fmt for suffix, fmt in SUFFIXES.items() if file.removesuffix(".gz").endswith(suffix)), None)
    text = start.lstrip()[:_SHOWN_BYTES]
    if named is None and text and not text.startswith(b"{"):
        raise ImportFileError(f"{file}: unknown format (it begins with {text!r}); name it with --format jsonl")
    return named or Format.JSONL
