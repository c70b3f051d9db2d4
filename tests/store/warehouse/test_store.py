from __future__ import annotations

import multiprocessing
import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from any_database import allow_inserts, refuse_inserts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import samples
from diode_store.errors import DatabaseError, RecordError, SchemaError
from diode_store.records import Timing
from diode_store.warehouse.database import describe, integrity_problems
from diode_store.warehouse.store import Store, WriteReport
from diode_store.wire import codec
from record_strategies import MEASUREMENTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from diode_store.records import Measurement
    from samples import MakeMeasurement

WRITERS = 3
PER_WRITER = 20

EMPTY = {
    "hardware": 0,
    "environments": 0,
    "problems": 0,
    "configs": 0,
    "measurements": 0,
    "timings": 0,
    "failures": 0,
    "decisions": 0,
}


def write_shared(arguments: tuple[str, int]) -> WriteReport:
    """Write in a process of its own: measurements of one's own, with the problems and configs of everyone."""
    url, writer = arguments
    done = WriteReport(0, 0, 0)
    with Store.open(url) as store:
        for number in range(PER_WRITER):
            uid = (writer * 1000 + number).to_bytes(16, "big")
            report = store.write([samples.measurement(number, uid=uid), samples.measurement(number)])
            done = WriteReport(*(a + b for a, b in zip(vars(done).values(), vars(report).values(), strict=True)))
    return done


def test_write_counts_what_it_wrote(any_store: Store, make_measurement: MakeMeasurement) -> None:
    """A batch reports new measurements and their timings, and the warehouse holds each thing once."""
    assert any_store.counts() == EMPTY
    report = any_store.write([make_measurement(1), make_measurement(2, runtimes=(1.0, None))])
    assert report == WriteReport(measurements=2, duplicates=0, timings=5)
    assert any_store.counts() == {
        "hardware": 1,
        "environments": 1,
        "problems": 2,
        "configs": 3,
        "measurements": 2,
        "timings": 5,
        "failures": 2,
        "decisions": 0,
    }


def test_writing_twice_adds_nothing(any_store: Store, make_measurement: MakeMeasurement) -> None:
    """The same batch again, from this or a later process, is all duplicates."""
    batch = [make_measurement(number) for number in range(5)]
    any_store.write(batch)
    before = any_store.counts()
    assert any_store.write(batch) == WriteReport(measurements=0, duplicates=5, timings=0)
    with Store.open(str(any_store.engine.url)) as later:
        assert later.write(batch) == WriteReport(measurements=0, duplicates=5, timings=0)
    assert any_store.counts() == before


def test_duplicates_inside_a_batch(any_store: Store, make_measurement: MakeMeasurement) -> None:
    """A batch that brings a uid twice, or one that is there, writes the rest."""
    any_store.write([make_measurement(1)])
    batch = [make_measurement(1), make_measurement(2), make_measurement(2), make_measurement(3)]
    assert any_store.write(batch) == WriteReport(measurements=2, duplicates=2, timings=6)


@pytest.mark.quick(1)
def test_large_batch(any_store: Store, make_measurement: MakeMeasurement) -> None:
    """A batch with more rows than a statement has parameters is written whole."""
    batch = [make_measurement(number, runtimes=(1.0, 2.0)) for number in range(2500)]
    assert any_store.write(batch) == WriteReport(2500, 0, 5000)
    assert any_store.write(batch) == WriteReport(0, 2500, 0)
    assert any_store.counts()["problems"] == 2500


def test_empty_batch(any_store: Store) -> None:
    """Nothing to write is no error."""
    assert any_store.write([]) == WriteReport(0, 0, 0)
    assert any_store.known([]) == set()


def test_known_tells_what_is_there(any_store: Store, make_measurement: MakeMeasurement) -> None:
    """A replay can be skipped by its uid alone, however many are asked for."""
    any_store.write([make_measurement(number, runtimes=(1.0,)) for number in range(3)])
    asked = [number.to_bytes(16, "big") for number in range(1200)]
    assert any_store.known(asked) == set(asked[:3])


def test_failure_writes_nothing(any_store: Store, any_url: str, make_measurement: MakeMeasurement) -> None:
    """If the last timing of a batch cannot be written, no measurement of it is there; later batches are."""
    any_store.write([make_measurement(0)])
    refuse_inserts(any_url, "timings", "no room", "NEW.runtime_us = 666")
    batch = [make_measurement(1), make_measurement(2, runtimes=(1.0, 666.0))]
    with pytest.raises(DatabaseError, match=f"{re.escape(describe(any_store.engine))}: no room"):
        any_store.write(batch)
    assert (any_store.counts()["measurements"], any_store.counts()["timings"]) == (1, 3)
    assert any_store.write([make_measurement(1)]) == WriteReport(1, 0, 3)


@pytest.mark.parametrize(
    "overrides",
    [
        {"sample_seed": 2**63},
        {"host": "\ud800"},
        {"extra": {"when": object()}},
        {"timings": (Timing(samples.triton_config(2**64), 1.0),)},
        {"timings": (Timing(samples.triton_config(), 1.0, repeats=2**63),)},
        {"timings": (Timing(samples.triton_config(), 10**400, repeats=1, p10_us=1.0, p90_us=1.0),)},
        {"host": object()},
        {"measured_at": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))},
        {"hardware": replace(samples.measurement().hardware, extra={"when": object()})},
    ],
)
def test_values_no_database_can_hold(any_store: Store, overrides: dict[str, Any]) -> None:
    """A record that did not pass the codec and holds the impossible is a one-line error, and nothing is written."""
    with pytest.raises(RecordError, match="a value of the batch cannot be stored: ") as refused:
        any_store.write([samples.measurement(1), samples.measurement(2, **overrides)])
    assert "\n" not in str(refused.value)
    assert any_store.counts()["measurements"] == 0
    assert any_store.write([samples.measurement(1)]).measurements == 1


def test_an_attribute_no_database_can_hold(any_store: Store) -> None:
    """A value that only fills in a row which is there already is refused as one that is inserted."""
    any_store.write([samples.measurement(1)])
    hardware = replace(samples.measurement().hardware, extra={"when": object()})
    with pytest.raises(RecordError, match="a value of the batch cannot be stored: "):
        any_store.write([samples.measurement(2, hardware=hardware)])
    assert any_store.counts()["measurements"] == 1


@pytest.mark.parametrize("fault", [TypeError, ValueError, OverflowError])
def test_a_fault_of_ours_is_no_bad_record(
    any_store: Store, monkeypatch: pytest.MonkeyPatch, fault: type[Exception]
) -> None:
    """A bug in the code that feeds the driver ends the write as it is: good records must not go to quarantine."""

    def rows(*_: object) -> Iterator[Any]:
        yield (1, 1, 1.0, "ok", 0, None, None, None)
        raise fault("a bug")

    with monkeypatch.context() as patched:
        patched.setattr("diode_store.warehouse.store._timing_rows", rows)
        with pytest.raises(fault, match="a bug"):
            any_store.write([samples.measurement(1)])
    assert any_store.counts()["measurements"] == 0
    assert any_store.write([samples.measurement(1)]).measurements == 1


def test_ids_are_cached_only_after_the_commit(
    any_store: Store, any_url: str, make_measurement: MakeMeasurement
) -> None:
    """Dimension rows that were rolled back are inserted again, not remembered."""
    refuse_inserts(any_url, "configs", "stopped")
    with pytest.raises(DatabaseError, match="stopped"):
        any_store.write([make_measurement(1)])
    assert any_store.counts() == EMPTY
    allow_inserts(any_url, "configs")
    assert any_store.write([make_measurement(1)]) == WriteReport(1, 0, 3)
    assert integrity_problems(any_store.engine) == []


@pytest.mark.long
@pytest.mark.quick(1)
def test_concurrent_writers(any_url: str) -> None:
    """Processes that bring the same new rows at the same time write every measurement once, and none fails."""
    with multiprocessing.get_context("spawn").Pool(WRITERS) as pool:
        reports = pool.map(write_shared, [(any_url, 1 + writer) for writer in range(WRITERS)])
    measurements = PER_WRITER * (WRITERS + 1)
    assert sum(report.measurements for report in reports) == measurements
    assert sum(report.duplicates for report in reports) == PER_WRITER * (WRITERS - 1)
    with Store.open(any_url) as store:
        assert store.counts() == {
            "hardware": 1,
            "environments": 1,
            "problems": PER_WRITER,
            "configs": 3,
            "measurements": measurements,
            "timings": 3 * measurements,
            "failures": measurements,
            "decisions": 0,
        }
        assert integrity_problems(store.engine) == []


def test_another_writer_between_the_look_and_the_write(
    any_store: Store, any_url: str, make_measurement: MakeMeasurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A measurement that someone else brings after we looked for it is a duplicate, not an error."""
    with Store.open(any_url) as other:
        other.write([make_measurement(1)])
    monkeypatch.setattr(any_store, "known", lambda _uids: set())
    assert any_store.write([make_measurement(1), make_measurement(2)]) == WriteReport(1, 1, 3)
    assert any_store.counts()["timings"] == 6


def test_cache_does_not_grow_for_ever(any_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that sees ever new problems starts its cache over, and goes on as if it had not."""
    monkeypatch.setattr("diode_store.warehouse.dimensions._MOST_CACHED", 5)
    for number in range(12):
        any_store.write([samples.measurement(number)])
        assert len(any_store._dimensions.problems.ids) <= 6
    assert any_store.counts()["problems"] == 12


def test_a_batch_keeps_what_it_knows_when_the_cache_is_full(any_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch with known problems and so many new ones that the cache starts over is written whole."""
    monkeypatch.setattr("diode_store.warehouse.dimensions._MOST_CACHED", 5)
    any_store.write([samples.measurement(number) for number in range(4)])
    mixed = [samples.measurement(100 + number, problem=samples.measurement(number).problem) for number in range(3, 9)]
    assert any_store.write(mixed) == WriteReport(6, 0, 18)
    assert any_store.counts()["problems"] == 9


@pytest.mark.quick(1)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(batch=st.lists(MEASUREMENTS, max_size=4))
def test_anything_the_codec_passes_can_be_stored(any_store: Store, batch: list[Measurement]) -> None:
    """Whatever a collector may hand over is stored once, or is there already."""
    decoded = [codec.decode(codec.encode(measurement)) for measurement in batch]
    known = any_store.known([measurement.uid for measurement in decoded])
    new = {m.uid: len(m.timings) for m in reversed(decoded) if m.uid not in known}
    first, second = any_store.write(decoded), any_store.write(decoded)
    assert (first.measurements, first.timings) == (len(new), sum(new.values()))
    assert first.duplicates + len(first.contradictions) == len(batch) - len(new)
    assert (second.measurements, second.timings, second.doubts) == (0, 0, ())
    assert second.duplicates + len(second.contradictions) == len(batch)


def test_open_names_the_command(tmp_path: Path) -> None:
    """Opening a warehouse that is not there says how to make it."""
    with pytest.raises(
        SchemaError, match=r"none.db holds no warehouse yet; create it with `diode db upgrade --database /"
    ):
        Store.open(str(tmp_path / "none.db"))
    assert list(tmp_path.glob("none.db*")) == []
