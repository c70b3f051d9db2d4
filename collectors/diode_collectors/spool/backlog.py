"""Count what waits in a spool, cheaply enough for every few seconds."""

from __future__ import annotations

import stat
import time
from typing import TYPE_CHECKING, NamedTuple

from diode_collectors.spool.files import check_segment, stored_bytes
from diode_collectors.spool.quarantine import REASON_SUFFIX
from diode_collectors.spool.spool import QUARANTINE_NAME
from diode_store.system.files import entries_of
from diode_store.wire.segments import OPEN_SUFFIX, SEALED_SUFFIX

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from pathlib import Path


class Waiting(NamedTuple):
    """Contents of a spool at one moment."""

    segments: int = 0
    """Sealed segments, and strange entries with a segment's name, which need an operator."""
    open_segments: int = 0
    """Unsealed segments, whether or not their writer lives."""
    bytes: int = 0
    """Bytes of sealed and unsealed segments."""
    oldest_s: float = 0.0
    """Seconds that the oldest of ``segments`` has waited; 0 if none waits."""
    quarantine_files: int = 0
    quarantine_bytes: int = 0


class Backlog:
    """Looks into one spool again and again.

    The time of day gives a segment's age only once, when the segment is first seen. From then on the age grows with a
    clock that never goes back. Setting the time of day thus causes no false alarm and hides no true one.
    """

    def __init__(
        self,
        directory: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        time_of_day: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._time_of_day = time_of_day
        self._since: dict[str, float] = {}

    def look(self) -> Waiting:
        """Return the contents now; a folder that cannot be read counts as empty."""
        now, wall = self._clock(), self._time_of_day()
        since: dict[str, float] = {}
        sizes = []
        open_segments = 0
        for name, found in _visible(self._directory):
            if not name.endswith((SEALED_SUFFIX, OPEN_SUFFIX)):
                continue
            if name.endswith(OPEN_SUFFIX) and _is_segment(self._directory / name, found):
                open_segments += 1
            else:
                since[name] = self._since.get(name, now - max(0.0, wall - found.st_mtime))
            sizes.append(stored_bytes(found))
        self._since = since
        aside = [each for each in _visible(self._directory / QUARANTINE_NAME) if not stat.S_ISDIR(each[1].st_mode)]
        return Waiting(
            segments=len(since),
            open_segments=open_segments,
            bytes=sum(sizes),
            oldest_s=now - min(since.values(), default=now),
            quarantine_files=sum(not name.endswith(REASON_SUFFIX) for name, _ in aside),
            quarantine_bytes=sum(found.st_size for _, found in aside),
        )


def _visible(folder: Path) -> list[tuple[str, os.stat_result]]:
    """Return the entries of ``folder`` without hidden ones, which are not finished."""
    return [(entry.name, found) for entry, found in entries_of(folder) if not entry.name.startswith(".")]


def _is_segment(path: Path, found: os.stat_result) -> bool:
    try:
        check_segment(path, found)
    except OSError:
        return False
    return True
