"""Measurements out of whatever a person names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from spool_samples import put, sample, segment_bytes, segment_of, uid_of

from diode_collectors.reading import measurements_in
from diode_collectors.spool import SpoolWriter
from diode_store.codec import encode
from diode_store.errors import ImportFileError, SpoolError
from diode_store.exchange import jsonl

if TYPE_CHECKING:
    from pathlib import Path


def test_a_spool(spool: Path) -> None:
    """Sealed segments first, then the one a writer is at work on."""
    put(spool, "z.seg", segment_bytes([1, 2]))
    with SpoolWriter(spool) as writer:
        writer.append(sample(3))
        writer.sync()
        assert list(measurements_in(spool)) == [sample(1), sample(2), sample(3)]


def test_a_segment(spool: Path) -> None:
    """One file by itself; an unsealed one without its torn end."""
    sealed = put(spool, "a.seg", segment_bytes([1, 2]))
    torn = put(spool, "b.open", segment_bytes([3, 4], sealed=False)[:-5])
    assert list(measurements_in(sealed)) == [sample(1), sample(2)]
    assert list(measurements_in(torn)) == [sample(3)]


def test_an_export(tmp_path: Path) -> None:
    """JSON Lines that we wrote come back as they were."""
    path = tmp_path / "rows.jsonl"
    with path.open("wb") as stream:
        jsonl.write(stream, [sample(1), sample(2)])
    assert list(measurements_in(path)) == [sample(1), sample(2)]


def test_damage_is_left_out(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The rest is read, and one line says how much was not."""
    path = put(spool, "a.seg", segment_of([(uid_of(1), encode(sample(1))), (uid_of(2), b"x"), (uid_of(3), b"y")]))
    assert list(measurements_in(path)) == [sample(1)]
    assert [record.getMessage() for record in caplog.records] == [f"{path}: left out 2 records that cannot be read"]


def test_nothing_to_read(tmp_path: Path) -> None:
    """A folder without segments and a file that is not there are refused in one line."""
    with pytest.raises(SpoolError, match="holds no segment; name a spool that was not ingested yet"):
        list(measurements_in(tmp_path))
    with pytest.raises(SpoolError, match=r"none.seg: cannot read the segment: No such file or directory"):
        list(measurements_in(tmp_path / "none.seg"))
    with pytest.raises(ImportFileError, match=r"none.jsonl: No such file or directory"):
        list(measurements_in(tmp_path / "none.jsonl"))
