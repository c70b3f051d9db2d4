"""Export files, which appear whole or not at all."""

from __future__ import annotations

import contextlib
import gzip
import os
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from diode_store.batching import in_batches
from diode_store.errors import ExportError
from diode_store.files import whole_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_CHARACTERS_AT_ONCE = 2**18


@contextlib.contextmanager
def new_file(path: Path, *, force: bool = False) -> Iterator[Path]:
    """Yield a path to write to, which becomes ``path`` at the end; on any error nothing is left.

    A link's target is made or replaced, not the link. A device or FIFO is written to directly.

    Args:
        path: the file to make.
        force: replace it if it is there.

    Raises:
        ExportError: it is there already, or cannot be written.
    """
    _refuse_existing(path, force=force)
    try:
        if path.exists() and not path.is_file():
            yield path
            return
        # Not Path.resolve, which may raise for links that lead in a circle.
        with whole_file(Path(os.path.realpath(path))) as beside:
            yield beside
            _refuse_existing(path, force=force)
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error.strerror or error}; check its folder") from error


@contextlib.contextmanager
def open_for_lines(path: Path, name: str) -> Iterator[IO[bytes]]:
    """Open ``path`` for writing; compressed, always to the same bytes, if ``name`` ends in .gz, in any case."""
    with path.open("wb") as raw:
        if not name.lower().endswith(".gz"):
            yield raw
            return
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
            yield cast("IO[bytes]", packed)


def write_lines(
    stream: IO[bytes], lines: Iterable[str], on_progress: Callable[[float], None] = lambda _lines: None
) -> int:
    """Write lines and return how many there were; one write a line would take as long as making the lines.

    Args:
        stream: where to.
        lines: each with its line feed.
        on_progress: called with the number of lines just written.
    """
    count = 0
    for batch in in_batches(lines, len, _CHARACTERS_AT_ONCE):
        stream.write("".join(batch).encode())
        count += len(batch)
        on_progress(len(batch))
    return count


def _refuse_existing(path: Path, *, force: bool) -> None:
    if path.is_dir():
        raise ExportError(f"{path} is a folder; name a file in it")
    if path.exists() and not force:
        raise ExportError(f"{path} exists already; name another file, or replace it with --force")
