"""Read the measurements of several files in any import format, and report what cannot be read."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from diode_store.command_line.render import counted
from diode_store.errors import DatasetError, ImportFileError
from diode_store.exchange.formats import SUFFIXES
from diode_store.system.files import entries_below, open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from diode_store.exchange.context import ImportContext
    from diode_store.records import Hardware, Measurement

EXTENSIONS = ("json", *(suffix.removeprefix(".") for suffix, kind in SUFFIXES.items() if kind != "csv"))
"""Extensions of files that may hold measurements."""
DEFAULT_EXTENSIONS = ("json", "msgpack", "jsonl", "parquet")
"""Extensions to search a folder for by default; the others belong to a spool."""
_PACKED = ".gz"
_MOST_NAMED = 3
_MOST_LINES = 20
_MOST_BYTES = 2**36
_HOPELESS = 100
"""Bad entries without a good one after which a file is given up."""


@dataclass(frozen=True)
class Files:
    """Files to read."""

    paths: tuple[Path, ...]
    where: str
    """Name of the files in messages."""
    is_folder: bool = False
    """True if the files were found in a folder; unreadable ones are then reported and left out."""

    @classmethod
    def named(cls, paths: Sequence[Path]) -> Files:
        """Return files that must all be readable."""
        return cls(tuple(paths), and_more([str(path) for path in paths]))

    @classmethod
    def in_folder(cls, folder: Path, extensions: Iterable[str] = DEFAULT_EXTENSIONS) -> Files:
        """Return the files below a folder with one of the extensions, with or without .gz.

        Hidden files and folders are left out.

        Raises:
            DatasetError: the folder does not exist, or has no such file.
        """
        if not folder.is_dir():
            raise DatasetError(f"{folder}: no such folder; for a file use --dataset")
        wanted = {f".{extension}" for extension in extensions}
        found = sorted(path for entry, _ in entries_below(folder) if _suffix(path := Path(entry.path)) in wanted)
        found = [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
        if not found:
            raise DatasetError(
                f"{folder}: holds no file that ends in {', '.join(sorted(wanted))}; name others with --file-extensions"
            )
        return cls(tuple(found), str(folder), is_folder=True)


def _suffix(path: Path) -> str:
    return Path(path.name.lower().removesuffix(_PACKED)).suffix


@dataclass
class FilesRead:
    """Measurements read from files."""

    measurements: list[Measurement] = field(default_factory=list)
    """Measurements, each once even if several files hold it."""
    file_of: dict[bytes, str] = field(default_factory=dict)
    """First file of each measurement, by uid."""
    left_out: list[str] = field(default_factory=list)
    """A line for each file that could not be read completely."""

    def where(self, measurements: Iterable[Measurement]) -> str:
        """Return a short list of the files that hold ``measurements``."""
        return and_more(list(dict.fromkeys(self.file_of[m.uid] for m in measurements)))

    def notes(self) -> list[str]:
        """Return lines about the files that could not be read completely, up to a limit."""
        more = len(self.left_out) - _MOST_LINES
        return self.left_out[:_MOST_LINES] + ([f"left out of {counted(more, 'further file')}: entries"] * (more > 0))


def and_more(names: Sequence[str]) -> str:
    """Return the first few names, and the number of the others."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def read_files(files: Files, hardware: Hardware | None, on_file: Callable[[], None] = lambda: None) -> FilesRead:
    """Read the measurements of files.

    Args:
        files: files to read.
        hardware: device for files that name none, or that use a name of their own for it.
        on_file: called after each file.

    Raises:
        DatasetError: a named file has a bad entry, or no file of a folder could be read.
    """
    from diode_store.exchange.context import ImportContext

    read = FilesRead()
    for path in files.paths:
        context = ImportContext(hardware=hardware, replaces_names=False, dataset=path.name)
        why = _trouble_with(path) if files.is_folder else None
        good, bad = ([], [why]) if why else _read(path, context)
        if bad and not files.is_folder:
            raise DatasetError(bad[0])
        for measurement in good:
            if measurement.uid not in read.file_of:
                read.file_of[measurement.uid] = str(path)
                read.measurements.append(measurement)
        if bad:
            read.left_out.append(_left_out(bad, len(good)))
        on_file()
    if read.left_out and not read.measurements:
        raise DatasetError(
            f"{files.where}: none of {counted(len(files.paths), 'file')} holds a measurement; {read.left_out[0]}"
        )
    return read


def _read(path: Path, context: ImportContext) -> tuple[list[Measurement], list[str]]:
    """Return a file's measurements, and a line with the place of each bad entry."""
    from diode_store.exchange.context import BadLine
    from diode_store.exchange.importing import read_file

    good: list[Measurement] = []
    bad: list[str] = []
    try:
        for item in read_file(str(path), context):
            if isinstance(item, BadLine):
                bad.append(item.at(str(path)))
                if len(bad) >= _HOPELESS and not good:
                    break
            else:
                good.append(item)
    except ImportFileError as error:
        bad.append(str(error))
    return good, bad


def _trouble_with(path: Path) -> str | None:
    """Return why a file found in a folder cannot be read; opening a pipe or a device could block forever."""
    try:
        fd = open_regular(path, os.O_RDONLY)
    except OSError as error:
        return f"{path}: cannot be read ({error.strerror or error})"
    size = os.fstat(fd).st_size
    os.close(fd)
    if not size:  # or one of the kernel's own files, which may never end
        return f"{path}: it is empty"
    return f"{path}: it has over {_MOST_BYTES:,} bytes; name it with --dataset" if size > _MOST_BYTES else None


def _left_out(bad: Sequence[str], good: int) -> str:
    more = f" (and {len(bad) - 1:,} more)" if len(bad) > 1 else ""
    kept = f"{counted(good, 'measurement')} of this file used" if good else "nothing in this file is a measurement"
    return f"left out {bad[0]}{more}; {kept}"
