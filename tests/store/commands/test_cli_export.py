"""`diode export`, and that what goes out comes back the same."""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from round_trip import EVERYTHING, everything
from stored import content

from diode_store.errors import FIRST_STEP
from diode_store.exchange.parquet import EXTRAS
from diode_store.warehouse.store import Store

if TYPE_CHECKING:
    from round_trip import RoundTrip

    from conftest import MakeMeasurement, RunCommand

pytestmark = pytest.mark.usefixtures("default_database")

H200 = ("--hardware", "h200")


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a jsonl file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def sorted_choices(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line with its choices in an order that no database decides."""
    return {**line, "choices": sorted(line["choices"], key=json.dumps)}


def test_jsonl_round_trip(
    store: Store, diode: RunCommand, tmp_path: Path, round_trip: RoundTrip, make_measurement: MakeMeasurement
) -> None:
    """Into a fresh warehouse and out again: the same records, keys, timings and counts."""
    store.write(everything(make_measurement))
    first, second = round_trip.through("first.jsonl", EVERYTHING), tmp_path / "second.jsonl"
    with Store.open(round_trip.there) as other:
        assert other.counts() == store.counts()
    diode("export", "-o", str(second), "--database", round_trip.there)
    assert [sorted_choices(line) for line in lines_of(second)] == [sorted_choices(line) for line in lines_of(first)]


def test_real_data_survive_the_round_trip(diode: RunCommand, jsonl_path: Path, round_trip: RoundTrip) -> None:
    """What was imported from a benchmark's file comes back complete, padded sizes and all."""
    diode("import", *H200, "--dataset", "excerpt", str(jsonl_path))
    out = round_trip.through("out.jsonl.gz", "6 measurements with 79 timings")
    assert gzip.decompress(out.read_bytes()).count(b"\n") == 6
    again = diode("import", *H200, "--dataset", "excerpt", str(jsonl_path), "--database", round_trip.there)
    assert again.out == "nothing new: all 6 measurements were there already\n"


def test_compressed_exports_are_the_same_bytes(diode: RunCommand, jsonl_path: Path, tmp_path: Path) -> None:
    """Neither the time nor the name gets into the file."""
    diode("import", *H200, str(jsonl_path))
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        diode("export", "-o", str(tmp_path / name))
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_export_of_a_part(store: Store, diode: RunCommand, tmp_path: Path, make_measurement: MakeMeasurement) -> None:
    """Hardware and op narrow what is written; what was matched is said."""
    store.write(everything(make_measurement))
    out = tmp_path / "part.jsonl"
    result = diode("export", "--hardware", "nvidia h100", "-o", str(out), "--json")
    assert json.loads(result.out) == {"file": str(out), "measurements": 1, "timings": 3, "not_held": []}
    assert result.err == "hardware: NVIDIA H100 (sm_90, 132 multiprocessors)\n"
    assert [line["op"] for line in lines_of(out)] == ["addmm"]
    diode("export", "--op", "mm", "-o", str(out), "--force")
    assert [line["op"] for line in lines_of(out)] == ["mm", "mm"]


def test_export_to_stdout(jsonl_path: Path, diode: RunCommand, another_database: str, database_url: str) -> None:
    """A dash is standard output, so that one warehouse can be piped into another."""
    diode("import", *H200, str(jsonl_path))
    program = Path(sys.executable).with_name("diode")
    exported = subprocess.run([program, "export", "-o", "-"], capture_output=True, check=True)
    assert exported.stderr == b""
    environment = {**os.environ, "DIODE_DATABASE_URL": another_database}
    imported = subprocess.run(
        [program, "import", "-"], input=exported.stdout, env=environment, capture_output=True, check=True
    )
    assert imported.stdout == b"6 measurements with 79 timings added\n"
    assert content(another_database) == content(database_url)
    assert diode("export", "--format", "parquet", "-o", "-").code == 2


def test_parquet_holds_the_observations(
    store: Store, diode: RunCommand, tmp_path: Path, make_measurement: MakeMeasurement
) -> None:
    """One row a timing, the columns of the view; superseded measurements are left out as they are there."""
    store.write(everything(make_measurement))
    out = tmp_path / "all.parquet"
    result = diode("export", "--format", "parquet", "-o", str(out))
    assert result == (0, f"{out}: 2 measurements with 4 timings\n", "1 superseded measurement left out\n")
    header = diode("query", "SELECT * FROM observations LIMIT 0").out.strip().split(",")
    table = pq.read_table(out)
    assert table.column_names == [*header, "metrics", *EXTRAS]
    assert sorted(us for us in table["runtime_us"].to_pylist() if us is not None) == [10.5, 20.25]
    part = tmp_path / "part.parquet"
    assert diode("export", "--format", "parquet", "--hardware", "h200", "--op", "mm", "-o", str(part)).code == 0
    assert pq.read_metadata(part).num_rows == 4


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["all.csv", "ALL.CSV", "all.csv.gz", "all.CSV.GZ"])
def test_csv_holds_what_parquet_does(
    store: Store, diode: RunCommand, tmp_path: Path, make_measurement: MakeMeasurement, name: str
) -> None:
    """The same rows and columns, in the same order; it is not for importing, and says so."""
    store.write(everything(make_measurement))
    out, parquet = tmp_path / name, tmp_path / "all.Parquet"
    result = diode("export", "-o", str(out))
    assert result == (0, f"{out}: 2 measurements with 4 timings\n", "1 superseded measurement left out\n")
    diode("export", "-o", str(parquet))
    content = gzip.decompress(out.read_bytes()) if name.lower().endswith(".gz") else out.read_bytes()
    rows = list(csv.DictReader(content.decode().splitlines()))
    table = pq.read_table(parquet)
    assert list(rows[0]) == table.column_names
    for column in ("measurement_uid", "hardware", "op", "template", "inputs", "kwargs", "measurement_extra"):
        assert [row[column] for row in rows] == [value or "" for value in table[column].to_pylist()]
    assert [float(row["runtime_us"] or 0) for row in rows] == [us or 0 for us in table["runtime_us"].to_pylist()]
    refused = diode("import", str(out))
    assert (refused.code, "is CSV, which cannot be imported" in refused.err) == (1, True)


def test_csv_of_a_part(store: Store, diode: RunCommand, tmp_path: Path, make_measurement: MakeMeasurement) -> None:
    """Hardware and op narrow it; nothing at all makes no file."""
    store.write([replace(measurement, superseded_by=None) for measurement in everything(make_measurement)])
    out = tmp_path / "part.csv"
    assert diode("export", "--hardware", "nvidia h100", "-o", str(out)).out == f"{out}: 1 measurement with 3 timings\n"
    assert {row["op"] for row in csv.DictReader(out.read_text().splitlines())} == {"addmm"}
    nothing = diode("export", "--op", "bmm", "-o", str(tmp_path / "none.csv"))
    assert (nothing.code, (tmp_path / "none.csv").exists()) == (1, False)


@pytest.mark.parametrize("fmt", ["jsonl", "parquet"])
def test_export_does_not_overwrite(diode: RunCommand, jsonl_path: Path, tmp_path: Path, fmt: str) -> None:
    """A file that is there stays as it is unless --force is given."""
    diode("import", *H200, str(jsonl_path))
    out = tmp_path / "out"
    out.write_text("precious")
    refused = diode("export", "--format", fmt, "-o", str(out))
    assert refused.code == 1
    assert refused.err == f"error: --output {out} exists already; name another file, or replace it with --force\n"
    assert out.read_text() == "precious"
    assert diode("export", "--format", fmt, "-o", str(out), "--force").code == 0
    assert out.stat().st_size > 1000


@pytest.mark.parametrize("fmt", ["jsonl", "parquet"])
def test_export_of_nothing_leaves_no_file(diode: RunCommand, jsonl_path: Path, tmp_path: Path, fmt: str) -> None:
    """What there is instead is said, and nothing lies around."""
    diode("import", *H200, str(jsonl_path))
    before = set(tmp_path.iterdir())
    result = diode("export", "--format", fmt, "--op", "baddbmm", "-o", str(tmp_path / "out"))
    assert result.code == 1
    assert "there is nothing to export; the warehouse holds 6 measurements" in result.err
    assert {path.name for path in set(tmp_path.iterdir()) - before} <= {"warehouse.cache"}


def test_export_of_an_unknown_op_lists_the_known_ones(diode: RunCommand, tmp_path: Path) -> None:
    """A typing error is not an empty warehouse."""
    result = diode("export", "--op", "mmm", "-o", str(tmp_path / "out.jsonl"))
    assert result.code == 2
    assert "unknown op 'mmm'; known ops: addmm, baddbmm, bmm, convolution, flex_attention, " in result.err
    assert "scaled_mm, pointwise, reduction" in result.err


@pytest.mark.parametrize("fmt", ["jsonl", "parquet", "torch-diode", "inductor-lut"])
@pytest.mark.usefixtures("store")
def test_export_of_an_empty_warehouse(diode: RunCommand, tmp_path: Path, fmt: str) -> None:
    """It says that it is empty, and not that there is anything else."""
    result = diode("export", "--format", fmt, "-o", str(tmp_path / "out"))
    said = f"there is nothing to export; the warehouse holds no measurements; {FIRST_STEP}"
    assert (result.code, result.err) == (1, f"error: {said}\n")


def test_export_into_a_folder_that_is_not_there(diode: RunCommand, jsonl_path: Path, tmp_path: Path) -> None:
    """The system's reason makes one line."""
    diode("import", *H200, str(jsonl_path))
    result = diode("export", "-o", str(tmp_path / "nowhere" / "out.jsonl"))
    assert result.code == 1
    assert "out.jsonl cannot be written: No such file or directory" in result.err
    (tmp_path / "folder.jsonl").mkdir()
    assert "is a folder; name a file in it" in diode("export", "-o", str(tmp_path / "folder.jsonl")).err


@pytest.mark.parametrize("name", ["out.xlsx", "out.json", "out.txt.gz", "out", "jsonl", ".jsonl"])
@pytest.mark.usefixtures("store")
def test_a_name_that_says_no_format(diode: RunCommand, tmp_path: Path, name: str) -> None:
    """It is refused with the suffixes there are, and nothing is written; with --format any name does."""
    result = diode("export", "-o", str(tmp_path / name))
    assert result.code == 2
    assert f"the name '{name}' has no known suffix" in (said := " ".join(result.err.replace("│", " ").split()))
    assert (
        "end it in .jsonl, .ndjson, .parquet, .csv, .seg, .records, .msgpack (.gz may follow), or give --format" in said
    )
    assert not (tmp_path / name).exists()
    assert "there is nothing to export" in diode("export", "-o", str(tmp_path / name), "--format", "jsonl").err


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("x.jsonl", b"{"),
        ("x.ndjson", b"{"),
        ("x.jsonl.gz", b"\x1f\x8b"),
        ("x.parquet", b"PAR1"),
        ("x.seg", b"\x89DIODE"),
        ("x.records", b"\x8c\xa1v"),
        ("x.msgpack", b"\x82"),
    ],
)
def test_the_suffix_says_the_format(
    store: Store, diode: RunCommand, tmp_path: Path, make_measurement: MakeMeasurement, name: str, start: bytes
) -> None:
    """Each known suffix gets its format."""
    store.write([make_measurement(1)])
    assert diode("export", "-o", str(tmp_path / name)).code == 0
    assert (tmp_path / name).read_bytes().startswith(start)
