from __future__ import annotations

import errno
import os
import resource
import stat
import threading
from typing import TYPE_CHECKING

import pytest
from spool_reading import mode, names_in, numbers_in
from spool_samples import sample

from diode_collectors.spool import writer as writer_module
from diode_collectors.spool.files import folder_bytes
from diode_collectors.spool.spool import Spool, SpoolWriter
from diode_store.errors import RecordError, SpoolError, SpoolFullError
from diode_store.wire import codec
from diode_store.wire.segments import Reason, read_segment

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a folder for a spool; it does not exist yet."""
    return tmp_path / "data" / "spool"


def test_records_come_back_in_order(directory: Path) -> None:
    """What was appended is read from the sealed segment, whole and in order."""
    with SpoolWriter(directory) as writer:
        for number in range(1, 6):
            writer.append(sample(number))
    assert numbers_in(directory) == [1, 2, 3, 4, 5]
    (segment,) = Spool(directory).sealed()
    assert codec.decode(next(read_segment(segment)).record_bytes()) == sample(1)


@pytest.mark.parametrize("compress", [True, False])
def test_compression_is_the_writers_choice(directory: Path, compress: bool) -> None:  # noqa: FBT001 - by name
    """Compressed and plain segments read the same."""
    with SpoolWriter(directory, compress=compress) as writer:
        writer.append(sample(1, timings=200))
    (frame,) = read_segment(Spool(directory).sealed()[0])
    assert frame.measurement() == sample(1, timings=200)
    assert (frame.payload == codec.encode(sample(1, timings=200))) is not compress


def test_a_writer_of_nothing_leaves_nothing(directory: Path) -> None:
    """Neither an unused writer nor an empty sync or seal makes a file."""
    with SpoolWriter(directory) as writer:
        writer.sync()
        writer.seal()
    assert list(directory.iterdir()) == []


def test_append_alone_writes_nothing(directory: Path) -> None:
    """A record is in memory until it is synced."""
    writer = SpoolWriter(directory)
    writer.append(sample(1))
    assert list(directory.iterdir()) == []
    writer.sync()
    assert names_in(directory) == {".open": 1}
    writer.close()
    assert names_in(directory) == {".seg": 1}


def test_much_is_written_without_being_asked(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays bounded when nobody syncs."""
    monkeypatch.setattr(writer_module, "_PENDING_BYTES", 1000)
    writer = SpoolWriter(directory)
    for number in range(10):
        writer.append(sample(number))
    assert names_in(directory) == {".open": 1}
    writer.close()
    assert numbers_in(directory) == list(range(10))


def test_segments_are_sealed_at_their_size(directory: Path) -> None:
    """A segment is sealed before it grows over its size, and the next one continues the order."""
    with SpoolWriter(directory, segment_bytes=3000) as writer:
        for number in range(30):
            writer.append(sample(number))
            writer.sync()
    segments = Spool(directory).sealed()
    assert len(segments) > 3
    assert max(path.stat().st_size for path in segments) <= 3000
    assert numbers_in(directory) == list(range(30))


def test_a_record_larger_than_a_segment_gets_one_of_its_own(directory: Path) -> None:
    """Rotation never refuses a record."""
    with SpoolWriter(directory, segment_bytes=100) as writer:
        for number in (1, 2):
            writer.append(sample(number))
    assert len(Spool(directory).sealed()) == 2
    assert numbers_in(directory) == [1, 2]


def test_files_are_private(directory: Path) -> None:
    """Folders are 0700 and files 0600, whatever the umask allows."""
    before = os.umask(0)
    try:
        writer = SpoolWriter(directory)
        writer.append(sample(1))
        writer.sync()
        (segment,) = Spool(directory).unsealed()
        assert (mode(directory), mode(segment)) == (0o700, 0o600)
        with Spool(directory).lock():
            assert mode(directory / "ingest.lock") == 0o600
        writer.close()
        frame = next(read_segment(Spool(directory).sealed()[0]))
        kept = Spool(directory).quarantine(Spool(directory).sealed()[0], frame, Reason.BAD_RECORD, "why")
        assert (mode(kept.parent), mode(kept)) == (0o700, 0o600)
    finally:
        os.umask(before)


def test_an_existing_folder_keeps_its_mode(directory: Path) -> None:
    """A spool that an administrator shares with a group stays shared."""
    directory.mkdir(parents=True)
    directory.chmod(0o2770)
    SpoolWriter(directory).close()
    assert mode(directory) == 0o2770


def test_a_full_spool_refuses_the_newest(directory: Path) -> None:
    """At its limit the writer refuses a record, keeps what it took, and goes on when there is room again."""
    writer = SpoolWriter(directory, max_bytes=3000)
    taken = 5
    for number in range(taken):
        writer.append(sample(number))
        writer.sync()
    large = sample(taken, timings=100)
    with pytest.raises(SpoolFullError, match=r"its limit is 3,000; start or check `diode-ingest`"):
        writer.append(large)
    assert folder_bytes(directory) <= 3000
    writer.seal()
    assert numbers_in(directory) == list(range(taken))
    for path in Spool(directory).sealed():
        Spool(directory).remove(path)
    writer.append(sample(taken))
    writer.close()
    assert numbers_in(directory) == [taken]


def test_the_limit_counts_everybody(directory: Path) -> None:
    """Other writers' segments and the quarantine count against the limit."""
    with SpoolWriter(directory) as other:
        for number in range(20):
            other.append(sample(number))
    (directory / "quarantine").mkdir()
    (directory / "quarantine" / "x.bin").write_bytes(bytes(1000))
    used = folder_bytes(directory)
    with SpoolWriter(directory, max_bytes=used + 100) as writer, pytest.raises(SpoolFullError):
        writer.append(sample(1))


def test_a_closed_writer_refuses(directory: Path) -> None:
    """After close nothing is taken; closing again is harmless."""
    writer = SpoolWriter(directory)
    writer.close()
    writer.close()
    with pytest.raises(SpoolError, match="the spool writer is closed"):
        writer.append(sample(1))


def test_a_record_that_cannot_be_encoded_is_refused_alone(directory: Path) -> None:
    """A bad record raises and leaves the others as they are."""
    bad = sample(2)
    broken = bad.timings[1]._replace(runtime_us=float("nan"))
    object.__setattr__(bad, "timings", (broken,))
    with SpoolWriter(directory) as writer:
        writer.append(sample(1))
        with pytest.raises(RecordError):
            writer.append(bad)
        writer.append(sample(3))
    assert numbers_in(directory) == [1, 3]


def test_an_exception_in_the_block_keeps_the_records(directory: Path) -> None:
    """What was measured before a crash of the caller is worth keeping."""
    writer = SpoolWriter(directory)
    writer.append(sample(1))
    with pytest.raises(ZeroDivisionError), writer:
        raise ZeroDivisionError
    assert numbers_in(directory) == [1]


def test_threads_share_a_writer(directory: Path) -> None:
    """Records of several threads are all there, none torn."""
    with SpoolWriter(directory, segment_bytes=5000) as writer:

        def work(first: int) -> None:
            for number in range(first, first + 25):
                writer.append(sample(number))
                writer.sync()

        threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(numbers_in(directory)) == sorted(100 * i + j for i in range(4) for j in range(25))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_writes_a_segment_of_its_own(directory: Path) -> None:
    """A child neither writes into its parent's segment nor repeats the parent's unwritten records."""
    writer = SpoolWriter(directory)
    writer.append(sample(1))
    writer.sync()
    writer.append(sample(2))
    child = os.fork()
    if not child:
        try:
            writer.append(sample(3))
            writer.close()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert numbers_in(directory) == [3]
    assert Spool(directory).adopt_idle() == []
    writer.close()
    assert sorted(numbers_in(directory)) == [1, 2, 3]


class FailingDisk:
    """Stands for ``os.fsync`` on a disk that fails the first few times."""

    def __init__(self, failures: int, code: int) -> None:
        self.failures = failures
        self.code = code
        self.real = os.fsync

    def __call__(self, fd: int) -> None:
        """Fail or do it."""
        if self.failures:
            self.failures -= 1
            raise OSError(self.code, os.strerror(self.code))
        self.real(fd)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_amid_the_first_write_leaves_the_segment(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child takes nothing away from a parent that is just putting its first record on the disk."""
    fsync = os.fsync

    def fork_first(fd: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        fsync(fd)

    with SpoolWriter(directory) as writer:
        monkeypatch.setattr(os, "fsync", fork_first)
        writer.append(sample(1))
        writer.sync()
        writer.append(sample(2))
    assert numbers_in(directory) == [1, 2]


@pytest.mark.parametrize("moved", [False, True])
def test_a_segment_that_was_taken_away_is_written_again(directory: Path, *, moved: bool) -> None:
    """What a clean-up job removed or moved while it was open comes back with the next write, or with the seal."""
    for more in (False, True):
        writer = SpoolWriter(directory)
        writer.append(sample(1))
        writer.sync()
        (open_file,) = directory.glob("*.open")
        if moved:
            open_file.rename(directory.parent / "elsewhere")
        else:
            open_file.unlink()
        if more:
            writer.append(sample(2))
            writer.sync()
        writer.close()
        assert numbers_in(directory) == ([1, 2] if more else [1])
        assert [path.suffix for path in directory.iterdir()] == [".seg"]
        next(directory.iterdir()).unlink()


def test_a_segment_that_cannot_be_written_again_is_kept(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again with the next write, and nothing is left of the try that failed."""
    writer = SpoolWriter(directory)
    writer.append(sample(1))
    writer.sync()
    next(directory.glob("*.open")).unlink()
    writer.append(sample(2))
    with monkeypatch.context() as patch:
        patch.setattr(writer_module, "write_at", _no_space)
        with pytest.raises(SpoolError):
            writer.sync()
    assert list(directory.iterdir()) == []
    assert writer.pending_records == 1
    writer.close()
    assert numbers_in(directory) == [1, 2]


def _no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no space")


def test_a_failed_sync_can_be_repeated(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that could not be made durable stay with the writer; the file never holds half of them."""
    writer = SpoolWriter(directory)
    writer.append(sample(1))
    writer.sync()
    (segment,) = Spool(directory).unsealed()
    size = segment.stat().st_size
    writer.append(sample(2))
    monkeypatch.setattr(os, "fsync", FailingDisk(1, errno.EIO))
    with pytest.raises(SpoolError, match="cannot write the spool: Input/output error"):
        writer.sync()
    assert segment.stat().st_size == size
    writer.sync()
    writer.close()
    assert numbers_in(directory) == [1, 2]


def test_a_full_disk_is_a_full_spool(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No space on the disk is the same to a caller as no room in the spool."""
    writer = SpoolWriter(directory)
    writer.append(sample(1))
    monkeypatch.setattr(os, "fsync", FailingDisk(1, errno.ENOSPC))
    with pytest.raises(SpoolFullError, match="No space left on device; make room"):
        writer.close()
    monkeypatch.undo()
    assert Spool(directory).adopt_idle() == []
    assert numbers_in(directory) == []


def test_half_a_write_is_taken_back(directory: Path) -> None:
    """When the kernel takes only a part of a record (a file size limit does that), none of it stays."""
    writer = SpoolWriter(directory, compress=False)
    writer.append(sample(1))
    writer.sync()
    (segment,) = Spool(directory).unsealed()
    size = segment.stat().st_size
    writer.append(sample(2, timings=100))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, before[1]))
    try:
        with pytest.raises(SpoolFullError, match="cannot write the spool: File too large"):
            writer.sync()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert segment.stat().st_size == size
    writer.close()
    assert numbers_in(directory) == [1, 2]


def test_a_seal_whose_folder_sync_fails_is_sealed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the file has its final name, a failing folder sync loses nothing."""
    writer = SpoolWriter(directory)
    writer.append(sample(1))
    writer.sync()
    disk = FailingDisk(0, errno.EIO)
    monkeypatch.setattr(os, "fsync", lambda fd: disk(fd) if stat.S_ISREG(os.fstat(fd).st_mode) else disk_fails())
    writer.close()
    assert numbers_in(directory) == [1]


def disk_fails() -> None:
    """Fail as a broken disk does."""
    raise OSError(errno.EIO, "broken")


def test_a_spool_that_is_a_file(tmp_path: Path) -> None:
    """A path that cannot be a folder is refused in one line that names it."""
    path = tmp_path / "spool"
    path.write_text("a file")
    with pytest.raises(SpoolError, match=r"spool.* cannot create the spool folder: File exists; .*DIODE_SPOOL"):
        SpoolWriter(path)
    with pytest.raises(SpoolError, match="cannot list the spool: Not a directory"):
        Spool(path).sealed()


def test_a_spool_can_be_named_by_text(directory: Path) -> None:
    """Whoever writes a path as a string gets the same spool."""
    with SpoolWriter(str(directory)) as writer:
        writer.append(sample(1))
    assert Spool(str(directory)).sealed() == Spool(directory).sealed()
    assert len(Spool(directory).sealed()) == 1
