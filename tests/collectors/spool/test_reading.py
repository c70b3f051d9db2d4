"""Measurements out of whatever a person names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from spool_samples import put, sample, segment_bytes, segment_of, uid_of

from diode_collectors.spool.reading import measurements_in, segments_of, strictly_decoded
from diode_collectors.spool.spool import Spool, SpoolWriter
from diode_store.errors import CodecError, ImportFileError, SpoolError
from diode_store.exchange import jsonl
from diode_store.exchange.context import ImportContext
from diode_store.exchange.foreign.torch_diode import dataset_of
from diode_store.exchange.foreign.torch_diode_files import write_file
from diode_store.wire.codec import encode
from diode_store.wire.segments import read_segment
from samples import H200, measurement

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


def test_a_record_under_anothers_uid(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What ingesting would put into quarantine is read by nothing else either, its head included."""
    path = put(spool, "a.seg", segment_of([(uid_of(1), encode(sample(1))), (uid_of(2), encode(sample(3)))]))
    assert list(measurements_in(path)) == [sample(1)]
    assert [record.getMessage() for record in caplog.records] == [f"{path}: left out 1 record that cannot be read"]
    bad = f"a record is damaged: the record's uid {uid_of(3).hex()} is not its frame's, {uid_of(2).hex()}"
    with pytest.raises(ImportFileError, match=bad):
        list(strictly_decoded(path, read_segment(path)))
    with pytest.raises(CodecError, match="is not its frame's"):
        list(read_segment(path))[1].head()


def test_nothing_to_read(tmp_path: Path) -> None:
    """A folder without segments and a file that is not there are refused in one line."""
    with pytest.raises(SpoolError, match="holds no segment; name a spool that was not ingested yet"):
        list(measurements_in(tmp_path))
    with pytest.raises(SpoolError, match=r"none.seg: cannot read the segment: No such file or directory"):
        list(measurements_in(tmp_path / "none.seg"))
    with pytest.raises(ImportFileError, match=r"none.jsonl: No such file or directory"):
        list(measurements_in(tmp_path / "none.jsonl"))


@pytest.mark.parametrize("name", ["data.json", "data.msgpack"])
def test_upstreams_data_set(tmp_path: Path, name: str) -> None:
    """A file of upstream's, JSON or msgpack, is told from JSON Lines; it holds Triton kernels only."""
    dataset, _ = dataset_of([measurement(1)])
    write_file(tmp_path / name, dataset)
    (found,) = measurements_in(tmp_path / name, ImportContext(hardware=H200))
    assert (found.hardware, found.problem.key) == (H200, measurement(1).problem.key)
    assert [(t.config.template, t.runtime_us) for t in found.timings] == [("triton::mm", 20.25), ("triton::mm", None)]


def test_json_lines_by_another_name(tmp_path: Path) -> None:
    """A `.json` that holds our lines is read as such."""
    path = tmp_path / "rows.json"
    with path.open("wb") as stream:
        jsonl.write(stream, [sample(1)])
    assert list(measurements_in(path)) == [sample(1)]


def test_a_segment_sealed_or_ingested_meanwhile(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sealed one is read under its new name, once; the one that is gone is left out."""
    sealed_later, gone = (put(spool, f"{n}.open", segment_bytes([n], sealed=False)) for n in (1, 2))
    put(spool, "3.seg", segment_bytes([3]))
    listed = Spool.sealed

    def list_then_change(self: Spool) -> list[Path]:
        found = listed(self)
        gone.unlink()
        sealed_later.unlink()
        put(spool, "1.seg", segment_bytes([1]))
        return found

    monkeypatch.setattr(Spool, "sealed", list_then_change)
    assert list(measurements_in(spool)) == [sample(3), sample(1)]


def test_a_segment_ingested_while_it_is_read(spool: Path) -> None:
    """A segment that was opened is read to its end; the one that is gone by its turn is left out."""
    put(spool, "a.seg", segment_bytes([1, 2]))
    put(spool, "b.seg", segment_bytes([3]))
    found = []
    for path, frames in segments_of(spool):
        for other in Spool(spool).sealed():
            other.unlink()
        found.append((path.name, len(list(frames))))
    assert found == [("a.seg", 2)]


def test_only_what_was_written_lately(spool: Path) -> None:
    """Older segments are passed over if asked."""
    for number in (1, 2):
        os.utime(put(spool, f"{number}.seg", segment_bytes([number])), (number, number))
    assert [path.name for path, _ in segments_of(spool, since=2)] == ["2.seg"]
    assert [path.name for path, _ in segments_of(spool)] == ["1.seg", "2.seg"]
