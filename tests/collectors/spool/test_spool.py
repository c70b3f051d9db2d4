from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from spool_reading import mode, names_in, numbers_in
from spool_samples import frames_of, header_bytes, sample, segment_bytes, uid_of

from diode_collectors.spool.files import folder_bytes
from diode_collectors.spool.spool import Adopted, Spool, SpoolWriter
from diode_store.errors import SpoolError
from diode_store.wire.segment_layout import END_BYTES, HEADER_BYTES, frame_to_bytes
from diode_store.wire.segments import Reason, read_segment

if TYPE_CHECKING:
    from collections.abc import Callable

WRITER_PROCESS = Path(__file__).parents[1] / "spool_writer_process.py"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a folder for a spool; it does not exist yet."""
    return tmp_path / "data" / "spool"


# Segments whose writer is gone


def abandoned(directory: Path, content: bytes, name: str = "1-dead.open") -> Path:
    """Leave an unsealed segment as a writer that died would."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_bytes(content)
    return path


def test_a_live_writers_segment_is_left_alone(directory: Path) -> None:
    """Nobody adopts a segment while its writer holds the lock; once sealed, it is there."""
    writer = SpoolWriter(directory)
    writer.append(sample(1))
    writer.sync()
    (path,) = Spool(directory).unsealed()
    before = path.read_bytes()
    assert Spool(directory).adopt_idle() == []
    assert path.read_bytes() == before
    writer.append(sample(2))
    writer.close()
    assert numbers_in(directory) == [1, 2]


def test_a_dead_writers_segment_is_adopted(directory: Path) -> None:
    """A segment without a lock is sealed, and its frames are all there."""
    path = abandoned(directory, segment_bytes([1, 2, 3], sealed=False))
    assert Spool(directory).adopt_idle() == [Adopted(path.with_suffix(".seg"), 0)]
    assert numbers_in(directory) == [1, 2, 3]
    assert Spool(directory).adopt_idle() == []


def test_what_no_writer_began_is_not_removed(directory: Path) -> None:
    """It is sealed as it is, so that ingesting refuses it aloud; an unfinished header is removed."""
    directory.mkdir(parents=True)
    (directory / "a.open").write_bytes(b"notes" * 1000)
    (directory / "b.open").write_bytes(segment_bytes([1], sealed=False)[:10])
    assert [each.path.name for each in Spool(directory).adopt_idle()] == ["a.seg", "b.open"]
    assert [path.name for path in directory.iterdir()] == ["a.seg"]
    assert (directory / "a.seg").read_bytes() == b"notes" * 1000


def test_torn_tails_are_cut_at_every_byte(directory: Path) -> None:
    """Wherever the last write broke off, whole frames are kept and the rest is cut."""
    first, second = (frame_to_bytes(uid_of(number), b"payload") for number in (1, 2))
    content = header_bytes() + first + second
    borders = (HEADER_BYTES + len(first), len(content))
    spool = Spool(directory)
    for length in range(len(content) + 1):
        path = abandoned(directory, content[:length])
        kept = sum(border <= length for border in borders)
        (adopted,) = spool.adopt_idle()
        assert adopted.torn_bytes == length - (borders[kept - 1] if kept else 0)
        assert not path.exists()
        assert adopted.path.exists() is bool(kept)
        if kept:
            frames = list(read_segment(adopted.path))
            assert [(frame.uid, frame.error) for frame in frames] == [(uid_of(n), None) for n in (1, 2)][:kept]
            spool.remove(adopted.path)


def test_damage_inside_a_dead_writers_segment_stays_visible(directory: Path) -> None:
    """Adopting does not hide damage: whoever reads the sealed segment still sees it."""
    first, second, third = frames_of([1, 2, 3])
    abandoned(directory, header_bytes() + first + second[:-1] + b"?" + third + b"torn")
    (adopted,) = Spool(directory).adopt_idle()
    assert adopted.torn_bytes == 4
    frames = list(read_segment(adopted.path))
    assert [frame.uid for frame in frames if frame.error is None] == [uid_of(1), uid_of(3)]
    assert [frame.reason for frame in frames if frame.error] == [Reason.BAD_CRC]


def test_a_segment_that_was_about_to_be_sealed(directory: Path) -> None:
    """A writer that died between the end mark and the new name left a whole segment."""
    content = segment_bytes([1, 2])
    abandoned(directory, content)
    (adopted,) = Spool(directory).adopt_idle()
    assert adopted.path.read_bytes() == content
    assert numbers_in(directory) == [1, 2]


def test_an_unsealed_segment_of_a_newer_format_is_left(directory: Path) -> None:
    """What this version cannot read it does not touch, and it says so; the others are adopted."""
    path = abandoned(directory, header_bytes(version=9) + b"unknown")
    abandoned(directory, segment_bytes([1], sealed=False), "2-dead.open")
    before = path.read_bytes()
    refused, adopted = Spool(directory).adopt_idle()
    assert refused.problem == f"{path}: spool format 9 is not 1, the one this torch-diode reads; upgrade torch-diode"
    assert adopted == Adopted(directory / "2-dead.seg", 0)
    assert path.read_bytes() == before


def test_a_segment_renamed_before_it_is_locked_is_not_taken(directory: Path) -> None:
    """Between listing and locking a writer may seal its segment: what was locked must still have its name."""
    path = abandoned(directory, segment_bytes([1], sealed=False))
    spool = Spool(directory)
    real = fcntl.flock

    def seal_first(fd: int, operation: int) -> None:
        real(fd, operation)
        if path.exists():
            path.rename(directory / "renamed.seg")

    fcntl.flock = seal_first
    try:
        assert spool.adopt_idle() == []
    finally:
        fcntl.flock = real
    assert (directory / "renamed.seg").read_bytes() == segment_bytes([1], sealed=False)


@pytest.mark.quick(5)
@pytest.mark.parametrize("seed", range(20))
def test_no_acknowledged_record_is_lost_to_kill_9(directory: Path, seed: int) -> None:
    """Kill a writer at a random moment: every record it was told is safe is there, exactly once."""
    command = [sys.executable, str(WRITER_PROCESS), str(directory), "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    said = [process.stdout.readline()]
    time.sleep(random.Random(seed).uniform(0, 0.06))  # noqa: S311 - when to kill is no secret
    process.kill()
    said += process.stdout.read().splitlines()
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    acknowledged = int(said[-1])
    Spool(directory).adopt_idle()
    numbers = numbers_in(directory)
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > acknowledged
    assert names_in(directory).keys() == {".seg"}


# The folder


def test_order_is_that_of_creation(directory: Path) -> None:
    """Segments of several writers are listed oldest first."""
    for number in (3, 1, 2):
        with SpoolWriter(directory) as writer:
            writer.append(sample(number))
    assert numbers_in(directory) == [3, 1, 2]


def test_an_absent_spool_is_empty(directory: Path) -> None:
    """Looking at a spool that is not there neither fails nor makes it."""
    spool = Spool(directory)
    assert (spool.sealed(), spool.unsealed(), spool.adopt_idle(), spool.lock_holder()) == ([], [], [], None)
    assert spool.status().segments == 0
    assert not directory.exists()


def test_other_files_are_ignored(directory: Path) -> None:
    """Temporary files, editors' leftovers and folders are no segments."""
    directory.mkdir(parents=True)
    for name in (".x.seg", ".1.seg.99.tmp", "notes.txt", "ingest.lock"):
        (directory / name).write_bytes(b"?")
    assert (Spool(directory).sealed(), Spool(directory).unsealed()) == ([], [])


def test_add_copies_once(directory: Path, tmp_path: Path) -> None:
    """A segment from elsewhere is copied whole; one of the same name is not copied again."""
    source = tmp_path / "shipped.seg"
    source.write_bytes(segment_bytes([1]))
    source.chmod(0o444)
    spool = Spool(directory)
    assert spool.add(source) is True
    assert spool.add(source) is False
    assert (directory / "shipped.seg").read_bytes() == segment_bytes([1])
    assert mode(directory / "shipped.seg") == 0o600
    with pytest.raises(SpoolError, match=r"cannot copy a segment into the spool: No such file"):
        spool.add(tmp_path / "absent.seg")


def test_quarantined_damage(directory: Path) -> None:
    """Damaged bytes are kept as they are, with the reason beside them."""
    directory.mkdir(parents=True)
    segment = directory / "a.seg"
    segment.write_bytes(header_bytes() + b"rubbish" + frames_of([1])[0])
    damage = next(read_segment(segment))
    kept = Spool(directory).quarantine(segment, damage, Reason.NO_MARKER, "no frame begins here")
    assert kept == directory / "quarantine" / "a@40.bin"
    assert kept.read_bytes() == b"rubbish"
    reason = json.loads(kept.with_name("a@40.bin.reason.json").read_text())
    assert reason.pop("quarantined_at")
    assert reason == {
        "reason": "no_marker",
        "message": "no frame begins here",
        "segment": "a.seg",
        "offset": 40,
        "bytes": 7,
        "uid": None,
    }


@pytest.mark.parametrize("compress", [True, False])
def test_a_quarantined_frame_can_go_back(directory: Path, compress: bool) -> None:  # noqa: FBT001 - by name
    """A whole frame is kept as a segment, which can be put back into the spool as it is."""
    directory.mkdir(parents=True)
    segment = directory / "a.seg"
    segment.write_bytes(segment_bytes([1, 2], compress=compress))
    spool = Spool(directory)
    frame = list(read_segment(segment))[1]
    kept = spool.quarantine(segment, frame, Reason.NEWER_RECORD, "too new")
    assert spool.quarantine(segment, frame, Reason.NEWER_RECORD, "too new") == kept
    assert json.loads((kept.parent / f"{kept.name}.reason.json").read_text())["uid"] == uid_of(2).hex()
    spool.remove(segment)
    kept.rename(directory / kept.name)
    assert numbers_in(directory) == [2]


def test_a_quarantined_segment_moves(directory: Path) -> None:
    """A whole segment is moved, not copied."""
    directory.mkdir(parents=True)
    segment = directory / "a.seg"
    segment.write_bytes(header_bytes(version=2))
    target = Spool(directory).quarantine_segment(segment, Reason.NEWER_FORMAT, "too new")
    assert (segment.exists(), target.read_bytes()) == (False, header_bytes(version=2))
    assert json.loads((target.parent / "a.seg.reason.json").read_text())["reason"] == "newer_format"
    assert Spool(directory).status().quarantined == 1


def test_removing_twice_is_harmless(directory: Path) -> None:
    """Two ingesters may have read the same segment."""
    directory.mkdir(parents=True)
    (directory / "a.seg").write_bytes(segment_bytes([]))
    Spool(directory).remove(directory / "a.seg")
    Spool(directory).remove(directory / "a.seg")
    assert list(directory.iterdir()) == []


def test_one_ingester_per_spool(directory: Path) -> None:
    """The second one is refused with the pid of the first; afterwards the spool is free."""
    spool = Spool(directory)
    with spool.lock():
        assert spool.lock_holder() == os.getpid()
        message = rf"another diode-ingest \(pid {os.getpid()}\) is running on this spool"
        with pytest.raises(SpoolError, match=message), Spool(directory).lock():
            pass
        assert spool.lock_holder() == os.getpid()
    assert spool.lock_holder() is None
    with spool.lock():
        pass


def test_a_stale_lock_file_does_not_lock(directory: Path) -> None:
    """What counts is the lock, not the file: a killed ingester's pid stands in nobody's way."""
    directory.mkdir(parents=True)
    (directory / "ingest.lock").write_text("99999\nmore than a short pid")
    with Spool(directory).lock():
        assert (directory / "ingest.lock").read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder", "another user's"])
def test_whatever_has_the_name_of_the_pid_file_is_not_written(directory: Path, tmp_path: Path, kind: str) -> None:
    """The lock is the folder's, and a file of its own tells the pid where one can be made."""
    directory.mkdir(parents=True, exist_ok=True)
    named, elsewhere = directory / "ingest.lock", tmp_path / "elsewhere"
    elsewhere.write_text("somebody's")
    make: dict[str, Callable[[], object]] = {
        "link": lambda: named.symlink_to(elsewhere),
        "hard link": lambda: named.hardlink_to(elsewhere),
        "pipe": lambda: os.mkfifo(named),
        "folder": named.mkdir,
        "another user's": lambda: (named.write_text("1\n"), os.chown(named, 40_001, 40_001)),
    }
    if kind == "another user's" and os.geteuid() != 0:
        pytest.skip("only root can make another user's file")
    make[kind]()
    spool = Spool(directory)
    assert spool.lock_holder() is None
    with spool.lock():
        assert spool.lock_holder() == (0 if kind == "folder" else os.getpid())
        with pytest.raises(SpoolError, match="another diode-ingest"), Spool(directory).lock():
            pass
    assert elsewhere.read_text() == "somebody's"


def test_asking_for_the_status_does_not_stop_an_ingester_from_starting(directory: Path) -> None:
    """The moment in which somebody looks who holds the lock is waited out."""
    spool = Spool(directory)
    with spool.lock():
        pass
    fd = os.open(directory, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    timer = threading.Timer(0.08, os.close, (fd,))
    timer.start()
    with spool.lock():
        assert spool.lock_holder() == os.getpid()
    timer.join()


def test_status(directory: Path) -> None:
    """The status counts waiting, live and quarantined segments and tells the oldest's age."""
    writer = SpoolWriter(directory)
    writer.append(sample(1))
    writer.seal()
    writer.append(sample(2))
    writer.sync()
    abandoned(directory, segment_bytes([3], sealed=False))
    spool = Spool(directory)
    (sealed,) = spool.sealed()
    os.utime(sealed, (time.time() - 100, time.time() - 100))
    spool.quarantine(sealed, next(read_segment(sealed)), Reason.BAD_RECORD, "bad")
    before = {path: path.stat().st_mtime for path in directory.iterdir()}
    status = spool.status()
    assert {path: path.stat().st_mtime for path in directory.iterdir()} == before
    assert (status.segments, status.live_segments, status.quarantined, status.ingest_pid) == (2, 1, 1, None)
    assert status.bytes == sum(p.stat().st_size for p in (*spool.sealed(), *spool.unsealed()))
    assert status.quarantine_bytes == folder_bytes(directory / "quarantine")
    assert status.oldest_s is not None
    assert 100 <= status.oldest_s < 110
    writer.close()


def test_a_file_of_holes_fills_no_spool(directory: Path) -> None:
    """Writers may go on beside it, as the disk has room."""
    directory.mkdir(parents=True)
    with (directory / "holes.seg").open("wb") as file:
        file.truncate(3 << 30)
    assert Spool(directory).status().bytes < 1 << 20
    writer = SpoolWriter(directory, max_bytes=1 << 30)
    writer.append(sample(1))
    writer.seal()
    assert len(Spool(directory).sealed()) == 2


def test_status_with_segments_that_cannot_be_opened(directory: Path) -> None:
    """They wait like others, and it is said why they cannot."""
    for name in ("a.seg", "b.open"):
        (directory / name).mkdir(parents=True)
    status = Spool(directory).status()
    assert (status.segments, status.live_segments) == (2, 0)
    assert status.unreadable == (
        f"{directory / 'a.seg'}: cannot be read: it is not a regular file; move it away",
        f"{directory / 'b.open'}: cannot be read: Is a directory; move it away",
    )


def test_a_segment_ends_with_its_end_mark(directory: Path) -> None:
    """Sealing adds the end mark that tells a whole segment from a cut one."""
    with SpoolWriter(directory) as writer:
        writer.append(sample(1))
    (path,) = Spool(directory).sealed()
    assert path.stat().st_size == HEADER_BYTES + len(frames_of([1])[0]) + END_BYTES
