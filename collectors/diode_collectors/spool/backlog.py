"""How much waits in a spool; cheap enough to look up every few seconds."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

from diode_collectors.spool.quarantine import REASON_SUFFIX
from diode_collectors.spool.spool import QUARANTINE_NAME
from diode_store.wire.segments import OPEN_SUFFIX, SEALED_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Waiting(NamedTuple):
    """What is in a spool at one moment."""

    segments: int = 0
    """Sealed ones."""
    open_segments: int = 0
    """Unsealed ones, whether or not their writer lives."""
    bytes: int = 0
    """Of both."""
    oldest_s: float = 0.0
    """For how long the oldest sealed segment has waited; 0 when none does."""
    quarantine_files: int = 0
    quarantine_bytes: int = 0


class Backlog:
    """Looks into one spool again and again.

    A segment's age is taken from the time of day once, when it is first seen; from then on it grows with a clock
    that never goes back. So setting the time of day causes no false alarm and hides no true one.
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
        """Return what is there now; a folder that cannot be read counts as empty."""
        now, wall = self._clock(), self._time_of_day()
        since: dict[str, float] = {}
        sizes = []
        open_segments = 0
        for name, found in _files(self._directory):
            if name.endswith(SEALED_SUFFIX):
                since[name] = self._since.get(name, now - max(0.0, wall - found.st_mtime))
            elif name.endswith(OPEN_SUFFIX):
                open_segments += 1
            else:
                continue
            sizes.append(found.st_size)
        self._since = since
        aside = list(_files(self._directory / QUARANTINE_NAME))
        return Waiting(
            segments=len(since),
            open_segments=open_segments,
            bytes=sum(sizes),
            oldest_s=now - min(since.values(), default=now),
            quarantine_files=sum(not name.endswith(REASON_SUFFIX) for name, _ in aside),
            quarantine_bytes=sum(found.st_size for _, found in aside),
        )


def _files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files in ``folder``, without hidden ones, which are not finished."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    if not entry.name.startswith(".") and entry.is_file():
                        yield entry.name, entry.stat()
                except FileNotFoundError:
                    continue
    except OSError:
        return
