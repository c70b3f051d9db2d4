"""What is measured already, from spools, files and warehouses."""

from __future__ import annotations

import gzip
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from spool_samples import ENVIRONMENT, HARDWARE, header_bytes, put, sample, segment_bytes, segment_of, uid_of

import samples
from diode_collectors.already import DoneKey, measured_in_files, measured_in_spool, measured_in_warehouse
from diode_collectors.segment import read_segment
from diode_collectors.spool import Spool, SpoolWriter
from diode_store.codec import encode
from diode_store.errors import ImportFileError, SchemaError, SpoolError
from diode_store.exchange import jsonl
from diode_store.exchange.context import ImportContext
from diode_store.exchange.torch_diode import dataset_of
from diode_store.exchange.torch_diode_files import write_file
from diode_store.records import Environment, Hardware, Source

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from diode_store.records import Measurement
    from diode_store.store import Store

CONTEXT = ImportContext(hardware=HARDWARE, environment=ENVIRONMENT, search_space="SAMPLE:72")
NOT_COUNTED: dict[str, dict[str, Any]] = {
    "feedback": {"source": Source.FEEDBACK},
    "profile": {"source": Source.PROFILE},
    "replay": {"is_replay": True},
    "hook": {"choice_policy": "hook:abc"},
    "superseded": {"superseded_by": bytes(16)},
    "flagged": {"flags": ("throttled",)},
}


def swept(number: int, space: str | None = "SAMPLE:72", seed: int | None = 3, **overrides: Any) -> Measurement:
    """Return a measurement of a sweep; ``number`` makes its problem."""
    return replace(sample(number), search_space=space, sample_seed=seed, **overrides)


def key_of(measurement: Measurement) -> DoneKey:
    """Return its key, worked out by hand."""
    m = measurement
    return DoneKey(m.problem.key, m.hardware.key, m.environment.key, m.search_space or "", m.sample_seed)


def put_all(directory: Path, measurements: Iterable[Measurement], name: str = "a.seg") -> Path:
    """Put a segment of ``measurements`` into the spool."""
    return put(directory, name, segment_of((m.uid, encode(m)) for m in measurements))


def write_jsonl(path: Path, measurements: Iterable[Measurement]) -> Path:
    """Write our own export."""
    with path.open("wb") as stream:
        jsonl.write(stream, measurements)
    return path


def test_keys_tell_measurements_apart() -> None:
    """Problem, hardware, environment, search space and, of a sample, the seed make another key; nothing else does."""
    base = swept(1)
    h100 = Hardware("nvidia", "NVIDIA H100", "sm_90", 114)
    others = [
        swept(2),
        replace(base, hardware=h100),
        replace(base, environment=Environment(torch="2.13.0")),
        replace(base, search_space="SAMPLE:73"),
        replace(base, sample_seed=4),
    ]
    keys = [DoneKey.of(m.problem, m.hardware, m.environment, m.search_space, m.sample_seed) for m in (base, *others)]
    assert len(set(keys)) == 6
    assert keys[0] == key_of(base) == key_of(replace(base, uid=uid_of(9), host="other", timings=base.timings[:1]))


@pytest.mark.parametrize("space", ["DEFAULT", "EXHAUSTIVE", None])
def test_a_seed_matters_to_samples_only(spool: Path, space: str | None) -> None:
    """What lists every config is the same whatever seed was given."""
    put_all(spool, [swept(1, space, seed=3)])
    base = sample(1)
    assert measured_in_spool(spool) == {DoneKey(base.problem.key, HARDWARE.key, ENVIRONMENT.key, space or "", None)}


def test_every_segment_of_a_spool_counts(spool: Path) -> None:
    """Sealed ones, one a writer is at work on, and one whose writer was killed in the middle of a frame."""
    measurements = [swept(number) for number in range(1, 8)]
    put_all(spool, measurements[:2])
    (spool / "killed.open").write_bytes(segment_bytes([3, 4], sealed=False)[:-10])
    with SpoolWriter(spool) as writer:
        for measurement in measurements[4:]:
            writer.append(measurement)
        writer.sync()
        assert len(Spool(spool).unsealed()) == 2
        expected = {*map(key_of, measurements[:2]), key_of(sample(3)), *map(key_of, measurements[4:])}
        assert measured_in_spool(spool) == expected
        writer.append(swept(8))  # the writer was not disturbed
    assert measured_in_spool(spool) == {*expected, key_of(swept(8))}


def test_a_segment_sealed_between_the_listings_is_not_missed(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has another name by then."""
    path = put(spool, "a.open", segment_bytes([1], sealed=False))
    listed = Spool.unsealed

    def list_then_seal(self: Spool) -> list[Path]:
        found = listed(self)
        path.rename(path.with_suffix(".seg"))
        (spool / "a.seg").write_bytes(segment_bytes([1]))
        return found

    monkeypatch.setattr(Spool, "unsealed", list_then_seal)
    assert measured_in_spool(spool) == {key_of(sample(1))}


def test_no_spool(tmp_path: Path) -> None:
    """A spool that is not there yet holds nothing, and is not made."""
    assert measured_in_spool(tmp_path / "none") == set()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("overrides", NOT_COUNTED.values(), ids=NOT_COUNTED)
def test_what_does_not_count(spool: Path, database_url: str, store: Store, overrides: dict[str, Any]) -> None:
    """What no sweep measured, or no view shows, is measured again, wherever it is."""
    measurements = [swept(1), replace(swept(2), **overrides)]
    put_all(spool, measurements)
    store.write(measurements)
    rows = write_jsonl(spool / "rows.jsonl", measurements)
    expected = {key_of(swept(1))}
    assert measured_in_spool(spool) == expected
    assert measured_in_warehouse(database_url) == expected
    assert measured_in_files([spool / "a.seg"], CONTEXT) == expected
    assert measured_in_files([rows], CONTEXT) == expected


def test_flagged_ones_count_if_asked(spool: Path, database_url: str, store: Store) -> None:
    """Whoever does not want to measure them again says so."""
    measurements = [swept(1), swept(2, flags=("foreign_process",))]
    put_all(spool, measurements)
    store.write(measurements)
    rows = write_jsonl(spool / "rows.jsonl", measurements)
    expected = set(map(key_of, measurements))
    assert measured_in_spool(spool, count_flagged=True) == expected
    assert measured_in_warehouse(database_url, count_flagged=True) == expected
    assert measured_in_files([spool / "a.seg", rows], CONTEXT, count_flagged=True) == expected


def test_damage_and_quarantine_are_measured_again(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be read is said once a segment, and what can be counts."""
    good = segment_of([(uid_of(1), encode(swept(1))), (uid_of(2), b"no record"), (uid_of(3), encode(swept(3)))])
    put(spool, "a.seg", good)
    put(spool, "b.seg", header_bytes(version=2) + b"later")
    (spool / "quarantine").mkdir()
    put_all(spool / "quarantine", [swept(4)])
    assert measured_in_spool(spool) == {key_of(swept(1)), key_of(swept(3))}
    newer = "spool format 2 is not 1, the one this torch-diode reads; upgrade torch-diode"
    assert [record.getMessage().removeprefix(f"{spool}/") for record in caplog.records] == [
        "a.seg: 1 record cannot be read; measured again",
        f"b.seg: {newer}; what it holds is measured again",
    ]


def test_a_spool_that_cannot_be_read(tmp_path: Path) -> None:
    """A file in the place of the folder is refused in one line."""
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(SpoolError, match=r"file: cannot list the spool: Not a directory; check the path"):
        measured_in_spool(path)


def test_our_own_export_is_taken_at_its_word(tmp_path: Path) -> None:
    """It says everything, so the context does not matter; compressed or not."""
    measurements = [swept(1), swept(2, "DEFAULT", None), swept(3, seed=5)]
    rows = write_jsonl(tmp_path / "rows.jsonl", measurements)
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(rows.read_bytes()))
    expected = set(map(key_of, measurements))
    assert measured_in_files([rows], ImportContext(), sample_seed=9) == expected
    assert measured_in_files([packed, rows], ImportContext(), sample_seed=9) == expected


def test_a_file_that_says_nothing_is_the_contexts(jsonl_path: Path) -> None:
    """Six problems of a plain benchmark file, as if the sweep that asks had measured them."""
    found = measured_in_files([jsonl_path], CONTEXT, sample_seed=3)
    assert len({key.problem for key in found}) == len(found) == 6
    assert {key[1:] for key in found} == {(HARDWARE.key, ENVIRONMENT.key, "SAMPLE:72", 3)}


def test_bad_files_are_refused(tmp_path: Path, jsonl_path: Path) -> None:
    """A file that is not there or has a bad line ends it, with the place."""
    with pytest.raises(SpoolError, match=r"none.seg: cannot read the segment: No such file; check the path"):
        measured_in_files([tmp_path / "none.seg"], CONTEXT)
    with pytest.raises(ImportFileError, match=r"none.jsonl: No such file or directory"):
        measured_in_files([tmp_path / "none.jsonl"], CONTEXT)
    jsonl_path.write_text(jsonl_path.read_text() + "{}\n")
    with pytest.raises(ImportFileError, match=r"jsonl:7: "):
        measured_in_files([jsonl_path], CONTEXT)


def test_a_warehouse(database_url: str, store: Store) -> None:
    """It holds what was ingested, of all hardware and environments or of one."""
    h100 = replace(swept(2), hardware=samples.H100_PCIE)
    later = replace(swept(3), environment=Environment(torch="2.13.0"))
    store.write([swept(1), swept(1, uid=uid_of(90)), h100, later])
    assert measured_in_warehouse(database_url) == {key_of(swept(1)), key_of(h100), key_of(later)}
    assert measured_in_warehouse(database_url, hardware=HARDWARE) == {key_of(swept(1)), key_of(later)}
    here = measured_in_warehouse(database_url, hardware=HARDWARE, environment=ENVIRONMENT)
    assert here == {key_of(swept(1))}


def test_no_warehouse(tmp_path: Path) -> None:
    """One that is not there, or of another revision, is refused with the command to run."""
    with pytest.raises(SchemaError, match="holds no warehouse yet; create it with `diode db upgrade --database"):
        measured_in_warehouse(str(tmp_path / "none.db"))


def test_an_older_warehouse(database_url: str, database_path: Path) -> None:
    """Likewise."""
    samples.sql(database_path, "UPDATE diode_schema_version SET version_num = '0000'")
    with pytest.raises(SchemaError):
        measured_in_warehouse(database_url)


def test_a_spool_of_many_frames_reads_each_once(spool: Path) -> None:
    """A segment read frame by frame gives what its records give."""
    path = put(spool, "a.seg", segment_bytes(range(1, 61)))
    assert len(list(read_segment(path))) == 60
    assert len(measured_in_spool(spool)) == 50  # the samples repeat after fifty problems


def test_upstreams_data_set(tmp_path: Path) -> None:
    """It says hardware and problems; the sweep that asks says the rest."""
    measurement = samples.measurement(1)
    dataset, _ = dataset_of([measurement])
    write_file(tmp_path / "data.msgpack", dataset)
    context = replace(CONTEXT, hardware=samples.H200)
    assert measured_in_files([tmp_path / "data.msgpack"], context, sample_seed=3) == {
        DoneKey(measurement.problem.key, samples.H200.key, ENVIRONMENT.key, "SAMPLE:72", 3)
    }
