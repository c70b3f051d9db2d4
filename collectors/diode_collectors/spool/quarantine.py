"""What could not be ingested, kept with the reason beside it.

A whole frame is a segment of its own (``.seg``), damaged bytes are a ``.bin``, and each has a ``.reason.json``.
"""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import stat
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING

from diode_collectors.spool.files import file_mode, is_shared, make_folder_inside, spool_errors
from diode_store.files import PRIVATE_FILE, sync_folder, write_durably
from diode_store.wire.segment_layout import Header, end_to_bytes, frame_to_bytes
from diode_store.wire.segments import SEALED_SUFFIX, Frame, Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

REASON_SUFFIX = ".reason.json"
_UNKNOWN = "unknown"
_UNFINISHED = ".tmp"
_READABLE = frozenset({_UNKNOWN, Reason.NEWER_FORMAT.value, Reason.NEWER_RECORD.value, Reason.BAD_RECORD.value})
"""Reasons for which the content may still be of use, to a newer torch-diode or to an operator."""


@dataclass(frozen=True)
class Kept:
    """A file that is kept."""

    name: str
    bytes: int
    reason: str
    """``unknown`` where that was not left or cannot be read."""
    message: str
    kept_since: datetime | None
    """In UTC and without a zone; None where it is not known."""


class Quarantine:
    """The folder; made with the first thing that goes there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def put_frame(self, segment: Path, frame: Frame, reason: Reason, message: str) -> Path:
        """Keep a frame of ``segment``; doing so twice changes nothing.

        Returns:
            The file.

        Raises:
            SpoolError: it cannot be written.
        """
        whole = frame.error is None
        name = f"{segment.stem}@{frame.offset}{SEALED_SUFFIX if whole else '.bin'}"
        content = _one_frame_segment(frame) if whole else _bytes_of(segment, frame)
        with spool_errors(self.directory, "write the quarantine"):
            path = next(p for p in self._places(name) if not p.exists() or p.read_bytes() == content)
            self._put(
                {f"{path.name}{REASON_SUFFIX}": _reason_file(segment, reason, message, frame), path.name: content}
            )
        return path

    def put_segment(self, segment: Path, reason: Reason, message: str) -> Path:
        """Move a whole segment here; return its new place.

        Raises:
            SpoolError: it cannot be moved.
        """
        with spool_errors(self.directory / segment.name, "move a segment into quarantine"):
            places = self._places(segment.name)
            target = next(p for p in places if not p.exists() or filecmp.cmp(p, segment, shallow=False))
            self._put({f"{target.name}{REASON_SUFFIX}": _reason_file(segment, reason, message)})
            _make_private(segment, self.directory)
            segment.rename(target)
            sync_folder(self.directory)
            sync_folder(segment.parent)
        return target

    def _places(self, name: str) -> Iterator[Path]:
        """Yield free paths for a file of ``name``: one of that name, from another machine say, is not replaced."""
        path = self.directory / name
        yield path
        yield from (path.with_name(f"{path.stem}~{number}{path.suffix}") for number in count(2))

    def _put(self, contents: Mapping[str, bytes]) -> None:
        make_folder_inside(self.directory)
        files = {self.directory / name: content for name, content in contents.items()}
        write_durably(files, mode=file_mode(self.directory))

    def files(self) -> list[Path]:
        """Return what is kept, without the reasons, sorted by name.

        Raises:
            SpoolError: the folder cannot be read.
        """
        if not self.directory.is_dir():
            return []
        with spool_errors(self.directory, "list the quarantine"):
            found = sorted(self.directory.iterdir())
        return [path for path in found if not path.name.endswith((REASON_SUFFIX, _UNFINISHED))]

    def by_reason(self) -> dict[str, int]:
        """Return how many files are kept for each reason; ``unknown`` where that was not left or cannot be read."""
        return dict(sorted(Counter(_reason_beside(path) for path in self.files()).items()))

    def kept(self) -> list[Kept]:
        """Return what is kept and why, the newest first.

        Raises:
            SpoolError: the folder cannot be read.
        """
        found = []
        for path in self.files():
            left = _left_beside(path)
            with contextlib.suppress(FileNotFoundError):  # put back or removed meanwhile
                message, since = str(left.get("message") or ""), _time(left.get("quarantined_at"))
                found.append(Kept(path.name, path.stat().st_size, _reason_in(left), message, since))
        return sorted(found, key=lambda each: (each.kept_since or datetime.min, each.name), reverse=True)  # noqa: DTZ901 - only compared

    def trim(self, excess_bytes: int) -> tuple[int, int]:
        """Remove the oldest damaged bytes until ``excess_bytes`` are freed or nothing but readable things is left.

        Names begin with the time of the segment, so sorted means oldest first.

        Returns:
            How many files were removed, and how many bytes that freed.

        Raises:
            SpoolError: one cannot be removed.
        """
        files = freed = 0
        for path in self.files():
            if freed >= excess_bytes:
                break
            if _reason_beside(path) in _READABLE:
                continue
            with spool_errors(path, "remove damaged bytes from the quarantine"):
                freed += _remove(path) + _remove(path.with_name(f"{path.name}{REASON_SUFFIX}"))
            files += 1
        return files, freed


def _make_private(path: Path, folder: Path) -> None:
    """Give a file the mode of those in ``folder`` and, where they are shared, their group.

    It may have been put in by hand, with whatever its owner's umask left. What only its owner may change stays: the
    folder keeps all others out.
    """
    with contextlib.suppress(OSError):
        # By descriptor: a name may become a link, to a file that is not the spool's, between any two looks at it.
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
    size = path.stat().st_size
    path.unlink()
    return size


def _one_frame_segment(frame: Frame) -> bytes:
    payload, uid = frame.payload or b"", frame.uid or b""
    header = Header(uid, 0, frame.compressed)
    return b"".join((header.to_bytes(), frame_to_bytes(uid, payload), end_to_bytes(1)))


def _bytes_of(segment: Path, frame: Frame) -> bytes:
    with spool_errors(segment, "read the damage"), segment.open("rb") as file:
        file.seek(frame.offset)
        return file.read(frame.size)


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
    """Return what was left of why a file is kept, nothing where that cannot be read."""
    try:
        found = json.loads(path.with_name(f"{path.name}{REASON_SUFFIX}").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
