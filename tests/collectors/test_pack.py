from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from run_ingest import ingest

from diode_collectors.pack import pack
from diode_collectors.segment import read_segment
from diode_collectors.spool import Spool
from diode_store import codec
from diode_store.devices import known_device
from diode_store.exchange.context import ImportContext

if TYPE_CHECKING:
    from collections.abc import Sequence

H200 = ("--hardware", "NVIDIA H200")


def test_pack_and_ingest(jsonl_path: Path, tmp_path: Path, where: Sequence[object], spool: Path) -> None:
    """Real rows become a segment that validates and ingests, with what the options said."""
    environment = tmp_path / "environment.json"
    environment.write_text('{"torch": "2.11.0+cu130", "triton": "3.6.0", "template_hashes": {"triton::mm": "d4"}}')
    ended = ingest(
        *("pack", *H200, "--environment", environment, "--measured-at", "2026-11-20T12:00:00+01:00"),
        *("--dataset", "excerpt", "--licence", "MIT", "--search-space", "SAMPLE", "-o", spool, jsonl_path),
    )
    assert (ended.code, ended.out) == (0, f"{spool}/excerpt-0000.seg\n")
    assert ended.err.startswith("6 measurements, ")
    (segment,) = Spool(spool).sealed()
    measurement = codec.decode(next(read_segment(segment)).record_bytes())
    assert (measurement.hardware.name, measurement.hardware.multiprocessors) == ("NVIDIA H200", 132)
    assert (measurement.environment.torch, measurement.environment.driver) == ("2.11.0+cu130", "unknown")
    assert measurement.environment.template_hashes == {"triton::mm": "d4"}
    assert (measurement.dataset, measurement.licence, measurement.search_space) == ("excerpt", "MIT", "SAMPLE")
    assert str(measurement.measured_at) == "2026-11-20 11:00:00+00:00"
    assert ingest("validate", spool).code == 0
    assert ingest("--once", *where).out.startswith("6 new, 0 already stored")


def test_pack_is_reproducible(jsonl_path: Path, tmp_path: Path) -> None:
    """The same rows, plain or compressed, twice or repeated, give the same bytes; a shared file mode."""
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(jsonl_path.read_bytes()))
    for number, files in enumerate([(jsonl_path,), (packed,), (jsonl_path, packed)]):
        ended = ingest("pack", *H200, "--dataset", "d", "-o", tmp_path / str(number), *files)
        assert ended.err.startswith("6 measurements, ")
    contents = {(tmp_path / str(number) / "d-0000.seg").read_bytes() for number in range(3)}
    assert len(contents) == 1
    assert (tmp_path / "0" / "d-0000.seg").stat().st_mode & 0o777 == 0o644


def test_pack_names_segments_after_the_file(jsonl_path: Path, tmp_path: Path) -> None:
    """Without a data set's name the first file's is used."""
    assert ingest("pack", *H200, "-o", tmp_path / "o", jsonl_path).out == f"{tmp_path}/o/h200_excerpt-0000.seg\n"


def test_pack_begins_new_segments(jsonl_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data larger than a segment goes into several, in order."""
    monkeypatch.setattr("diode_collectors.pack.pack.__kwdefaults__", {"segment_bytes": 4000})
    ended = ingest("pack", *H200, "-o", tmp_path / "o", jsonl_path)
    names = [Path(line).name for line in ended.out.splitlines()]
    assert len(names) > 1
    assert names == [f"h200_excerpt-{i:04d}.seg" for i in range(len(names))]
    frames = [frame for name in names for frame in read_segment(tmp_path / "o" / name)]
    assert len({frame.uid for frame in frames}) == len(frames) == 6
    assert [frame.error for frame in frames if frame.error] == []


def test_pack_refuses_a_bad_line(jsonl_path: Path, tmp_path: Path) -> None:
    """A bad line is named with its file, and nothing is written."""
    with jsonl_path.open("a") as file:
        file.write('{"op": "mm"}\n')
    ended = ingest("pack", *H200, "-o", tmp_path / "o", jsonl_path)
    assert ended.code == 1
    assert ended.err.startswith(f"error: {jsonl_path}:7: ")
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--hardware", "Abacus"),
            "unknown hardware 'Abacus'; describe it (vendor, name, arch, multiprocessors) as an object in the row",
        ),
        ((*H200, "--measured-at", "yesterday"), "'yesterday' is no time; write 2026-11-20 or"),
        ((*H200, "--environment", "/absent.json"), "/absent.json: No such file or directory; check the file's name"),
        ((), "the row names no hardware"),
    ],
)
def test_pack_with_bad_options(jsonl_path: Path, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    """Each is one line that names the remedy."""
    ended = ingest("pack", *arguments, "-o", tmp_path / "o", jsonl_path)
    assert ended.code == 1
    assert message in ended.err
    assert len(ended.err.splitlines()) == 1


def test_pack_without_its_file(tmp_path: Path) -> None:
    """A file that is not there, or no gzip, is named."""
    ended = ingest("pack", *H200, "-o", tmp_path / "o", tmp_path / "absent.jsonl")
    assert (ended.code, ended.err) == (
        1,
        f"error: {tmp_path}/absent.jsonl: No such file or directory; check the file's name\n",
    )
    (tmp_path / "plain.jsonl.gz").write_text("{}\n")
    assert (
        f"{tmp_path}/plain.jsonl.gz:1: " in ingest("pack", *H200, "-o", tmp_path / "o", tmp_path / "plain.jsonl.gz").err
    )


def test_pack_names_what_it_can_do_about_unknown_hardware(jsonl_path: Path, tmp_path: Path) -> None:
    """The remedy is one that this command has."""
    ended = ingest("pack", "--hardware", "Abacus", "-o", tmp_path / "o", jsonl_path)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("error: unknown hardware 'Abacus'; describe it")
    assert "as an object in the row, or name one of: " in ended.err
    assert "--hardware-file" not in ended.err


def test_pack_tells_its_progress(jsonl_path: Path, tmp_path: Path) -> None:
    """Whoever shows a bar hears of every measurement."""
    done: list[float] = []
    report = pack(
        [jsonl_path], tmp_path, ImportContext(hardware=known_device("H200")), name="d", on_progress=done.append
    )
    assert sum(done) == report.measurements == 6
