from __future__ import annotations

import grp
import os
import shutil
import stat
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from daemon_samples import stored_in
from spool_samples import header_bytes, sample

from diode_collectors.ingest.ingest import ingest_once
from diode_collectors.spool.spool import Spool, SpoolWriter
from diode_store.errors import SpoolError
from diode_store.warehouse.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WRITER, DAEMON, STRANGER = 40_001, 40_002, 40_003
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")


def a_group() -> str:
    """Return the name of a group of this machine that is nobody's own."""
    names = {group.gr_name for group in grp.getgrall()}
    return "users" if "users" in names else max(names)


def as_user(uid: int, work: Callable[[], None], *, member: bool = True) -> None:
    """Do ``work`` in a child that is another user, in the group or not, with the umask of a careful person."""
    groups = [grp.getgrnam(a_group()).gr_gid] if member else []
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups(groups)
            os.setgid(uid)
            os.setuid(uid)
            os.umask(0o077)
            work()
            status = 0
        except BaseException:  # noqa: BLE001 - the parent sees the status
            traceback.print_exc()
        os._exit(status)
    _, ended = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(ended) == 0


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a folder that every user can reach; pytest's own are its user's alone."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def mode(path: Path) -> str:
    """Return a path's mode."""
    return oct(stat.S_IMODE(path.stat().st_mode))


def write(spool: Path, numbers: range, *, seals: bool = True) -> None:
    """Write samples to a spool; unsealed, as by a process that died, if so asked."""
    writer = SpoolWriter(spool)
    for number in numbers:
        writer.append(sample(number))
    writer.sync()
    if seals:
        writer.close()


@needs_root
def test_many_users_write_and_one_daemon_ingests(place: Path, database_path: Path) -> None:
    """Each with a uid of its own: sealed, left unsealed, and damaged segments all find their way."""
    spool = place / "spool"
    Spool(spool).share_with(a_group())
    warehouse = place / "of-the-daemon" / "w.db"
    warehouse.parent.mkdir()
    shutil.copy(database_path, warehouse)
    for path in (warehouse, warehouse.parent):
        os.chown(path, DAEMON, DAEMON)
    as_user(WRITER, lambda: write(spool, range(3)))
    as_user(WRITER + 10, lambda: write(spool, range(3, 5), seals=False))
    as_user(WRITER, lambda: (spool / "00.seg").write_bytes(header_bytes(version=2)) and (spool / "00.seg").chmod(0o660))
    assert {mode(path) for path in spool.iterdir()} == {"0o660"}

    def ingest() -> None:
        with Spool(spool).lock(), Store.open(str(warehouse)) as store:
            report = ingest_once(spool, store)
        assert (report.measurements, report.rejected, report.unreadable) == (5, 1, ())

    as_user(DAEMON, ingest)
    assert stored_in(warehouse) == [0, 1, 2, 3, 4]
    assert [path.name for path in spool.iterdir() if path.suffix != ".lock"] == ["quarantine"]
    quarantine = spool / "quarantine"
    assert mode(quarantine) == mode(spool) == "0o2770"
    assert {mode(path) for path in quarantine.iterdir()} == {"0o660"}
    assert quarantine.stat().st_gid == grp.getgrnam(a_group()).gr_gid
    # What is in quarantine can be put back, and the lock taken, by another member.
    as_user(DAEMON + 10, lambda: Spool(spool).lock().__enter__())


@needs_root
def test_a_segment_put_in_by_hand_is_the_groups_in_quarantine(place: Path, database_path: Path) -> None:
    """Whatever mode and group it had; one of another user, which the daemon cannot change, moves as it is."""
    spool = place / "spool"
    Spool(spool).share_with(a_group())
    warehouse = place / "w.db"
    shutil.copy(database_path, warehouse)
    for path in (place, warehouse):
        os.chown(path, DAEMON, DAEMON)
    for name, owner in (("1.seg", DAEMON), ("2.seg", WRITER)):
        (spool / name).write_bytes(header_bytes(version=2))
        os.chown(spool / name, owner, owner)
        (spool / name).chmod(0o604)

    def ingest() -> None:
        with Store.open(str(warehouse)) as store:
            assert ingest_once(spool, store).rejected == 2

    as_user(DAEMON, ingest)
    own, others = (spool / "quarantine" / name for name in ("1.seg", "2.seg"))
    assert (mode(own), own.stat().st_gid) == ("0o660", grp.getgrnam(a_group()).gr_gid)
    assert (mode(others), others.stat().st_uid) == ("0o604", WRITER)


@needs_root
def test_somebody_outside_the_group_is_refused(place: Path) -> None:
    """In one line, and sees nothing."""
    spool = place / "spool"
    Spool(spool).share_with(a_group())

    def try_it() -> None:
        with pytest.raises(SpoolError, match="Permission denied"):
            write(spool, range(1))
        with pytest.raises(SpoolError, match="Permission denied"):
            Spool(spool).sealed()

    as_user(STRANGER, try_it, member=False)
    assert list(spool.iterdir()) == []


@needs_root
def test_somebody_elses_folder_is_not_taken(place: Path) -> None:
    """A daemon cannot share what is not its own, and says so in one line."""
    spool = place / "spool"
    spool.mkdir(mode=0o777)

    def try_it() -> None:
        with pytest.raises(SpoolError, match=f"{spool}: cannot share the spool with the group {a_group()}"):
            Spool(spool).share_with(a_group())

    as_user(DAEMON, try_it)


def test_sharing_twice_and_with_nobody(place: Path) -> None:
    """A shared spool stays as it is; a group that does not exist is named."""
    own = grp.getgrgid(os.getegid()).gr_name
    for _ in range(2):
        Spool(place / "spool").share_with(own)
        assert mode(place / "spool") == "0o2770"
    with pytest.raises(SpoolError, match="there is no group 'no-such-group'; create it with `groupadd no-such-group`"):
        Spool(place / "other").share_with("no-such-group")
    assert not (place / "other").exists()


def test_a_folder_that_only_inherits_its_group_is_private(place: Path) -> None:
    """The setgid bit alone, which sub-folders of a shared folder have, opens nothing."""
    spool = place / "spool"
    spool.mkdir()
    spool.chmod(0o2750)
    write(spool, range(1))
    assert {mode(path) for path in spool.iterdir()} == {"0o600"}
