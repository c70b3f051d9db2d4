"""Files that a reader is given by name: gzip is undone, ``-`` is standard input."""

from __future__ import annotations

import contextlib
import gzip
import sys
from typing import IO, TYPE_CHECKING, cast

from diode_store.errors import ImportFileError

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator

STDIN = "-"
_GZIP_MAGIC = b"\x1f\x8b"


@contextlib.contextmanager
def open_binary(name: str) -> Iterator[IO[bytes]]:
    """Open the file ``name`` for reading; gzip is told by its first bytes, whatever the name ends in.

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
                raise ImportFileError(f"{name}: {error.strerror or error}; check the file's name") from error
        if raw.peek(2)[:2] == _GZIP_MAGIC:
            yield cast("IO[bytes]", stack.enter_context(gzip.open(raw)))
        else:
            yield raw
