"""File systems without ``flock``: what is spooled is safe, and commands say what to set."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING

import pytest
from run_ingest import ingest
from spool_reading import numbers_in
from spool_samples import sample, segment_bytes, stored

from diode_collectors.ingest.ingest import ingest_once
from diode_collectors.spool.spool import Spool, SpoolWriter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from diode_store.warehouse.store import Store

REFUSALS = [errno.ENOLCK, errno.EOPNOTSUPP]


@pytest.fixture(params=REFUSALS, ids=lambda number: errno.errorcode[number])
def no_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the kernel's call fail as on such a file system, which cannot be mounted here; return what it says."""
    number: int = request.param

    def refuse(fd: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    return os.strerror(number)


def test_a_writer_goes_on_without_locks(directory: Path, store: Store, no_locks: str) -> None:
    """Each sync is a sealed segment: nothing waits for a lock, and nobody takes one that is being written."""
    with SpoolWriter(directory) as writer:
        for number in (1, 2, 3):
            writer.append(sample(number))
            if number != 2:
                writer.sync()
                assert Spool(directory).unsealed() == []
        assert numbers_in(directory) == [1, 2, 3]
    assert [len(Spool(directory).sealed()), len(list(directory.iterdir()))] == [2, 2]
    ingest_once(directory, store)
    assert stored(store) == [1, 2, 3]


def test_a_segment_that_was_not_sealed_is_sealed_by_the_next_sync(
    directory: Path, no_locks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync is acknowledged when its records have a name that is read."""
    writer = SpoolWriter(directory)
    writer.append(sample(1))
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", _fail)
        with pytest.raises(Exception, match="cannot seal the segment: Input/output error"):
            writer.sync()
    assert Spool(directory).sealed() == []
    assert writer.pending_records == 1
    writer.sync()
    assert writer.pending_records == 0
    assert numbers_in(directory) == [1]
    writer.close()


def _fail(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_commands_say_where_to_put_the_spool(directory: Path, where: Sequence[object], no_locks: str) -> None:
    """One line each; a dry run reads what is sealed, and tells what it cannot lock."""
    (directory / "a.seg").write_bytes(segment_bytes([1]))
    (directory / "b.open").write_bytes(segment_bytes([2], sealed=False))
    why, remedy = f"this file system has no locks ({no_locks})", "set DIODE_SPOOL to a folder on a local disk"
    ended = ingest("--once", *where)
    assert (ended.code, ended.err) == (1, f"error: {directory}: cannot lock the spool: {why}; {remedy}\n")
    ended = ingest("status", *where[:2])
    assert (ended.code, ended.err) == (1, f"error: {directory}: cannot read the lock: {why}; {remedy}\n")
    ended = ingest("--dry-run", *where)
    assert ended.err == f"error: {directory}/b.open: cannot be read: {why}; {remedy}\n"
    assert ended.out.startswith("dry run: 1 new")
