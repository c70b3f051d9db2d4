"""Paths on a network's file system are told from those on a disk, and commands warn about them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from diode_store.command_line.diagnosis import Level, Setup
from diode_store.commands.warehouse_checks import check_warehouse
from diode_store.system import mounts

if TYPE_CHECKING:
    from conftest import RunCommand

LISTED = r"""
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 21 0:5 / /proc rw - proc proc rw
40 21 0:50 / /home rw,relatime shared:2 master:1 - nfs4 server:/home rw,vers=4.2
41 40 8:2 / /home/local rw - xfs /dev/sdb1 rw
42 21 0:51 / /with\040blank rw - cifs //server/share rw
43 21 0:52 / /ssh rw - fuse.sshfs me@host: rw
44 21 0:53 / /fuse rw - fuse.ntfs-3g /dev/sdc1 rw
45 21 0:54 / /twice rw - nfs server:/x rw
46 45 8:3 / /twice rw - ext4 /dev/sdd1 rw
47 21 0:55 / /lustre rw - lustre a@tcp:/b rw
48 21 0:56 / /ceph rw - fuse.ceph-fuse ceph-fuse rw
49 21 0:57 / /block rw - fuseblk /dev/sde1 rw
"""


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have these file systems, and NFS at the test's own folder: none can be mounted here."""
    listed = tmp_path / "mountinfo"
    listed.write_text(f"{LISTED.lstrip()}60 21 0:60 / {tmp_path} rw - nfs server:/tmp rw\n")
    monkeypatch.setattr(mounts, "MOUNTS", listed)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", None),
        ("/homes/me", None),
        ("/home", "nfs4"),
        ("/home/me/not/there/yet.db", "nfs4"),
        ("/home/local/me", None),
        ("/with blank/x", "cifs"),
        ("/ssh/x", "fuse.sshfs"),
        ("/fuse/x", None),
        ("/twice/x", None),
        ("/lustre/x", "lustre"),
        ("/ceph/x", "fuse.ceph-fuse"),
        ("/block/x", None),
    ],
)
def test_the_type_is_that_of_the_innermost_mount(mounted: None, path: str, expected: str | None) -> None:
    """The last mount at one place counts, and a blank in a name is no separator."""
    assert mounts.network_file_system(Path(path)) == expected


def test_without_a_list_of_mounts_nothing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Other systems than Linux have none."""
    monkeypatch.setattr(mounts, "MOUNTS", tmp_path / "none")
    assert mounts.network_file_system(Path("/home/me")) is None


def test_commands_warn_once_about_a_network(mounted: None, tmp_path: Path, diode: RunCommand) -> None:
    """`db upgrade`, `ingest` and `doctor` say what is where and what to set; they go on."""
    database, spool = tmp_path / "w.db", tmp_path / "spool"
    of_database = f"{database}: on a network's file system (nfs), where SQLite may lose or damage data; "
    of_database += "set DIODE_DATABASE_URL to a file on a local disk, or to PostgreSQL"
    of_spool = f"{spool}: on a network's file system (nfs), where a lock may not hold on other machines; "
    of_spool += "set DIODE_SPOOL to a folder on a local disk"
    ended = diode("db", "upgrade", "--database", str(database))
    assert (ended.code, ended.err.splitlines()[0]) == (0, f"warning: {of_database}")
    assert ended.err.count("network's file system") == 1
    ended = diode("ingest", "--once", "--database", str(database), "--spool", str(spool))
    assert (ended.code, ended.err) == (0, f"warning: {of_database}\nwarning: {of_spool}\n")
    found = next(check_warehouse(Setup(str(database))))
    assert (found.level, str(found)) == (Level.WARNING, of_database)
