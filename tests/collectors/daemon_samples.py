"""What the tests of the daemon share: full spools, waiting, and what a warehouse holds."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

from spool_samples import sample

from diode_collectors.spool.spool import SpoolWriter

PROGRAM = Path(sys.executable).with_name("diode-ingest")


def fill(directory: Path, numbers: range, *, timings: int = 2) -> None:
    """Put sealed segments of fifty samples into a spool."""
    with SpoolWriter(directory) as writer:
        for number in numbers:
            writer.append(sample(number, timings))
            if (number + 1) % 50 == 0:
                writer.seal()


def stored_in(path: Path) -> list[int]:
    """Return the numbers of the samples in the warehouse, sorted."""
    with sqlite3.connect(path) as connection:
        uids = connection.execute("SELECT uid FROM measurements").fetchall()
    connection.close()
    return sorted(int.from_bytes(uid) for (uid,) in uids)
