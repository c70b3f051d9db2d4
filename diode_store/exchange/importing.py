"""Files of measurements into the warehouse: what is good is kept, what is bad is named by file and line."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING

from diode_store.batching import in_batches
from diode_store.errors import ImportFileError
from diode_store.exchange import jsonl
from diode_store.exchange.context import BadLine
from diode_store.exchange.formats import ImportFormat, detect
from diode_store.exchange.inputs import STDIN, is_upstream_dataset, open_binary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from diode_store.exchange.context import ImportContext
    from diode_store.records import Hardware, Measurement
    from diode_store.warehouse.store import Store

__all__ = ["TIMINGS_AT_ONCE", "ImportReport", "import_files", "read_file", "read_strictly"]

TIMINGS_AT_ONCE = 10_000
"""About how many timings one transaction brings."""


@dataclass
class ImportReport:
    """What an import did, or with ``dry_run`` would have done."""

    measurements: int = 0
    """New ones."""
    duplicates: int = 0
    """Measurements that were stored already, or occur twice in the files."""
    timings: int = 0
    """Timings of the new ones."""
    bad: list[str] = field(default_factory=list)
    """``FILE:LINE: reason``, or another place, of each line, record or problem that is no measurement."""


def import_files(
    store: Store,
    files: Iterable[str],
    context: ImportContext,
    *,
    fmt: ImportFormat = ImportFormat.AUTO,
    dry_run: bool = False,
    on_bad: Callable[[str], None] = lambda _line: None,
    on_progress: Callable[[float], None] = lambda _measurements: None,
) -> ImportReport:
    """Write the measurements of ``files`` to ``store``.

    Args:
        store: where to; with ``dry_run`` it is only read.
        files: names; ``-`` is standard input, gzip is understood.
        context: what the files do not say themselves.
        fmt: what the files hold.
        dry_run: write nothing.
        on_bad: called with each bad line at once.
        on_progress: called with the number of measurements just done.

    Raises:
        ImportFileError: a file cannot be opened or is of no known format; what came before it is kept.
        DatabaseError: the warehouse failed; whole batches before that are kept, and importing again adds the rest.
    """
    work = _Import(store, dry_run=dry_run, on_bad=on_bad)
    context = replace(context, devices=context.devices or _devices(store))
    for batch in in_batches(work.good(_items(files, context, fmt)), lambda m: len(m.timings), TIMINGS_AT_ONCE):
        work.write(batch)
        on_progress(len(batch))
    if work.failure is not None:
        raise work.failure
    return work.report


class _Import:
    """One import, and what it has seen so far."""

    def __init__(self, store: Store, *, dry_run: bool, on_bad: Callable[[str], None]) -> None:
        self.report = ImportReport()
        self.failure: ImportFileError | None = None
        """Why the rest of the files was not read."""
        self._store = store
        self._dry_run = dry_run
        self._on_bad = on_bad
        self._seen: set[bytes] = set()

    def good(self, items: Iterable[tuple[str, Measurement | BadLine]]) -> Iterator[Measurement]:
        """Yield the measurements and report the bad lines; end at a file that cannot be read."""
        try:
            for file, item in items:
                if isinstance(item, BadLine):
                    self.report.bad.append(item.at(file))
                    self._on_bad(self.report.bad[-1])
                else:
                    yield item
        except ImportFileError as error:
            self.failure = error

    def write(self, batch: list[Measurement]) -> None:
        fresh = [m for m in batch if m.uid not in self._seen]
        self._seen.update(m.uid for m in fresh)
        measurements, timings = self._would_write(fresh) if self._dry_run else self._write(fresh)
        self.report.measurements += measurements
        self.report.timings += timings
        self.report.duplicates += len(batch) - measurements

    def _write(self, fresh: list[Measurement]) -> tuple[int, int]:
        written = self._store.write(fresh)
        return written.measurements, written.timings

    def _would_write(self, fresh: list[Measurement]) -> tuple[int, int]:
        known = self._store.known([m.uid for m in fresh])
        added = [m for m in fresh if m.uid not in known]
        return len(added), sum(len(m.timings) for m in added)


def read_file(
    file: str, context: ImportContext, fmt: ImportFormat = ImportFormat.AUTO
) -> Iterator[Measurement | BadLine]:
    """Yield the measurements of one file, and what is wrong with its bad entries.

    Raises:
        ImportFileError: it cannot be opened, or is of no known format.
    """
    return (item for _, item in _items([file], context, fmt))


def read_strictly(file: str, context: ImportContext, fmt: ImportFormat = ImportFormat.JSONL) -> Iterator[Measurement]:
    """Yield the measurements of one file, jsonl unless told otherwise, of which every entry must be good.

    Raises:
        ImportFileError: it cannot be opened, or an entry is bad; names the file and the place.
    """
    for item in read_file(file, context, fmt):
        if isinstance(item, BadLine):
            raise ImportFileError(item.at(file))
        yield item


def _devices(store: Store) -> tuple[Hardware, ...]:
    """Return the devices of the warehouse."""
    from diode_store.warehouse.hardware import list_hardware

    with store.engine.connect() as connection:
        return tuple(row.hardware for row in list_hardware(connection))


def _items(
    files: Iterable[str], context: ImportContext, fmt: ImportFormat
) -> Iterator[tuple[str, Measurement | BadLine]]:
    for file in files:
        name = "stdin" if file == STDIN else file
        with open_binary(file) as stream:
            found = detect(name, stream) if fmt is ImportFormat.AUTO else fmt
            if found is ImportFormat.JSONL and is_upstream_dataset(stream):
                raise ImportFileError(f"{name} is one of upstream's data sets; read it with --format torch-diode")
            for item in _reader(found)(stream, context):
                yield name, item


def _reader(fmt: ImportFormat) -> Callable[[IO[bytes], ImportContext], Iterator[Measurement | BadLine]]:
    """Return the reader of a format; each is loaded on demand."""
    if fmt is ImportFormat.RECORDS:
        from diode_store.exchange import records

        return lambda stream, _context: records.read(stream)
    if fmt is ImportFormat.TORCH_DIODE:
        from diode_store.exchange.torch_diode_files import read_stream

        return read_stream
    if fmt is ImportFormat.PARQUET:
        from diode_store.exchange.parquet_reading import read

        return lambda stream, _context: read(stream)
    if fmt is ImportFormat.T4:
        from diode_store.exchange.t4_reading import read as read_t4

        return read_t4
    return jsonl.read
