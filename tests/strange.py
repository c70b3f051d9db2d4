"""Entries that a folder may hold and nobody expects, for tests that throw them at each folder that is read."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

STRANGER = 40_004
_TIB = 2**40
_NAME_MAX = 255


def strange_entries(folder: Path, outside: Path, suffix: str) -> list[str]:
    """Put about forty kinds of strange entries into ``folder``, with names that end in ``suffix``; return the names.

    Some lead to files in ``outside``, a folder of this helper's own, or to devices.
    """
    victims = _victims(outside)
    made = []
    for kind, make in _kinds(folder, victims, suffix).items():
        path = folder / f"{kind}{suffix}"
        with contextlib.suppress(PermissionError):  # a user who is not root can make no device
            make(path)
            made.append(path.name)
    for name in _names(suffix):
        (folder / name).write_bytes(b"strange")
        made.append(name)
    return made


@contextlib.contextmanager
def deep_folder(path: Path) -> Iterator[None]:
    """Have folders in folders at ``path``, more than Python can call functions; removed with what pytest has not."""
    path.mkdir()
    at = os.open(path, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d", dir_fd=at)  # relative to a descriptor, as no path need be that long
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    yield
    subprocess.run(["rm", "-rf", path], check=True)  # noqa: S607


class Entry(NamedTuple):
    """An entry of a folder as it is: what a link says, and not what it leads to."""

    mode: int
    owner: int
    size: int
    changed_ns: int
    content: bytes


def everything_in(folder: Path) -> dict[str, Entry]:
    """Return what is in a folder and in those directly below, with the contents of small files."""
    found = {}
    for path in folder.iterdir():
        found[path.name] = _entry(path)
        if stat.S_ISDIR(found[path.name].mode):
            found.update({f"{path.name}/{below.name}": _entry(below) for below in path.iterdir()})
    return found


def _entry(path: Path) -> Entry:
    status = path.lstat()
    is_small = stat.S_ISREG(status.st_mode) and status.st_size < 2**20
    content = path.read_bytes() if is_small else b""
    return Entry(status.st_mode, status.st_uid, status.st_size, status.st_mtime_ns, content)


def _victims(outside: Path) -> Mapping[str, Path]:
    """Return somebody's files and folders, which nothing may change."""
    closed = outside / "closed"
    if not outside.exists():
        closed.mkdir(parents=True)
        for name in ("closed/file", "file", "linked"):
            (outside / name).write_bytes(b"somebody's")
        closed.chmod(0)
    return {"file": outside / "file", "linked": outside / "linked", "closed": closed}


def _kinds(folder: Path, victims: Mapping[str, Path], suffix: str) -> Mapping[str, Callable[[Path], object]]:
    links: dict[str, Callable[[Path], str]] = {
        "loop": lambda path: path.name,
        "loop-of-two": lambda path: f"{path.name}.back",
        "dangling": lambda _: "nowhere",
        "long-target": lambda _: "x" * 300,
        "longest-target": lambda _: "a/" * 2000,
        "into-a-closed-folder": lambda _: str(victims["closed"] / "file"),
        "to-a-closed-folder": lambda _: str(victims["closed"]),
        "through-a-file": lambda _: str(victims["file"] / "below"),
        "to-a-file-outside": lambda _: str(victims["file"]),
        "to-zeros": lambda _: "/dev/zero",
        "to-a-full-device": lambda _: "/dev/full",
        "to-the-kernel's-log": lambda _: "/proc/kmsg",
        "to-this-process's-memory": lambda _: "/proc/self/mem",
        "to-a-pipe": lambda path: f"{path.name}.pipe",
        "to-the-folder": lambda _: ".",
        "to-its-parent": lambda _: "..",
        "to-the-root": lambda _: "/",
    }
    made: dict[str, Callable[[Path], object]] = {
        kind: lambda path, target=target: path.symlink_to(target(path))  # type: ignore[misc]
        for kind, target in links.items()
    }
    (folder / f"loop-of-two{suffix}.back").symlink_to(f"loop-of-two{suffix}")
    os.mkfifo(folder / f"to-a-pipe{suffix}.pipe")
    return {
        **made,
        "pipe": os.mkfifo,
        "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
        "null-device": lambda path: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3)),
        "zero-device": lambda path: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5)),
        "block-device": lambda path: os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(7, 250)),
        "folder": lambda path: path.mkdir(),
        "full-folder": _full_folder,
        "closed-folder": lambda path: path.mkdir(mode=0),
        "empty": lambda path: path.touch(),
        "one-byte": lambda path: path.write_bytes(b"\0"),
        "sparse": _sparse,
        "closed": _closed,
        "another-user's": _another_users,
        "hard-link": lambda path: path.hardlink_to(victims["linked"]),
    }


def _names(suffix: str) -> list[str]:
    longest = _NAME_MAX - len(suffix)
    return [
        f"{'n' * longest}{suffix}",
        f"{'ü' * (longest // 2)}{suffix}",
        f"not\udcfftext{suffix}",
        f"two\nlines{suffix}",
        f"\x1b[31mred\x1b[2J{suffix}",
        f"-rf{suffix}",
        f"$(id) ' \" %s{suffix}",
        f" {suffix}",
        suffix,
    ]


def _full_folder(path: Path) -> None:
    path.mkdir()
    (path / "within").write_bytes(b"something")


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, _TIB)


def _closed(path: Path) -> None:
    path.write_bytes(b"closed")
    path.chmod(0)


def _another_users(path: Path) -> None:
    path.write_bytes(b"another's")
    os.chown(path, STRANGER, STRANGER)
