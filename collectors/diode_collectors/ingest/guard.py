"""Pause ingesting before a disk is full or a quarantine too large, and resume it afterwards.

- The disk of the SQLite file is nearly full: ingesting pauses, because SQLite would soon fail in the middle of a write.
- The disk of a spool is nearly full, and the warehouse is elsewhere: the guard reports it. Ingesting makes room there.
- A quarantine exceeds its limit: the guard removes the oldest damaged bytes, which cannot be read. Whole records always
  stay; if they alone exceed the limit, ingesting pauses.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from diode_collectors.spool.files import changed_ns, folder_bytes
from diode_collectors.spool.spool import Spool
from diode_store.errors import SpoolError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_RESUME_DIVISOR = 10
"""Ingesting resumes when a tenth more than the limit is free, so that it does not stop and start all the time."""


class Verdict(NamedTuple):
    """Problems that the guard found."""

    problems: tuple[str, ...] = ()
    """A line for each problem, with the remedy."""
    holds: bool = False
    """True while ingesting pauses."""


def free_bytes(path: Path) -> int | None:
    """Return the free bytes on the file system of ``path``, which need not exist yet; None if unknown."""
    for place in (path, *path.absolute().parents):
        try:
            found = os.statvfs(place)
        except FileNotFoundError:
            continue
        except OSError:
            return None
        return found.f_bavail * found.f_frsize
    return None


class Guard:
    """Watches the file systems and quarantines of spools, and the file system of the warehouse."""

    def __init__(
        self,
        spools: Sequence[Path],
        database_file: Path | None,
        *,
        min_free_bytes: int,
        quarantine_bytes: int,
        free: Callable[[Path], int | None] = free_bytes,
    ) -> None:
        """Start to watch.

        Args:
            spools: the spools.
            database_file: the SQLite file; None for a warehouse elsewhere.
            min_free_bytes: bytes that must be free on each file system.
            quarantine_bytes: size limit of a quarantine.
            free: returns the free bytes at a path.
        """
        self._spools = [Spool(path) for path in spools]
        self._database_file = database_file
        self._min_free_bytes = min_free_bytes
        self._quarantine_bytes = quarantine_bytes
        self._free = free
        self._low: set[Path] = set()
        self._looked: dict[Path, tuple[int | None, str | None]] = {}
        self.trimmed: list[tuple[Path, int]] = []
        """Spools and the number of files that each quarantine lost; the reader clears the list."""

    def look(self) -> Verdict:
        """Look at the disks, and at each quarantine that has changed."""
        holding = [*self._full_quarantines()]
        if self._database_file and (low := self._low_space(self._database_file)):
            holding.append(f"{low} on the warehouse's disk; ingesting pauses until you make room")
        told = [
            f"{low} on the spool's disk; make room, or writers will be refused"
            for spool in self._spools
            if (low := self._low_space(spool.directory))
        ]
        return Verdict((*holding, *told), bool(holding))

    def _low_space(self, path: Path) -> str | None:
        free = self._free(path)
        needed = self._min_free_bytes
        needed += needed // _RESUME_DIVISOR if path in self._low else 0
        if free is None or free >= needed:
            self._low.discard(path)
            return None
        self._low.add(path)
        # The message leaves out the number of free bytes: each new message is reported, and the number always changes.
        return f"{path}: less than {self._min_free_bytes:,} bytes are free"

    def _full_quarantines(self) -> list[str]:
        return [problem for spool in self._spools if (problem := self._full_quarantine(spool))]

    def _full_quarantine(self, spool: Spool) -> str | None:
        changed = changed_ns(spool.quarantine_directory)
        seen, problem = self._looked.get(spool.directory, (-1, None))
        if seen != changed:
            try:
                problem = self._over_limit(spool)
            except SpoolError as error:
                return str(error)  # not cached: a corrected file mode does not change the folder's time
            self._looked[spool.directory] = (changed_ns(spool.quarantine_directory), problem)
        return problem

    def _over_limit(self, spool: Spool) -> str | None:
        size = folder_bytes(spool.quarantine_directory)
        if size <= self._quarantine_bytes:
            return None
        files, freed = spool.trim_quarantine(size - self._quarantine_bytes)
        if files:
            self.trimmed.append((spool.directory, files))
        if size - freed <= self._quarantine_bytes:
            return None
        return (
            f"{spool.quarantine_directory}: above its limit of {self._quarantine_bytes:,} bytes with whole records,"
            " which are never removed; `diode-ingest status` counts their reasons; upgrade torch-diode, move records of"
            " a newer version back into the spool, and move the others elsewhere"
        )
