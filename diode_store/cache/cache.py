"""The cache: two DuckDB files with the warehouse's content at the last sync, and the file that names them.

``state.json`` names the two files of the current state and is replaced whole, so a reader sees one state or the next. A
published DuckDB file never changes. The *base* has the bulk of the measurements, sorted by case. The *recent* file has
what came later, the ids that left the base, the small tables, and the summaries of the cases that changed since. A sync
copies the recent file, changes the copy and publishes it under a new name. ``diode_store.cache.change`` writes a new
base when the recent file has grown.

Readers take no lock. They open both files, and an open file outlives its name. ``diode_store.cache.sync`` fills the
cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from diode_store.errors import CacheError, DamagedCacheError, UnwritableCacheError, marked_if_damaged
from diode_store.system.files import (
    PRIVATE_FILE,
    entries_of,
    expanded,
    leave_note,
    read_bounded,
    try_lock,
    write_durably,
)
from diode_store.system.urls import is_published, is_url, redact, sqlite_path, whole_address
from diode_store.views.view_files import definitions_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FORMAT = 2
"""Version of the files' layout; a sync rebuilds a cache of another version."""
RECENT, BASE = "recent", "base"
"""Kinds of a DuckDB file; also the names by which DuckDB attaches them."""

_STATE = "state.json"
CATALOG = "published.catalog"
"""DuckDB file of ``diode_store.cache.published``, which has its own lock."""
_OURS = (".duckdb", ".wal", ".new", ".tmp", ".damaged")
"""Suffixes of the files that a sync makes."""
_FULL = re.compile("no space left|could not write|cannot write|failed to write", re.IGNORECASE)
_HEAD_BYTES = 12_288
"""Bytes of DuckDB's three headers, the only part of a file that the checksums of its blocks do not cover."""
_MOST_BYTES = 2**31
_LOCK_TIMEOUT_S = 600.0
_LOCK_POLL_S = 0.02
_ATTEMPTS = 100


@dataclass(frozen=True)
class File:
    """A published DuckDB file."""

    name: str
    bytes: int
    head: str
    """Digest of its headers."""


@dataclass(frozen=True)
class State:
    """One state of the cache."""

    warehouse: str = ""
    """Uuid of the copied database."""
    revision: str = ""
    """Schema revision of that database."""
    definitions: str = ""
    """Digest of the definitions of the summaries."""
    generation: int = 0
    """Number of this state; increases with every change."""
    synced_at: float = 0.0
    """Time of this state in the database, in seconds since 1970."""
    recent: File | None = None
    base: File | None = None
    measurements: int = 0
    timings: int = 0
    recent_timings: int = 0
    """Timings in the recent file."""
    base_measurements: int = 0
    """Measurements in the base, with dropped ones."""
    base_timings: int = 0
    last_id: int = -1
    """Highest id of a measurement in the database."""
    dropped: int = 0
    """Measurements in the base that the warehouse no longer has."""
    changed: int = 0
    """Cases of the base with another summary in the recent file."""
    fingerprints: dict[str, str] = field(default_factory=dict)
    """Digest of each small table in the database; a table with an equal digest needs no copy."""
    blocks: dict[str, dict[str, str]] = field(default_factory=dict)
    """Digests of a table's rows by range of ids, by table; see ``diode_store.cache.source``."""
    tips: dict[str, str] = field(default_factory=dict)
    """Tip of a table in an SQLite file, by table; see ``diode_store.cache.tips``."""
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Lines about the rows that were not copied because their column cannot hold a value, by table."""

    @property
    def files(self) -> dict[str, File]:
        """The DuckDB files by kind."""
        return {kind: file for kind, file in ((RECENT, self.recent), (BASE, self.base)) if file is not None}


@dataclass(frozen=True)
class Reading:
    """A state with its files open."""

    state: State
    paths: dict[str, str]
    """Path of each open file by kind; other processes can open it too, whatever became of its name."""


class Cache:
    """A cache, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        """Use the folder at ``path``."""
        self.path = path

    def __str__(self) -> str:
        """Return the folder, for messages."""
        return str(self.path)

    def state(self) -> State | None:
        """Return the current state, or None if there is none.

        Raises:
            DamagedCacheError: the state is damaged or of another format.
            CacheError: the state cannot be read.
        """
        place = self.path / _STATE
        try:
            content = json.loads(read_bounded(place, _MOST_BYTES))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise CacheError(f"{place}: {error.strerror}; check who owns it") from error
        except (ValueError, RecursionError) as error:
            raise DamagedCacheError(f"{place} is damaged") from error
        found = content.get("format") if isinstance(content, dict) else None
        if found != FORMAT:
            raise DamagedCacheError(f"{place} has format {found!r} and this torch-diode reads {FORMAT}")
        try:
            inside = content["state"]
            if content["digest"] != _digest(inside):
                raise DamagedCacheError(f"{place} is damaged")
            files = {kind: inside[kind] and File(**inside[kind]) for kind in (RECENT, BASE)}
            return State(**{**inside, **files})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedCacheError(f"{place} is damaged") from error

    def hold(self) -> tuple[Reading, Callable[[], None]]:
        """Open the files of the current state, none if there is none; return them and a function that closes them.

        Raises:
            CacheError: the cache is damaged.
        """
        for _ in range(_ATTEMPTS):
            state = self.state() or State()
            if state.files and state.definitions != definitions_digest():
                raise CacheError(f"{self} was made by another version of torch-diode; run `diode sync`")
            with contextlib.ExitStack() as undo:
                try:
                    paths = {kind: _open(self.path, file, undo) for kind, file in state.files.items()}
                except FileNotFoundError as error:
                    if self.state() == state:
                        raise DamagedCacheError(f"{error.filename} is missing") from None
                    continue  # a sync has replaced it meanwhile
                undo.enter_context(marked_if_damaged(partial(self.mark_damaged, state.generation)))
                return Reading(state, paths), partial(undo.pop_all().close)
        raise CacheError(f"{self} changes faster than it can be opened; try again")

    def damage(self, state: State) -> str | None:
        """Return what is wrong with the files of ``state``, as far as can be seen without reading them whole."""
        with contextlib.ExitStack() as undo:
            try:
                for file in state.files.values():
                    _open(self.path, file, undo)
            except DamagedCacheError as error:
                return error.reason
            except FileNotFoundError as error:
                return f"{error.filename} is missing"
            except OSError as error:
                return f"{error.filename}: {error.strerror}"
        reason = self._reason_file(state.generation)
        return reason.read_text(encoding="utf-8") if reason.exists() else None

    def mark_damaged(self, generation: int, reason: str) -> None:
        """Tell the next sync that a reader found a state damaged inside; a folder that cannot be written stays."""
        leave_note(self._reason_file(generation), reason)

    def _reason_file(self, generation: int) -> Path:
        return self.path / f"{generation}.damaged"

    def publish(self, state: State) -> None:
        """Make ``state`` the current one, and delete files that it does not name; the caller must hold the lock."""
        inside = asdict(state)
        content = json.dumps({"format": FORMAT, "digest": _digest(inside), "state": inside}, indent=1)
        write_durably({self.path / _STATE: content.encode()})
        self.sweep(state)

    def seal(self, path: Path, kind: str) -> File:
        """Give a finished DuckDB file a new name, and return what a reader checks; it is on disk."""
        with path.open("rb") as file:
            os.fsync(file.fileno())
            found = File(f"{kind}-{secrets.token_hex(6)}.duckdb", path.stat().st_size, _head(file.fileno()))
        path.rename(self.path / found.name)
        return found

    def sweep(self, state: State | None) -> None:
        """Delete all files of syncs that ``state`` does not name; needs the lock."""
        named = {file.name for file in state.files.values()} if state else set()
        for entry, found in entries_of(self.path):
            is_ours = entry.name.endswith(_OURS) and not entry.name.startswith(CATALOG)
            if is_ours and entry.name not in named and not stat.S_ISDIR(found.st_mode):
                with contextlib.suppress(OSError):
                    (self.path / entry.name).unlink()

    @contextlib.contextmanager
    def lock(self, timeout_s: float = _LOCK_TIMEOUT_S) -> Iterator[None]:
        """Lock out every other sync, in this process or another; create the folder.

        Raises:
            CacheError: another sync did not end within ``timeout_s``.
            UnwritableCacheError: the folder is not writable.
        """
        remedy = "set DIODE_CACHE to a folder of your own, or read it as it is with --no-sync"
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE_FILE)
        except OSError as error:
            raise UnwritableCacheError(f"{self} cannot be written ({error.strerror}); {remedy}") from error
        try:
            self._wait_for(descriptor, timeout_s)
        except OSError as error:
            os.close(descriptor)
            raise UnwritableCacheError(f"{self} cannot be locked: {error.strerror}; {remedy}") from error
        except BaseException:
            os.close(descriptor)
            raise
        try:
            yield
        finally:
            os.close(descriptor)

    def _wait_for(self, descriptor: int, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not try_lock(descriptor):
            if time.monotonic() > deadline:
                raise CacheError(
                    f"another sync of {self} has been running for over {timeout_s:g} s; "
                    "wait for it or end it, or read the cache as it is with --no-sync"
                )
            time.sleep(_LOCK_POLL_S)


def is_full(error: Exception) -> bool:
    """Return whether DuckDB failed because it could not write."""
    return _FULL.search(str(error)) is not None


def _open(folder: Path, file: File, undo: contextlib.ExitStack) -> str:
    """Open a DuckDB file, check it, and return a path that stays valid until ``undo``."""
    place = folder / file.name
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    undo.callback(os.close, descriptor)
    size = os.fstat(descriptor).st_size
    if size != file.bytes:
        raise DamagedCacheError(f"{place} has {size:,} bytes and not {file.bytes:,}")
    if _head(descriptor) != file.head:
        raise DamagedCacheError(f"{place} is damaged at its beginning")
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def _head(descriptor: int) -> str:
    return hashlib.blake2b(os.pread(descriptor, _HEAD_BYTES, 0), digest_size=16).hexdigest()


def _digest(content: Any) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def cache_path(url: str, override: Path | str | None = None) -> Path:
    """Return the folder of a database's cache.

    Args:
        url: the database: a URL, or the path of an SQLite file.
        override: the user's choice of another folder.

    Raises:
        CacheError: ``override`` is a URL, or in the home of an unknown user.
    """
    if override is not None:
        if is_url(str(override)):
            raise CacheError(f"{redact(str(override))}: the cache is a folder on this machine; name one")
        return expanded(override, CacheError)
    file = sqlite_path(url)
    if file is not None:
        return file.with_suffix(".cache")
    from diode_store.system.settings import data_dir

    address = whole_address(url) if is_published(url) else redact(url)
    digest = hashlib.blake2b(address.encode(), digest_size=8).hexdigest()
    return data_dir() / f"{digest}.cache"


def cache_of(url: str, override: Path | str | None = None) -> Cache:
    """Return a database's cache: the one in ``override``, else in ``DIODE_CACHE``, else beside the database.

    Args:
        url: the database: a URL, or the path of an SQLite file.
        override: a folder.
    """
    from diode_store.system.settings import Settings

    # The variable is for the cache of the warehouse; a published table is read beside it.
    named = None if is_published(url) else Settings.from_environment().cache_dir
    return Cache(cache_path(url, override or named))
