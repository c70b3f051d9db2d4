"""Datasets from the warehouse's view `training_examples`."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import samples
from diode_store.errors import DatasetError, HardwareError, SchemaError
from diode_store.records import TimingMethod
from diode_trainer.data.dataset import ingest_first
from diode_trainer.data.from_warehouse import ExampleFilter, load_warehouse
from lanes import long

if TYPE_CHECKING:
    from diode_store.warehouse.store import Store
    from samples import MakeMeasurement


def test_empty_warehouse(database_url: str) -> None:
    """Without measurements the remedy is named."""
    with pytest.raises(DatasetError, match=r"the warehouse holds no measurements; .*diode-ingest --once --bundled"):
        load_warehouse(database_url, ExampleFilter("h200"))


@long
def test_the_remedy_fills_the_same_warehouse(database_path: Path, tmp_path: Path) -> None:
    """Also when the daemon's settings file names another one, and with a blank in its path."""
    config = tmp_path / "config-home" / "torch-diode" / "diode-ingest.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'database = "{tmp_path}/other.db"\nspool = "{tmp_path}/spool"\n')
    (tmp_path / "my data").mkdir()
    url = f"sqlite:///{database_path.rename(tmp_path / 'my data' / 'w.db')}"
    with pytest.raises(DatasetError) as refused:
        load_warehouse(url, ExampleFilter("h200"))
    program, *arguments = shlex.split(str(refused.value).split("`")[1])
    subprocess.run([Path(sys.executable).with_name(program), *arguments], check=True, capture_output=True)
    assert load_warehouse(url, ExampleFilter("h200", op="baddbmm")).dataset.timings == 14233


@pytest.mark.parametrize(
    ("database", "options"),
    [
        ("sqlite:////data/w.db", " --database /data/w.db"),
        ("postgresql://me@db/w", " --database postgresql://me@db/w"),
        ("postgresql://me:geheim@db/w", ""),
        ("postgresql://me@db/w?password=geheim", ""),
    ],
)
def test_the_remedy_shows_no_password(database: str, options: str) -> None:
    """An address that holds one stands in the environment, where diode-ingest finds it too."""
    assert ingest_first(database).endswith(f": `diode-ingest --once --bundled{options}`")


def test_no_warehouse(tmp_path: Path) -> None:
    """Without a warehouse the remedy is to make one."""
    with pytest.raises(SchemaError, match="diode db upgrade"):
        load_warehouse(f"sqlite:///{tmp_path / 'none.db'}", ExampleFilter("h200"))


def test_other_hardware(store: Store, database_url: str, make_measurement: MakeMeasurement) -> None:
    """A name that matches nothing gets a list of what there is."""
    store.write([make_measurement(0)])
    with pytest.raises(HardwareError, match="NVIDIA H200"):
        load_warehouse(database_url, ExampleFilter("NVIDIA A100"))


def test_several_names(store: Store, database_url: str, make_measurement: MakeMeasurement) -> None:
    """Each name of a comma list is matched by itself: devices that differ need no further word, if each is named."""
    devices = (samples.H100, samples.H100_PCIE, samples.H200)
    store.write([make_measurement(n, hardware=device) for n, device in enumerate(devices)])
    loaded = load_warehouse(database_url, ExampleFilter("h200, h100-pcie"))
    assert {name: [row.name for row in rows] for name, rows in loaded.matched.items()} == {
        "h200": ["NVIDIA H200"],
        "h100-pcie": ["NVIDIA H100 PCIe"],
    }
    assert sorted(e.hardware.name for e in loaded.dataset) == ["NVIDIA H100 PCIe", "NVIDIA H200"]
    with pytest.raises(HardwareError, match=r"'h100' matches different devices: .*; name one of them, or pass --all"):
        load_warehouse(database_url, ExampleFilter("h200,h100"))
    with pytest.raises(HardwareError, match="no hardware matches 'a100'; there is: NVIDIA H100"):
        load_warehouse(database_url, ExampleFilter("h200,a100"))


def test_two_devices_of_one_name(store: Store, database_url: str, make_measurement: MakeMeasurement) -> None:
    """Two devices of one name are told apart by what is listed behind it."""
    smaller = replace(samples.H200, multiprocessors=66)
    store.write([make_measurement(0, hardware=samples.H200), make_measurement(1, hardware=smaller)])
    with pytest.raises(HardwareError) as caught:
        load_warehouse(database_url, ExampleFilter("h200"))
    assert str(caught.value) == (
        "'h200' matches different devices: NVIDIA H200 (sm_90, 132 multiprocessors), NVIDIA H200 (sm_90, 66"
        " multiprocessors); name one exactly as it is listed here, brackets included, or pass --all-matches"
    )
    loaded = load_warehouse(database_url, ExampleFilter("NVIDIA H200 (sm_90, 66 multiprocessors)"))
    assert [e.hardware.multiprocessors for e in loaded.dataset] == [66]


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("regime", "expected"),
    [(None, 3), ("all", 3), ("deployed", 1), ("graph", 1), ("write_flush", 1), ("unknown", 1), ("read_flush", 0)],
)
def test_regimes(
    store: Store, database_url: str, make_measurement: MakeMeasurement, regime: str | None, expected: int
) -> None:
    """A regime is chosen by its name, graph as deployed too; the lineage counts what was chosen."""
    methods = (TimingMethod(regime=name) for name in ("graph", "write_flush", None))
    store.write([make_measurement(n, timing_method=method) for n, method in enumerate(methods)])
    wanted = ExampleFilter("h200", regime=regime)
    if not expected:
        with pytest.raises(DatasetError, match=r"no examples of regime read_flush .*; regime graph, unknown, write_fl"):
            load_warehouse(database_url, wanted)
        return
    dataset = load_warehouse(database_url, wanted).dataset
    assert (len(dataset), dataset.lineage["measurements"]) == (expected, expected)


def test_different_devices_need_a_word(store: Store, database_url: str, make_measurement: MakeMeasurement) -> None:
    """Devices that differ are taken together only on request."""
    store.write([make_measurement(0, hardware=samples.H100), make_measurement(1, hardware=samples.H100_PCIE)])
    with pytest.raises(HardwareError, match="--all-matches"):
        load_warehouse(database_url, ExampleFilter("NVIDIA H100"))
    loaded = load_warehouse(database_url, ExampleFilter("NVIDIA H100", all_matches=True))
    assert [row.multiprocessors for row in loaded.matched["NVIDIA H100"]] == [132, 114]
    assert {e.hardware.multiprocessors for e in loaded.dataset} == {132, 114}


def test_one_problem_in_two_environments(store: Store, database_url: str, make_measurement: MakeMeasurement) -> None:
    """Times of different environments are not mixed."""
    other = replace(samples.ENVIRONMENT, torch="2.13.0")
    first = make_measurement(0, runtimes=(1.0,))
    store.write([first, make_measurement(1, runtimes=(3.0,), problem=first.problem, environment=other)])
    dataset = load_warehouse(database_url, ExampleFilter("h200")).dataset
    assert sorted(e.runtime_us.tolist() for e in dataset) == [[1.0], [3.0]]
    assert len({e.environment for e in dataset}) == 2


@pytest.mark.parametrize(("selection", "expected"), [({"op": "mm"}, 1), ({"dtype": "fp16"}, 1), ({}, 2)])
def test_selection(
    store: Store, database_url: str, make_measurement: MakeMeasurement, selection: dict[str, str], expected: int
) -> None:
    """An op or dtype, by either name, narrows the data down."""
    bmm = samples.Problem.create(
        "bmm", tuple(samples.TensorSpec("float16", (4, 64, 64), (4096, 64, 1)) for _ in range(2))
    )
    store.write([make_measurement(0), make_measurement(1, problem=bmm)])
    assert len(load_warehouse(database_url, ExampleFilter("h200", **selection)).dataset) == expected


@pytest.mark.parametrize(("dtype", "expected"), [("tf32", [True]), ("fp32", [False]), (None, [False, True])])
def test_tf32_is_another_dtype(
    store: Store, database_url: str, make_measurement: MakeMeasurement, dtype: str | None, expected: list[bool]
) -> None:
    """float32 as TF32 and the rest of float32 are never taken for each other, nor counted together."""
    exact = samples.matmul(64, 64, 64, "float32")
    store.write([make_measurement(0, problem=exact), make_measurement(1, problem=samples.as_tf32(exact))])
    dataset = load_warehouse(database_url, ExampleFilter("h200", dtype=dtype)).dataset
    assert sorted(example.shape.tf32 for example in dataset) == expected
    assert dataset.lineage["measurements"] == len(expected)


def test_selection_of_nothing(store: Store, database_url: str, make_measurement: MakeMeasurement) -> None:
    """An op that was never measured is named with the hardware."""
    store.write([make_measurement(0)])
    with pytest.raises(DatasetError, match="no examples of op addmm on NVIDIA H200; there is: op mm; dtype bfloat16"):
        load_warehouse(database_url, ExampleFilter("h200", op="addmm"))


def test_lineage(store: Store, database_url: str, make_measurement: MakeMeasurement) -> None:
    """The card learns where the data is from, and what did not count is left out."""
    store.write([make_measurement(0, dataset="one"), make_measurement(1, dataset="two", is_replay=True)])
    lineage = load_warehouse(database_url, ExampleFilter("h200")).dataset.lineage
    assert (lineage["measurements"], lineage["timings"], lineage["datasets"]) == (1, 3, ["one"])
    assert lineage["measured_from"] == "2026-11-20T12:30:00+00:00"
    assert lineage["environments"][0]["torch"] == "2.11.0+cu130"
    assert lineage["schema_revision"]


def test_committed_rows_are_seen_at_once(store: Store, database_url: str, make_measurement: MakeMeasurement) -> None:
    """Each reading syncs the cache first."""
    for number in range(3):
        store.write([make_measurement(number)])
        assert len(load_warehouse(database_url, ExampleFilter("h200")).dataset) == number + 1
