"""What the tests of the writer and of the spool ask about a folder."""

from __future__ import annotations

import stat
from collections import Counter
from typing import TYPE_CHECKING

from diode_collectors.spool import Spool, read_segment
from diode_store import codec

if TYPE_CHECKING:
    from pathlib import Path


def numbers_in(directory: Path) -> list[int]:
    """Return the numbers of the samples in the sealed segments, in order; fail on damage."""
    frames = [frame for path in Spool(directory).sealed() for frame in read_segment(path)]
    assert [frame.error for frame in frames if frame.error] == []
    return [int.from_bytes(codec.decode(frame.record_bytes()).uid) for frame in frames]


def names_in(directory: Path) -> Counter[str]:
    """Count the files by suffix."""
    return Counter(path.suffix for path in directory.iterdir())


def mode(path: Path) -> int:
    """Return the permission bits."""
    return stat.S_IMODE(path.stat().st_mode)
