"""Datasets from files and records, merged as the warehouse merges."""

from __future__ import annotations

import gzip
import shutil
from typing import TYPE_CHECKING

import pytest
from synthetic import H200, contents

import samples
from diode_store.errors import DatasetError
from diode_store.records import KernelConfig, Measurement, Outcome, Timing, TimingMethod
from diode_trainer.data.from_file import load_measurements
from diode_trainer.data.from_files import Files, read_files
from diode_trainer.data.from_warehouse import ExampleFilter, load_warehouse

if TYPE_CHECKING:
    from pathlib import Path

    from diode_store.records import Hardware
    from diode_store.warehouse.store import Store
    from diode_trainer.data.dataset import ExampleSet
    from samples import MakeMeasurement

FAST, SLOW = samples.triton_config(16), samples.triton_config(32)


def timed(number: int, *timings: Timing, make: MakeMeasurement, problem: int = 0, **fields: object) -> Measurement:
    """Return a measurement of problem ``problem`` with these timings."""
    return make(number, problem=samples.matmul(64 + problem, 256, 128), timings=timings, **fields)


def load_file(path: Path, *, hardware: Hardware | None = None) -> ExampleSet:
    """Return the examples of one file, as a training from files reads it."""
    return load_measurements(read_files(Files.named([path]), hardware).measurements, str(path))


# --- files


def test_real_file(jsonl_path: Path) -> None:
    """Six real problems: their ops, layouts, failures and vendor choices."""
    dataset = load_file(jsonl_path, hardware=H200)
    assert len(dataset) == 6
    assert {e.shape.op for e in dataset} == {"mm", "addmm", "bmm"}
    assert {e.shape.layout for e in dataset} == {"nn", "nt", "tn"}
    assert all(e.is_vendor.any() and not e.is_vendor.all() for e in dataset)
    assert dataset.lineage["measurements"] == 6


def test_gzip_file(jsonl_path: Path, tmp_path: Path) -> None:
    """A compressed file is read like a plain one."""
    packed = tmp_path / "rows.jsonl.gz"
    with jsonl_path.open("rb") as plain, gzip.open(packed, "wb") as target:
        shutil.copyfileobj(plain, target)
    assert contents(load_file(packed, hardware=H200)) == contents(load_file(jsonl_path, hardware=H200))


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is named."""
    with pytest.raises(DatasetError, match=r"none\.jsonl: No such file or directory; check the file's name"):
        load_file(tmp_path / "none.jsonl")


def test_file_without_hardware(jsonl_path: Path) -> None:
    """A file that names no hardware needs the option; the line is named."""
    with pytest.raises(DatasetError, match=r"h200_excerpt\.jsonl:1: .*--hardware"):
        load_file(jsonl_path)


def test_bad_line_is_named(jsonl_path: Path) -> None:
    """A malformed line is reported with its number."""
    with jsonl_path.open("a") as file:
        file.write('{"op": "mm"\n')
    with pytest.raises(DatasetError, match=r"h200_excerpt\.jsonl:7: "):
        load_file(jsonl_path, hardware=H200)


def test_empty_file(tmp_path: Path) -> None:
    """A file without measurements is nothing to learn from."""
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(DatasetError, match=r"empty\.jsonl: holds no usable measurement"):
        load_file(tmp_path / "empty.jsonl", hardware=H200)


# --- merging, in a file and in the warehouse alike


def test_repeats_are_merged(make_measurement: MakeMeasurement) -> None:
    """Of three measurements of one problem, a config's time is the median of its medians."""
    repeats = [
        timed(i, Timing(FAST, us), Timing(SLOW, 9.0), make=make_measurement) for i, us in enumerate((5.0, 1.0, 2.0))
    ]
    (example,) = load_measurements(repeats, "here")
    assert example.runtime_us.tolist() == [2.0, 9.0]


def test_estimates_yield_to_medians(make_measurement: MakeMeasurement) -> None:
    """An estimate counts only where nobody finished; a failure only where nothing ran."""
    failed = Timing(SLOW, None, Outcome.OUT_OF_RESOURCES)
    repeats = [
        timed(0, Timing(FAST, 30.0, is_estimate=True), failed, make=make_measurement),
        timed(1, Timing(FAST, 10.0), Timing(SLOW, 40.0, is_estimate=True), make=make_measurement),
    ]
    (example,) = load_measurements(repeats, "here")
    assert (example.runtime_us.tolist(), example.is_estimate.tolist()) == ([10.0, 40.0], [False, True])


def test_what_always_failed_is_infinite(make_measurement: MakeMeasurement) -> None:
    """A config that never ran is there, as a failure."""
    failed = Timing(SLOW, None, Outcome.COMPILE_ERROR)
    (example,) = load_measurements([timed(0, Timing(FAST, 10.0), failed, make=make_measurement)], "here")
    assert (example.runtime_us.tolist(), example.ran.tolist()) == ([10.0, float("inf")], [True, False])


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "fields",
    [{"is_replay": True}, {"flags": ("throttled",)}, {"choice_policy": "hook:abc"}, {"superseded_by": bytes(16)}],
    ids=lambda fields: next(iter(fields)),
)
def test_untrusted_measurements_do_not_count(
    make_measurement: MakeMeasurement, store: Store, database_url: str, fields: dict[str, object]
) -> None:
    """Replays, flagged, superseded and hook-filtered measurements teach nothing, from a file or the warehouse."""
    bad = make_measurement(1, **fields)
    with pytest.raises(DatasetError, match="holds no usable measurement"):
        load_measurements([bad], "here")
    store.write([make_measurement(2), bad])
    assert len(load_warehouse(database_url, ExampleFilter("h200")).dataset) == 1


def test_warehouse_and_records_agree(make_measurement: MakeMeasurement, store: Store, database_url: str) -> None:
    """The view and the merge of records at hand give the same examples, in the same order."""
    vendor = KernelConfig("aten::mm")
    measurements = [
        timed(0, Timing(FAST, 3.0), Timing(vendor, 4.0), make=make_measurement),
        timed(1, Timing(FAST, 5.0), Timing(SLOW, 9.0, is_estimate=True), make=make_measurement),
        timed(2, Timing(SLOW, None, Outcome.TIMEOUT), Timing(vendor, 2.0), make=make_measurement, problem=5),
    ]
    store.write(reversed(measurements))
    dataset = load_warehouse(database_url, ExampleFilter("h200")).dataset
    assert contents(dataset) == contents(load_measurements(measurements, "here"))
    assert [e.runtime_us.tolist() for e in dataset] == [[4.0, 4.0, 9.0], [2.0, float("inf")]]


def test_regimes_are_not_merged(make_measurement: MakeMeasurement, store: Store, database_url: str) -> None:
    """One problem has examples in each regime, from records and from the warehouse alike, in a stable order."""
    timed_in = ((None, 5.0), ("write_flush", 4.0), ("graph", 3.0), ("graph", 1.0))
    measurements = [
        timed(i, Timing(FAST, us), make=make_measurement, timing_method=TimingMethod("median", regime=regime))
        for i, (regime, us) in enumerate(timed_in)
    ]
    dataset = load_measurements(measurements, "here")
    assert [(e.regime, e.runtime_us.tolist()) for e in dataset] == [
        (None, [5.0]),
        ("graph", [2.0]),
        ("write_flush", [4.0]),
    ]
    store.write(reversed(measurements))
    assert contents(load_warehouse(database_url, ExampleFilter("h200")).dataset) == contents(dataset)


def test_families(make_measurement: MakeMeasurement, store: Store, database_url: str) -> None:
    """Examples know the family they were swept for, the first by name of several, from records and the warehouse."""
    families = (("vit", 0), ("llama3-8b", 0), (None, 0), ("drawn", 1), (None, 2))
    measurements = [
        timed(i, Timing(FAST, 5.0), make=make_measurement, problem=problem, family=family)
        for i, (family, problem) in enumerate(families)
    ]
    dataset = load_measurements(measurements, "here")
    assert [e.family for e in dataset] == ["llama3-8b", "drawn", None]
    store.write(measurements)
    assert contents(load_warehouse(database_url, ExampleFilter("h200")).dataset) == contents(dataset)


def test_scatter(make_measurement: MakeMeasurement, store: Store, database_url: str) -> None:
    """Examples know how much their times scatter by how they were taken; of two ways, by the noisier one."""
    hidden, seen = TimingMethod("median", launch_hidden=True), TimingMethod("median", launch_hidden=False)
    measurements = [
        timed(i, Timing(FAST, 5.0), make=make_measurement, problem=problem, timing_method=method)
        for i, (method, problem) in enumerate(((hidden, 0), (hidden, 0), (hidden, 1), (seen, 1)))
    ]
    dataset = load_measurements(measurements, "here")
    assert [e.usual_sigmas for e in dataset] == [(0.017, 0.010, 0.016), (0.11, 0.07, 0.017)]
    store.write(measurements)
    assert contents(load_warehouse(database_url, ExampleFilter("h200")).dataset) == contents(dataset)


def test_warehouse_and_file_agree(jsonl_path: Path, store: Store, database_url: str) -> None:
    """Real rows give the same examples whether they went through the warehouse or not."""
    from diode_store.exchange import jsonl
    from diode_store.exchange.context import ImportContext

    with jsonl_path.open("rb") as file:
        rows = [row for row in jsonl.read(file, ImportContext(hardware=H200)) if isinstance(row, Measurement)]
    store.write(rows)
    assert contents(load_warehouse(database_url, ExampleFilter("h200")).dataset) == contents(
        load_file(jsonl_path, hardware=H200)
    )
