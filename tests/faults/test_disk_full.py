from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from compare import assert_exactly_once
from processes import drained, free_port, readiness
from producing import produce, produced

from diode_collectors.spool.spool import Spool, SpoolWriter
from diode_store.warehouse.store import Store
from diode_store.wire import codec
from diode_store.wire.segment_layout import Header, end_to_bytes, frame_to_bytes
from lanes import long
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processes import Child, ForkServer

    from conftest import MakeDisk, RunCommand

MIB = 2**20


def finish(processes: ForkServer, daemon: Child, spool: Path, url: str) -> None:
    """Let the daemon do what is left, and compare."""
    eventually(lambda: drained(spool))
    assert daemon.end(signal.SIGTERM) == 0
    assert "Traceback" not in daemon.log.read_text()
    assert assert_exactly_once(url, processes.acknowledged(), produced, others=True) > 0


def put_segment(spool: Path, name: str, run: int, numbers: range, damage: Sequence[bytes] = ()) -> list[bytes]:
    """Put a sealed segment into a spool, with damage in front of its frames; return the uids in it."""
    spool.mkdir(exist_ok=True)
    measurements = produce(run, numbers)
    frames = [frame_to_bytes(m.uid, codec.encode(m)) for m in measurements]
    header = Header(bytes(16), 0, compressed=False).to_bytes()
    (spool / name).write_bytes(b"".join((header, *damage, *frames, end_to_bytes(len(frames)))))
    return [m.uid for m in measurements]


def test_a_full_spool_disk(processes: ForkServer, small_disk: MakeDisk, database_url: str) -> None:
    """No byte left for a writer: it waits, keeps what it promised, and goes on when the daemon has made room."""
    spool = small_disk(MIB // 2).path / "spool"
    writer = processes.writer(spool, 1)
    eventually(lambda: shutil.disk_usage(spool.parent).free < 20_000)
    time.sleep(0.5)
    before = processes.acknowledged()
    time.sleep(0.2)
    assert processes.acknowledged() == before, "the disk is full, and the writer says that records are safe"
    daemon = processes.daemon(spool, database_url)
    eventually(lambda: len(processes.acknowledged()) > 2 * len(before))
    assert writer.end(signal.SIGKILL) == -signal.SIGKILL
    finish(processes, daemon, spool, database_url)
    assert Spool(spool).status().quarantined == 0


@pytest.mark.quick(1)
@pytest.mark.parametrize("size", [0, 1, 4096 - 20, 4095])
def test_a_spool_without_one_free_byte(
    processes: ForkServer, small_disk: MakeDisk, database_url: str, size: int
) -> None:
    """Nothing can be written into the spool, neither a lock nor an end mark, and it is emptied all the same."""
    disk = small_disk(2 * MIB)
    spool = disk.path / "spool"
    uids = put_segment(spool, "2-sealed.seg", 1, range(3))
    with SpoolWriter(spool, compress=False) as writer:
        for measurement in produce(2, range(3)):
            writer.append(measurement)
    (sealed,) = (path for path in spool.iterdir() if path.name != "2-sealed.seg")
    # A writer died here: no end mark, and the file ends `size` bytes into a block of the disk.
    content = sealed.read_bytes()[: -len(end_to_bytes(0))]
    torn = frame_to_bytes(bytes(16), bytes(8192))[: (size - len(content)) % 4096]
    sealed.unlink()
    (spool / "1-dead.open").write_bytes(content + torn)
    disk.fill()
    daemon = processes.daemon(spool, database_url)
    eventually(lambda: drained(spool), within_s=60)
    assert daemon.end(signal.SIGTERM) == 0
    assert "Traceback" not in daemon.log.read_text()
    assert_exactly_once(database_url, [*uids, *(m.uid for m in produce(2, range(3)))], produced)


@pytest.mark.long
def test_a_full_database_disk(processes: ForkServer, small_disk: MakeDisk, spool: Path, database_path: Path) -> None:
    """No room for the warehouse: not ready, told how to mend it, nothing half written; with room it goes on."""
    disk = small_disk(2 * MIB)
    port = free_port()
    url = str(shutil.copy(database_path, disk.path / "warehouse.db"))
    writer = processes.writer(spool, 1, pause_s=0.02)
    daemon = processes.daemon(spool, url, "--listen", f"127.0.0.1:{port}")
    daemon.says_more("event=ingested")
    disk.fill()
    daemon.says_more("event=failed")
    status, problem = readiness(port)
    assert (status, "disk is full; make room" in problem) == (503, True)
    eventually(lambda: daemon.says("event=failed") > 3)
    disk.empty()
    disk.grow(64 * MIB)
    daemon.says_more("event=ingested")
    eventually(lambda: readiness(port) == (200, "ready\n"))
    assert writer.end(signal.SIGKILL) == -signal.SIGKILL
    finish(processes, daemon, spool, url)


@long
def test_a_database_disk_that_is_nearly_full(
    processes: ForkServer, small_disk: MakeDisk, spool: Path, database_path: Path
) -> None:
    """The guard holds before SQLite fails, says so, and lets go when there is room."""
    disk = small_disk(2 * MIB)
    port = free_port()
    url = str(shutil.copy(database_path, disk.path / "warehouse.db"))
    writer = processes.writer(spool, 1, pause_s=0.05)
    options = ("--listen", f"127.0.0.1:{port}", "--min-free-bytes", MIB)
    daemon = processes.daemon(spool, url, *options)
    eventually(lambda: readiness(port)[0] == 503 and "make room" in readiness(port)[1])
    eventually(lambda: Spool(spool).status().segments > 2)
    assert not daemon.says("event=failed")
    disk.grow(64 * MIB)
    eventually(lambda: readiness(port) == (200, "ready\n"))
    assert writer.end(signal.SIGKILL) == -signal.SIGKILL
    finish(processes, daemon, spool, url)
    assert not daemon.says("event=failed")


@long
def test_a_full_quarantine_disk(processes: ForkServer, small_disk: MakeDisk, database_url: str) -> None:
    """Damage that cannot be put aside holds up nothing but its own segment, and is put aside when there is room."""
    disk = small_disk(2 * MIB)
    spool = disk.path / "spool"
    damage = b"damage" * 2000
    uids = put_segment(spool, "1.seg", 1, range(4), [damage])
    later = put_segment(spool, "2.seg", 2, range(4))
    disk.fill()
    daemon = processes.daemon(spool, database_url)
    daemon.says_more("event=")
    eventually(lambda: not (spool / "2.seg").exists(), within_s=60)
    disk.empty()
    eventually(lambda: drained(spool))
    assert daemon.end(signal.SIGTERM) == 0
    assert "Traceback" not in daemon.log.read_text()
    (kept,) = (spool / "quarantine").glob("*.bin")
    assert kept.read_bytes() == damage
    assert_exactly_once(database_url, [*uids, *later], produced)


@pytest.mark.long
def test_a_full_cache_disk(
    small_disk: MakeDisk, database_url: str, diode: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No room for the copy that queries read: one line, the older copy answers, and with room it catches up."""
    disk = small_disk(4 * MIB)
    monkeypatch.setenv("DIODE_CACHE", str(disk.path / "cache"))
    monkeypatch.setenv("DIODE_DATABASE_URL", database_url)
    count = ("query", "SELECT count(*) AS n, count(DISTINCT measurement_id) AS m FROM observations", "--json")
    some, more = produce(1, range(20)), produce(2, range(400))
    with Store.open(database_url) as store:
        store.write(some)
        assert diode("sync").code == 0
        before = diode(*count).out
        store.write(more)
    disk.fill()
    ended = diode("sync")
    assert (ended.code, len(ended.err.splitlines())) == (1, 1)
    assert "No space left" in ended.err
    asked = diode(*count)
    assert (asked.code, asked.out, len(asked.err.splitlines())) == (0, before, 1)
    disk.empty()
    left = sorted(path for path in Path(disk.path / "cache").rglob("*") if path.suffix in {".tmp", ".new", ".wal"})
    assert left == []
    disk.grow(64 * MIB)
    assert diode(*count).out != before
    timings = sum(len(m.timings) for m in (*some, *more) if m.superseded_by is None)
    assert f'"n": {timings},' in diode(*count).out
    assert_exactly_once(database_url, [m.uid for m in (*some, *more)], produced)
