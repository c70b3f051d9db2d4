"""Our own files, imported into the warehouse that they came from, and files of others that hold no measurements."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from torch_diode_files import dataset

from diode_store.exchange.context import ImportContext
from diode_store.exchange.importing import read_file
from diode_store.records import Measurement, Problem, Timing, TimingMethod
from samples import matmul, measurement, triton_config

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import RunCommand
    from diode_store.warehouse.store import Store

pytestmark = pytest.mark.usefixtures("default_database")

FORMATS = {
    "records": "x.seg",
    "jsonl": "x.jsonl",
    "parquet": "x.parquet",
    "t4": "x.t4.json",
    "torch-diode": "x.json",
}


@pytest.mark.parametrize("fmt", FORMATS)
def test_an_export_adds_nothing_where_it_came_from(diode: RunCommand, store: Store, tmp_path: Path, fmt: str) -> None:
    """Every format that can be imported, also one without uids, layouts and environments."""
    first, second = matmul(64, 256, 128).inputs
    transposed = Problem.create("mm", (first, second._replace(stride=(1, 128))))
    store.write(
        [
            measurement(0, runtimes=(10.5, 20.1, None, 33.3)),
            measurement(1, problem=transposed, runtimes=(11.5, 1 / 3 * 100, None)),
            measurement(2, runtimes=(8.0, 9.0), timing_method=TimingMethod(regime="graph")),
            measurement(3, timings=(Timing(triton_config(64, matrix_instr=16), 12.7),)),
        ]
    )
    before = store.counts()
    file = str(tmp_path / FORMATS[fmt])
    assert diode("export", "--format", fmt, "-o", file).code == 0
    for options in (("--dry-run",), ()):
        result = diode("import", *options, file)
        assert (result.code, result.out[:11]) == (0, "nothing new")
    assert store.counts() == before


def test_a_data_set_of_new_times_is_imported(diode: RunCommand, store: Store, tmp_path: Path) -> None:
    """One unknown time makes it new."""
    store.write([measurement(0, runtimes=(10.5, 16.0, 32.0))])
    path = tmp_path / "x.json"
    diode("export", "--format", "torch-diode", "-o", str(path))
    path.write_text(path.read_text().replace("0.032", "0.033"))
    assert diode("import", str(path)).out == "1 measurement with 2 timings added\n"


def test_slow_kernels_of_a_data_set_are_estimates(tmp_path: Path) -> None:
    """A sweep gives up on them early; without the mark a model would be judged by them."""
    path = tmp_path / "x.json"
    path.write_text(json.dumps(dataset()))
    [found] = read_file(str(path), ImportContext())
    assert isinstance(found, Measurement)
    assert [timing.is_estimate for timing in found.timings] == [False, False, False]
    text = path.read_text().replace("0.02,", "0.04,").replace("0.02}", "0.04}")
    path.write_text(text)
    [found] = read_file(str(path), ImportContext())
    assert isinstance(found, Measurement)
    assert [timing.is_estimate for timing in found.timings] == [True, False, False]


SOLUTION = "is a max-autotune solution, which has no times; `diode compare` reads it"
TABLE = "is a lookup table of Inductor's, which has no times"
SEVERAL = "is one JSON value over several lines, and jsonl has a measurement a line"
FOREIGN = {
    '{"name": "mine", "configs": [{"M": 1}]}': SOLUTION,
    '{\n "mm": {\n  "config": [\n   1\n  ]\n }\n}': SOLUTION,
    '{"config": [{"name": "triton_mm"}]}': SOLUTION,
    '{\n "NVIDIA H200+mm+((torch.bfloat16, [1, 2])": [\n {}\n ]\n}': TABLE,
    '{"mm+((torch.float16, [1, 2])": []}': TABLE,
    '{\n "what": 1,\n "ever": 2\n}': SEVERAL,
    "[\n 1,\n 2\n]": SEVERAL,
}


@pytest.mark.parametrize("text", FOREIGN)
def test_a_foreign_file_is_named_once(diode: RunCommand, tmp_path: Path, text: str) -> None:
    """Rather than every line of it, whether or not the format is named."""
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    said = f"error: {path} {FOREIGN[text]}; import the measurements behind it\n"
    for options in ((), ("--format", "jsonl")):
        assert diode("import", *options, str(path)) == (1, "", said)


@pytest.mark.parametrize("is_missing", [True, False])
def test_the_hint_about_hardware(diode: RunCommand, jsonl_path: Path, *, is_missing: bool) -> None:
    """Only where hardware is what is missing."""
    row = json.loads(jsonl_path.read_text().splitlines()[0])
    jsonl_path.write_text(json.dumps(row if is_missing else {"op": "mm"}))
    assert ("--hardware NAME" in diode("import", str(jsonl_path)).err.splitlines()[-1]) is is_missing
