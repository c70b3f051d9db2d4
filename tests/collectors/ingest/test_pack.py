"""``diode-ingest pack``: segments that ship, of exported files, spools and other segments."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
from run_ingest import ingest
from spool_reading import numbers_in, spooled
from spool_samples import frames_of, header_bytes, put, sample, segment_bytes, segment_of

import samples
from diode_collectors.ingest.pack import pack
from diode_collectors.spool.spool import Spool, SpoolWriter
from diode_store.devices.known import known_device
from diode_store.exchange.context import ImportContext
from diode_store.records import TimingMethod
from diode_store.wire import codec
from diode_store.wire.segment_layout import HEADER_BYTES, end_to_bytes, frame_to_bytes
from diode_store.wire.segments import read_segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_store.records import Measurement

H200 = ("--hardware", "NVIDIA H200")

MEASURED = replace(sample(1), host="node-7", device_uuid="GPU-1f2e", dataset="draft", licence="MIT", sweep_id="s1")
"""A sample of a sweep that says all it knows."""


def timed_problem(m: int, **fields: Any) -> Measurement:
    """Return a measurement of an mm with so many rows."""
    return replace(samples.measurement(m, problem=samples.matmul(m, 32, 64)), **fields)


def spool_of(directory: Path, *measurements: Measurement) -> Path:
    """Return a spool with a sealed segment, as a collector leaves it."""
    with SpoolWriter(directory) as writer:
        for measurement in measurements:
            writer.append(measurement)
    return directory


# Of exported files


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
    monkeypatch.setattr("diode_collectors.ingest.pack.pack.__kwdefaults__", {"segment_bytes": 4000})
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


def test_pack_with_no_time(jsonl_path: Path, tmp_path: Path) -> None:
    """A time that is none is bad usage."""
    ended = ingest("pack", *H200, "--measured-at", "yesterday", "-o", tmp_path / "o", jsonl_path)
    assert ended.code == 2
    assert "'yesterday' is not a time; write 2026-11-20 or" in " ".join(ended.err.split())


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
    assert ended.err.startswith("error: --hardware: unknown hardware 'Abacus'; describe it")
    assert "as an object in the row, or name one of: " in ended.err
    assert "--hardware-file" not in ended.err


def test_pack_tells_its_progress(jsonl_path: Path, tmp_path: Path) -> None:
    """Whoever shows a bar hears of every measurement."""
    done: list[float] = []
    report = pack(
        [jsonl_path], tmp_path, ImportContext(hardware=known_device("H200")), name="d", on_progress=done.append
    )
    assert sum(done) == report.measurements == 6


# Of spools and segments


def test_pack_a_spool(tmp_path: Path, database_path: Path) -> None:
    """The records of a spool are packed as they are, without an option, and ingest; the spool keeps them."""
    spool = spool_of(tmp_path / "sweep", MEASURED, sample(2, timings=3))
    ended = ingest("pack", "-o", tmp_path / "o", spool)
    assert ended == (0, f"{tmp_path}/o/sweep-0000.seg\n", "2 measurements, 5 timings, 2 of them failures\n")
    assert spooled(tmp_path / "o") == spooled(spool) == [MEASURED, sample(2, timings=3)]
    ended = ingest("--once", "--spool", tmp_path / "o", "--database", database_path)
    assert ended.out.startswith("2 new, 0 already stored; 5 new timings")


def test_pack_says_what_records_do_not(tmp_path: Path) -> None:
    """Lists of problems name the family, an option the regime; records that say them keep what they say."""
    names = tmp_path / "names.txt"
    names.write_text("mm:16x32x64/nn/bf16  # llama3-8b/qkv\nmm:17x32x64/nn/bf16  # drawn\n")
    told = TimingMethod("median", regime="graph")
    silent, saying = timed_problem(16), timed_problem(17, family="mine", timing_method=told)
    spool = spool_of(tmp_path / "sweep", silent, saying, timed_problem(18))
    ended = ingest("pack", "--families", names, "--regime", "write_flush", "-o", tmp_path / "o", spool)
    assert ended.code == 0
    assert ended.err.splitlines()[0] == "2 of 3 measurements name a family"
    packed = {m.problem.shape.m: (m.family, m.timing_method.regime, m.uid) for m in spooled(tmp_path / "o")}
    assert packed == {
        16: ("llama3-8b", "write_flush", silent.uid),
        17: ("mine", "graph", saying.uid),
        18: (None, "write_flush", timed_problem(18).uid),
    }


def test_pack_refuses_an_unknown_regime(tmp_path: Path) -> None:
    """A regime that is none, such as an option's value of `diode-collect`, would keep its measurements apart."""
    spool = spool_of(tmp_path / "sweep", MEASURED)
    ended = ingest("pack", "--regime", "write-flush", "-o", tmp_path / "o", spool)
    assert ended.code == 2
    assert (
        "Invalid value for --regime: unknown: 'write-flush'; name one of: graph, read_flush, write_flush" in ended.err
    )
    assert not (tmp_path / "o").exists()


def test_pack_refuses_a_list_that_is_none(tmp_path: Path) -> None:
    """A list of families that cannot be read is named before anything is packed."""
    spool = spool_of(tmp_path / "sweep", MEASURED)
    ended = ingest("pack", "--families", tmp_path / "absent.txt", "-o", tmp_path / "o", spool)
    message = f"error: --families {tmp_path}/absent.txt: cannot read the shape set: No such file or directory\n"
    assert ended == (1, "", message)
    assert not (tmp_path / "o").exists()


def test_pack_a_spool_that_is_written(tmp_path: Path) -> None:
    """What a writer has synced so far is packed with what is sealed, and the writer goes on."""
    spool = spool_of(tmp_path / "sweep", sample(1))
    with SpoolWriter(spool) as writer:
        writer.append(sample(2))
        writer.sync()
        assert ingest("pack", "-o", tmp_path / "o", spool).code == 0
        writer.append(sample(3))
    assert sorted(numbers_in(tmp_path / "o")) == [1, 2]
    assert sorted(numbers_in(spool)) == [1, 2, 3]


def test_pack_what_a_killed_writer_left(spool: Path, tmp_path: Path) -> None:
    """A torn last frame was never acknowledged: the rest is packed."""
    put(spool, "a.open", segment_bytes([1, 2], sealed=False)[:-7])
    assert ingest("pack", "-o", tmp_path / "o", spool).code == 0
    assert numbers_in(tmp_path / "o") == [1]


def test_pack_several_at_once(jsonl_path: Path, tmp_path: Path) -> None:
    """Spools, segments and exported files go together in the order given; what comes twice is packed once."""
    spool = spool_of(tmp_path / "sweep", sample(3), sample(1))
    one = put(tmp_path, "one.seg", segment_bytes([2, 3]))
    other = put(tmp_path, "other.open", segment_bytes([4], sealed=False))
    ended = ingest("pack", *H200, "--dataset", "all", "-o", tmp_path / "o", one, spool, other, jsonl_path)
    assert ended.out == f"{tmp_path}/o/all-0000.seg\n"
    uids = [measurement.uid for measurement in spooled(tmp_path / "o")]
    assert [int.from_bytes(uid) for uid in uids[:4]] == [2, 3, 1, 4]
    assert len(uids) == 10


def test_pack_its_own_segment(tmp_path: Path) -> None:
    """A segment that was packed gives the same bytes again, whatever spool it came from."""
    spool = spool_of(tmp_path / "sweep", MEASURED, sample(2))
    names = []
    for source, output in ((spool, "1"), (tmp_path / "1" / "d-0000.seg", "2"), (tmp_path / "2", "3")):
        assert ingest("pack", "--dataset", "d", "-o", tmp_path / output, source).code == 0
        names.append(tmp_path / output / "d-0000.seg")
    assert len({path.read_bytes() for path in names}) == 1


def test_pack_without_the_host(tmp_path: Path) -> None:
    """`--anonymous` leaves out host and GPU, and nothing else; of exported files too."""
    spool = spool_of(tmp_path / "sweep", MEASURED)
    assert ingest("pack", "--anonymous", "-o", tmp_path / "o", spool).code == 0
    assert spooled(tmp_path / "o") == [replace(MEASURED, host=None, device_uuid=None)]
    packed = (tmp_path / "o" / "sweep-0000.seg").read_bytes()
    assert packed.count(b"node-7") == 0
    record = next(read_segment(tmp_path / "o" / "sweep-0000.seg")).record_bytes()
    assert [name for name in (b"node-7", b"GPU-1f2e") if name in record] == []
    assert ingest("pack", "-o", tmp_path / "named", spool).code == 0
    assert spooled(tmp_path / "named") == [MEASURED]


def test_pack_for_a_data_set(tmp_path: Path) -> None:
    """`--dataset` and `--licence` replace what the records say, each by itself; no other option touches a record."""
    spool = spool_of(tmp_path / "sweep", MEASURED)
    assert ingest("pack", "--dataset", "d", "-o", tmp_path / "1", spool).code == 0
    assert spooled(tmp_path / "1") == [replace(MEASURED, dataset="d")]
    assert ingest("pack", "--licence", "Apache-2.0", "-o", tmp_path / "2", spool).code == 0
    assert spooled(tmp_path / "2") == [replace(MEASURED, licence="Apache-2.0")]
    told = ("--hardware", "NVIDIA H100 PCIe", "--measured-at", "2020-01-01", "--search-space", "DEFAULT")
    ended = ingest("pack", *told, "-o", tmp_path / "3", spool)
    assert (ended.code, spooled(tmp_path / "3")) == (0, [MEASURED])


def test_pack_refuses_a_damaged_frame(tmp_path: Path) -> None:
    """A frame whose bytes changed is named with its offset in one line, and nothing is written."""
    frame = frames_of([1])[0]
    content = header_bytes() + frame[:-1] + bytes([frame[-1] ^ 1]) + frames_of([2])[0] + end_to_bytes(2)
    bad = put(tmp_path, "bad.seg", content)
    ended = ingest("pack", "-o", tmp_path / "o", spool_of(tmp_path / "sweep", sample(3)), bad)
    reason = f"a record is damaged: offset {HEADER_BYTES}: the frame's CRC does not match its bytes"
    remedy = "leave the segment out, or ingest it, which keeps what is good, and export that"
    assert ended == (1, "", f"error: {bad}: {reason}; {remedy}\n")
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (segment_bytes([1, 2])[:-30], "the segment was sealed but is cut short"),
        (header_bytes(compress=False) + frame_to_bytes(bytes(16), b"?") + end_to_bytes(1), "a record must be a map"),
        (b"", "a record is damaged"),
    ],
    ids=["cut", "no record", "empty"],
)
def test_pack_refuses_what_is_no_segment(tmp_path: Path, content: bytes, message: str) -> None:
    """A cut, undecodable or empty segment is one line that names it and says what to do."""
    bad = put(tmp_path, "bad.seg", content)
    ended = ingest("pack", "-o", tmp_path / "o", bad)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"error: {bad}: ")
    assert message in ended.err
    assert "leave the segment out" in ended.err
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header_bytes(version=2), "spool format 2 is not 1, the one this torch-diode reads; upgrade torch-diode"),
        (
            segment_of([(bytes(16), msgpack.packb({"v": codec.WIRE_VERSION + 1}))]),
            "record version 3 is newer than 2, the newest this torch-diode reads; upgrade it",
        ),
    ],
    ids=["segment", "record"],
)
def test_pack_refuses_what_is_newer(tmp_path: Path, content: bytes, message: str) -> None:
    """Of a segment or record by a newer torch-diode the file is named, and the remedy is an upgrade alone."""
    newer = put(tmp_path, "newer.seg", content)
    ended = ingest("pack", "-o", tmp_path / "o", newer)
    assert ended.code == 1
    assert ended.err == f"error: {newer}: {message}\n"


def test_pack_a_folder_without_segments(spool: Path, tmp_path: Path) -> None:
    """A folder that holds none, or a segment that is not there, is an error of one line."""
    (spool / "rows.jsonl").touch()
    ended = ingest("pack", "-o", tmp_path / "o", spool)
    remedy = "name a spool that was not ingested yet, or exported files"
    assert ended == (1, "", f"error: {spool} holds no segment; {remedy}\n")
    ended = ingest("pack", "-o", tmp_path / "o", spool / "absent.seg")
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert f"{spool}/absent.seg: cannot read the segment: No such file or directory" in ended.err
    assert not (tmp_path / "o").exists()


def test_pack_names_segments_after_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever way a spool is named, its segments have a name."""
    spool = spool_of(tmp_path / ".hidden.spool", sample(1))
    monkeypatch.chdir(spool)
    assert ingest("pack", "-o", tmp_path / "o", ".").out == f"{tmp_path}/o/hidden-0000.seg\n"
    assert ingest("pack", "-o", tmp_path / "o", spool).out == f"{tmp_path}/o/hidden-0000.seg\n"
