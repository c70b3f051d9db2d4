"""What tests ask about a spool's folder."""

from __future__ import annotations

import stat
from collections import Counter
from typing import TYPE_CHECKING

from diode_collectors.spool.spool import Spool
from diode_store.wire.segments import read_segment

if TYPE_CHECKING:
    from pathlib import Path

    from diode_store.records import Measurement


def spooled(directory: Path) -> list[Measurement]:
    """Return the measurements of the sealed segments, in order; fail on damage."""
    frames = [frame for path in Spool(directory).sealed() for frame in read_segment(path)]
    assert [frame.error for frame in frames if frame.error] == []
    return [frame.measurement() for frame in frames]


def numbers_in(directory: Path) -> list[int]:
    """Return the numbers of the samples in the sealed segments, in order; fail on damage."""
    return [int.from_bytes(measurement.uid) for measurement in spooled(directory)]


def names_in(directory: Path) -> Counter[str]:
    """Count the files by suffix."""
    return Counter(path.suffix for path in directory.iterdir())


def mode(path: Path) -> int:
    """Return the permission bits."""
    return stat.S_IMODE(path.stat().st_mode)
