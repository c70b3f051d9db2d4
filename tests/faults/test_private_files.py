from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest
from compare import assert_exactly_once
from processes import PROGRAM, ForkServer, drained
from producing import produced

from lanes import long
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DIODE = PROGRAM.with_name("diode")


@pytest.fixture
def careless(tmp_path: Path) -> Iterator[ForkServer]:
    """Return what starts writers and daemons of somebody whose umask keeps nothing from anybody."""
    with ForkServer(tmp_path / "processes", umask=0) as server:
        yield server


def modes(folder: Path) -> dict[str, str]:
    """Return the permission bits of everything in a folder, itself included."""
    found = (folder, *folder.rglob("*"))
    return {str(path.relative_to(folder)): oct(stat.S_IMODE(path.lstat().st_mode)) for path in found}


def expected(folder: Path) -> dict[str, str]:
    """Return what they must be: folders 0700, files 0600."""
    return {
        str(path.relative_to(folder)): oct(0o700 if path.is_dir() else 0o600) for path in (folder, *folder.rglob("*"))
    }


def run(data: Path, *command: object, **environment: str) -> None:
    """Run a command with a umask of 000, everything of the user's under ``data``."""
    places = {"DIODE_DATABASE_URL": str(data / "db" / "warehouse.db"), "DIODE_CACHE": str(data / "cache")}
    done = subprocess.run(
        [str(part) for part in command],
        umask=0,
        env={**os.environ, **places, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_all_that_is_made_is_private(careless: ForkServer, tmp_path: Path) -> None:
    """With a umask of 000, spool, lock, quarantine, database, log, cache and backup are 0600 in folders 0700."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    spool, database = data / "spool", data / "db" / "warehouse.db"
    run(data, DIODE, "db", "upgrade")
    writer = careless.writer(spool, 1, pause_s=0.02)
    eventually(lambda: any(spool.glob("*.seg")))
    shutil.copyfile("/bin/sh", spool / "0.seg")
    (spool / "0.seg").chmod(0o600)
    daemon = careless.daemon(spool, str(database))
    daemon.says_more("event=ingested")
    # While it is at work, so that what SQLite keeps beside the database is there.
    assert database.with_name("warehouse.db-wal").exists()
    assert modes(data) == expected(data)
    assert writer.end(signal.SIGKILL) == -signal.SIGKILL
    eventually(lambda: drained(spool))
    assert daemon.end(signal.SIGTERM) == 0
    assert len(list((spool / "quarantine").iterdir())) == 2
    run(data, DIODE, "sync")
    run(data, DIODE, "query", "SELECT count(*) FROM observations")
    run(data, DIODE, "db", "backup", data / "backup.db")
    names = modes(data)
    assert {"backup.db", "cache", "db/warehouse.db", "spool/ingest.lock"} < names.keys()
    assert any(name.endswith(".duckdb") for name in names)
    assert names == expected(data)
    for kept in (database, data / "backup.db"):
        assert assert_exactly_once(str(kept), careless.acknowledged(), produced, others=True) > 0


@long
def test_folders_that_have_to_be_made_on_the_way_are_private(careless: ForkServer, tmp_path: Path) -> None:
    """Also where the user's data folder, and the one it is in, are not there yet."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    here = {"DIODE_DATABASE_URL": "", "DIODE_CACHE": "", "XDG_DATA_HOME": str(home / "share" / "data")}
    run(home, DIODE, "db", "upgrade", **here)
    run(home, PROGRAM, "--once", **here)
    run(home, DIODE, "sync", **here)
    assert len(list(home.rglob("*.db"))) == 1
    private = {name: mode for name, mode in modes(home).items() if "torch-diode" in name}
    assert private == {name: mode for name, mode in expected(home).items() if "torch-diode" in name}
