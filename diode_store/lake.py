"""The lake: a folder of Parquet files that holds what the warehouse held at the last sync.

``manifest.json`` says which files belong to it and is replaced as a whole, so that a reader sees one state or the
next. Files are never changed once they are named in a manifest. A file that a manifest stops naming is *retired*:
it stays for ``RETIREMENT_S`` for readers that still hold the older manifest, and goes at a later sync.

Measurements and timings are in *segments*, pairs of files that only grow in number until small ones are merged.
A measurement that left the warehouse is *dropped* from its segment: the manifest lists its id, and every reader
leaves it out. Everything else is a *snapshot*, one file a table. ``diode_store.lake_sync`` fills the lake.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from diode_store.errors import LakeError
from diode_store.files import PRIVATE_FILE, try_lock, whole_file
from diode_store.urls import redact, sqlite_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FORMAT = 1
"""Version of the folder's layout; a lake of another one is rebuilt."""
RETIREMENT_S = 600.0
"""How long a reader may use a manifest it has read, in seconds."""

_LOCK_TIMEOUT_S = 600.0
_LOCK_POLL_S = 0.05


@dataclass(frozen=True)
class Segment:
    """Some measurements with all their timings."""

    measurements: str
    """File name."""
    timings: str
    """File name."""
    measurement_count: int
    timing_count: int
    dropped: tuple[int, ...] = ()
    """Ids of the measurements in it that readers leave out."""


@dataclass(frozen=True)
class Manifest:
    """One state of the lake."""

    warehouse: str
    """The uuid of the database it was copied from."""
    revision: str
    """Schema revision of that database."""
    fingerprints: dict[str, str] = field(default_factory=dict)
    """Table → digest of its state in the database; equal digests mean there is nothing to copy."""
    segments: tuple[Segment, ...] = ()
    snapshots: dict[str, str] = field(default_factory=dict)
    """Table → file name."""
    sizes: dict[str, int] = field(default_factory=dict)
    """File name → size in bytes, of every file above."""
    retired: dict[str, float] = field(default_factory=dict)
    """File name → when it was retired, in seconds since 1970."""
    synced_at: float = 0.0
    """When the database was in this state, in seconds since 1970."""
    next_number: int = 1
    """What the next file's name begins with."""

    def files(self) -> set[str]:
        """Return the names of the files that make up this state."""
        return {*(name for s in self.segments for name in (s.measurements, s.timings)), *self.snapshots.values()}


class Lake:
    """The folder of a lake; it need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def manifest(self) -> Manifest | None:
        """Return the present state, or None if there is none.

        Raises:
            LakeError: the manifest is damaged, of another format, or cannot be read.
        """
        path = self.path / "manifest.json"
        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LakeError(f"{path}: {error.strerror}; check who owns it") from error
        except ValueError as error:
            raise LakeError(f"{path} is damaged; run `diode sync --rebuild`") from error
        found = content.get("format") if isinstance(content, dict) else None
        if found != FORMAT:
            raise LakeError(
                f"{path} has format {found!r} and this torch-diode reads {FORMAT}; run `diode sync --rebuild`"
            )
        try:
            return _manifest(content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LakeError(f"{path} is damaged; run `diode sync --rebuild`") from error

    def publish(self, manifest: Manifest) -> None:
        """Make ``manifest`` the present state. Only whoever holds the lock may call it."""
        content = {"format": FORMAT, **asdict(manifest)}
        with whole_file(self.path / "manifest.json") as beside:
            beside.write_text(json.dumps(content, indent=1), encoding="utf-8")

    def damage(self, manifest: Manifest) -> str | None:
        """Return what is wrong with the files of ``manifest``, or None if all are there in their full size."""
        for name in sorted(manifest.files()):
            try:
                size = (self.path / name).stat().st_size
            except OSError:
                return f"{name} is missing"
            if size != manifest.sizes.get(name):
                return f"{name} has {size:,} bytes and not {manifest.sizes.get(name, 0):,}"
        return None

    @contextlib.contextmanager
    def lock(self, timeout_s: float = _LOCK_TIMEOUT_S) -> Iterator[None]:
        """Keep every other sync out, in this process or another; create the folder.

        Raises:
            LakeError: another sync did not end in ``timeout_s``, or the folder is not writable.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
        except OSError as error:
            raise LakeError(
                f"{self.path} cannot be written ({error.strerror}); set DIODE_LAKE to a folder of your own, "
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
                    f"another sync of {self.path} has been running for over {timeout_s:g} s; "
                    "wait for it or end it, or read the lake as it is with --no-sync"
                )
            time.sleep(_LOCK_POLL_S)

    def sweep(self, manifest: Manifest) -> Manifest:
        """Delete files that no reader can still use; return ``manifest`` without them. Needs the lock."""
        now = time.time()
        kept = {name: at for name, at in manifest.retired.items() if now - at < RETIREMENT_S}
        for name in manifest.retired.keys() - kept.keys():
            (self.path / name).unlink(missing_ok=True)
        named = manifest.files() | kept.keys()
        for path in self.path.iterdir():
            # Left by a sync that was killed; one that runs would hold the lock.
            is_ours = path.suffix in {".parquet", ".new"} and path.name not in named
            if is_ours and now - path.stat().st_mtime > RETIREMENT_S:
                path.unlink(missing_ok=True)
        return replace(manifest, retired=kept)

    def highest_number(self) -> int:
        """Return the highest number that a file's name begins with, 0 without any."""
        numbers = (path.name.partition("-")[0] for path in self.path.glob("*.parquet*"))
        return max((int(number) for number in numbers if number.isdecimal()), default=0)


def lake_path(url: str, override: Path | None = None) -> Path:
    """Return the folder of a database's lake.

    Args:
        url: the database: a URL, or the path of an SQLite file.
        override: a folder that the user chose instead.
    """
    if override is not None:
        return override
    file = sqlite_path(url)
    if file is not None:
        return file.with_suffix(".lake")
    from diode_store.settings import data_dir

    digest = hashlib.blake2b(redact(url).encode(), digest_size=8).hexdigest()
    return data_dir() / f"{digest}.lake"


def has_expired(manifest: Manifest) -> bool:
    """Whether a sync has retired files to delete."""
    return any(time.time() - at >= RETIREMENT_S for at in manifest.retired.values())


def _manifest(content: dict[str, Any]) -> Manifest:
    segments = tuple(Segment(**{**entry, "dropped": tuple(entry["dropped"])}) for entry in content.pop("segments"))
    content.pop("format")
    manifest = Manifest(segments=segments, **content)
    if not all(isinstance(name, str) for name in manifest.files()):
        raise TypeError
    return manifest
