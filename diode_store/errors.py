"""Every error torch-diode raises, under one root.

The docstring of a class is its default message, so that an error raised without arguments is
still actionable.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class DiodeError(Exception):
    """The operation failed."""

    def __init__(self, message: str | None = None) -> None:
        """Keep ``message``, or the first line of the class's docstring."""
        super().__init__(message or (type(self).__doc__ or "").splitlines()[0])


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error message, or its class if the message is empty."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


class RecordError(DiodeError):
    """A record is invalid."""


class CodecError(RecordError):
    """The bytes are not a valid record."""


class UnknownVersionError(CodecError):
    """The record was written by a newer torch-diode; upgrade this one to read it."""


class OtherKindError(CodecError):
    """The record is of another kind than the one that was asked for."""


class SpoolError(DiodeError):
    """The spool cannot be used."""


class SpoolInUseError(SpoolError):
    """Another process ingests from the spool."""

    def __init__(self, message: str, pid: int | None = None) -> None:
        """Keep the message and the other process's pid; 0 or None if it is not known."""
        super().__init__(message)
        self.pid = pid


class SegmentError(SpoolError):
    """A spool segment is not readable."""


class SpoolFullError(SpoolError):
    """The spool has reached its size limit; start or check `diode-ingest`."""


class DatabaseError(DiodeError):
    """The warehouse database cannot be used."""


class SchemaError(DatabaseError):
    """The database has another schema revision; run `diode db upgrade`."""


class NoWarehouseError(SchemaError):
    """The warehouse does not exist yet."""


class BackupError(DiodeError):
    """The database could not be copied."""


class SupersedeError(DiodeError):
    """A sweep cannot supersede itself; name two sweeps."""


class PruneError(DiodeError):
    """Name what goes: --superseded, --replays, --flagged, --older-than, --measured-before, --dataset or --hardware."""


class HardwareError(DiodeError):
    """No hardware matches that name; `diode hardware list` shows the known ones."""


class NoHardwareError(HardwareError):
    """No device has this name."""

    def __init__(self, message: str | None = None, name: str = "") -> None:
        """Keep the message and the name, as it was typed."""
        super().__init__(message)
        self.name = name


class ImportFileError(DiodeError):
    """A file could not be imported."""


class ExportError(DiodeError):
    """A file could not be exported."""


class QueryError(DiodeError):
    """The query was refused."""


class CacheError(DiodeError):
    """The cache cannot be used; `diode cache rebuild` makes it anew."""


class DamagedCacheError(CacheError):
    """The cache is damaged or of another format; the next sync rebuilds it. Its only argument is the reason."""

    @property
    def reason(self) -> str:
        """Fault, without the remedy."""
        return str(self.args[0])

    def __str__(self) -> str:
        """Return the reason and the remedy."""
        return f"{self.reason}; run `diode cache rebuild`"


class UnwritableCacheError(CacheError):
    """The cache's folder cannot be written, or its disk is full. The message ends with ``; `` and a remedy."""

    @property
    def reason(self) -> str:
        """Fault, without the remedy."""
        return str(self).rpartition("; ")[0]


CORRUPT = "Corrupt database file"
"""DuckDB's words for a block whose checksum is wrong. They do not say in which file."""
_READ: set[Callable[[str], None]] = set()


@contextmanager
def marked_if_damaged(mark: Callable[[str], None]) -> Iterator[None]:
    """Have ``mark`` called with the fault if a reader meets a damaged block while this context lasts."""
    _READ.add(mark)
    try:
        yield
    finally:
        _READ.discard(mark)


def mark_damaged(reason: str) -> None:
    """Mark every cache that this process reads as damaged, so that the next sync rebuilds it."""
    for mark in list(_READ):
        mark(reason)


class CacheValueError(CacheError):
    """The warehouse holds a value of the wrong type; correct that row."""


class PublishedTableError(DiodeError):
    """The published table cannot be used."""


class ModelError(DiodeError):
    """The model cannot be used."""


class PicksError(DiodeError):
    """The picks file cannot be used; write it again with `diode lock`."""


class ReportError(DiodeError):
    """A report could not be made."""


class DatasetError(DiodeError):
    """The data do not suffice to train or evaluate."""


FIRST_STEP = "add those that ship with `diode-ingest --once --bundled`, or others with `diode import`"
"""Remedy for a warehouse without measurements."""
NO_MEASUREMENTS = f"the warehouse holds no measurements; {FIRST_STEP}"


class NoMeasurementsError(DatasetError):
    """The warehouse holds no measurements; add those that ship with `diode-ingest --once --bundled`."""


class SettingsError(DiodeError):
    """A setting has a value that cannot be used."""
