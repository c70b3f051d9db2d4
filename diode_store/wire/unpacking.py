"""Split the map of a record, without decoding repeated parts again.

A sweep's records name the same hardware, the same environment and the same few thousand configs. These parts stay bytes
until ``Interned`` is asked for their value, which decodes each distinct one once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgpack

from diode_store.errors import CodecError
from diode_store.values.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

MAX_RECORD_BYTES = 64 * MIB
"""Larger payloads are refused, before they are decoded and before they are written."""
MAX_ITEMS = 100_000
"""Limit on the elements of one array or map inside a record."""

_T = TypeVar("_T")

_MALFORMED = (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError)
_MOST_INTERNED_BYTES = 4096


class Interned(Generic[_T]):
    """Builds a value from its bytes, once for the same bytes."""

    def __init__(self, build: Callable[[Any], _T], most: int = 2_000) -> None:
        """Take the function that makes a value from decoded bytes, and the largest number of values to keep."""
        self._build = build
        self._most = most
        self._known: dict[bytes, _T] = {}

    def __call__(self, raw: bytes) -> _T:
        """Return the value of ``raw``.

        Raises:
            CodecError: ``raw`` is not msgpack.
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
        """Return the value of each, as ``__call__`` does; known values are looked up at the speed of C."""
        try:
            return list(map(self._known.__getitem__, raws))
        except KeyError:
            return list(map(self, raws))


def unpack(raw: bytes) -> Any:
    """Return the value in ``raw``; arrays as tuples.

    Raises:
        CodecError: not one whole value, or a value that is too large.
    """
    # An array's header says its length, and that much memory is taken at once: never more than there are bytes.
    most = min(MAX_ITEMS, len(raw))
    try:
        return msgpack.unpackb(
            raw, max_array_len=most, max_map_len=most, max_ext_len=0, use_list=False, strict_map_key=True
        )
    except _MALFORMED as error:
        raise _not_msgpack(error) from error


def read_map(payload: bytes, raw: Container[str], skipped: Container[str] = ()) -> dict[str, Any]:
    """Return the map in ``payload``.

    Args:
        payload: an encoded record.
        raw: names of fields whose values stay bytes.
        skipped: names of fields to leave out.

    Raises:
        CodecError: the payload is too large, or not one whole map.
    """
    if len(payload) > MAX_RECORD_BYTES:
        raise CodecError(f"a record of {len(payload):,} bytes is over the limit of {MAX_RECORD_BYTES:,}")
    most = min(MAX_ITEMS, len(payload))
    reader = msgpack.Unpacker(
        read_size=len(payload) or 1,  # the buffer is a MiB by default
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
        # ``unpack`` names the other type, or raises if the payload is not msgpack.
        raise CodecError(f"a record must be a map, not {type(unpack(payload)).__name__}") from None


def _skipped(reader: Any, payload: bytes) -> bytes:
    start = reader.tell()
    reader.skip()
    return payload[start : reader.tell()]


def _not_msgpack(error: BaseException) -> CodecError:
    return CodecError(f"not a msgpack record: {str(error) or 'it is malformed'}")
