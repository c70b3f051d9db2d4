from __future__ import annotations

import random
import shutil
import signal
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from compare import assert_exactly_once
from processes import drained
from producing import produced

from diode_collectors.spool.spool import Spool
from lanes import long, sizes
from waiting import eventually

if TYPE_CHECKING:
    from processes import Child, ForkServer

WRITERS = 2


class Campaign:
    """Two writers and a daemon; whoever is killed is followed by another one at once."""

    def __init__(self, processes: ForkServer, spool: Path, database: str, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - the same moments again is what is wanted
        self.processes = processes
        self.spool = spool
        self.database = database
        self.runs = 0
        self.running: dict[str, Child] = {}
        self.daemon_life_s = 0.4

    def start(self, name: str, *, may_die: bool = True) -> None:
        """Start a process; every other one will die of itself, before or after a step it is drawn."""
        by_itself = may_die and self.rng.random() < 0.5
        if name == "daemon":
            self.running[name] = self.processes.daemon(
                self.spool, self.database, crash_at=self.rng.randrange(1, 180) if by_itself else None
            )
        else:
            self.runs += 1
            crash_at = self.rng.randrange(1, 60) if by_itself else None
            self.running[name] = self.processes.writer(self.spool, self.runs, crash_at=crash_at, pause_s=0.01)

    def kill(self) -> None:
        """Kill one of them at some moment, and start its successor."""
        name = self.rng.choice(list(self.running))
        time.sleep(self.rng.uniform(0, self.daemon_life_s if name == "daemon" else 0.05))
        assert self.running[name].end(signal.SIGKILL) == -signal.SIGKILL
        self.start(name)

    def run(self, kills: int) -> None:
        """Kill so many processes; none runs at the end."""
        self.begin()
        for _ in range(kills - len(self.running)):
            self.kill()
        for child in self.running.values():
            assert child.end(signal.SIGKILL) == -signal.SIGKILL

    def begin(self) -> None:
        """Start everybody, and see how long a daemon takes until it has committed something on this machine."""
        for number in range(WRITERS):
            # Both may die before they have written anything, and the daemon would never have anything to commit.
            self.start(f"writer {number}", may_die=False)
        begin = time.monotonic()
        self.running["daemon"] = self.processes.daemon(self.spool, self.database)
        eventually(lambda: self.running["daemon"].says("ingested"), every_s=0.005)
        self.daemon_life_s = min(2 * (time.monotonic() - begin), 1.0)

    def finish(self) -> None:
        """Let a last daemon do what is left, and end it."""
        daemon = self.processes.daemon(self.spool, self.database)
        eventually(lambda: daemon.says("event=started") and drained(self.spool))
        assert daemon.end(signal.SIGTERM) == 0
        assert Spool(self.spool).status().quarantined == 0


def check(processes: ForkServer, spool: Path, database: str, kills: int) -> None:
    """Run a campaign, and compare what is in the warehouse with what was acknowledged."""
    campaign = Campaign(processes, spool, database, seed=kills)
    campaign.run(kills)
    campaign.finish()
    assert assert_exactly_once(database, processes.acknowledged(), produced, others=True) > kills


@pytest.mark.parametrize("kills", sizes(20, 1000))
def test_kill_9_loses_and_doubles_nothing(processes: ForkServer, spool: Path, database_url: str, kills: int) -> None:
    """Writers and daemons killed at random moments and steps: what was acknowledged is there, once."""
    check(processes, spool, database_url, kills)


@long
@pytest.mark.parametrize("kills", [250])
def test_kill_9_beside_postgresql(processes: ForkServer, spool: Path, postgres_url: str, kills: int) -> None:
    """The same where the daemon's transactions are a server's to roll back."""
    check(processes, spool, postgres_url, kills)


@pytest.mark.long
@pytest.mark.parametrize("stride", sizes(9, 1))
def test_a_writer_killed_at_one_step_after_the_other(
    processes: ForkServer, spool: Path, database_url: str, stride: int
) -> None:
    """Before and after each call of the system that a writer makes, in their order, until one comes to its end."""
    for run, step in enumerate(count(1, stride)):
        ended = processes.writer(spool, run, batches=8, crash_at=step).end()
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
    assert step > 30
    assert processes.ingest("--once", "--spool", spool, "--database", database_url).end() == 0
    assert Spool(spool).status().quarantined == 0
    assert assert_exactly_once(database_url, processes.acknowledged(), produced, others=True) > 0


@pytest.mark.long
@pytest.mark.parametrize("stride", sizes(41, 1))
def test_an_ingester_killed_at_one_step_after_the_other(
    processes: ForkServer, spool: Path, database_path: Path, tmp_path: Path, stride: int
) -> None:
    """Before and after each call of the system or the database, in their order, until one comes to its end."""
    writer = processes.writer(spool, 1, at_once=2, batches=16, pause_s=0.01, crash_at=90)
    assert writer.end() == -signal.SIGKILL
    assert Spool(spool).status().segments >= 2
    for step in count(1, stride):
        there = Path(shutil.copytree(spool, tmp_path / str(step) / "spool"))
        database = str(shutil.copy(database_path, there.parent / "warehouse.db"))
        once = ("--once", "--spool", there, "--database", database)
        ended = processes.ingest(*once, crash_at=step).end()
        assert ended in {0, -signal.SIGKILL}
        assert processes.ingest(*once).end() == 0
        assert drained(there)
        assert Spool(there).status().quarantined == 0
        assert assert_exactly_once(database, processes.acknowledged(), produced, others=True) > 0
        if ended == 0:
            break
    assert step > 60
