"""Files that a reader is given by name: gzip is unpacked, ``-`` is standard input."""

from __future__ import annotations

import contextlib
import gzip
import re
import sys
import zlib
from typing import IO, TYPE_CHECKING, Any, cast

from diode_store.errors import ImportFileError

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator

STDIN = "-"
_GZIP_MAGIC = b"\x1f\x8b"
_START_BYTES = 4096
_DATASET = re.compile(rb'\s*\{\s*"hardware"\s*:\s*\{\s*(?:"[^"]*"\s*:\s*\{|\})|[\x80-\x8f]\xa8hardware')
"""How upstream's data sets begin, in JSON and in msgpack: devices by name; a row of ours has a device's attributes."""


@contextlib.contextmanager
def open_binary(name: str) -> Iterator[IO[bytes]]:
    """Open the file ``name`` for reading; gzip is recognised by its first bytes, whatever the name ends in.

    Raises:
        ImportFileError: it cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        if name == STDIN:
            raw = cast("io.BufferedReader", sys.stdin.buffer)
        else:
            try:
                raw = stack.enter_context(open(name, "rb"))  # noqa: PTH123 - Path.open would take "" for "."
            except OSError as error:
                remedy = (
                    "check its owner and its mode" if isinstance(error, PermissionError) else "check the file's name"
                )
                raise ImportFileError(f"{name}: {error.strerror or error}; {remedy}") from error
        if raw.peek(2)[:2] == _GZIP_MAGIC:
            yield cast("IO[bytes]", stack.enter_context(gzip.open(raw)))
        else:
            yield raw


def is_upstream_dataset(stream: IO[bytes]) -> bool:
    """Whether a file that was just opened begins as upstream's data sets do; nothing is taken from it."""
    try:
        start: bytes = cast("Any", stream).peek(_START_BYTES)
    except (OSError, EOFError, zlib.error):
        return False  # the reader reports what is wrong
    return _DATASET.match(start) is not None
