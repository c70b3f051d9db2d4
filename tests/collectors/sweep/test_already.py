"""What is measured already, from spools and warehouses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from spool_samples import ENVIRONMENT, HARDWARE, header_bytes, put, sample, segment_bytes, segment_of, uid_of

import samples
from diode_collectors.spool.spool import Spool, SpoolWriter
from diode_collectors.sweep.already import DoneKey, measured_in_spool, measured_in_warehouse
from diode_store.errors import SchemaError, SpoolError
from diode_store.records import WRITE_FLUSH, Environment, Hardware, Source, TimingMethod
from diode_store.wire.codec import encode
from diode_store.wire.segments import read_segment

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from diode_store.records import Measurement
    from diode_store.warehouse.store import Store

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
    keys = m.problem.key, m.hardware.key, m.environment.key
    return DoneKey(*keys, m.search_space or "", m.sample_seed, m.timing_method.regime == WRITE_FLUSH, m.problem.op)


def put_all(directory: Path, measurements: Iterable[Measurement], name: str = "a.seg") -> Path:
    """Put a segment of ``measurements`` into the spool."""
    return put(directory, name, segment_of((m.uid, encode(m)) for m in measurements))


def test_keys_tell_measurements_apart() -> None:
    """Problem, hardware, environment, search space, of a sample the seed, and whether a flush wrote: no more does."""
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
    keys.append(keys[0]._replace(write_flush=True))
    assert len(set(keys)) == 7
    assert keys[0] == key_of(base) == key_of(replace(base, uid=uid_of(9), host="other", timings=base.timings[:1]))


@pytest.mark.parametrize("space", ["DEFAULT", "EXHAUSTIVE", None])
def test_a_seed_matters_to_samples_only(spool: Path, space: str | None) -> None:
    """What lists every config is the same whatever seed was given."""
    put_all(spool, [swept(1, space, seed=3)])
    base = sample(1)
    keys = base.problem.key, HARDWARE.key, ENVIRONMENT.key
    assert measured_in_spool(spool) == {DoneKey(*keys, space or "", None, op=base.problem.op)}


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
    expected = {key_of(swept(1))}
    assert measured_in_spool(spool) == expected
    assert measured_in_warehouse(database_url) == expected


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
        f"b.seg: {newer}; its problems are measured again",
    ]


def test_a_spool_that_cannot_be_read(tmp_path: Path) -> None:
    """A file in the place of the folder is refused in one line."""
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(SpoolError, match=r"file: cannot list the spool: Not a directory; check the path"):
        measured_in_spool(path)


def test_a_warehouse(database_url: str, store: Store) -> None:
    """It holds what was ingested, of all hardware and environments."""
    h100 = replace(swept(2), hardware=samples.H100_PCIE)
    later = replace(swept(3), environment=Environment(torch="2.13.0"))
    old = replace(swept(1), uid=uid_of(91), timing_method=TimingMethod("median", flush_l2=True, regime=WRITE_FLUSH))
    store.write([swept(1), swept(1, uid=uid_of(90)), h100, later, old])
    assert measured_in_warehouse(database_url) == {key_of(m) for m in (swept(1), h100, later, old)}


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (TimingMethod(flush_l2=True, regime=WRITE_FLUSH), True),
        (TimingMethod(flush_l2=True), True),
        (TimingMethod(flush_l2=True, regime="graph"), False),
        (TimingMethod(flush_l2=False), False),
        (TimingMethod(), False),
    ],
)
def test_what_was_timed_behind_a_flush_that_writes(spool: Path, method: TimingMethod, *, expected: bool) -> None:
    """What says so, and what was flushed before records said how; a sweep by another regime measures that again."""
    put_all(spool, [replace(swept(1), timing_method=method)])
    assert {key.write_flush for key in measured_in_spool(spool)} == {expected}


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
