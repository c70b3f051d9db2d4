"""Data sets that a sweep writes, or stays disjoint from."""

from __future__ import annotations

import logging
import tempfile
from typing import TYPE_CHECKING

from diode_collectors.problems.problem import FLOAT32, LAYOUTS, SweepProblem
from diode_collectors.spool.reading import SEGMENT_SUFFIXES, decoded, measurements_in, segments_of, strictly_decoded
from diode_collectors.spool.spool import QUARANTINE_NAME
from diode_store.errors import ExportError, ImportFileError, SettingsError, SpoolError
from diode_store.ops import OPS

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from diode_store.records import Measurement

SUFFIXES = (".json", ".msgpack", ".jsonl")
_SPOOL_SUFFIX = ".spool"
_DATASET_SUFFIXES = frozenset({".json", ".msgpack"})
_READABLE = frozenset({*SUFFIXES, ".gz", ".ndjson"})

Shape = tuple[str, str, int, int, int, int]
"""Op, dtype, B, M, N and K of a problem, in any layout."""


def spool_beside(output: Path) -> Path:
    """Return the spool to collect a data set in.

    Raises:
        SettingsError: the file's suffix is not a known format.
        ExportError: the file or the spool cannot be written, or the file belongs to something else.
    """
    where = f"--output {output}"
    if output.suffix not in SUFFIXES:
        raise SettingsError(f"{where}: its suffix sets the format; expected {', '.join(SUFFIXES)}")
    spool = output.with_name(output.name + _SPOOL_SUFFIX)
    if not output.parent.is_dir():
        raise ExportError(f"{where}: there is no folder {output.parent}; make it first")
    if output.is_dir():
        raise ExportError(f"{where} is a folder; name a file in it, or another")
    if output.exists() and not spool.exists():
        raise ExportError(f"{where} exists, and no {spool.name} that it came from; name another file, or remove it")
    for folder in (output.parent, *([spool] if spool.exists() else [])):
        try:
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise ExportError(
                f"{where}: {folder} cannot be written: {error.strerror}; check its permissions, or name another file"
            ) from error
    return spool


def write_dataset(output: Path, spool: Path) -> list[str]:
    """Write the records of a spool as a data set, whole or not at all; return what the file's format cannot hold.

    Raises:
        ExportError: the file cannot be written.
        SpoolError: the spool cannot be read.
    """
    if output.suffix in _DATASET_SUFFIXES:
        from diode_store.exchange.foreign.torch_diode import dataset_of
        from diode_store.exchange.foreign.torch_diode_files import write_file

        dataset, not_held = dataset_of(measurements_in(spool))
        write_file(output, dataset)
        return not_held.lines()
    from diode_store.exchange import jsonl
    from diode_store.system.files import whole_file

    try:
        with whole_file(output) as beside, beside.open("wb") as stream:
            jsonl.write(stream, measurements_in(spool))
    except OSError as error:
        raise ExportError(f"{output} cannot be written: {error.strerror}; make room, or name another file") from error
    return []


def measured_since(spool: Path, sweep_id: str, started: float) -> Iterator[Measurement]:
    """Yield the readable records of a sweep that ``diode-ingest`` has not fetched from a spool.

    Args:
        spool: Folder of the spool.
        sweep_id: Id of the sweep.
        started: Start of the sweep, in seconds since the epoch. Older segments are not opened.
    """
    try:
        for path, frames in segments_of(spool, since=started):
            yield from (m for m in decoded(path, frames) if m.sweep_id == sweep_id)
    except SpoolError as error:  # a finished sweep must not fail here
        log.warning("%s; its records are missing from the statistics", error)


def shapes_in(path: Path) -> set[Shape]:
    """Return the shapes of the problems in a file, a spool, or a folder of these; all of them must be good.

    Raises:
        ImportFileError: there are no shapes, or a file cannot be read; the message names the file.
        SpoolError: a segment cannot be read.
    """
    if not path.is_dir():
        found = _shapes_in_segments(path) if path.suffix in SEGMENT_SUFFIXES else _shapes_in_file(path)
    else:
        found = {shape for folder in _folders(path) for shape in _shapes_in_folder(folder)}
    if not found:
        raise ImportFileError(
            f"{path} holds no problem to be disjoint from; name a data set, an exported file, or a spool that was "
            "not ingested yet"
        )
    return found


def shapes_in_warehouse(url: str) -> set[Shape]:
    """Return the shapes of the problems in a warehouse.

    Raises:
        DatabaseError: the warehouse cannot be read.
    """
    import sqlalchemy as sa

    from diode_store.warehouse.schema import problems
    from diode_store.warehouse.store import Store

    columns = problems.c
    query = sa.select(columns.op, columns.dtype, columns.b, columns.m, columns.n, columns.k).distinct()
    with Store.open(url) as store, store.engine.connect() as connection:
        return {(op, dtype, b, m, n, k) for op, dtype, b, m, n, k in connection.execute(query)}


def keys_of_shapes(shapes: Iterable[Shape]) -> set[bytes]:
    """Return the keys of all problems with one of ``shapes``, in any layout, with or without TF32."""
    keys = set()
    for op, dtype, b, m, n, k in shapes:
        if op not in OPS or not (OPS[op].is_swept and OPS[op].is_plain) or (b != 1 and not OPS[op].is_batched):
            continue
        for layout in LAYOUTS:
            for tf32 in (False, True) if dtype == FLOAT32 else (False,):
                keys.add(SweepProblem(op, m, n, k, b, dtype, layout, tf32).problem().key)
    return keys


def _folders(path: Path) -> Iterator[Path]:
    """Yield a folder and those below it, without hidden folders and quarantines, whose records are damaged."""
    yield path
    for below in sorted(path.iterdir()):
        if below.is_dir() and not below.is_symlink() and below.name != QUARANTINE_NAME and below.name[0] != ".":
            yield from _folders(below)


def _shapes_in_folder(path: Path) -> set[Shape]:
    files = [file for file in sorted(path.iterdir()) if file.suffix in _READABLE and file.is_file()]
    return _shapes_in_segments(path).union(*map(_shapes_in_file, files))


def _shapes_in_segments(path: Path) -> set[Shape]:
    return {
        _shape_of(measurement)
        for segment, frames in segments_of(path, strict=True)
        for measurement in strictly_decoded(segment, frames)
    }


def _shapes_in_file(path: Path) -> set[Shape]:
    if path.suffix in _DATASET_SUFFIXES:
        from diode_store.exchange.foreign.torch_diode_files import read_file
        from diode_store.exchange.foreign.torch_diode_types import Dataset

        problems = read_file(path, Dataset).problems
        return {(op, str(shape.M_dtype), shape.B, shape.M, shape.N, shape.K) for _, op, shape in problems}
    return set(map(_shape_of, measurements_in(path)))


def _shape_of(measurement: Measurement) -> Shape:
    shape = measurement.problem.shape
    return shape.op, shape.dtype, shape.b, shape.m, shape.n, shape.k
