"""What a sweep left in a spool, and the sets that another one keeps apart from."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from spool_samples import header_bytes, put, sample, segment_of

from diode_collectors.spool import Spool
from diode_collectors.sweep_sets import measured_since
from diode_store.codec import encode

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def swept(directory: Path, name: str, *numbers: int, sweep_id: str = "ours") -> Path:
    """Put a segment of a sweep into a folder."""
    found = [replace(sample(number), sweep_id=sweep_id) for number in numbers]
    return put(directory, name, segment_of((m.uid, encode(m)) for m in found))


def test_what_a_sweep_left(spool: Path) -> None:
    """Records of other sweeps are left out, and segments from before it are not opened."""
    os.utime(swept(spool, "a.seg", 1), (9, 9))
    os.utime(put(spool, "a0.seg", header_bytes(version=2)), (9, 9))
    swept(spool, "b.seg", 2)
    swept(spool, "c.seg", 3, sweep_id="theirs")
    assert [m.uid for m in measured_since(spool, "ours", 10)] == [sample(2).uid]


def test_ingesting_just_then_is_no_failure(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments that are fetched between the listing and the reading are left out."""
    swept(spool, "a.seg", 1)
    gone = swept(spool, "b.seg", 2)
    listed = Spool.sealed

    def list_then_ingest(self: Spool) -> list[Path]:
        found = listed(self)
        gone.unlink()
        return found

    monkeypatch.setattr(Spool, "sealed", list_then_ingest)
    assert [m.uid for m in measured_since(spool, "ours", 0)] == [sample(1).uid]


def test_what_cannot_be_read_does_not_fail_a_sweep_that_is_done(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A segment by a newer version, say, is named in a warning."""
    swept(spool, "a.seg", 1)
    put(spool, "b.seg", header_bytes(version=2))
    assert [m.uid for m in measured_since(spool, "ours", 0)] == [sample(1).uid]
    assert [record.getMessage().endswith("the statistics lack what it holds") for record in caplog.records] == [True]
