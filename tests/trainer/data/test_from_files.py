"""Folders of files in several formats, and what of them cannot be read."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from synthetic import contents

import samples
from diode_store.errors import DatasetError, HardwareError
from diode_store.exchange import jsonl, records
from diode_store.exchange.foreign.torch_diode import dataset_of
from diode_store.exchange.foreign.torch_diode_files import write_file
from diode_store.records import Environment, Measurement, TimingMethod
from diode_trainer.data.from_file import load_measurements
from diode_trainer.data.from_files import Files
from diode_trainer.data.from_warehouse import ALL_REGIMES, ExampleFilter
from diode_trainer.data.sources import LoadedData, load_files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from conftest import RunCommand
    from diode_store.warehouse.store import Store
    from samples import MakeMeasurement

ANY = ExampleFilter()


def measured(number: int, *, regime: str | None = None, **fields: Any) -> Measurement:
    """Return a measurement that a data set of upstream's holds whole: two Triton kernels, in an unknown environment."""
    made = samples.measurement(number, environment=Environment(), **fields)
    triton = tuple(timing for timing in samples.measurement(0, runtimes=(None, 7.5, 9.25)).timings[1:])
    return replace(made, timings=triton, timing_method=TimingMethod(regime=regime), measured_at=None)


def write(path: Path, *measurements: Measurement) -> Path:
    """Write measurements in the format of the file's suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in {".json", ".msgpack"}:
        write_file(path, dataset_of(measurements)[0])
        return path
    with path.open("wb") as stream:
        if path.suffix == ".jsonl":
            jsonl.write(stream, measurements)
        else:
            records.write(stream, measurements, as_segment=path.suffix == ".seg")
    return path


def read(folder: Path, *extensions: str, wanted: ExampleFilter = ANY, regime: str | None = None) -> LoadedData:
    """Read a folder as the commands do."""
    files = Files.in_folder(folder, extensions) if extensions else Files.in_folder(folder)
    return load_files(files, replace(wanted, regime=regime))


# --- what is read


@pytest.mark.parametrize("suffix", ["json", "msgpack", "jsonl", "seg", "records"])
def test_every_format(tmp_path: Path, suffix: str) -> None:
    """The examples are those of the measurements that were written."""
    both = [measured(1), measured(2)]
    write(tmp_path / f"data.{suffix}", *both)
    assert contents(read(tmp_path, suffix).dataset) == contents(load_measurements(both, "here"))


def test_parquet(tmp_path: Path, store: Store, database_url: str, diode: RunCommand) -> None:
    """What `diode export` wrote as Parquet is read, too."""
    both = [measured(1), measured(2)]
    store.write(both)
    assert diode("export", "--database", database_url, "-o", str(tmp_path / "rows.parquet")).code == 0
    assert contents(read(tmp_path).dataset) == contents(load_measurements(both, "here"))


def test_several_formats_are_one_data_set(tmp_path: Path) -> None:
    """Files of several kinds, in folders too, are merged: a problem that two of them timed is one."""
    write(tmp_path / "a.json", measured(1))
    write(tmp_path / "deeper" / "b.jsonl", measured(2))
    write(tmp_path / "deeper" / "c.msgpack", measured(1), measured(3))
    found = read(tmp_path).dataset
    assert [example.shape.m for example in found] == [65, 66, 67]
    assert found.lineage["measurements"] == 4
    assert found.lineage["datasets"] == ["a.json", "c.msgpack"]


def test_a_copied_measurement_counts_once(tmp_path: Path) -> None:
    """The same measurement in two files is one."""
    for name in ("a.jsonl", "b.jsonl"):
        write(tmp_path / name, measured(1))
    assert read(tmp_path).dataset.lineage["measurements"] == 1


def test_only_the_kinds_that_are_asked_for(tmp_path: Path) -> None:
    """Other files are not touched, hidden ones neither; a name may be in capitals or end in .gz."""
    write(tmp_path / "a.jsonl", measured(1))
    (tmp_path / "B.JSONL.GZ").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes().replace(b"65", b"75")))
    (tmp_path / "c.json").write_text("no measurements")
    write(tmp_path / ".cache" / "d.jsonl", measured(4))
    assert [path.name for path in Files.in_folder(tmp_path, ["jsonl"]).paths] == ["B.JSONL.GZ", "a.jsonl"]


def test_progress_counts_files(tmp_path: Path) -> None:
    """Each file that was read is told, good or bad."""
    write(tmp_path / "a.jsonl", measured(1))
    (tmp_path / "b.json").write_text("{")
    told: list[None] = []
    load_files(Files.in_folder(tmp_path), ANY, on_file=lambda: told.append(None))
    assert len(told) == 2


# --- what cannot be read


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    """The good files beside it are used, and the data's lineage says what is missing."""
    write(tmp_path / "a.jsonl", measured(1))
    whole = write(tmp_path / "b.msgpack", measured(2)).read_bytes()
    (tmp_path / "b.msgpack").write_bytes(whole[:-20])
    found = read(tmp_path)
    assert found.notes[0].startswith(f"left out {tmp_path / 'b.msgpack'}: it holds no msgpack (")
    assert found.notes[0].endswith("; nothing in this file is a measurement")
    assert found.notes[2].startswith("data: 1 problem, 2 timings")
    assert found.dataset.lineage["left_out"] == [found.notes[0]]


def test_bad_entries_are_counted(tmp_path: Path) -> None:
    """Of a file with bad lines the good ones are used, and the first bad one is told with its place."""
    path = write(tmp_path / "a.jsonl", measured(1), measured(2))
    path.write_text(path.read_text() + '{"op": "mm"\n[]\n')
    found = read(tmp_path)
    assert found.notes[0].startswith(f"left out {path}:3: malformed JSON")
    assert found.notes[0].endswith("(and 1 more); 2 measurements of this file used")
    assert len(found.dataset) == 2


def test_many_unreadable_files(tmp_path: Path) -> None:
    """Not every one of very many is listed."""
    write(tmp_path / "good.jsonl", measured(1))
    for number in range(25):
        (tmp_path / f"{number}.json").write_text("{")
    notes = read(tmp_path).notes
    assert len(notes) == 20 + 1 + 2
    assert notes[20] == "left out of 5 further files: entries"


def test_nothing_could_be_read(tmp_path: Path) -> None:
    """If no file holds a measurement, that is the error, with the reason of the first."""
    (tmp_path / "card.json").write_text(json.dumps({"name": "a model"}, indent=1))
    said = rf"{tmp_path}: none of 1 file holds a measurement; left out .*card\.json is one JSON value"
    with pytest.raises(DatasetError, match=said):
        read(tmp_path)


def test_a_long_file_of_something_else(tmp_path: Path) -> None:
    """A large JSON file that is none of ours is given up soon."""
    (tmp_path / "card.json").write_text("\n".join(["{"] * 100_000))
    with pytest.raises(DatasetError, match=r"\(and 99 more\)"):
        read(tmp_path)


def test_named_files_must_be_good(tmp_path: Path) -> None:
    """A file that was named, not found, is refused with the place of its first bad entry."""
    good, bad = write(tmp_path / "a.jsonl", measured(1)), tmp_path / "b.jsonl"
    bad.write_text("{\n")
    assert len(load_files(Files.named([good]), ANY).dataset) == 1
    with pytest.raises(DatasetError, match=r"b\.jsonl:1: malformed JSON"):
        load_files(Files.named([good, bad]), ANY)


def test_no_such_folder(tmp_path: Path) -> None:
    """A folder that is not there, or is a file, is an error with a remedy."""
    path = write(tmp_path / "a.jsonl", measured(1))
    for folder in (tmp_path / "none", path):
        with pytest.raises(DatasetError, match=rf"{folder}: no such folder; for a file use --dataset"):
            Files.in_folder(folder)


def test_no_file_of_these_kinds(tmp_path: Path) -> None:
    """What was looked for is told."""
    write(tmp_path / "a.jsonl", measured(1))
    with pytest.raises(DatasetError, match=r"no file that ends in \.json, \.msgpack; name others with --file-"):
        Files.in_folder(tmp_path, ["msgpack", "json"])


# --- what does not belong together


def mixed(folder: Path, *parts: tuple[str, Sequence[Measurement]]) -> Path:
    """Write files into a folder."""
    for name, measurements in parts:
        write(folder / name, *measurements)
    return folder


def test_devices_that_differ(tmp_path: Path) -> None:
    """Mixed devices are refused in one line that says which file holds which; --hardware and --all-matches help."""
    pcie = [measured(n, hardware=samples.H100_PCIE) for n in range(5)]
    folder = mixed(tmp_path, *((f"{n}.jsonl", [pcie[n]]) for n in range(5)), ("z.json", [measured(9)]))
    with pytest.raises(HardwareError) as caught:
        read(folder)
    first = ", ".join(str(folder / f"{n}.jsonl") for n in range(3))
    assert str(caught.value) == (
        f"{folder}: has different devices: NVIDIA H100 PCIe (sm_90, 114 multiprocessors) in {first} and 2 more;"
        f" NVIDIA H200 (sm_90, 132 multiprocessors) in {folder / 'z.json'};"
        " name one with --hardware, or pass --all-matches"
    )
    assert len(read(folder, wanted=ExampleFilter("h200")).dataset) == 1
    assert len(read(folder, wanted=ExampleFilter(all_matches=True)).dataset) == 6


def test_regimes_that_differ(tmp_path: Path) -> None:
    """Of problems that were timed in different ways each counts as it was timed, and one line says so."""
    folder = mixed(
        tmp_path, ("a.jsonl", [measured(1, regime="graph")]), ("b.jsonl", [measured(2, regime="write_flush")])
    )
    write(folder / "c.json", measured(3))
    found = read(folder)
    assert [e.regime for e in found.dataset] == ["graph", "write_flush", None]
    assert found.notes[-1] == (
        "regimes: deployed of 1 problem, unknown of 1 problem, write_flush of 1 problem; --regime selects one"
    )
    assert [e.shape.m for e in read(folder, regime="graph").dataset] == [65]
    assert [e.shape.m for e in read(folder, regime="unknown").dataset] == [67]
    assert len(read(folder, regime=ALL_REGIMES).dataset) == 3
    with pytest.raises(DatasetError, match="no timings of regime hot; there is: graph, unknown, write_flush"):
        read(folder, regime="hot")


def test_a_problem_in_several_regimes(tmp_path: Path) -> None:
    """Deployed times of a problem stand alone, graph and read_flush together, and what is left out is counted."""
    twice = [measured(1, regime="graph"), replace(measured(1, regime="write_flush"), uid=bytes(16))]
    others = [measured(2, regime="read_flush"), measured(3, regime="write_flush")]
    folder = mixed(tmp_path, ("a.jsonl", twice), ("b.jsonl", others))
    found = read(folder)
    assert [(e.shape.m, e.regime) for e in found.dataset] == [(65, "graph"), (66, "read_flush"), (67, "write_flush")]
    assert found.notes[-1] == (
        "regimes: deployed of 2 problems, write_flush of 1 problem; left out, since these problems have timings"
        " nearer to deployment: write_flush of 1 problem; --regime selects one"
    )
    assert [e.regime for e in read(folder, regime="deployed").dataset] == ["graph", "read_flush"]
    assert len(read(folder, regime=ALL_REGIMES).dataset) == 4
    one = mixed(tmp_path / "deployed", ("a.jsonl", twice[:1]), ("b.jsonl", others[:1]))
    assert not [note for note in read(one).notes if "regime" in note]


def test_upstreams_name_of_another_device(tmp_path: Path) -> None:
    """--hardware says which of several devices a name means, and never renames another device."""
    path = write(tmp_path / "a.json", measured(1))
    path.write_text(path.read_text().replace("NVIDIA H200", "NVIDIA H100"))
    with pytest.raises(DatasetError, match="the name fits several devices: NVIDIA H100 80GB HBM3"):
        read(tmp_path)
    found = read(tmp_path, wanted=ExampleFilter("h100-pcie"))
    assert [e.hardware.name for e in found.dataset] == ["NVIDIA H100 PCIe"]
    with pytest.raises(DatasetError, match="the name means only: NVIDIA H100 80GB HBM3"):
        read(tmp_path, wanted=ExampleFilter("h200"))


def test_upstreams_name_that_nobody_knows(tmp_path: Path, make_measurement: MakeMeasurement) -> None:
    """A name such as my_gpu is the device of --hardware, as on import."""
    path = write(tmp_path / "a.json", measured(1))
    path.write_text(path.read_text().replace("NVIDIA H200", "my_gpu"))
    found = read(tmp_path, wanted=ExampleFilter("h200"))
    assert [e.hardware.name for e in found.dataset] == ["NVIDIA H200"]
