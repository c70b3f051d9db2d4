"""Open the files that a reader gets by name: unpack gzip, and take ``-`` as standard input."""

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
"""Beginning of upstream's data sets in JSON and msgpack: devices by name. A row of ours has a device's attributes."""


@contextlib.contextmanager
def open_binary(name: str) -> Iterator[IO[bytes]]:
    """Open the file ``name`` for reading; its first bytes show gzip, whatever its suffix.

    Raises:
        ImportFileError: the file cannot be opened.
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
    """Return whether a newly opened file begins like upstream's data sets; ``stream`` keeps its position."""
    try:
        start: bytes = cast("Any", stream).peek(_START_BYTES)
    except (OSError, EOFError, zlib.error):
        return False  # the reader reports what is wrong
    return _DATASET.match(start) is not None
