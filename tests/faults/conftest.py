"""Fixtures of the tests of faults."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING, Protocol

import pytest
from processes import ForkServer

import postgres_server
from ordinary import CANNOT
from postgres_server import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class SmallDisk:
    """A disk that is soon full."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / ".ballast"

    def fill(self) -> None:
        """Leave no byte free."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (65_536, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def empty(self) -> None:
        """Take away again what ``fill`` put there."""
        self._ballast.unlink()

    def grow(self, size_bytes: int) -> None:
        """Make it larger."""
        _mount("-o", f"remount,size={size_bytes}", str(self.path))


class MakeDisk(Protocol):
    """Mounts a small disk."""

    def __call__(self, size_bytes: int) -> SmallDisk:
        """Return it; it is empty."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Return a server that tests may kill or suspend; each leaves it running."""
    if reason := postgres_server.missing():
        pytest.skip(reason)
    with PostgresServer.in_temp_folder() as started:
        yield started


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[MakeDisk]:
    """Return a function that mounts a disk of so many bytes; skip the test where that is not allowed."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    mounted: list[Path] = []

    def make(size_bytes: int) -> SmallDisk:
        path = tmp_path / f"disk-{len(mounted)}"
        path.mkdir()
        _mount("-t", "tmpfs", "-o", f"size={size_bytes},mode=700", "diode-test", str(path))
        mounted.append(path)
        return SmallDisk(path)

    yield make
    for path in mounted:
        subprocess.run(["umount", "--lazy", path], check=True)  # noqa: S607 - wherever it is


def _mount(*arguments: str) -> None:
    command = ["mount", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this machine mounts no small disk: {done.stderr.strip()}")


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Return the path of a spool that does not exist yet."""
    return tmp_path / "spool"


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[ForkServer]:
    """Return what starts writers and daemons, and ends them with the test."""
    with ForkServer(tmp_path / "processes") as server:
        yield server


@pytest.fixture
def ordinary(tmp_path: Path) -> Iterator[ForkServer]:
    """Return what starts writers and daemons that file permissions hold for, also when root runs the tests."""
    if CANNOT:
        pytest.skip(CANNOT)
    with ForkServer(tmp_path / "processes", ordinary=True) as server:
        yield server
