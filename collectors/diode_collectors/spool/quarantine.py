"""Keep data that could not be ingested, with the reason beside it.

A whole frame becomes a segment of its own (``.seg``), damaged bytes become a ``.bin``, and each has a ``.reason.json``.
"""

from __future__ import annotations

import contextlib
import filecmp
import hashlib
import json
import os
import stat
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING

from diode_collectors.spool.files import (
    file_mode,
    is_shared,
    make_folder_inside,
    open_segment,
    read_beginning,
    spool_errors,
)
from diode_store.system.files import PRIVATE_FILE, sync_folder, write_durably
from diode_store.wire.segment_layout import Header, end_to_bytes, frame_to_bytes
from diode_store.wire.segments import SEALED_SUFFIX, Frame, Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

REASON_SUFFIX = ".reason.json"
_UNKNOWN = "unknown"
_UNFINISHED = ".tmp"
_LONGEST_NAME = 255 - len(REASON_SUFFIX) - len("~10000")
_KEPT_OF_NAME = 50
"""Characters of a name that are kept; each takes at most four bytes."""
_REASON_BYTES = 2**16
BY_WORTH = (Reason.BAD_RECORD, Reason.OTHER_CONTENT, Reason.NEWER_RECORD, Reason.NEWER_FORMAT)
"""Reasons for which the content may still be useful, to a newer torch-diode or to an operator; the most useful last."""
_READABLE = frozenset({_UNKNOWN, *(reason.value for reason in BY_WORTH)})


@dataclass(frozen=True)
class Kept:
    """A file in quarantine."""

    name: str
    bytes: int
    reason: str
    """Reason of the quarantine; ``unknown`` if it is missing or cannot be read."""
    message: str
    kept_since: datetime | None
    """Time of the quarantine, in UTC and without a zone; None if unknown."""


class Quarantine:
    """The quarantine's folder, made with its first file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def put_frame(self, segment: Path, frame: Frame, reason: Reason, message: str) -> Path:
        """Keep a frame of ``segment`` and return its file; a second call changes nothing.

        Raises:
            SpoolError: the file cannot be written.
        """
        whole = frame.error is None
        name = f"{segment.stem}@{frame.offset}{SEALED_SUFFIX if whole else '.bin'}"
        content = _one_frame_segment(frame) if whole else _bytes_of(segment, frame)
        with spool_errors(self.directory, "write the quarantine"):
            path = next(p for p in self._places(name) if not os.path.lexists(p) or _holds(p, content))
            self._put(
                {f"{path.name}{REASON_SUFFIX}": _reason_file(segment, reason, message, frame), path.name: content}
            )
        return path

    def put_segment(self, segment: Path, reason: Reason, message: str) -> Path:
        """Move a whole segment here; return its new place.

        Raises:
            SpoolError: the segment cannot be moved.
        """
        with spool_errors(self.directory / segment.name, "move a segment into quarantine"):
            places = self._places(segment.name)
            target = next(p for p in places if not os.path.lexists(p) or _is_same(p, segment))
            self._put({f"{target.name}{REASON_SUFFIX}": _reason_file(segment, reason, message)})
            _make_private(segment, self.directory)
            segment.rename(target)
            sync_folder(self.directory)
            sync_folder(segment.parent)
        return target

    def _places(self, name: str) -> Iterator[Path]:
        """Yield paths for a file called ``name``; an existing file, perhaps from another machine, is not replaced."""
        path = self.directory / _shortened(name)
        yield path
        yield from (path.with_name(f"{path.stem}~{number}{path.suffix}") for number in count(2))

    def _put(self, contents: Mapping[str, bytes]) -> None:
        make_folder_inside(self.directory)
        files = {self.directory / name: content for name, content in contents.items()}
        write_durably(files, mode=file_mode(self.directory))

    def files(self) -> list[Path]:
        """Return the files without the reasons, sorted by name.

        Raises:
            SpoolError: the folder cannot be read.
        """
        with spool_errors(self.directory, "list the quarantine"):
            try:
                found = sorted(self.directory.iterdir())
            except (FileNotFoundError, NotADirectoryError):
                return []
        return [path for path in found if not path.name.endswith((REASON_SUFFIX, _UNFINISHED))]

    def by_reason(self) -> dict[str, int]:
        """Return the number of files for each reason; ``unknown`` counts missing and unreadable reasons."""
        return dict(sorted(Counter(_reason_beside(path) for path in self.files()).items()))

    def kept(self) -> list[Kept]:
        """Return the files and their reasons, the newest first.

        Raises:
            SpoolError: the folder cannot be read.
        """
        found = []
        for path in self.files():
            left = _left_beside(path)
            with contextlib.suppress(OSError):  # put back or removed meanwhile
                message, since = str(left.get("message") or ""), _time(left.get("quarantined_at"))
                found.append(Kept(path.name, path.lstat().st_size, _reason_in(left), message, since))
        return sorted(found, key=lambda each: (each.kept_since or datetime.min, each.name), reverse=True)  # noqa: DTZ901 - only compared

    def trim(self, excess_bytes: int) -> tuple[int, int]:
        """Remove the oldest damaged bytes until ``excess_bytes`` are freed or only readable files are left.

        Names begin with the time of the segment, so sorted means oldest first.

        Returns:
            The numbers of removed files and of freed bytes.

        Raises:
            SpoolError: the folder cannot be read, or a file cannot be removed.
        """
        files = freed = 0
        failed: OSError | None = None
        for path in self.files():
            if freed >= excess_bytes:
                break
            if _reason_beside(path) in _READABLE:
                continue
            try:
                freed += _remove(path) + _remove(path.with_name(f"{path.name}{REASON_SUFFIX}"))
            except OSError as error:  # perhaps a folder; the next one may be removable
                failed = error
                continue
            files += 1
        if failed is not None and freed < excess_bytes:
            with spool_errors(self.directory, "remove damaged bytes from the quarantine"):
                raise failed
        return files, freed


def _make_private(path: Path, folder: Path) -> None:
    """Give a file the mode of the files in ``folder`` and, in a shared folder, their group.

    An operator may have put the file there with any umask. A mode that only another owner may change stays: the folder
    keeps all others out.
    """
    with contextlib.suppress(OSError):
        # By descriptor: between two looks, a name may become a link to a file outside the spool.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                os.fchmod(fd, PRIVATE_FILE)
                if is_shared(folder):
                    os.fchown(fd, -1, folder.stat().st_gid)
                    os.fchmod(fd, file_mode(folder))
        finally:
            os.close(fd)


def _remove(path: Path) -> int:
    size = path.lstat().st_size
    path.unlink()
    return size


def _shortened(name: str) -> str:
    """Return ``name``, with a digest in place of its middle if the reason's longer name would not fit."""
    if len(os.fsencode(name)) <= _LONGEST_NAME:
        return name
    stem, dot, suffix = name.rpartition(".")
    digest = hashlib.blake2b(os.fsencode(name), digest_size=8).hexdigest()
    return f"{stem[:_KEPT_OF_NAME]}-{digest}{dot}{suffix}"


def _holds(path: Path, content: bytes) -> bool:
    try:
        return read_beginning(path, len(content) + 1) == content
    except OSError:  # the entry of that name stays
        return False


def _is_same(path: Path, segment: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode) and filecmp.cmp(path, segment, shallow=False)
    except OSError:
        return False


def _one_frame_segment(frame: Frame) -> bytes:
    payload, uid = frame.payload or b"", frame.uid or b""
    header = Header(uid, 0, frame.compressed)
    return b"".join((header.to_bytes(), frame_to_bytes(uid, payload), end_to_bytes(1)))


def _bytes_of(segment: Path, frame: Frame) -> bytes:
    with spool_errors(segment, "read the damage"):
        fd = open_segment(segment, os.O_RDONLY)
        try:
            return os.pread(fd, frame.size, frame.offset)
        finally:
            os.close(fd)


def _reason_file(segment: Path, reason: Reason, message: str, frame: Frame | None = None) -> bytes:
    content = {
        "reason": reason.value,
        "message": message,
        "segment": segment.name,
        "offset": frame.offset if frame else None,
        "bytes": frame.size if frame else None,
        "uid": frame.uid.hex() if frame and frame.uid else None,
        "quarantined_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return (json.dumps(content, indent=2) + "\n").encode()


def _reason_beside(path: Path) -> str:
    return _reason_in(_left_beside(path))


def _reason_in(left: Mapping[str, object]) -> str:
    return str(left.get("reason") or _UNKNOWN)


def _time(value: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(value)).astimezone(UTC).replace(tzinfo=None)
    except ValueError:
        return None


def _left_beside(path: Path) -> dict[str, object]:
    """Return the contents of the reason beside a file; empty if it cannot be read."""
    try:
        found = json.loads(read_beginning(path.with_name(f"{path.name}{REASON_SUFFIX}"), _REASON_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
