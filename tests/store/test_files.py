from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from diode_store.system.files import is_another, try_lock, whole_file, write_at, write_durably

if TYPE_CHECKING:
    from pathlib import Path


def disk_fails(_fd: int) -> None:
    """Fail as a broken disk does."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def fail_half_way(path: Path) -> None:
    """Write a part and fail."""
    path.write_bytes(b"half")
    raise ZeroDivisionError


def contents(folder: Path) -> dict[str, bytes]:
    """Return name → content of every file in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_write_durably_replaces_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are replaced at once, and a failure leaves the old ones and no debris."""
    one, two = tmp_path / "one", tmp_path / "two"
    write_durably({one: b"old", two: b"older"})
    monkeypatch.setattr(os, "fsync", disk_fails)
    with pytest.raises(OSError, match="Input/output error"):
        write_durably({one: b"new", two: b"newer"})
    monkeypatch.undo()
    assert contents(tmp_path) == {"one": b"old", "two": b"older"}
    write_durably({one: b"new", two: b"newer"})
    assert contents(tmp_path) == {"one": b"new", "two": b"newer"}


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_write_durably_sets_the_mode(tmp_path: Path, mode: int) -> None:
    """Whatever the process's umask is."""
    before = os.umask(0o077)
    try:
        write_durably({tmp_path / "file": b""}, mode=mode)
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_a_whole_file_appears_at_the_end(tmp_path: Path) -> None:
    """Until then the old one is there; after an error it still is, and nothing else."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), whole_file(path) as beside:
        fail_half_way(beside)
    assert contents(tmp_path) == {"file": b"old"}
    with whole_file(path) as beside:
        beside.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert contents(tmp_path) == {"file": b"new"}


def test_write_at_goes_on_where_the_kernel_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel may take less than it is given."""
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, bytes(data)[:2], offset))
    with (tmp_path / "file").open("wb") as file:
        write_at(file.fileno(), 1, b"abcde")
    assert (tmp_path / "file").read_bytes() == b"\0abcde"


def test_a_lock_has_one_owner(tmp_path: Path) -> None:
    """Of two descriptors one gets it; shared locks go together."""
    (tmp_path / "file").touch()
    with (tmp_path / "file").open() as one, (tmp_path / "file").open() as two:
        assert [try_lock(one.fileno()), try_lock(two.fileno())] == [True, False]
    with (tmp_path / "file").open() as one, (tmp_path / "file").open() as two:
        assert [try_lock(file.fileno(), shared=True) for file in (one, two)] == [True, True]


@pytest.mark.parametrize(
    ("content", "expected"), [(b"", False), (b"# kind 1", False), (b"# other", True), (b"# k", True)]
)
def test_a_file_of_another_kind(tmp_path: Path, content: bytes, expected: bool) -> None:  # noqa: FBT001
    """What does not begin as its replacement does is not to be replaced; an empty file, or none, may be."""
    path = tmp_path / "file"
    assert not is_another(path, b"# kind")
    path.write_bytes(content)
    assert is_another(path, b"# kind") == expected
