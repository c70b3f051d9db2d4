"""What a command says it was pointed at."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from synthetic import contents

import samples
from diode_store.devices.known import require_device
from diode_store.errors import DatasetError, HardwareError
from diode_store.exchange import records
from diode_store.records import Measurement, Outcome, Timing, TimingMethod
from diode_trainer.data.from_files import Files
from diode_trainer.data.from_warehouse import ExampleFilter
from diode_trainer.data.sources import load, load_bundled, load_files

if TYPE_CHECKING:
    from pathlib import Path

    from diode_store.warehouse.store import Store
    from samples import MakeMeasurement


def test_source_says_what_was_matched(store: Store, database_url: str, make_measurement: MakeMeasurement) -> None:
    """The notes name the hardware and the amount of data."""
    store.write([make_measurement(0)])
    found = load(database_url, ExampleFilter("h200"))
    assert found.notes == (
        "hardware: NVIDIA H200 (sm_90, 132 multiprocessors)",
        "data: 1 problem, 3 timings (1 failed), mm, bfloat16",
    )


def test_source_from_a_file(jsonl_path: Path) -> None:
    """A file is filtered like the warehouse; its hardware comes from the option."""
    found = load_files(Files.named([jsonl_path]), ExampleFilter("h200", op="addmm"))
    assert {e.shape.op for e in found.dataset} == {"addmm"}
    with pytest.raises(DatasetError, match=r"no examples of op int_mm; there is: op addmm, bmm, mm; dtype "):
        load_files(Files.named([jsonl_path]), ExampleFilter("h200", op="int_mm"))
    with pytest.raises(HardwareError, match="no hardware matches 'abacus'"):
        load_files(Files.named([jsonl_path]), ExampleFilter("abacus"))


@pytest.fixture
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_measurement: MakeMeasurement) -> list[Measurement]:
    """Return three measurements, which ship in this test: two of an H200 in two regimes, one of an H100."""
    methods = (TimingMethod(regime="graph"), TimingMethod(regime="write_flush"))
    h200 = [replace(make_measurement(1, timing_method=method), uid=bytes([n]) * 16) for n, method in enumerate(methods)]
    h100 = make_measurement(2, hardware=samples.H100)
    folder = tmp_path / "shipped-data"
    folder.mkdir()
    for name, some in (("h200.seg", h200), ("h100.seg", [h100])):
        with (folder / name).open("wb") as stream:
            records.write(stream, some, as_segment=True)
    monkeypatch.setattr("diode_store.exchange.bundled.bundled_data_dir", lambda: folder)
    return [*h200, h100]


def test_bundled_measurements(bundled: list[Measurement], store: Store, database_url: str) -> None:
    """They give the examples that a warehouse filled with them gives, and only files of the device are read."""
    store.write(bundled)
    done = []
    found = load_bundled(ExampleFilter("h200"), lambda: done.append(1))
    assert contents(found.dataset) == contents(load(database_url, ExampleFilter("h200")).dataset)
    assert (len(found.dataset), len(done), found.dataset.lineage["origin"]) == (2, 1, "the bundled measurements")
    assert [e.regime for e in load_bundled(ExampleFilter("h200", regime="deployed")).dataset] == ["graph"]
    both = load_bundled(ExampleFilter("NVIDIA H100,h200"))
    assert both.notes[0] == (
        "hardware: NVIDIA H100 is NVIDIA H100 80GB HBM3 (sm_90, 132 multiprocessors);"
        " h200 is NVIDIA H200 (sm_90, 132 multiprocessors)"
    )
    assert len(both.dataset) == 3
    with pytest.raises(HardwareError, match=r"^the bundled measurements: no hardware matches 'a100'; there is: NVIDIA"):
        load_bundled(ExampleFilter("a100"))


def test_each_name_has_something_to_learn_from(
    bundled: list[Measurement], store: Store, database_url: str, make_measurement: MakeMeasurement
) -> None:
    """A device of which nothing is left, or nothing ran, is an error and not left out; from files and warehouses."""
    failed = make_measurement(3, hardware=require_device("a100-80gb"))
    never = [Timing(timing.config, None, outcome=Outcome.RUNTIME_ERROR) for timing in failed.timings]
    store.write([*bundled, replace(failed, timings=tuple(never))])
    wanted = ExampleFilter("h100,h200", regime="write_flush")
    said = "no examples of regime write_flush on NVIDIA H100 80GB HBM3 .*; leave 'h100' out of --hardware"
    with pytest.raises(DatasetError, match=said):
        load_bundled(wanted)
    with pytest.raises(DatasetError, match=said):
        load(database_url, wanted)
    with pytest.raises(DatasetError, match=r"no kernel ran on NVIDIA A100.*: all of its \d timings are failures"):
        load(database_url, ExampleFilter("a100,h200"))


def test_what_ships_but_is_not_in_the_warehouse(bundled: list[Measurement], store: Store, database_url: str) -> None:
    """A warehouse without a device that ships says what it has, and how to get the bundled measurements into it."""
    store.write(bundled[:1])
    with pytest.raises(HardwareError) as caught:
        load(database_url, ExampleFilter("h200,h100"))
    path = database_url.removeprefix("sqlite:///")
    assert str(caught.value) == (
        "no hardware matches 'h100'; there is: NVIDIA H200 (sm_90, 132 multiprocessors); the bundled measurements have"
        f" NVIDIA H100 80GB HBM3 (sm_90, 132 multiprocessors): `diode-ingest --once --bundled --database {path}` adds"
        " them"
    )


@pytest.fixture
def two_devices(jsonl_path: Path) -> Path:
    """Return a file of three problems on an H200 and three on an H100."""
    lines = [json.loads(line) for line in jsonl_path.read_text().splitlines()]
    for number, line in enumerate(lines):
        line["hardware"] = "NVIDIA H200" if number < 3 else "NVIDIA H100 PCIe"
    jsonl_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return jsonl_path


def test_a_file_is_filtered_by_hardware(two_devices: Path) -> None:
    """Only the named device's lines are read, and the lineage counts only those."""
    found = load_files(Files.named([two_devices]), ExampleFilter("h200"))
    assert [e.hardware.name for e in found.dataset] == ["NVIDIA H200"] * 3
    assert found.dataset.lineage["measurements"] == 3
    assert found.notes[0] == "hardware: NVIDIA H200 (sm_90, 132 multiprocessors)"


def test_a_file_without_the_named_hardware(two_devices: Path) -> None:
    """A device that the file lacks gets the list of those it holds."""
    with pytest.raises(HardwareError, match=r"jsonl: no hardware matches 'a100'; there is: NVIDIA H100 PCIe .*H200"):
        load_files(Files.named([two_devices]), ExampleFilter("a100"))


def test_devices_that_share_a_die(two_devices: Path) -> None:
    """An H100 has the multiprocessors of an H200 and another memory: it counts as it only for a name of both."""
    two_devices.write_text(two_devices.read_text().replace("H100 PCIe", "H100 80GB HBM3"))
    with pytest.raises(HardwareError, match=r"different devices: NVIDIA H100 80GB HBM3 .*--hardware"):
        load_files(Files.named([two_devices]), ExampleFilter())
    found = load_files(Files.named([two_devices]), ExampleFilter("nvidia"))
    assert {e.hardware.name for e in found.dataset} == {"NVIDIA H100 80GB HBM3", "NVIDIA H200"}


@pytest.mark.parametrize("name", [None, "nvidia"])
def test_devices_of_a_file_that_differ(two_devices: Path, name: str | None) -> None:
    """Devices that differ are mixed only when that is asked for."""
    with pytest.raises(HardwareError, match=r"different devices: NVIDIA H100 PCIe .*--all-matches"):
        load_files(Files.named([two_devices]), ExampleFilter(name))
    assert len(load_files(Files.named([two_devices]), ExampleFilter(name, all_matches=True)).dataset) == 6


def test_summary_names_rare_dtypes(database_url: str, store: Store, make_measurement: MakeMeasurement) -> None:
    """A dtype too rare for a model's domain is still part of the data, with its number of problems."""
    rare = make_measurement(99, problem=samples.matmul(64, 64, 64, "float32"))
    usual = [make_measurement(n, problem=samples.matmul(64 + n, 64, 64)) for n in range(30)]
    store.write([rare, *usual])
    assert load(database_url, ExampleFilter("h200")).notes[1].endswith("mm, bfloat16, float32 (1 problem)")
