"""Pruning as an operator runs it: beside writers, stopped by Ctrl-C, killed, and run again."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import samples
from diode_store.warehouse import migrate
from diode_store.warehouse.database import integrity_problems, make_engine
from diode_store.warehouse.store import Store
from lanes import long, sizes

if TYPE_CHECKING:
    from conftest import RunCommand

DATA = Path(__file__).parents[2] / "data"
DIODE = str(Path(sys.executable).parent / "diode")
REPLAYS = 4_000

GROW = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
    "INSERT INTO measurements (uid, hardware_id, environment_id, problem_id, source, measured_at, ingested_at, "
    "is_replay, choice_policy) SELECT randomblob(16), hardware_id, environment_id, problem_id, source, measured_at, "
    "ingested_at, 1, choice_policy FROM n JOIN measurements AS m ON m.id = 2"
)
GROW_TIMINGS = (
    "INSERT INTO timings SELECT m.id, t.config_id, t.runtime_us, t.outcome, t.is_estimate, t.repeats, t.p10_us, "
    "t.p90_us, t.extra FROM measurements AS m JOIN timings AS t ON t.measurement_id = 2 WHERE m.id > 77"
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a warehouse with thousands of replays of one problem beside the kept data."""
    path = tmp_path_factory.mktemp("large") / "large.db"
    shutil.copy(DATA / "warehouse-0001.db", path)
    engine = make_engine(str(path))
    migrate.upgrade(engine)
    engine.dispose()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM tombstones")
        connection.execute(GROW, (REPLAYS,))
        connection.execute(GROW_TIMINGS)
    return path


@pytest.fixture
def large(template: Path, tmp_path: Path) -> Path:
    """Return a copy of the large warehouse."""
    return Path(shutil.copy(template, tmp_path / "large.db"))


def start(path: Path) -> subprocess.Popen[str]:
    """Start deleting all replays."""
    command = [DIODE, "db", "prune", "--replays", "--yes", "--json", "--database", str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def count(path: Path, what: str) -> int:
    """Return the answer to a counting query."""
    [(number,)] = samples.sql(path, f"SELECT count(*) FROM {what}")  # noqa: S608 - the test's own text
    return int(number)


def wait_for_the_first(path: Path) -> None:
    """Wait until something has been deleted."""
    end = time.monotonic() + 30
    while count(path, "tombstones") == 0:
        assert time.monotonic() < end
        time.sleep(0.005)


def check_whole(path: Path) -> int:
    """Make sure that each replay is there with all its timings or buried with none; return how many are buried."""
    each = count(path, "timings WHERE measurement_id = 2")
    left = count(path, "measurements WHERE id > 77")
    buried = count(path, "tombstones")
    assert left + buried == REPLAYS
    assert count(path, "timings WHERE measurement_id > 77") == left * each
    assert count(path, "measurements WHERE uid IN (SELECT uid FROM tombstones)") == 0
    assert count(path, "measurements WHERE id <= 77") == 75
    assert count(path, "timings WHERE measurement_id <= 77") == 2796
    return buried


@pytest.mark.long
def test_ctrl_c_says_what_was_deleted(large: Path) -> None:
    """Ctrl-C ends it between two transactions; what it says was deleted is what was deleted."""
    process = start(large)
    wait_for_the_first(large)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    buried = check_whole(large)
    assert (process.returncode, out) == (130, "")
    assert 0 < buried < REPLAYS
    each = count(large, "timings WHERE measurement_id = 2")
    said = f"deleted {buried:,} measurements with {buried * each:,} timings, and left the rest unchanged"
    assert err == f"stopped early; {said}\n"


@pytest.mark.long
@pytest.mark.parametrize("kills", sizes(2, 40))
def test_killed_prunes_leave_whole_measurements(large: Path, kills: int) -> None:
    """SIGKILL at any moment loses nothing half, and running it again deletes the rest."""
    for _ in range(kills):
        process = start(large)
        before = count(large, "tombstones")
        end = time.monotonic() + 30
        while count(large, "tombstones") == before and time.monotonic() < end and process.poll() is None:
            time.sleep(0.003)
        process.kill()
        process.communicate()
        check_whole(large)
    engine = make_engine(str(large))
    assert integrity_problems(engine) == []
    engine.dispose()
    buried = check_whole(large)
    out, _ = start(large).communicate(timeout=60)
    # Two problems of the kept file have nothing but a replay, which stays.
    assert json.loads(out) | {"timings": 0} == {
        "dry_run": False,
        "measurements": REPLAYS - buried,
        "timings": 0,
        "kept_as_last": 2,
    }
    assert check_whole(large) == REPLAYS


@long
def test_writers_get_their_turn(large: Path) -> None:
    """While thousands of measurements are deleted, a writer commits again and again, between the prune's commits."""
    deleted_meanwhile = []
    with Store.open(str(large)) as store:
        process = start(large)
        wait_for_the_first(large)
        number = 10_000
        while process.poll() is None:
            number += 1
            before = count(large, "tombstones")
            store.write([samples.measurement(number)])
            deleted_meanwhile.append(count(large, "tombstones") - before)
        _, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert len(deleted_meanwhile) > 3
    assert max(deleted_meanwhile) < REPLAYS / 2
    assert count(large, "tombstones") == REPLAYS
    assert count(large, "measurements WHERE id > 77") == len(deleted_meanwhile)


@long
def test_two_prunes_at_once(large: Path) -> None:
    """Two that delete the same measurements both end well, and each measurement is counted by one of them."""
    both = [start(large), start(large)]
    answers = [process.communicate(timeout=60) for process in both]
    assert [err for _, err in answers] == ["", ""]
    assert sum(json.loads(out)["measurements"] for out, _ in answers) == REPLAYS
    assert check_whole(large) == REPLAYS


def test_a_dry_run_changes_nothing(diode: RunCommand, large: Path) -> None:
    """Without --yes it only says what would go; with it, the same goes, and vacuum gives the space back."""
    before = [count(large, table) for table in ("measurements", "timings", "tombstones")]
    planned = json.loads(diode("db", "prune", "--replays", "--json", "--database", large).out)
    assert [count(large, table) for table in ("measurements", "timings", "tombstones")] == before
    ended = diode("db", "prune", "--replays", "--yes", "--database", large)
    each = count(large, "timings WHERE measurement_id = 2")
    assert (planned["dry_run"], planned["measurements"], planned["timings"]) == (True, REPLAYS, REPLAYS * each)
    assert [(share["hardware"], share["dataset"]) for share in planned["shares"]] == [("NVIDIA H200", None)]
    assert ended.out.startswith(f"deleted {REPLAYS:,} measurements with {REPLAYS * each:,} timings; 2 others kept")
    assert ended.err == "the space will be reused; `diode db vacuum` returns it to the disk\n"
    sizes = json.loads(diode("db", "vacuum", "--json", "--database", large).out)
    assert sizes["bytes_after"] < 1_000_000 < sizes["bytes_before"]
    assert sizes["bytes_after"] == large.stat().st_size
    assert diode("db", "check", "--database", large).code == 0
    assert diode("db", "prune", "--replays", "--yes", "--database", large).out.startswith("deleted 0 measurements")
