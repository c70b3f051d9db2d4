"""What a sweep left in a spool, and the sets that another one keeps apart from."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from spool_samples import header_bytes, put, sample, segment_bytes, segment_of, uid_of

from diode_collectors.spool.spool import Spool
from diode_collectors.sweep.sets import measured_since, shapes_in, spool_beside
from diode_store.errors import ExportError, ImportFileError
from diode_store.exchange import jsonl
from diode_store.wire.codec import encode

if TYPE_CHECKING:
    from collections.abc import Callable


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
    assert [
        record.getMessage().endswith("its records are missing from the statistics") for record in caplog.records
    ] == [True]


def shape_of(number: int) -> tuple[str, str, int, int, int, int]:
    """Return the shape of a sample's problem."""
    return ("mm", "bfloat16", 1, 16 * (number % 50 + 1), 32, 64)


def test_what_to_be_disjoint_from(spool: Path, tmp_path: Path) -> None:
    """A folder's files, segments and spools count, unsealed segments too; what is in quarantine does not."""
    put(spool, "a.seg", segment_bytes([1]))
    put(spool, "b.open", segment_bytes([2, 3], sealed=False)[:-5])
    assert shapes_in(spool) == {shape_of(1), shape_of(2)}
    assert shapes_in(spool / "b.open") == {shape_of(2)}
    (spool / "quarantine").mkdir()
    put(spool / "quarantine", "c.seg", b"?")
    with (tmp_path / "rows.jsonl").open("wb") as stream:
        jsonl.write(stream, [sample(4)])
    (tmp_path / "notes.md").touch()
    assert shapes_in(tmp_path) == {shape_of(1), shape_of(2), shape_of(4)}


def test_a_segment_sealed_meanwhile_is_not_missed(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has another name by the time it is read."""
    path = put(spool, "a.open", segment_bytes([1], sealed=False))
    listed = Spool.sealed

    def list_then_seal(self: Spool) -> list[Path]:
        found = listed(self)
        path.unlink()
        put(spool, "a.seg", segment_bytes([1]))
        return found

    monkeypatch.setattr(Spool, "sealed", list_then_seal)
    assert shapes_in(spool) == {shape_of(1)}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.seg", segment_of([(uid_of(1), encode(sample(1))), (uid_of(2), b"x")]), "a.seg: a record is damaged: "),
        ("a.seg", header_bytes(version=2), "a.seg: spool format 2 is not 1"),
        ("a.seg", segment_bytes([1])[:-30], "a.seg: a record is damaged: .* cut short"),
        ("a.json", b'{"hardware": {}}', "holds no problem to be disjoint from"),
        ("a.msgpack", b"\x81\xa8hardware\x80", "holds no problem to be disjoint from"),
        ("a.jsonl", b"", "holds no problem to be disjoint from"),
        ("a.jsonl", b"{}", "a.jsonl:1: "),
        ("notes.md", b"mm", "holds no problem to be disjoint from"),
    ],
)
def test_what_no_set_can_be_promised_disjoint_from(spool: Path, name: str, content: bytes, message: str) -> None:
    """A set that was not read as a whole may share any problem, and an empty one is a mistake."""
    path = put(spool, name, content)
    for named in (spool, *([path] if path.suffix != ".md" else [])):
        with pytest.raises(ImportFileError, match=f"^{spool}.*{message}"):
            shapes_in(named)


def make_folder(output: Path) -> None:
    """Put a folder in the place of the file."""
    output.mkdir()


def make_file_of_the_spool(output: Path) -> None:
    """Put a file in the place of the spool."""
    output.with_name("set.json.spool").touch()


@pytest.mark.parametrize(
    ("in_the_way", "message"),
    [
        (make_folder, "--output {output} is a folder; name a file in it, or another"),
        (
            make_file_of_the_spool,
            "--output {output}: {output}.spool cannot be written: Not a directory; check its perm",
        ),
    ],
)
def test_an_output_that_cannot_be_written(tmp_path: Path, in_the_way: Callable[[Path], None], message: str) -> None:
    """That is said before anything is measured, and of the option that names it."""
    output = tmp_path / "set.json"
    in_the_way(output)
    with pytest.raises(ExportError) as refused:
        spool_beside(output)
    assert str(refused.value).startswith(message.format(output=output))


def test_an_output_where_nothing_can_be_written() -> None:
    """A folder of the system is named; even its owner may not."""
    with pytest.raises(
        ExportError, match=r"^--output /proc/x.json: /proc cannot be written: .*; check its permissions"
    ):
        spool_beside(Path("/proc/x.json"))


def test_an_output_leaves_nothing_behind(tmp_path: Path) -> None:
    """It is only tried."""
    assert spool_beside(tmp_path / "set.json") == tmp_path / "set.json.spool"
    assert list(tmp_path.iterdir()) == []
