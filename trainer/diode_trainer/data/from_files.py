"""Measurements of several files, in any format that can be imported, and what of them could not be read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from diode_store.errors import DatasetError, ImportFileError
from diode_store.exchange.formats import SUFFIXES
from diode_store.render import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from diode_store.exchange.context import ImportContext
    from diode_store.records import Hardware, Measurement

EXTENSIONS = ("json", *(suffix.removeprefix(".") for suffix, kind in SUFFIXES.items() if kind != "csv"))
"""Of files that may hold measurements."""
DEFAULT_EXTENSIONS = ("json", "msgpack", "jsonl", "parquet")
"""What a folder is searched for unless told otherwise; the others are a spool's."""
_PACKED = ".gz"
_MOST_NAMED = 3
_MOST_LINES = 20
_HOPELESS = 100
"""After so many bad entries and no good one a file holds something else."""
_UNKNOWN = "unknown"


@dataclass(frozen=True)
class Files:
    """Which files to read."""

    paths: tuple[Path, ...]
    where: str
    """What a message calls them together."""
    is_folder: bool = False
    """They were found, not named, so what cannot be read is reported and left out."""

    @classmethod
    def named(cls, paths: Sequence[Path]) -> Files:
        """Return files that must all be good."""
        return cls(tuple(paths), and_more([str(path) for path in paths]))

    @classmethod
    def in_folder(cls, folder: Path, extensions: Iterable[str] = DEFAULT_EXTENSIONS) -> Files:
        """Return the files of a folder, and of those in it, whose names end so, with or without .gz.

        Hidden files and folders are left out.

        Raises:
            DatasetError: no such folder, or no such file in it.
        """
        if not folder.is_dir():
            raise DatasetError(f"{folder}: no such folder; for a file use --dataset")
        wanted = {f".{extension}" for extension in extensions}
        found = sorted(path for path in folder.rglob("*") if path.is_file() and _suffix(path) in wanted)
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
    """What files hold."""

    measurements: list[Measurement] = field(default_factory=list)
    """Each once, however many files hold it."""
    file_of: dict[bytes, str] = field(default_factory=dict)
    """Its uid → the first file that holds it."""
    left_out: list[str] = field(default_factory=list)
    """A line for each file of which something could not be read."""

    def where(self, measurements: Iterable[Measurement]) -> str:
        """Return the files that hold ``measurements``, in a few words."""
        return and_more(list(dict.fromkeys(self.file_of[m.uid] for m in measurements)))

    def notes(self) -> list[str]:
        """Return a line for each file of which something was left out, not too many."""
        more = len(self.left_out) - _MOST_LINES
        return self.left_out[:_MOST_LINES] + ([f"left out of {counted(more, 'further file')}: entries"] * (more > 0))


def and_more(names: Sequence[str]) -> str:
    """Return the first few names, and how many there are besides."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def regime_name(measurement: Measurement) -> str:
    """Return the regime in which a measurement was timed; ``unknown`` where nobody said."""
    return measurement.timing_method.regime or _UNKNOWN


def read_files(files: Files, hardware: Hardware | None, on_file: Callable[[], None] = lambda: None) -> FilesRead:
    """Read measurements.

    Args:
        files: where from.
        hardware: the device where a file names none, or has a name of its own for it.
        on_file: called after each.

    Raises:
        DatasetError: a named file has a bad entry; or none of a folder's could be read.
    """
    from diode_store.exchange.context import ImportContext

    read = FilesRead()
    for path in files.paths:
        context = ImportContext(hardware=hardware, replaces_names=False, dataset=path.name)
        good, bad = _read(path, context)
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
    """Return a file's measurements, and what is wrong with the rest, each with its place."""
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


def _left_out(bad: Sequence[str], good: int) -> str:
    more = f" (and {len(bad) - 1:,} more)" if len(bad) > 1 else ""
    kept = f"{counted(good, 'measurement')} of this file used" if good else "nothing in this file is a measurement"
    return f"left out {bad[0]}{more}; {kept}"
