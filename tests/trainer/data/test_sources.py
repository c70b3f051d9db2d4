"""What a command says it was pointed at."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import samples
from diode_store.errors import DatasetError, HardwareError
from diode_trainer.data.from_files import Files
from diode_trainer.data.from_warehouse import ExampleFilter
from diode_trainer.data.sources import load, load_files

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
