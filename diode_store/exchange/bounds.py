"""Bounds on untrusted files, checked before memory is allocated.

A small file can unpack to gigabytes, and a small text can hold millions of values. docs/formats.md states the bounds.
"""

from __future__ import annotations

import json
import zlib
from typing import IO, TYPE_CHECKING, Any

import msgpack

from diode_store.errors import RecordError, first_line
from diode_store.values.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_LINE_BYTES = 16 * MIB
"""Length of the longest accepted line of a text format."""
MAX_DOCUMENT_BYTES = 128 * MIB
"""Unpacked size of the largest accepted file of a format that is read whole."""
MAX_LINE_VALUES = 3_000_000
"""Maximum number of values in a line; brackets, commas and colons count."""
MAX_VALUES = 12_000_000
"""Maximum number of values in a JSON document, counted as in a line, or of elements in msgpack."""
MAX_IMPORT_BYTES = 512 * MIB
"""Memory limit of `diode import`."""
MAX_BAD_LINES = 1_000
"""Number of bad lines to keep; further ones are counted."""
_MOST_SAID = 500
"""Maximum characters in the message about a bad line."""

_SPLIT = "split it, or use records or jsonl"
_CONTAINERS = (b"[", b"{", b",", b":")


def bounded_lines(stream: Iterable[bytes], most: int = MAX_LINE_BYTES) -> Iterator[bytes | None]:
    """Yield the lines of a stream; skip each line longer than ``most`` and yield None in its place.

    Raises:
        OSError: the stream cannot be read; gzip raises its own errors as well.
    """
    readline = getattr(stream, "readline", None)
    if readline is None:  # lines that are in memory already
        yield from stream
        return
    while line := readline(most + 1):
        if len(line) <= most:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = readline(most)
        yield None


def read_whole(stream: IO[bytes], most: int = MAX_DOCUMENT_BYTES) -> bytes:
    """Return all of a stream.

    Raises:
        RecordError: the stream cannot be read, or is larger than ``most`` bytes.
    """
    try:
        data = stream.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise RecordError(f"it cannot be read: {error}; get a whole copy of it") from error
    if len(data) > most:
        raise RecordError(f"it is larger than {most:,} bytes, the limit of this format; {_SPLIT}")
    return data


def check_json(text: bytes, most: int = MAX_VALUES) -> None:
    """Refuse a JSON text with too many values, each of which takes tens of bytes after parsing.

    Raises:
        RecordError: the text has more than ``most`` values.
    """
    if len(text) > most and sum(map(text.count, _CONTAINERS)) > most:
        raise RecordError(f"it holds more than {most:,} values; {_SPLIT}")


def json_of(text: str | bytes, where: str = "") -> Any:
    """Return the content of JSON text.

    Raises:
        RecordError: ``text`` is not JSON, or bytes of too many values; the message begins with ``where``.
    """
    if isinstance(text, bytes):
        check_json(text)
        text = text.decode("utf-8-sig", errors="replace")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        reason = f"line {error.lineno}, column {error.colno}: {error.msg}"
    except (ValueError, RecursionError) as error:
        reason = first_line(error)
    raise RecordError(f"{where}{': ' if where else ''}it is not JSON ({reason}); get a whole copy of it")


def unpack_msgpack(data: bytes, most: int = MAX_VALUES) -> Any:
    """Return the content of msgpack bytes.

    Raises:
        RecordError: there are more than ``most`` elements.
        ValueError: the bytes are not msgpack.
    """
    # A list's header claims its length, and msgpack allocates that much at once: first check that all bytes are there.
    whole = msgpack.Unpacker(max_buffer_size=len(data) or 1)
    whole.feed(data)
    try:
        whole.skip()
    except msgpack.OutOfData:
        raise ValueError("it ends too early") from None
    count = 0

    def counted(value: Any) -> Any:
        nonlocal count
        count += 1 + len(value)
        if count > most:
            raise RecordError(f"it holds more than {most:,} values; {_SPLIT}")
        return value

    bounds = {"max_array_len": most, "max_map_len": most}  # a list is made before it is counted
    try:
        return msgpack.unpackb(data, strict_map_key=False, list_hook=counted, object_hook=counted, **bounds)
    except ValueError as error:
        if "exceeds max_" in str(error):
            raise RecordError(f"it holds more than {most:,} values; {_SPLIT}") from None
        raise


def shortened(message: str) -> str:
    """Return the message about a bad line, cut to a length that the line's content cannot exceed."""
    return message if len(message) <= _MOST_SAID else f"{message[:_MOST_SAID]}…"
