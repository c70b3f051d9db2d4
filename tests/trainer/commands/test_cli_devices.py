"""`diode-train` and `diode evaluate` of a device by its name alone: what ships, and several devices together."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from synthetic import learnable, measurement_of

import samples
from diode_store.exchange import records
from diode_store.system.settings import data_dir
from diode_trainer import artifact

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import CommandResult, RunCommand
    from diode_store.records import Measurement
    from diode_store.warehouse.store import Store

QUICK = ("--num-epochs", "2", "--hidden-dim", "8", "--num-layers", "1", "--model-type", "base")
H100 = "NVIDIA H100 80GB HBM3 (sm_90, 132 multiprocessors)"
H200 = "NVIDIA H200 (sm_90, 132 multiprocessors)"


def measured() -> list[Measurement]:
    """Return 24 measurements of an H200 and 12 others of an H100."""
    h200 = [measurement_of(n, example) for n, example in enumerate(learnable(24))]
    others = learnable(12, seed=1)
    return h200 + [replace(measurement_of(100 + n, each), hardware=samples.H100) for n, each in enumerate(others)]


@pytest.fixture
def ships(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have these measurements ship, in a file of each device."""
    folder = tmp_path / "shipped-data"
    folder.mkdir()
    for device in (samples.H200, samples.H100):
        with (folder / f"{device.name}.seg").open("wb") as stream:
            records.write(stream, [m for m in measured() if m.hardware.name == device.name], as_segment=True)
    monkeypatch.setattr("diode_store.exchange.bundled.bundled_data_dir", lambda: folder)


def check_bundled(ended: CommandResult, why: str) -> None:
    """Check that a command used the H100's measurements that ship, and said so first."""
    assert ended.code == 0, ended.err
    first, *others = ended.err.splitlines()
    assert first.endswith(f"{why}, so this uses the bundled measurements")
    assert f"hardware: {H100}" in others
    assert "data: 12 problems, 180 timings (0 failed), mm, bfloat16" in others


@pytest.mark.usefixtures("ships")
def test_a_fresh_install(diode: RunCommand, tmp_path: Path) -> None:
    """Without a warehouse a device's name is enough to train, evaluate and compare, and no warehouse is made."""
    path = tmp_path / "m.pt"
    trained = diode("train", *QUICK, "--hardware", "NVIDIA H100", "--folds", "0", "-o", str(path))
    check_bundled(trained, "warehouse.db holds no warehouse yet")
    card = artifact.load(path).card
    assert [device.name for device in card.hardware] == ["NVIDIA H100 80GB HBM3"]
    assert (card.data["origin"], card.data["datasets"]) == ("the bundled measurements", ["synthetic"])
    check_bundled(diode("evaluate", "--model", str(path), "--hardware", "h100"), "warehouse.db holds no warehouse yet")
    assert not (data_dir() / "warehouse.db").exists()


@pytest.mark.usefixtures("ships")
def test_a_warehouse_without_a_measurement(diode: RunCommand, database_url: str, tmp_path: Path) -> None:
    """It is no reason to train on nothing, whether it was named or not."""
    for options in ((), ("--database", database_url)):
        path = str(tmp_path / f"{len(options)}.pt")
        ended = diode("train", *QUICK, "--hardware", "h100", "--folds", "0", "-o", path, *options)
        check_bundled(
            ended, "the warehouse holds no measurements" if options else "warehouse.db holds no warehouse yet"
        )


@pytest.mark.usefixtures("ships")
def test_what_does_not_ship(diode: RunCommand, tmp_path: Path) -> None:
    """A device that does not ship is one line with the next step; a warehouse that was typed has to be there."""
    ended = diode("train", "--hardware", "NVIDIA A100")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.splitlines()[-1] == (
        f"error: --hardware: the bundled measurements: no hardware matches 'NVIDIA A100'; there is: {H100},"
        f" {H200}; to add a GPU,"
        " run `diode tune` on it, or `diode-collect` for its timings alone"
    )
    ended = diode("train", "--hardware", "h100", "--database", str(tmp_path / "typo.db"))
    assert (ended.code, "typo.db holds no warehouse yet; create it with" in ended.err) == (1, True)


@pytest.fixture
def both(store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a warehouse with what both devices measured."""
    store.write(measured())
    monkeypatch.setenv("DIODE_DATABASE_URL", database_url)


@pytest.mark.long
@pytest.mark.usefixtures("both")
def test_devices_together(diode: RunCommand) -> None:
    """A comma list trains one model of them, which is called after both, and judges it on each."""
    ended = diode("train", *QUICK, "--hardware", "h100,h200", "--folds", "2")
    assert ended.code == 0, ended.err
    assert f"hardware: h100 is {H100}; h200 is {H200}" in ended.err.splitlines()
    assert "data: 36 problems, 540 timings (0 failed), mm, bfloat16" in ended.err
    rows = [line.split() for line in ended.out.splitlines()]
    (first, *_) = [place for place, row in enumerate(rows) if row[:2] == ["device", "problems"]]
    assert [row[:2] for row in rows[first + 1 : first + 3]] == [["NVIDIA", "H100"], ["NVIDIA", "H200"]]
    (path,) = [row[1] for row in rows if row[0] == "model"]
    card = artifact.load(path).card
    assert (card.name, "--hardware h100,h200 " in card.command) == ("nvidia-h100-and-h200", True)
    assert [device.name for device in card.hardware] == ["NVIDIA H100 80GB HBM3", "NVIDIA H200"]
    judged = diode("evaluate", "--model", card.name, "--hardware", "NVIDIA H200,h100")
    assert [line.split()[:2] for line in judged.out.splitlines() if line.startswith(("device", "NVIDIA"))] == [
        ["device", "problems"],
        ["NVIDIA", "H100"],
        ["NVIDIA", "H200"],
    ]
    plain = json.loads(diode("evaluate", "--model", card.name, "--hardware", "h100,h200", "--json").out)
    assert {name: part["problems"] for name, part in plain["slices"]["device"].items()} == {
        "NVIDIA H100 80GB HBM3": 12,
        "NVIDIA H200": 24,
    }
    alone = diode("evaluate", "--model", card.name, "--hardware", "h200")
    assert "device " not in alone.out
