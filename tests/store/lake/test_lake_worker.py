"""Processes that share a large copy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import psutil
import pytest
from lake_reading import ask, did

from diode_store.errors import DatabaseError, DiodeError, LakeError
from diode_store.lake import sync as lake_sync
from diode_store.lake import worker as lake_worker
from diode_store.lake.lake import Lake
from diode_store.lake.sync import sync

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from pathlib import Path

    from conftest import MakeMeasurement
    from diode_store.warehouse.store import Store

_EVERYTHING = "SELECT * FROM observations ORDER BY ALL"


@pytest.fixture
def many(store: Store, make_measurement: MakeMeasurement, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill the warehouse with what counts as several segments."""
    store.write([make_measurement(number) for number in range(300)])
    monkeypatch.setattr(lake_sync, "TIMINGS_PER_SEGMENT", 100)


def workers() -> list[psutil.Process]:
    """Return the processes that share this one's copy."""
    return [child for child in psutil.Process().children() if "diode_store.lake.worker:serve" in child.cmdline()]


def in_a_moment(action: Callable[[psutil.Process], None]) -> threading.Thread:
    """Do something to the first worker as soon as there is one."""

    def wait() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if found := workers():
                action(found[0])
                return
            time.sleep(0.005)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.usefixtures("many")
def test_shared_copies_are_the_same(
    database_url: str, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several processes copy what one would; every segment is told to whoever watches, and none stays behind."""
    copied: list[float] = []
    started: list[int] = []
    watching = in_a_moment(lambda process: started.append(process.pid))
    assert did(sync(database_url, lake, on_progress=copied.append)) == (300, 900, 0, None)
    watching.join()
    assert len(started) == 1
    assert workers() == []
    assert sum(copied) == 900
    assert len(copied) >= 4
    monkeypatch.setattr(lake_worker, "WORTH_A_PROCESS", 1_000)
    alone = Lake(tmp_path / "alone.lake")
    sync(database_url, alone)
    assert ask(lake, _EVERYTHING) == ask(alone, _EVERYTHING)


@pytest.mark.usefixtures("many")
def test_a_worker_that_is_killed(database_url: str, lake: Lake) -> None:
    """The sync fails in one line, names what to do, and doing it helps."""
    killing = in_a_moment(lambda process: process.send_signal(signal.SIGKILL))
    with pytest.raises(LakeError, match=r"was killed \(out of memory\?\); run `diode sync` again"):
        sync(database_url, lake)
    killing.join()
    assert workers() == []
    assert did(sync(database_url, lake)) == (300, 900, 0, None)


@pytest.mark.usefixtures("many")
def test_a_workers_error_is_the_syncs(database_url: str, lake: Lake, raw: sqlite3.Connection) -> None:
    """What is wrong with the warehouse is said as if there were one process only."""
    raw.execute("UPDATE timings SET extra = CAST(x'ff41' AS TEXT) WHERE measurement_id = 150")
    with pytest.raises(DatabaseError, match="Could not decode to UTF-8"):
        sync(database_url, lake)
    assert workers() == []


@pytest.mark.usefixtures("many")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor: one process, which ends with its error")
def test_an_error_ends_the_copy(
    database_url: str, lake: Lake, raw: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other processes do not go on to the end, as nothing of it would count."""
    monkeypatch.setattr(lake_sync, "TIMINGS_PER_SEGMENT", 3)
    raw.execute("UPDATE timings SET extra = CAST(x'ff41' AS TEXT) WHERE measurement_id = 1")
    copied: list[float] = []
    with pytest.raises(DatabaseError, match="Could not decode to UTF-8"):
        sync(database_url, lake, on_progress=copied.append)
    assert sum(copied) < 897


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    ("module", "code", "said"),
    [
        ("adbc_driver_sqlite", "raise ImportError", r"needs ADBC; run `pip install adbc-driver-sqlite`$"),
        ("adbc_driver_sqlite", "raise RuntimeError('odd')", r"^a process of the sync failed: RuntimeError: odd; "),
    ],
)
def test_a_worker_that_cannot_work(
    database_url: str, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, code: str, said: str
) -> None:
    """The sync says why on one line, and no process stays behind."""
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / f"{module}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path / "first")
    with pytest.raises(DiodeError, match=said):
        sync(database_url, lake)
    assert workers() == []


@pytest.mark.usefixtures("many")
def test_workers_end_with_their_sync(database_url: str, lake: Lake) -> None:
    """Killed or interrupted, a sync leaves no process behind."""
    code = (
        "import sys; from pathlib import Path; from diode_store.lake import lake\n"
        "from diode_store.lake import sync as lake_sync\n"
        "lake_sync.TIMINGS_PER_SEGMENT = 100\n"
        "lake_sync.sync(sys.argv[1], lake.Lake(Path(sys.argv[2])))"
    )
    for number in (signal.SIGKILL, signal.SIGINT):
        process = subprocess.Popen(
            [sys.executable, "-c", code, database_url, str(lake.path)], stderr=subprocess.DEVNULL
        )
        parent, children = psutil.Process(process.pid), []
        while process.poll() is None and not children:
            children = parent.children()
        assert children
        process.send_signal(number)
        process.wait()
        _, alive = psutil.wait_procs(children, timeout=20)
        assert alive == []


@pytest.mark.usefixtures("many")
def test_no_second_sqlite_library(database_url: str) -> None:
    """It would drop the locks of a writer in this process when it closes the file; the workers have it."""
    code = (
        "import sys; from diode_store.lake import sync as lake_sync\n"
        "from diode_store.query import analytics\n"
        "from diode_store.warehouse.store import Store\n"
        "lake_sync.TIMINGS_PER_SEGMENT = 100\n"
        "with Store.open(sys.argv[1]): analytics.connect(sys.argv[1]).close()\n"
        "print(*{name for name in sys.modules if name.startswith(('adbc', 'apsw'))})\n"
        "print(*{line.split()[-1] for line in open('/proc/self/maps') if 'sqlite' in line.lower()})\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, database_url], capture_output=True, text=True, check=True)
    modules, libraries = ended.stdout.splitlines()
    assert modules == ""
    names = {path.rpartition("/")[2].partition(".")[0] for path in libraries.split()}
    assert names <= {"libsqlite3", "_sqlite3"}
