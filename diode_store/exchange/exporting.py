"""Export files, which appear whole or not at all."""

from __future__ import annotations

import contextlib
import gzip
from typing import IO, TYPE_CHECKING, cast

from diode_store.errors import ExportError
from diode_store.system.files import real_path, whole_file
from diode_store.values.batching import in_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

_CHARACTERS_AT_ONCE = 2**18


@contextlib.contextmanager
def new_file(path: Path, *, force: bool = False) -> Iterator[Path]:
    """Yield a path to write to, which becomes ``path`` at the end; after an error nothing is left.

    If ``path`` is a link, its target is made or replaced. A device or FIFO is written to directly.

    Args:
        path: the file to make.
        force: replace an existing file.

    Raises:
        ExportError: the file exists, or cannot be written.
    """
    refuse_existing(path, force=force)
    try:
        if path.exists() and not path.is_file():
            yield path
            return
        with whole_file(real_path(path)) as beside:
            yield beside
            refuse_existing(path, force=force)
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error.strerror or error}; check its folder") from error


@contextlib.contextmanager
def open_for_lines(path: Path, name: str) -> Iterator[IO[bytes]]:
    """Open ``path`` for writing; compress reproducibly if ``name`` ends in .gz, in any case."""
    with path.open("wb") as raw:
        if not name.lower().endswith(".gz"):
            yield raw
            return
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
            yield cast("IO[bytes]", packed)


def write_lines(
    stream: IO[bytes], lines: Iterable[str], on_progress: Callable[[float], None] = lambda _lines: None
) -> int:
    """Write lines in large blocks and return their number.

    Args:
        stream: stream to write to.
        lines: lines with their line feeds.
        on_progress: called with the number of newly written lines.
    """
    count = 0
    for batch in in_batches(lines, len, _CHARACTERS_AT_ONCE):
        stream.write("".join(batch).encode())
        count += len(batch)
        on_progress(len(batch))
    return count


def refuse_existing(path: Path, *, force: bool) -> None:
    """Refuse a path to which no file can be written. ``new_file`` does the same; a command may check before its work.

    Raises:
        ExportError: the path is a folder, or a file exists there and ``force`` is False.
    """
    if path.is_dir():
        raise ExportError(f"{path} is a folder; name a file in it")
    if path.exists() and not force:
        raise ExportError(f"{path} exists already; name another file, or replace it with --force")
