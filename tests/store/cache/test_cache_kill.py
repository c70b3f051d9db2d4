"""A sync that is killed leaves the cache whole, and nothing behind."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from cache_reading import ask

from diode_store.cache.sync import sync
from lanes import sizes

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import MakeMeasurement
    from diode_store.cache.cache import Cache
    from diode_store.warehouse.store import Store

# Everything a sync does, again and again, in small pieces so that a kill hits any of them.
_WORK = """
import sys
from pathlib import Path
from diode_store.cache import cache, change, facts, filling, sync, worker
for module in (facts, filling):
    module.TIMINGS_AT_ONCE = 90
if sys.argv[3] == "several":
    worker.WORTH_A_PROCESS = 1
found = cache.Cache(Path(sys.argv[2]))
print("ready", flush=True)
while True:
    for most_recent in (10, 1_000):
        change.MOST_RECENT = most_recent
        sync.sync(sys.argv[1], found, rebuild=True)
        sync.sync(sys.argv[1], found)
"""


def _start(url: str, cache: Cache, how: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _WORK, url, str(cache.path), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()
    return process


def _rows(cache: Cache) -> list[tuple[int, int]]:
    return ask(cache, "SELECT measurement_id, count(*) FROM timings GROUP BY 1 ORDER BY 1")


@pytest.mark.quick(1)
@pytest.mark.parametrize("kills", sizes(2, 100))
@pytest.mark.parametrize("how", ["one", "several"])
def test_killed_at_any_point(
    store: Store,
    database_url: str,
    database_path: Path,
    cache: Cache,
    make_measurement: MakeMeasurement,
    how: str,
    kills: int,
) -> None:
    """After every kill readers see whole measurements, the next sync makes the cache right, and no litter stays."""
    chance = random.SystemRandom()
    store.write([make_measurement(number) for number in range(200)])
    sync(database_url, cache)
    raw = sqlite3.connect(database_path, isolation_level=None)
    with closing(raw):
        for number in range(kills):
            process = _start(database_url, cache, how)
            time.sleep(chance.uniform(0.0, 1.0))
            process.send_signal(signal.SIGKILL)
            _, complaints = process.communicate()
            assert complaints == ""
            assert {count for _, count in _rows(cache)} == {3}
            raw.execute("DELETE FROM measurements WHERE id = ?", (number * 3 + 1,))
            raw.execute("DELETE FROM timings WHERE measurement_id = ?", (number * 3 + 1,))
            store.write([make_measurement(1000 + number)])
            assert sync(database_url, cache).rebuilt is None
            expected = raw.execute("SELECT measurement_id, count(*) FROM timings GROUP BY 1 ORDER BY 1").fetchall()
            assert _rows(cache) == expected
    state = cache.state()
    assert state is not None
    named = {file.name for file in state.files.values()}
    assert {path.name for path in cache.path.iterdir()} - {"checked.json"} == named | {"state.json", "lock"}
