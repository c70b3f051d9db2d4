"""Every error torch-diode raises, under one root.

The docstring of a class is its default message, so that an error raised without arguments still says
something a person can act on.
"""

from __future__ import annotations


class DiodeError(Exception):
    """torch-diode could not do what was asked."""

    def __init__(self, message: str | None = None) -> None:
        """Keep ``message``, or the first line of the class's docstring."""
        super().__init__(message or (type(self).__doc__ or "").splitlines()[0])


def first_line(error: BaseException) -> str:
    """Return the first line of a foreign error's message, or the name of its class if it has none."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


class RecordError(DiodeError):
    """A record breaks the rules of the vocabulary."""


class CodecError(RecordError):
    """Bytes that should hold a record do not."""


class UnknownVersionError(CodecError):
    """The record was written by a newer torch-diode; upgrade this one to read it."""


class SpoolError(DiodeError):
    """The spool cannot be used."""


class SegmentError(SpoolError):
    """A spool segment is not readable."""


class SpoolFullError(SpoolError):
    """The spool has reached its size limit; start or check `diode-ingest`."""


class DatabaseError(DiodeError):
    """The warehouse database cannot be used."""


class SchemaError(DatabaseError):
    """The database has another schema revision; run `diode db upgrade`."""


class BackupError(DiodeError):
    """The database could not be copied."""


class SupersedeError(DiodeError):
    """A sweep cannot take its own place; name two."""


class PruneError(DiodeError):
    """Say what goes: --superseded, --replays, --flagged, --older-than, --measured-before, --dataset or --hardware."""


class HardwareError(DiodeError):
    """No hardware matches that name; `diode hardware list` shows what there is."""


class ImportFileError(DiodeError):
    """A file could not be imported."""


class ExportError(DiodeError):
    """A file could not be exported."""


class QueryError(DiodeError):
    """The query was refused."""


class LakeError(DiodeError):
    """The Parquet lake cannot be used; delete its folder and run `diode sync` to rebuild it."""


class LakeValueError(LakeError):
    """The warehouse holds a value of the wrong type; correct that row."""


class ModelError(DiodeError):
    """The model cannot be used."""


class DatasetError(DiodeError):
    """There is not enough data to train or evaluate on."""


class SettingsError(DiodeError):
    """A setting has a value that cannot be used."""
