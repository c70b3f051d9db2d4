"""Decisions survive a SIGKILL of the ingester as measurements do: each is there once."""

from __future__ import annotations

import shutil
import signal
from itertools import count
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from processes import drained

import samples
from decided import decision
from diode_collectors.spool.spool import Spool, SpoolWriter
from diode_store.warehouse import schema
from diode_store.warehouse.database import make_engine
from diode_store.warehouse.soundness import broken_facts
from lanes import sizes

if TYPE_CHECKING:
    from pathlib import Path

    from processes import ForkServer

NUMBERS = range(12)
EXPECTED = sorted(decision(number).uid for number in NUMBERS)


@pytest.mark.long
@pytest.mark.parametrize("stride", sizes(23, 1))
def test_an_ingester_killed_at_one_step_after_the_other(
    processes: ForkServer, spool: Path, database_path: Path, tmp_path: Path, stride: int
) -> None:
    """Before and after calls of the system or the database, in their order, until one comes to its end."""
    with SpoolWriter(spool, segment_bytes=4000) as writer:
        for number in NUMBERS:
            writer.append(decision(number))
            writer.append(samples.measurement(number))
    assert len(Spool(spool).sealed()) > 2
    killed = 0
    for step in count(1, stride):
        there = shutil.copytree(spool, tmp_path / str(step) / "spool")
        database = str(shutil.copy(database_path, there.parent / "warehouse.db"))
        once = ("--once", "--spool", there, "--database", database)
        ended = processes.ingest(*once, crash_at=step).end()
        assert ended in {0, -signal.SIGKILL}
        killed += ended != 0
        assert processes.ingest(*once).end() == 0
        assert drained(there)
        assert Spool(there).status().quarantined == 0
        engine = make_engine(database)
        with engine.connect() as connection:
            uids = sorted(bytes(uid) for uid in connection.scalars(sa.select(schema.decisions.c.uid)))
            measurements = connection.scalar(sa.select(sa.func.count()).select_from(schema.measurements))
        assert broken_facts(engine) == []
        engine.dispose()
        assert (uids, measurements) == (EXPECTED, len(NUMBERS))
        if ended == 0:
            break
    assert killed > 3
