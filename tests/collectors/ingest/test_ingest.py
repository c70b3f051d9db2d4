from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from spool_samples import header_bytes, put, sample, segment_bytes, segment_of, stored, uid_of

from diode_collectors.ingest import batches as batches_module
from diode_collectors.ingest import ingest as ingest_module
from diode_collectors.ingest.ingest import ingest_once
from diode_collectors.ingest.report import IngestProgress, IngestReport
from diode_collectors.spool.spool import Spool, SpoolWriter
from diode_store.errors import DatabaseError, SpoolError
from diode_store.warehouse.database import make_engine
from diode_store.warehouse.store import Store, WriteReport
from diode_store.wire import codec
from diode_store.wire.segment_layout import FRAME_MARKER, end_to_bytes, frame_to_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from diode_store.records import Measurement

WRITER_PROCESS = Path(__file__).parents[1] / "spool_writer_process.py"


def everything_below(directory: Path) -> dict[Path, bytes]:
    """Return every file and what is in it."""
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_everything_reaches_the_warehouse(directory: Path, store: Store) -> None:
    """Sealed segments are ingested in order and removed."""
    with SpoolWriter(directory, segment_bytes=2000) as writer:
        for number in range(1, 21):
            writer.append(sample(number))
    segments = len(Spool(directory).sealed())
    report = ingest_once(directory, store)
    assert report == IngestReport(segments=segments, measurements=20, timings=40)
    assert stored(store) == list(range(1, 21))
    assert store.counts()["failures"] == 20
    assert list(directory.iterdir()) == []


def test_an_empty_or_absent_spool(directory: Path, store: Store, tmp_path: Path) -> None:
    """There may be nothing to do, and nothing is made."""
    assert ingest_once(directory, store) == IngestReport()
    assert ingest_once(tmp_path / "absent", store) == IngestReport()
    assert not (tmp_path / "absent").exists()


def test_a_second_delivery_adds_nothing(directory: Path, store: Store) -> None:
    """The same segment again is counted as stored already."""
    content = segment_bytes([1, 2, 3])
    put(directory, "a.seg", content)
    ingest_once(directory, store)
    put(directory, "a.seg", content)
    assert ingest_once(directory, store) == IngestReport(segments=1, duplicates=3)
    assert stored(store) == [1, 2, 3]


def test_a_known_uid_without_a_record(directory: Path, store: Store) -> None:
    """A replay is read like any other frame: what is in it may be something else."""
    store.write([sample(1)])
    put(directory, "a.seg", segment_of([(uid_of(1), b"no record"), (uid_of(2), codec.encode(sample(2)))]))
    report = ingest_once(directory, store)
    assert (report.measurements, report.duplicates, report.rejected_by_reason) == (1, 0, {"bad_record": 1})


def test_twice_in_one_spool(directory: Path, store: Store) -> None:
    """A record that two segments hold, or one segment twice, is written once."""
    put(directory, "a.seg", segment_bytes([1, 1, 2]))
    put(directory, "b.seg", segment_bytes([2, 3]))
    assert ingest_once(directory, store) == IngestReport(segments=2, measurements=3, duplicates=2, timings=6)
    assert stored(store) == [1, 2, 3]


def test_a_dead_writers_segment_is_ingested(directory: Path, store: Store) -> None:
    """What a killed process had acknowledged is ingested, its unfinished write is cut off and counted."""
    put(directory, "a.open", segment_bytes([1, 2], sealed=False) + b"torn")
    assert ingest_once(directory, store) == IngestReport(segments=1, measurements=2, timings=4, torn_bytes=4)
    assert list(directory.iterdir()) == []


def test_a_live_writers_segment_is_not_touched(directory: Path, store: Store) -> None:
    """While a writer holds its segment nothing of it is read; after it is sealed, all of it."""
    with SpoolWriter(directory) as writer:
        writer.append(sample(1))
        writer.sync()
        before = everything_below(directory)
        assert ingest_once(directory, store) == IngestReport()
        assert everything_below(directory) == before
    assert ingest_once(directory, store).measurements == 1


# The database fails


class FailingStore(Store):
    """A store whose database goes away after a number of batches."""

    def __init__(self, url: str, batches: int) -> None:
        super().__init__(make_engine(url))
        self.batches = batches

    def write(self, measurements: Iterable[Measurement]) -> WriteReport:
        """Write, or fail as a lost connection does."""
        if not self.batches:
            raise DatabaseError("the connection was lost")
        self.batches -= 1
        return super().write(measurements)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a batch be full with four timings, and look often."""
    monkeypatch.setattr(batches_module, "BATCH_TIMINGS", 4)
    monkeypatch.setattr(ingest_module, "_CHUNK_FRAMES", 3)


@pytest.mark.parametrize("batches", range(6))
def test_a_database_that_goes_away_loses_nothing(
    directory: Path, store: Store, database_url: str, small_batches: None, batches: int
) -> None:
    """Wherever the database fails, uncommitted segments stay, and the next pass completes the work exactly once."""
    put(directory, "a.seg", segment_bytes([1, 2, 3, 4, 5]))
    put(directory, "b.seg", segment_bytes([6, 7, 8]))
    put(directory, "c.seg", segment_bytes([9]))
    with FailingStore(database_url, batches) as failing:
        if batches < 5:
            with pytest.raises(DatabaseError, match="the connection was lost"):
                ingest_once(directory, failing)
        else:
            ingest_once(directory, failing)
    there = {path.stem for path in Spool(directory).sealed()}
    needed = {name for name, last in (("a", 5), ("b", 8), ("c", 9)) if last not in stored(store)}
    assert needed <= there
    ingest_once(directory, store)
    assert Counter(stored(store)) == Counter(range(1, 10))
    assert Spool(directory).sealed() == []


def test_a_locked_database_is_an_error_that_keeps_the_segments(
    directory: Path, store: Store, database_path: Path
) -> None:
    """While another process holds the database, the pass fails in one line; afterwards it succeeds."""
    put(directory, "a.seg", segment_bytes([1]))
    impatient = Store(make_engine(str(database_path), busy_timeout_s=0.05))
    rival = sqlite3.connect(database_path)
    rival.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseError, match="another process holds it locked"):
        ingest_once(directory, impatient)
    assert len(Spool(directory).sealed()) == 1
    rival.rollback()
    rival.close()
    assert ingest_once(directory, impatient).measurements == 1
    impatient.close()
    assert stored(store) == [1]


def test_a_crash_between_commit_and_removal(directory: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a segment is committed but not removed, the next pass finds everything stored and removes it."""
    put(directory, "a.seg", segment_bytes([1, 2]))
    with monkeypatch.context() as patched:
        patched.setattr(Spool, "remove", lambda _self, path: (_ for _ in ()).throw(KeyboardInterrupt(path)))
        with pytest.raises(KeyboardInterrupt):
            ingest_once(directory, store)
    assert stored(store) == [1, 2]
    assert ingest_once(directory, store) == IngestReport(segments=1, duplicates=2)
    assert Spool(directory).sealed() == []


def test_a_segment_that_cannot_be_removed(
    directory: Path, any_store: Store, small_batches: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told at the end of the pass, which commits all the others and removes them."""
    for number in range(1, 8):
        put(directory, f"{number}.seg", segment_bytes([number]))
    removes = Spool.remove

    def remove(spool: Spool, segment: Path) -> None:
        if segment.stem in {"1", "6"}:
            raise SpoolError(f"{segment.name}: cannot be removed")
        removes(spool, segment)

    with monkeypatch.context() as patched:
        patched.setattr(Spool, "remove", remove)
        with pytest.raises(SpoolError, match=r"^1\.seg: cannot be removed$"):
            ingest_once(directory, any_store)
    assert stored(any_store) == list(range(1, 8))
    assert [path.name for path in Spool(directory).sealed()] == ["1.seg", "6.seg"]
    assert ingest_once(directory, any_store) == IngestReport(segments=2, duplicates=2)


# Batches, stopping, progress, dry runs


class CountingStore(Store):
    """A store that remembers the size of each batch."""

    def __init__(self, url: str) -> None:
        super().__init__(make_engine(url))
        self.batches: list[int] = []

    def write(self, measurements: Iterable[Measurement]) -> WriteReport:
        """Write and remember."""
        batch: Sequence[Measurement] = list(measurements)
        self.batches.append(len(batch))
        return super().write(batch)


def test_batches_span_segments(directory: Path, database_url: str, small_batches: None) -> None:
    """Many small segments are committed together, a large one in parts."""
    for number in range(1, 4):
        put(directory, f"{number}.seg", segment_bytes([number]))
    put(directory, "4.seg", segment_bytes(range(10, 17)))
    with CountingStore(database_url) as store:
        assert ingest_once(directory, store).segments == 4
        assert store.batches == [2, 2, 2, 2, 2]


def test_a_slow_batch_is_committed_after_a_while(
    directory: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch does not wait for more than its time."""
    monkeypatch.setattr(batches_module, "BATCH_S", 0.0)
    put(directory, "a.seg", segment_bytes([1, 2, 3]))
    with CountingStore(database_url) as store:
        ingest_once(directory, store)
        assert store.batches == [1, 1, 1]


def test_a_segment_is_removed_only_with_its_last_batch(directory: Path, store: Store, small_batches: None) -> None:
    """While a part of a segment is uncommitted, the segment is there."""
    put(directory, "a.seg", segment_bytes(range(1, 12)))
    seen: list[tuple[int, int]] = []

    def look(progress: IngestProgress) -> None:
        seen.append((progress.report.measurements, len(Spool(directory).sealed())))

    ingest_once(directory, store, on_progress=look)
    assert seen == [(2, 1), (6, 1), (8, 1), (10, 1), (11, 0)]


def test_asked_to_stop_it_finishes_its_batch(directory: Path, store: Store, small_batches: None) -> None:
    """What was read is committed, the rest stays, and the next pass does it without doubling anything."""
    put(directory, "a.seg", segment_bytes(range(1, 10)))
    put(directory, "b.seg", segment_bytes([20]))
    answers = iter([False, True])
    report = ingest_once(directory, store, should_stop=lambda: next(answers))
    assert report == IngestReport(measurements=3, timings=6, stopped=True)
    assert stored(store) == [1, 2, 3]
    assert [path.name for path in Spool(directory).sealed()] == ["a.seg", "b.seg"]
    assert ingest_once(directory, store) == IngestReport(segments=2, measurements=7, duplicates=3, timings=14)


def test_asked_to_stop_before_it_begins(directory: Path, store: Store) -> None:
    """Nothing is read then."""
    put(directory, "a.seg", segment_bytes([1]))
    assert ingest_once(directory, store, should_stop=lambda: True) == IngestReport(stopped=True)
    assert stored(store) == []


def test_progress_reaches_the_end(directory: Path, store: Store, small_batches: None) -> None:
    """IngestProgress only grows and ends at all bytes of the spool."""
    put(directory, "a.seg", segment_bytes(range(1, 12)))
    put(directory, "b.seg", segment_bytes([20]))
    total = sum(path.stat().st_size for path in directory.iterdir())
    seen: list[IngestProgress] = []
    report = ingest_once(directory, store, on_progress=seen.append)
    assert [p.done_bytes for p in seen] == sorted(p.done_bytes for p in seen)
    assert (seen[-1].done_bytes, {p.total_bytes for p in seen}, seen[-1].report) == (total, {total}, report)


def mixed_spool(directory: Path) -> None:
    """Fill a spool with everything at once: good, known, repeated, damaged, abandoned."""
    put(directory, "a.seg", segment_bytes([1, 2, 2, 3]))
    put(directory, "b.seg", segment_bytes([3, 4])[:-30])
    put(directory, "c.seg", segment_of([(uid_of(8), b"bad"), (uid_of(5), codec.encode(sample(5)))]))
    put(directory, "d.open", segment_bytes([6, 7], sealed=False) + b"torn")
    put(directory, "e.seg", header_bytes(version=3))


def test_a_dry_run_changes_nothing_and_counts_the_same(directory: Path, store: Store) -> None:
    """A dry run reports exactly what the real one does afterwards, but for what it says of the quarantine."""
    store.write([sample(1)])
    mixed_spool(directory)
    before = everything_below(directory)
    announced = ingest_once(directory, store, dry_run=True)
    assert everything_below(directory) == before
    assert stored(store) == [1]
    done = ingest_once(directory, store)
    assert [r[:3] for r in done.rejections] == [r[:3] for r in announced.rejections]
    assert replace(done, rejections=()) == replace(announced, rejections=())
    assert announced == replace(
        IngestReport(segments=4, measurements=5, duplicates=3, timings=10, rejected=3, torn_bytes=4),
        rejected_by_reason=announced.rejected_by_reason,
        rejections=announced.rejections,
    )
    assert announced.rejected_by_reason == {"truncated": 1, "bad_record": 1, "newer_format": 1}


def test_a_dry_run_leaves_live_writers_alone(directory: Path, store: Store) -> None:
    """A dry run neither reads nor blocks a segment that is being written."""
    with SpoolWriter(directory) as writer:
        writer.append(sample(1))
        writer.sync()
        assert ingest_once(directory, store, dry_run=True) == IngestReport()
        writer.append(sample(2))
    assert ingest_once(directory, store, dry_run=True).measurements == 2


def test_writers_and_ingesters_at_once(directory: Path, store: Store) -> None:
    """While processes write and some are killed, repeated passes bring in every acknowledged record once."""
    command = [sys.executable, str(WRITER_PROCESS), str(directory)]
    writers = [
        subprocess.Popen([*command, str(1_000_000 * i), *(["12"] if i < 2 else [])], stdout=subprocess.PIPE)
        for i in range(3)
    ]
    said: list[list[bytes]] = []
    for writer in writers:
        assert writer.stdout is not None
        said.append([writer.stdout.readline()])
    for _ in range(3):
        ingest_once(directory, store)
    writers[2].kill()
    for writer, lines in zip(writers, said, strict=True):
        assert writer.stdout is not None
        lines.extend(writer.stdout.read().splitlines())
        writer.stdout.close()
        writer.wait()
    ingest_once(directory, store)
    numbers = Counter(stored(store))
    assert set(numbers.values()) == {1}
    for i, lines in enumerate(said):
        acknowledged = set(range(1_000_000 * i, int(lines[-1]) + 1))
        assert len(acknowledged) >= 7
        assert acknowledged <= set(numbers)
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize(
    "damage",
    [
        FRAME_MARKER * 5_000,
        b"".join(frame_to_bytes(uid_of(number), b"no record") for number in range(5_000, 10_000)),
    ],
    ids=["fake markers", "frames without a record"],
)
def test_quarantine_entries_of_a_segment_are_bounded(directory: Path, store: Store, damage: bytes) -> None:
    """Most rejections share one file, the whole segment, so that nothing is lost; good records are stored."""
    frames = [frame_to_bytes(measurement.uid, codec.encode(measurement)) for measurement in map(sample, (1, 2))]
    content = header_bytes(compress=False) + frames[0] + damage + frames[1] + end_to_bytes(2)
    put(directory, "a.seg", content)
    report = ingest_once(directory, store)
    assert (stored(store), report.rejected >= 5_000, report.segments) == ([1, 2], True, 1)
    quarantine = Spool(directory).quarantine_directory
    assert (quarantine / "a.seg").read_bytes() == content
    assert len(Spool(directory).quarantined()) == ingest_module.MOST_ENTRIES + 1
    assert list(directory.glob("*.seg")) == []
