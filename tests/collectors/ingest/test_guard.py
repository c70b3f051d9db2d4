from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from daemon_process import ANY_PORT, Daemon
from daemon_samples import fill, stored_in
from spool_samples import header_bytes, sample, segment_bytes

from diode_collectors.ingest.guard import Guard, Verdict, free_bytes
from diode_collectors.ingest.ingest import ingest_once
from diode_collectors.spool.spool import Spool, SpoolWriter
from diode_store.errors import SpoolFullError
from lanes import long
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diode_store.warehouse.store import Store

MIB = 2**20


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """Return a file system of 16 MiB of our own."""
    folder = Path(tempfile.mkdtemp())
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,nr_inodes=1000", "tmpfs", folder], check=False)  # noqa: S607
    if mounted.returncode:
        folder.rmdir()
        pytest.skip("this user may not mount a tmpfs")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)  # noqa: S607
    folder.rmdir()


def test_a_spool_without_a_free_inode_is_emptied(small_disk: Path, database_path: Path) -> None:
    """Ingesting makes room, so it needs no new file there; status finds it by the folder's own lock."""
    fill(small_disk / "spool", range(10))
    for number in range(os.statvfs(small_disk).f_ffree):
        (small_disk / f"{number}").touch()
    with pytest.raises(OSError, match="No space left on device"):
        (small_disk / "one-more").touch()
    with Daemon(small_disk / "spool", database_path) as daemon:
        eventually(lambda: stored_in(database_path) == list(range(10)))
        assert Spool(small_disk / "spool").lock_holder() in {0, daemon.process.pid}
        eventually(lambda: Spool(small_disk / "spool").sealed() == [])  # removed after the commit


def test_ingesting_waits_for_space(directory: Path, database_path: Path, small_disk: Path) -> None:
    """A disk that fills up under the warehouse: held, told once, not ready; with room again everything goes in."""
    database = Path(shutil.copy(database_path, small_disk))
    limit = free_bytes(small_disk) or 0
    limit //= 2
    with Daemon(directory, database, *ANY_PORT, "--min-free-bytes", limit) as daemon:
        eventually(lambda: daemon.get("/readyz")[0] == 200)
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(limit + MIB))
        daemon.wait_for("event=holding")
        fill(directory, range(60))
        eventually(lambda: daemon.get("/readyz")[0] == 503)
        assert f"{database}: less than {limit:,} bytes are free on the warehouse's disk" in daemon.get("/readyz")[1]
        assert daemon.metrics()["diode_ingest_holding"] == 1
        assert daemon.get("/healthz")[0] == 200
        assert (stored_in(database), len(Spool(directory).sealed())) == ([], 2)
        ballast.unlink()
        eventually(lambda: stored_in(database) == list(range(60)))
        eventually(lambda: daemon.get("/readyz")[0] == 200)
        assert daemon.end(signal.SIGTERM) == 0
    assert sum("event=holding" in line for line in daemon.log) == 1
    assert sum("event=resumed" in line for line in daemon.log) == 1
    assert not any("event=failed" in line for line in daemon.log)


def test_space_comes_back_with_a_margin(tmp_path: Path) -> None:
    """It holds below the limit and goes on a tenth above it, so that it does not go to and fro; a complaint is one."""
    found = iter((100, 99, 90, 105, 109, 110, 100, 99))
    guard = Guard([], tmp_path / "w.db", min_free_bytes=100, quarantine_bytes=0, free=lambda _path: next(found))
    held = [guard.look().holds for _ in range(8)]
    assert held == [False, True, True, True, True, False, False, True]


def test_a_full_disk_of_the_spool_alone_is_emptied(tmp_path: Path) -> None:
    """Ingesting is what makes room there, so it is told and goes on."""
    spool, database = tmp_path / "spool", tmp_path / "w.db"
    guard = Guard([spool], database, min_free_bytes=100, quarantine_bytes=0, free=lambda p: 5 if p == spool else 500)
    problem = f"{spool}: less than 100 bytes are free on the spool's disk; make room, or writers will be refused"
    assert guard.look() == Verdict((problem,), holds=False)


def test_what_cannot_be_told_is_no_reason_to_hold(tmp_path: Path) -> None:
    """Where nothing can be asked nothing is held; a file that does not exist yet is on its folder's disk."""
    guard = Guard([tmp_path], None, min_free_bytes=100, quarantine_bytes=0, free=lambda _path: None)
    assert guard.look() == Verdict()
    assert abs((free_bytes(tmp_path / "not" / "there") or 0) - (free_bytes(tmp_path) or 0)) < 100 * MIB


# The quarantine


def spoil(directory: Path, store: Store) -> None:
    """Put two damaged stretches and a segment of a newer format into quarantine."""
    for name in ("01-old.seg", "02-new.seg"):
        good = segment_bytes([1, 2], compress=False)
        (directory / name).write_bytes(good[:-30])
    (directory / "00-newer.seg").write_bytes(header_bytes(version=2) + bytes(3000))
    assert ingest_once(directory, store).rejected == 3


def aside(directory: Path) -> list[str]:
    """Return what is in quarantine, without the reasons."""
    return sorted(p.name.partition("@")[0] for p in (directory / "quarantine").iterdir() if p.suffix != ".json")


def test_the_quarantine_loses_its_oldest_damage(directory: Path, store: Store) -> None:
    """Above the limit the oldest bytes that nobody can read go, and their reasons; no more than need be."""
    spoil(directory, store)
    quarantine = directory / "quarantine"
    size = sum(p.stat().st_size for p in quarantine.iterdir())
    guard = Guard([directory], None, min_free_bytes=0, quarantine_bytes=size - 1)
    assert guard.look() == Verdict()
    assert guard.trimmed == [(directory, 1)]
    assert aside(directory) == ["00-newer.seg", "02-new"]
    assert sorted(p.name for p in quarantine.glob("01-*")) == []
    assert guard.look() == Verdict()
    assert guard.trimmed == [(directory, 1)]


def test_damage_that_cannot_be_removed_is_told_and_holds(tmp_path: Path) -> None:
    """What is no file, or is not ours to remove, must not end the daemon; once it is gone, all is well."""
    quarantine = Spool(tmp_path).quarantine_directory
    (quarantine / "z.bin").mkdir(parents=True)
    reason = quarantine / "z.bin.reason.json"
    reason.write_text('{"reason": "bad_checksum"}')
    guard = Guard([tmp_path], None, min_free_bytes=0, quarantine_bytes=0)
    [problem] = guard.look().problems
    assert problem.startswith(f"{quarantine / 'z.bin'}: cannot remove damaged bytes from the quarantine: ")
    assert guard.look() == Verdict((problem,), holds=True)
    (quarantine / "z.bin").rmdir()
    reason.unlink()
    assert guard.look() == Verdict()


def test_records_that_are_whole_are_never_thrown_away(directory: Path, store: Store) -> None:
    """A quarantine of newer records above its limit holds ingesting until somebody moves them."""
    spoil(directory, store)
    guard = Guard([directory], None, min_free_bytes=0, quarantine_bytes=100)
    verdict = guard.look()
    assert verdict.holds
    assert verdict.problems[0].startswith(f"{directory}/quarantine: above its limit of 100 bytes with whole records,")
    assert aside(directory) == ["00-newer.seg"]
    shutil.rmtree(directory / "quarantine")
    assert guard.look() == Verdict()


@long
def test_a_daemon_holds_for_its_quarantine_and_goes_on(directory: Path, database_path: Path) -> None:
    """The whole way: newer records fill it, the rest waits, an operator makes room, the rest goes in."""
    (directory / "0.seg").write_bytes(header_bytes(version=2) + bytes(3000))
    with Daemon(directory, database_path, "--quarantine-bytes", 100) as daemon:
        daemon.wait_for("event=holding")
        fill(directory, range(3))
        aside_ = directory / "quarantine"
        eventually(lambda: len(list(aside_.iterdir())) == 2)
        assert stored_in(database_path) == []
        shutil.rmtree(aside_)
        eventually(lambda: stored_in(database_path) == [0, 1, 2])
        assert daemon.end(signal.SIGTERM) == 0


def append_until_full(writer: SpoolWriter) -> int:
    """Append and sync samples until the spool is full; return how many it took."""
    for number in range(10_000):
        try:
            writer.append(sample(number))
        except SpoolFullError:
            return number
        writer.sync()
    raise AssertionError("it was never full")


def test_writers_are_refused_at_the_spools_limit_and_go_on_once_it_is_emptied(directory: Path, store: Store) -> None:
    """The bound of the spool itself: nothing acknowledged is dropped to make room."""
    writer = SpoolWriter(directory, max_bytes=20_000)
    written = append_until_full(writer)
    assert written > 10
    writer.seal()
    assert ingest_once(directory, store).measurements == written
    writer.append(sample(written))
    writer.close()
    assert ingest_once(directory, store).measurements == 1


# Who may read and write


def test_what_the_daemon_makes_is_its_users_alone(directory: Path, store: Store) -> None:
    """Files 0600 in folders 0700, whatever the umask allows."""
    old = os.umask(0)
    try:
        shutil.rmtree(directory)
        fill(directory, range(2))
        spoil(directory, store)
        with Spool(directory).lock():
            pass
    finally:
        os.umask(old)
    modes = {path.name: oct(path.stat().st_mode & 0o7777) for path in directory.rglob("*") if path.suffix != ".seg"}
    assert modes.pop("quarantine") == "0o700"
    assert set(modes.values()) == {"0o600"}
    assert oct(directory.stat().st_mode & 0o7777) == "0o700"
