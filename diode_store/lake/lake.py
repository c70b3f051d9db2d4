"""The lake: a folder of Parquet files with what was in the warehouse at the last sync.

``manifest.json`` says which files belong to it and is replaced as a whole, so that a reader sees one state or the
next. Files are never changed once they are named in a manifest. A file that a manifest stops naming is *retired*.
It is deleted by a later sync, ``RETIREMENT_S`` after that at the earliest, and in a local lake not before every reader
of a state that named it has ended (see ``diode_store.lake.readers``).

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
from diode_store.files import PRIVATE_FILE, try_lock
from diode_store.lake import readers as lake_readers
from diode_store.lake.folder import folder_at, local_path
from diode_store.urls import redact, sqlite_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FORMAT = 3
"""Version of the folder's layout; a lake of another one is rebuilt."""
RETIREMENT_S = 600.0
"""For how many seconds at least a file stays after the lake stopped naming it: the time that readers that cannot lock
(other programs, and all readers of a lake at a URL) have to use a manifest."""

TIMINGS_PER_SEGMENT = 1_000_000
"""How many timings a sync puts into one segment, at most."""

OURS = (".parquet", ".new")
"""Suffixes of the files that a sync makes."""

_MANIFEST = "manifest.json"
_LOCK_TIMEOUT_S = 600.0
_LOCK_POLL_S = 0.02


class DamagedLakeError(LakeError):
    """The lake's manifest cannot be used; the next sync makes it anew."""


@dataclass(frozen=True)
class Segment:
    """Some measurements with all their timings."""

    measurements: str
    """File name."""
    timings: str
    """File name."""
    measurement_count: int
    timing_count: int
    first_id: int
    """The lowest id of its measurements."""
    last_id: int
    """The highest one."""
    dropped: tuple[int, ...] = ()
    """Ids of the measurements in it that readers leave out."""


@dataclass(frozen=True)
class Manifest:
    """One state of the lake."""

    warehouse: str
    """The uuid of the database it was copied from."""
    revision: str
    """Schema revision of that database."""
    generation: int = 0
    """The number of this state; every state with other files has a higher one."""
    fingerprints: dict[str, str] = field(default_factory=dict)
    """Table → digest of its state in the database; equal digests mean there is nothing to copy."""
    blocks: dict[str, str] = field(default_factory=dict)
    """Range of measurements' ids → digest of those in the database; see ``diode_store.lake.source``."""
    segments: tuple[Segment, ...] = ()
    snapshots: dict[str, str] = field(default_factory=dict)
    """Table → file name."""
    sizes: dict[str, int] = field(default_factory=dict)
    """File name → size in bytes, of every file above."""
    retired: dict[str, tuple[float, int]] = field(default_factory=dict)
    """File name → when it was retired, in seconds since 1970, and the last generation that named it."""
    synced_at: float = 0.0
    """When the database was in this state, in seconds since 1970."""

    def files(self) -> set[str]:
        """Return the names of the files that make up this state."""
        return {*(name for s in self.segments for name in (s.measurements, s.timings)), *self.snapshots.values()}


class Lake:
    """A lake; it need not exist yet."""

    def __init__(self, location: Path | str) -> None:
        """Use the folder at a path, or at a URL that fsspec knows."""
        self.folder = folder_at(location)

    def __str__(self) -> str:
        """Return where it is, for messages."""
        return str(self.folder)

    @property
    def path(self) -> Path:
        """The folder of a local lake.

        Raises:
            LakeError: it is at a URL.
        """
        if self.folder.path is None:
            raise LakeError(f"{self} is no local folder; name one")
        return self.folder.path

    def manifest(self) -> Manifest | None:
        """Return the present state, or None if there is none.

        Raises:
            DamagedLakeError: the manifest is damaged or of another format.
            LakeError: it cannot be read.
        """
        place = self._manifest_place()
        try:
            content = json.loads(self.folder.read(_MANIFEST))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise LakeError(f"{place}: {error.strerror or first_line(error)}; check who owns it") from error
        except ValueError as error:
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
        """Return the present state, an empty one if there is none, and a function to call when it is no longer read.

        Until then none of its files is deleted.

        Raises:
            LakeError: it is damaged.
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
        """Publish ``after`` as the state that follows ``before``, retire what it no longer names, and return it."""
        now = time.time()
        gone = before.files() - after.files()
        there = self.folder.sizes()
        retired = {**before.retired, **dict.fromkeys(sorted(gone), (now, before.generation))}
        complete = replace(after, sizes={name: there[name] for name in sorted(after.files())}, retired=retired)
        self.publish(complete, instead_of=instead_of)
        return self.sweep(complete)

    def publish(self, manifest: Manifest, *, instead_of: int) -> None:
        """Make ``manifest`` the present state. Call it only while holding the lock.

        Args:
            manifest: the new state.
            instead_of: the generation it follows, 0 for none or a damaged one.

        Raises:
            LakeError: it cannot be written, or another machine has written meanwhile.
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
        """Return what is wrong with the files of ``manifest``, or None if all are there in their full size."""
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
        """Return a name that no file has or had, for a file of ``generation``."""
        return f"{generation:06d}-{secrets.token_hex(4)}-{table}.parquet"

    @contextlib.contextmanager
    def lock(self, timeout_s: float = _LOCK_TIMEOUT_S) -> Iterator[None]:
        """Lock out every other sync, in this process or another; create the folder.

        A lake at a URL is locked for this user on this machine only.

        Raises:
            LakeError: another sync did not end in ``timeout_s``, or the folder is not writable.
        """
        try:
            descriptor = os.open(self.folder.lock_file(), os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
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
        while not try_lock(descriptor):
            if time.monotonic() > deadline:
                raise LakeError(
                    f"another sync of {self} has been running for over {timeout_s:g} s; "
                    "wait for it or end it, or read the lake as it is with --no-sync"
                )
            time.sleep(_LOCK_POLL_S)

    def sweep(self, manifest: Manifest) -> Manifest:
        """Delete files that no reader can still use; return ``manifest``, the present state, without them.

        Needs the lock, and a published manifest: a sync that is killed must leave all that the lake still names.
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
        """Whether ``sweep`` is likely to have something to delete."""
        if any(time.time() - retired_at >= RETIREMENT_S for retired_at, _ in manifest.retired.values()):
            return True
        return self.folder.path is not None and bool(self._litter(manifest))

    def next_generation(self, manifest: Manifest | None) -> int:
        """Return the number of the next state; higher than any before, also where the manifest was lost."""
        known = [manifest.generation if manifest else 0]
        if manifest is None:
            known += [_generation_of(name) for name in self.folder.sizes() if name.endswith(OURS)]
            known += [] if self.folder.path is None else [lake_readers.newest_seen(self.folder.path)]
        return max(known) + 1

    def _manifest_place(self) -> str:
        return f"{self}/{_MANIFEST}"


def lake_path(url: str, override: Path | str | None = None) -> Path | str:
    """Return where a database's lake is: the path of a folder, or a URL.

    Args:
        url: the database: a URL, or the path of an SQLite file.
        override: a place that the user chose instead.
    """
    if override is not None:
        return local_path(override) or override
    file = sqlite_path(url)
    if file is not None:
        return file.with_suffix(".lake")
    from diode_store.settings import data_dir

    digest = hashlib.blake2b(redact(url).encode(), digest_size=8).hexdigest()
    return data_dir() / f"{digest}.lake"


def lake_of(url: str, override: Path | str | None = None) -> Lake:
    """Return a database's lake: the one that is named, else that of ``DIODE_LAKE``, else the one beside the database.

    Args:
        url: the database: a URL, or the path of an SQLite file.
        override: a folder or a URL.
    """
    from diode_store.settings import Settings

    return Lake(lake_path(url, override or Settings.from_environment().lake_dir))


def _generation_of(name: str) -> int:
    """Return the generation that a file was made for."""
    number = name.partition("-")[0]
    return int(number) if number.isdecimal() else 0


def _manifest(content: dict[str, Any]) -> Manifest:
    segments = tuple(Segment(**{**entry, "dropped": tuple(entry["dropped"])}) for entry in content.pop("segments"))
    retired = {name: (float(at), int(number)) for name, (at, number) in content.pop("retired").items()}
    content.pop("format")
    manifest = Manifest(segments=segments, retired=retired, **content)
    if not all(isinstance(name, str) for name in manifest.files()) or not isinstance(manifest.generation, int):
        raise TypeError
    return manifest
