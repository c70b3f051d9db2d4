"""The lake: a folder of Parquet files with the warehouse's content at the last sync.

``manifest.json`` names the lake's files and is replaced whole, so a reader sees one state or the next. Files named in a
manifest never change. A file that a manifest stops naming is *retired*. A later sync deletes it, at the earliest
``RETIREMENT_S`` afterwards. In a local lake the file also outlives every reader of a state that named it (see
``diode_store.lake.readers``).

Measurements and timings are in *segments*, pairs of files that only grow in number until small ones are merged.
A measurement that left the warehouse is *dropped* from its segment: the manifest lists its id, and every reader
leaves it out. Everything else is a *snapshot*, one file a table. ``diode_store.lake.sync`` fills the lake.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import time
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from diode_store.errors import LakeError, first_line
from diode_store.lake import readers as lake_readers
from diode_store.lake.folder import folder_at, local_path
from diode_store.system.files import PRIVATE_FILE, try_lock
from diode_store.system.urls import redact, sqlite_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FORMAT = 4
"""Version of the folder's layout; a sync rebuilds a lake of another version."""
RETIREMENT_S = 600.0
"""Minimum seconds between a file's retirement and its deletion. Readers that cannot lock (other programs, and all
readers of a lake at a URL) have this time to use a manifest.
"""

TIMINGS_PER_SEGMENT = 1_000_000
"""Maximum number of timings that a sync puts into one segment."""

OURS = (".parquet", ".new")
"""Suffixes of a sync's files."""

_MANIFEST = "manifest.json"
_LOCK_TIMEOUT_S = 600.0
_LOCK_POLL_S = 0.02


class DamagedLakeError(LakeError):
    """The lake's manifest cannot be used; the next sync rebuilds the lake."""


@dataclass(frozen=True)
class Segment:
    """Some measurements with all their timings."""

    measurements: str
    """Name of the file with the measurements."""
    timings: str
    """Name of the file with the timings."""
    measurement_count: int
    timing_count: int
    first_id: int
    """Lowest id of its measurements."""
    last_id: int
    """Highest id of its measurements."""
    dropped: tuple[int, ...] = ()
    """Ids of the measurements that readers leave out."""
    left_out: tuple[str, ...] = ()
    """A line for each row that was not copied because its column cannot hold a value."""

    @classmethod
    def of(cls, entry: dict[str, Any]) -> Segment:
        """Return the segment described by JSON."""
        lists = {name: tuple(entry.get(name, ())) for name in ("dropped", "left_out")}
        return cls(**{**entry, **lists})


@dataclass(frozen=True)
class Manifest:
    """One state of the lake."""

    warehouse: str
    """Uuid of the copied database."""
    revision: str
    """Schema revision of that database."""
    generation: int = 0
    """Number of this state; any change of files increases it."""
    fingerprints: dict[str, str] = field(default_factory=dict)
    """Digest of each table's state in the database; a table with an equal digest needs no copy."""
    blocks: dict[str, str] = field(default_factory=dict)
    """Digest of the database's measurements, by range of ids; see ``diode_store.lake.source``."""
    segments: tuple[Segment, ...] = ()
    snapshots: dict[str, str] = field(default_factory=dict)
    """File name of each table."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Size of every file above in bytes, by file name."""
    retired: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Time of retirement in seconds since 1970, and last generation that named the file, by file name."""
    synced_at: float = 0.0
    """Time of this state in the database, in seconds since 1970."""

    def files(self) -> set[str]:
        """Return the names of this state's files."""
        return {*(name for s in self.segments for name in (s.measurements, s.timings)), *self.snapshots.values()}


class Lake:
    """A lake, which need not exist yet."""

    def __init__(self, location: Path | str) -> None:
        """Use the folder at a path or URL that fsspec knows."""
        self.folder = folder_at(location)

    def __str__(self) -> str:
        """Return the lake's location, for messages."""
        return str(self.folder)

    @property
    def path(self) -> Path:
        """Folder of a local lake.

        Raises:
            LakeError: the lake is at a URL.
        """
        if self.folder.path is None:
            raise LakeError(f"{self} is no local folder; name one")
        return self.folder.path

    def manifest(self) -> Manifest | None:
        """Return the current state, or None if there is none.

        Raises:
            DamagedLakeError: the manifest is damaged or of another format.
            LakeError: the manifest cannot be read.
        """
        place = self._manifest_place()
        try:
            content = json.loads(self.folder.read(_MANIFEST))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise LakeError(f"{place}: {error.strerror or first_line(error)}; check who owns it") from error
        except (ValueError, RecursionError) as error:
            raise DamagedLakeError(f"{place} is damaged; run `diode sync --rebuild`") from error
        found = content.get("format") if isinstance(content, dict) else None
        if found != FORMAT:
            raise DamagedLakeError(
                f"{place} has format {found!r} and this torch-diode reads {FORMAT}; run `diode sync --rebuild`"
            )
        try:
            return _manifest(content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedLakeError(f"{place} is damaged; run `diode sync --rebuild`") from error

    def hold(self) -> tuple[Manifest, Callable[[], None]]:
        """Return the current state, empty if there is none, and a function to call when reading ends.

        Until that call no file of the state is deleted.

        Raises:
            LakeError: the lake is damaged.
        """
        while True:
            manifest = self.manifest() or Manifest("", "")
            lock = self._hold(manifest)
            if lock is None:
                return self._whole(manifest), lambda: None
            try:
                now = self.manifest()
                if now is not None and now.generation == manifest.generation:
                    return self._whole(manifest), partial(os.close, os.dup(lock))
            finally:
                os.close(lock)

    def _hold(self, manifest: Manifest) -> int | None:
        if self.folder.path is None or not manifest.generation:
            return None
        return lake_readers.hold(self.folder.path, manifest.generation)

    def _whole(self, manifest: Manifest) -> Manifest:
        damage = self.damage(manifest)
        if damage:
            raise LakeError(f"{self}: {damage}; run `diode sync`")
        return manifest

    def advance(self, before: Manifest, after: Manifest, *, instead_of: int) -> Manifest:
        """Publish ``after`` as the state after ``before``, retire the files that it no longer names, and return it."""
        now = time.time()
        gone = before.files() - after.files()
        there = self.folder.sizes()
        retired = {**before.retired, **dict.fromkeys(sorted(gone), (now, before.generation))}
        complete = replace(after, sizes={name: there[name] for name in sorted(after.files())}, retired=retired)
        self.publish(complete, instead_of=instead_of)
        return self.sweep(complete)

    def publish(self, manifest: Manifest, *, instead_of: int) -> None:
        """Make ``manifest`` the current state; the caller must hold the lock.

        Args:
            manifest: the new state.
            instead_of: generation of the previous state; 0 if there is none or it is damaged.

        Raises:
            LakeError: the manifest cannot be written, or another machine has written meanwhile.
        """
        try:
            present = self.manifest()
        except DamagedLakeError:
            present = None
        if present is not None and instead_of and present.generation != instead_of:
            raise LakeError(f"{self}: another machine synced it meanwhile; let one machine sync it, and run this again")
        content = {"format": FORMAT, **asdict(manifest)}
        try:
            with self.folder.writing(_MANIFEST) as beside:
                beside.write_text(json.dumps(content, indent=1), encoding="utf-8")
        except OSError as error:
            raise LakeError(f"{self._manifest_place()} cannot be written: {first_line(error)}") from error

    def damage(self, manifest: Manifest) -> str | None:
        """Return what is wrong with the files of ``manifest``; None if all exist in their full size."""
        if not manifest.files():
            return None
        sizes = self.folder.sizes()
        for name in sorted(manifest.files()):
            if name not in sizes:
                return f"{name} is missing"
            if sizes[name] != manifest.sizes.get(name):
                return f"{name} has {sizes[name]:,} bytes and not {manifest.sizes.get(name, 0):,}"
        return None

    def new_name(self, generation: int, table: str) -> str:
        """Return a file name for ``generation`` that was never used."""
        return f"{generation:06d}-{secrets.token_hex(4)}-{table}.parquet"

    @contextlib.contextmanager
    def lock(self, timeout_s: float = _LOCK_TIMEOUT_S) -> Iterator[None]:
        """Lock out every other sync, in this process or another; create the folder.

        A lake at a URL is locked for this user on this machine only.

        Raises:
            LakeError: another sync did not end within ``timeout_s``, or the folder is not writable.
        """
        try:
            descriptor = os.open(self.folder.lock_file(), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE_FILE)
        except OSError as error:
            raise LakeError(
                f"{self} cannot be written ({error.strerror}); set DIODE_LAKE to a folder of your own, "
                "or read it as it is with --no-sync"
            ) from error
        try:
            self._acquire(descriptor, timeout_s)
            yield
        finally:
            os.close(descriptor)

    def _acquire(self, descriptor: int, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self._is_locked(descriptor):
            if time.monotonic() > deadline:
                raise LakeError(
                    f"another sync of {self} has been running for over {timeout_s:g} s; "
                    "wait for it or end it, or read the lake as it is with --no-sync"
                )
            time.sleep(_LOCK_POLL_S)

    def _is_locked(self, descriptor: int) -> bool:
        try:
            return try_lock(descriptor)
        except OSError as error:
            raise LakeError(
                f"{self} cannot be locked: {error.strerror}; set DIODE_LAKE to a folder on a local disk, "
                "or read it as it is with --no-sync"
            ) from error

    def sweep(self, manifest: Manifest) -> Manifest:
        """Delete files that no reader can still use; return ``manifest``, the current state, without them.

        Needs the lock and a published manifest: a killed sync must leave every file that the lake still names.
        """
        held = [] if self.folder.path is None else lake_readers.held(self.folder.path, tidy=True)
        free = {name for name in manifest.retired if self._is_free(manifest, name, held)}
        litter = self._litter(manifest) if all(number >= manifest.generation for number in held) else set()
        for name in free | litter:
            self.folder.remove(name)
        if not free:
            return manifest
        swept = replace(manifest, retired={name: w for name, w in manifest.retired.items() if name not in free})
        self.publish(swept, instead_of=manifest.generation)
        return swept

    def _is_free(self, manifest: Manifest, name: str, held: list[int]) -> bool:
        retired_at, last = manifest.retired[name]
        first = _generation_of(name)
        return time.time() - retired_at >= RETIREMENT_S and not any(first <= number <= last for number in held)

    def _litter(self, manifest: Manifest) -> set[str]:
        """Return files of killed syncs; a running sync has the lock."""
        named = manifest.files() | manifest.retired.keys()
        strange = [name for name in self.folder.sizes() if name.endswith(OURS) and name not in named]
        written = {name: self.folder.modified_at(name) for name in strange}
        return {name for name, at in written.items() if at is not None and time.time() - at >= RETIREMENT_S}

    def has_expired(self, manifest: Manifest) -> bool:
        """Return whether ``sweep`` is likely to delete something."""
        if any(time.time() - retired_at >= RETIREMENT_S for retired_at, _ in manifest.retired.values()):
            return True
        return self.folder.path is not None and bool(self._litter(manifest))

    def next_generation(self, manifest: Manifest | None) -> int:
        """Return the next generation; higher than any before, even after the loss of the manifest."""
        known = [manifest.generation if manifest else 0]
        if manifest is None:
            known += [_generation_of(name) for name in self.folder.sizes() if name.endswith(OURS)]
            known += [] if self.folder.path is None else [lake_readers.newest_seen(self.folder.path)]
        return max(known) + 1

    def _manifest_place(self) -> str:
        return f"{self}/{_MANIFEST}"


def lake_path(url: str, override: Path | str | None = None) -> Path | str:
    """Return the location of a database's lake: the path of a folder, or a URL.

    Args:
        url: the database: a URL, or the path of an SQLite file.
        override: the user's choice of another location.
    """
    if override is not None:
        return local_path(override) or override
    file = sqlite_path(url)
    if file is not None:
        return file.with_suffix(".lake")
    from diode_store.system.settings import data_dir

    digest = hashlib.blake2b(redact(url).encode(), digest_size=8).hexdigest()
    return data_dir() / f"{digest}.lake"


def lake_of(url: str, override: Path | str | None = None) -> Lake:
    """Return a database's lake: the one in ``override``, else in ``DIODE_LAKE``, else beside the database.

    Args:
        url: the database: a URL, or the path of an SQLite file.
        override: a folder or a URL.
    """
    from diode_store.system.settings import Settings

    return Lake(lake_path(url, override or Settings.from_environment().lake_dir))


def _generation_of(name: str) -> int:
    """Return the generation in a file's name."""
    number = name.partition("-")[0]
    return int(number) if number.isdecimal() else 0


def _manifest(content: dict[str, Any]) -> Manifest:
    segments = tuple(Segment.of(entry) for entry in content.pop("segments"))
    retired = {name: (float(at), int(number)) for name, (at, number) in content.pop("retired").items()}
    content.pop("format")
    manifest = Manifest(segments=segments, retired=retired, **content)
    if not all(isinstance(name, str) for name in manifest.files()) or not isinstance(manifest.generation, int):
        raise TypeError
    return manifest
