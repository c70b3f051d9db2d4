"""Takes the map of a record apart, without decoding again what many records repeat.

A sweep's records name the same hardware, the same environment and the same few thousand configs. These parts stay
bytes until ``Interned`` is asked for what they hold, which decodes each distinct one once.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgpack

from diode_store.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

MAX_RECORD_BYTES = 64 * 2**20
"""Larger payloads are refused, before they are decoded and before they are written."""
MAX_ITEMS = 100_000
"""Most elements of one array or map inside a record."""

_T = TypeVar("_T")

_MALFORMED = (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError)
_SHORT_ARRAY = range(0x90, 0xA0)
_ARRAY_HEADER_BYTES = {0xDC: 3, 0xDD: 5}
_BINARY = {0xC4, 0xC5, 0xC6}
_MOST_INTERNED_BYTES = 4096


class RawArray(tuple[bytes, ...]):
    """The elements of an array, each as the bytes it was encoded to, be they in a wrapping of their own or not."""

    __slots__ = ()


class Interned(Generic[_T]):
    """Builds a value from its bytes, once for the same bytes."""

    def __init__(self, build: Callable[[Any], _T], most: int = 2_000) -> None:
        """Take what makes a value out of what the bytes hold, and how many are kept at most."""
        self._build = build
        self._most = most
        self._known: dict[bytes, _T] = {}

    def __call__(self, raw: bytes) -> _T:
        """Return the value of ``raw``.

        Raises:
            CodecError: it is not msgpack.
            Exception: whatever ``build`` raises.
        """
        found = self._known.get(raw)
        if found is not None:
            return found
        value = self._build(unpack(raw))
        if len(raw) <= _MOST_INTERNED_BYTES:
            if len(self._known) >= self._most:
                self._known.clear()
            self._known[raw] = value
        return value

    def all_of(self, raws: Sequence[bytes]) -> list[_T]:
        """Return the value of each, as one call does; most are known, and looked up at the speed of C."""
        try:
            return list(map(self._known.__getitem__, raws))
        except KeyError:
            return list(map(self, raws))


def unpack(raw: bytes) -> Any:
    """Return what ``raw`` holds; arrays as tuples.

    Raises:
        CodecError: it is not one whole value, or larger than it can be.
    """
    # An array's header says its length, and that much memory is taken at once: never more than there are bytes.
    most = min(MAX_ITEMS, len(raw))
    try:
        return msgpack.unpackb(
            raw, max_array_len=most, max_map_len=most, max_ext_len=0, use_list=False, strict_map_key=True
        )
    except _MALFORMED as error:
        raise _not_msgpack(error) from error


def read_map(
    payload: bytes, raw: Container[str], raw_arrays: Container[str] = (), skipped: Container[str] = ()
) -> dict[str, Any]:
    """Return the map that ``payload`` is.

    Args:
        payload: an encoded record.
        raw: names of fields whose values stay bytes.
        raw_arrays: names of fields that become a ``RawArray`` if they are arrays.
        skipped: names of fields to leave out.

    Raises:
        CodecError: it is too large, or not one whole map.
    """
    if len(payload) > MAX_RECORD_BYTES:
        raise CodecError(f"a record of {len(payload):,} bytes is over the limit of {MAX_RECORD_BYTES:,}")
    most = min(MAX_ITEMS, len(payload))
    reader = msgpack.Unpacker(
        read_size=len(payload) or 1,  # its buffer, a whole MiB otherwise
        max_buffer_size=MAX_RECORD_BYTES,
        max_array_len=most,
        max_map_len=most,
        max_ext_len=0,
        use_list=False,
    )
    content: dict[str, Any] = {}
    try:
        reader.feed(payload)
        for _ in range(_map_header(reader, payload)):
            name = reader.unpack()
            if type(name) is not str:
                raise TypeError(f"{type(name).__name__} is not allowed for map key")
            if name in skipped:
                reader.skip()
            elif name in raw:
                content[name] = _skipped(reader, payload)
            elif name in raw_arrays and _is_array(payload, reader.tell()):
                content[name] = _raw_array(reader, payload, most)
            else:
                content[name] = reader.unpack()
    except _MALFORMED as error:
        raise _not_msgpack(error) from error
    if reader.tell() != len(payload):
        raise CodecError("not a msgpack record: more bytes follow it")
    return content


def _map_header(reader: Any, payload: bytes) -> int:
    try:
        return int(reader.read_map_header())
    except ValueError:
        # It is something else, if it is anything.
        raise CodecError(f"a record must be a map, not {type(unpack(payload)).__name__}") from None


def _skipped(reader: Any, payload: bytes) -> bytes:
    start = reader.tell()
    reader.skip()
    return payload[start : reader.tell()]


def _is_array(payload: bytes, offset: int) -> bool:
    lead = payload[offset] if offset < len(payload) else 0
    return lead in _SHORT_ARRAY or lead in _ARRAY_HEADER_BYTES


def _raw_array(reader: Any, payload: bytes, most: int) -> RawArray:
    start = reader.tell()
    first = start + _ARRAY_HEADER_BYTES.get(payload[start], 1)
    if first < len(payload) and payload[first] in _BINARY:
        wrapped = reader.unpack()
        if set(map(type, wrapped)) != {bytes}:
            raise TypeError("not every element is binary")
        return RawArray(wrapped)
    length = reader.read_array_header()
    if length > most:
        raise ValueError(f"{length} exceeds max_array_len({most})")
    tell, skip = reader.tell, reader.skip
    ends = [tell(), *((skip(), tell())[1] for _ in range(length))]
    return RawArray(payload[start:end] for start, end in pairwise(ends))


def _not_msgpack(error: BaseException) -> CodecError:
    return CodecError(f"not a msgpack record: {str(error) or 'it is malformed'}")
