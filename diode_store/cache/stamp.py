"""Detect whether an SQLite file has changed since the last sync, without reading it.

The digests of ``diode_store.cache.source`` would cost a pass over the measurements before every query. The file
system's inodes, sizes and times of the database and its write-ahead log cost nothing. The stamp has the database's
time of change (ctime), which nobody can set. It has the log's time of writing, because root changes the log's ctime by
opening it. Two writes can share a time only if they are a moment apart. Therefore files count only if they were
unchanged for ``SETTLED_S`` when the digests were compared.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from diode_store.system.files import leave_note, read_bounded

if TYPE_CHECKING:
    from diode_store.cache.cache import Cache

SETTLED_S = 2.0
"""Seconds; coarser than the file times of any file system on which SQLite's log works."""

_FILE = "checked.json"


def stamp_of(database: Path) -> str | None:
    """Return a stamp of this state of an SQLite file; None if the file changed just now. Take it before reading."""
    parts: list[tuple[int, ...] | None] = []
    newest = 0.0
    for path in (database, Path(f"{database}-wal")):
        try:
            found = path.stat()
        except OSError:
            parts.append(None)
            continue
        changed_ns = found.st_ctime_ns if path == database else found.st_mtime_ns
        newest = max(newest, changed_ns / 1e9)
        parts.append((found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, changed_ns))
    if parts[0] is None or Path(f"{database}-journal").exists():
        return None
    return json.dumps(parts) if time.time() - newest > SETTLED_S else None


def remember(cache: Cache, generation: int, stamp: str | None) -> None:
    """Record that the database in state ``stamp`` has the content of the cache's ``generation``."""
    if stamp is None or is_remembered(cache, generation, stamp):
        return
    leave_note(cache.path / _FILE, json.dumps({"generation": generation, "stamp": stamp}))


def is_remembered(cache: Cache, generation: int, stamp: str | None) -> bool:
    """Return whether ``remember`` recorded this pair."""
    if stamp is None:
        return False
    with contextlib.suppress(OSError, ValueError, RecursionError):
        return bool(json.loads(read_bounded(cache.path / _FILE)) == {"generation": generation, "stamp": stamp})
    return False
