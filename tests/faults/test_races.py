from __future__ import annotations

import random
import signal
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from compare import assert_exactly_once
from processes import drained
from producing import produced, uid_of

from diode_collectors.spool.spool import Spool, SpoolWriter
from lanes import long
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from processes import Child, ForkServer

DAEMONS = 4


def fill(spool: Path, uids: Sequence[bytes]) -> None:
    """Put measurements into a spool, in segments of twenty."""
    with SpoolWriter(spool) as writer:
        for number, uid in enumerate(uids):
            writer.append(produced(uid))
            if number % 20 == 19:
                writer.seal()


def finish(daemons: Sequence[Child], spools: Sequence[Path]) -> None:
    """Let all daemons do their work, and end them; none may have met trouble."""
    for spool in spools:
        eventually(lambda spool=spool: drained(spool))
    assert [daemon.end(signal.SIGTERM) for daemon in daemons] == [0] * len(daemons)
    for daemon in daemons:
        assert not daemon.says("event=failed"), daemon.log.read_text()
        assert not daemon.says("event=rejected"), daemon.log.read_text()


@pytest.mark.long
def test_a_second_daemon_on_a_spool(processes: ForkServer, spool: Path, database_url: str) -> None:
    """It ends with 1 and one line that names the first, which goes on; --once leaves it the spool and ends with 0."""
    uids = [uid_of(1, number) for number in range(300)]
    fill(spool, uids[:150])
    first = processes.daemon(spool, database_url)
    eventually(lambda: first.says("event=started"))
    second = processes.daemon(spool, database_url)
    assert second.end() == 1
    (line,) = second.log.read_text().splitlines()
    assert line.startswith(f"error: {spool}: another diode-ingest (pid {first.pid}) is running on this spool; ")
    assert processes.ingest("--once", "--spool", spool, "--database", database_url).end() == 0
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    fill(spool, uids[150:])
    finish([processes.daemon(spool, database_url)], [spool])
    assert assert_exactly_once(database_url, uids, produced) == 300


@long
def test_two_daemons_with_the_same_records(processes: ForkServer, tmp_path: Path, any_url: str) -> None:
    """Two spools that hold the same records in another order, two daemons, one warehouse: each record is there once."""
    uids = [uid_of(1, number) for number in range(400)]
    spools = [tmp_path / "one", tmp_path / "two"]
    fill(spools[0], uids)
    fill(spools[1], random.Random(3).sample(uids, len(uids)))  # noqa: S311 - the same again
    finish([processes.daemon(spool, any_url) for spool in spools], spools)
    assert assert_exactly_once(any_url, uids, produced) == 400


@long
def test_four_writers_with_the_same_new_dimensions(
    processes: ForkServer, tmp_path: Path, any_url: str, request: pytest.FixtureRequest
) -> None:
    """Four daemons that all bring hundreds of new problems and configs at once: no failure, no deadlock."""
    spools = [tmp_path / f"spool-{number}" for number in range(DAEMONS)]
    shared = [uid_of(9, number) for number in range(60)]
    own = [[uid_of(run, number) for number in range(150)] for run in range(DAEMONS)]
    for spool, uids in zip(spools, own, strict=True):
        fill(spool, random.Random(len(uids)).sample(uids + shared, len(uids) + len(shared)))  # noqa: S311 - likewise
    finish([processes.daemon(spool, any_url) for spool in spools], spools)
    assert assert_exactly_once(any_url, [*shared, *(uid for uids in own for uid in uids)], produced) == 660
    if any_url.startswith("postgresql"):
        rows = request.getfixturevalue("postgres_server").sql("SELECT datname, deadlocks FROM pg_stat_database")
        assert dict(rows)[sa.make_url(any_url).database] == 0


@long
def test_a_writer_and_a_daemon_and_a_status_and_a_dry_run(
    processes: ForkServer, spool: Path, database_url: str
) -> None:
    """Whoever looks at a spool while it is written and emptied disturbs neither."""
    writer = processes.writer(spool, 1, pause_s=0.005)
    daemon = processes.daemon(spool, database_url)
    options = ("--spool", spool)
    for _ in range(3):
        looking = [
            processes.ingest("status", *options),
            processes.ingest("--dry-run", *options, "--database", database_url),
        ]
        assert [child.end() for child in looking] == [0, 0]
    assert writer.end(signal.SIGKILL) == -signal.SIGKILL
    finish([daemon], [spool])
    assert Spool(spool).status().quarantined == 0
    assert assert_exactly_once(database_url, processes.acknowledged(), produced, others=True) > 0
