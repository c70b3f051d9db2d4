"""Import files of measurements into the warehouse: keep good entries, and name bad entries by file and line."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING

from diode_store.errors import ImportFileError
from diode_store.exchange import jsonl
from diode_store.exchange.bounds import MAX_BAD_LINES, shortened
from diode_store.exchange.context import ASSUMED, BadLine
from diode_store.exchange.formats import ImportFormat, detect, refuse_foreign
from diode_store.exchange.inputs import STDIN, is_upstream_dataset, open_binary
from diode_store.values.batching import in_batches
from diode_store.values.checks import other_content
from diode_store.wire.timing_table import TimingTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from diode_store.exchange.context import ImportContext
    from diode_store.records import Hardware, Measurement
    from diode_store.warehouse.store import Store, WriteReport

__all__ = ["TIMINGS_AT_ONCE", "ImportReport", "import_files", "read_file", "read_strictly"]

TIMINGS_AT_ONCE = 10_000
"""Approximate number of timings in one transaction."""
_DOUBTS_KEPT = 100


@dataclass
class ImportReport:
    """Report of an import, or of its dry run."""

    measurements: int = 0
    """New measurements."""
    duplicates: int = 0
    """Measurements that were stored already, or occur twice in the files."""
    timings: int = 0
    """Timings of the new measurements."""
    doubts: list[str] = field(default_factory=list)
    """A line for each impossible value in the new measurements; the first hundred."""
    doubtful: int = 0
    """Number of impossible values."""
    unknown_ops: dict[str, int] = field(default_factory=dict)
    """Number of new measurements by op, for the ops that this version does not know."""
    bad: list[str] = field(default_factory=list)
    """``FILE:LINE: reason``, or another place, for the first entries that are no measurements."""
    bad_count: int = 0
    """Number of all bad entries."""


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
        store: the warehouse; a dry run only reads it.
        files: file names; ``-`` is standard input, and gzip is unpacked.
        context: values that the files lack.
        fmt: format of the files.
        dry_run: write nothing.
        on_bad: called with each bad line at once.
        on_progress: called with the number of newly imported measurements.

    Raises:
        ImportFileError: a file cannot be opened or has no known format; earlier measurements are kept.
        DatabaseError: the warehouse failed. Earlier whole batches are kept, and importing again adds the rest.
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
    """State of one import."""

    def __init__(self, store: Store, *, dry_run: bool, on_bad: Callable[[str], None]) -> None:
        self.report = ImportReport()
        self.failure: ImportFileError | None = None
        """Reason for not reading the rest of the files."""
        self._store = store
        self._dry_run = dry_run
        self._on_bad = on_bad
        self._seen: set[bytes] = set()

    def good(self, items: Iterable[tuple[str, Measurement | BadLine]]) -> Iterator[Measurement]:
        """Yield the measurements and report the bad lines; end at an unreadable file."""
        try:
            for file, item in items:
                if isinstance(item, BadLine):
                    self._is_bad(item.at(file))
                else:
                    yield item
        except ImportFileError as error:
            self.failure = error

    def write(self, batch: list[Measurement]) -> None:
        held = self._held(batch)
        fresh = [m for m in batch if id(m) not in held]
        written = self._would_write(fresh) if self._dry_run else self._store.write(fresh)
        self.report.duplicates += len(held)
        self.report.measurements += written.measurements
        self.report.timings += written.timings
        self.report.duplicates += written.duplicates
        self.report.doubtful += len(written.doubts)
        self.report.doubts += written.doubts[: _DOUBTS_KEPT - len(self.report.doubts)]
        for op, number in written.unknown_ops:
            self.report.unknown_ops[op] = self.report.unknown_ops.get(op, 0) + number
        for other in written.contradictions:
            self._is_bad(f"{other_content(other.uid)}; give it a new one")

    def _held(self, batch: list[Measurement]) -> set[int]:
        """Return the ``id()`` of each measurement without a uid of its own that the warehouse already has."""
        without = [m for m in batch if ASSUMED in m.extra]
        if not without:
            return set()
        from diode_store.warehouse.held import held

        with self._store.engine.connect() as connection:
            return set(map(id, held(connection, without)))

    def _is_bad(self, line: str) -> None:
        text = shortened(line)
        self.report.bad_count += 1
        if len(self.report.bad) < MAX_BAD_LINES:
            self.report.bad.append(text)
        self._on_bad(text)

    def _would_write(self, batch: list[Measurement]) -> WriteReport:
        from diode_store.warehouse.doubts import doubts_of
        from diode_store.warehouse.store import WriteReport, unknown_ops

        known = self._store.known([m.uid for m in batch]) | self._seen
        added = {m.uid: m for m in batch if m.uid not in known}
        self._seen.update(added)
        wrong = self._store.contradicted(batch)
        now = datetime.now(UTC)
        doubts = tuple(line for m in added.values() for line in doubts_of(m, TimingTable.of(m.timings), now))
        timings = sum(len(m.timings) for m in added.values())
        known_ones = len(batch) - len(added) - len(wrong)
        return WriteReport(
            len(added),
            known_ones,
            timings,
            contradictions=tuple(wrong),
            doubts=doubts,
            unknown_ops=unknown_ops(added.values()),
        )


def read_file(
    file: str, context: ImportContext, fmt: ImportFormat = ImportFormat.AUTO
) -> Iterator[Measurement | BadLine]:
    """Yield the measurements of one file, and a report of each bad entry.

    Raises:
        ImportFileError: the file cannot be opened, or has no known format.
    """
    return (item for _, item in _items([file], context, fmt))


def read_strictly(file: str, context: ImportContext, fmt: ImportFormat = ImportFormat.JSONL) -> Iterator[Measurement]:
    """Yield the measurements of one file, in which every entry must be good.

    Raises:
        ImportFileError: the file cannot be opened, or an entry is bad; the message names the file and the place.
    """
    for item in read_file(file, context, fmt):
        if isinstance(item, BadLine):
            raise ImportFileError(shortened(item.at(file)))
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
            if found in {ImportFormat.JSONL, ImportFormat.TORCH_DIODE}:
                refuse_foreign(name, stream, by_lines=found is ImportFormat.JSONL)
            for item in _reader(found)(stream, context):
                yield name, item


def _reader(fmt: ImportFormat) -> Callable[[IO[bytes], ImportContext], Iterator[Measurement | BadLine]]:
    """Return the reader of a format, loaded on demand."""
    if fmt is ImportFormat.RECORDS:
        from diode_store.exchange import records

        return lambda stream, _context: records.read(stream)
    if fmt is ImportFormat.TORCH_DIODE:
        from diode_store.exchange.foreign.torch_diode_files import read_stream

        return read_stream
    if fmt is ImportFormat.PARQUET:
        from diode_store.exchange.parquet_reading import read

        return lambda stream, _context: read(stream)
    if fmt is ImportFormat.T4:
        from diode_store.exchange.foreign.t4_reading import read as read_t4

        return read_t4
    return jsonl.read
