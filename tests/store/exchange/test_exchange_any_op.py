"""Files with problems of any op and with metrics: what comes back, what is refused, and what a format leaves out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from any_op import CONV, PROBLEMS, grouped, scaled
from stored import content

import samples
from diode_store.errors import CodecError
from diode_store.exchange.picks import Pick, Picks
from diode_store.exchange.picks_reading import read_picks
from diode_store.wire import codec
from wire_rows import with_rows, written

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import RunCommand
    from diode_store.warehouse.store import Store

pytestmark = pytest.mark.usefixtures("default_database")
NOTE = "2 measurements of conv: this torch-diode does not know the op; it keeps them and ranks none of its kernels"


def measured() -> list[Any]:
    """Return a measurement of each problem, with metrics."""
    fields = {"metrics": samples.EVERY_FIELD["metrics"]}
    return [samples.measurement(n, problem=p, **fields) for n, (p, _) in enumerate(PROBLEMS.values())]


@pytest.mark.parametrize("name", ["out.jsonl", "out.seg", "out.records", "out.parquet", "out.t4.json"])
def test_every_problem_comes_back(
    store: Store, diode: RunCommand, tmp_path: Path, another_database: str, database_url: str, name: str
) -> None:
    """Inputs, dimensions and metrics are the same again; a line says which op is unknown."""
    store.write(measured())
    kind = ("--format", "records") if name.endswith("records") else ("--format", "t4") if "t4" in name else ()
    assert diode("export", "-o", str(tmp_path / name), *kind).code == 0
    result = diode("import", str(tmp_path / name), *kind, "--database", another_database)
    assert (result.code, NOTE in result.err.splitlines()) == (0, True)
    assert content(another_database) == content(database_url)
    again = diode("import", str(tmp_path / name), *kind, "--database", another_database)
    assert (again.out[:11], "conv" in again.err) == ("nothing new", False)


def line(**changes: Any) -> dict[str, Any]:
    """Return a line of a scaled product with three choices, changed."""
    operands = [
        {"dtype": "float8_e4m3fn", "size": [16, 32], "stride": [32, 1]},
        {"dtype": "float8_e4m3fn", "size": [32, 64], "stride": [64, 1]},
        {"dtype": "float32", "size": [16, 1], "stride": [1, 1]},
        {"dtype": "float32", "size": [1, 64], "stride": [1, 1]},
    ]
    choices = [{"template": "mm", "kwargs": {"BLOCK_M": 16 << n}, "runtime_us": 10.0 + n} for n in range(3)]
    row = {"op": "scaled_mm", "dtype": "e4m3", "B": 1, "M": 16, "N": 64, "K": 32, "layout": "nn"}
    return {**row, "inputs": operands, "choices": choices, **changes}


BAD_LINES: dict[str, tuple[dict[str, Any], str]] = {
    "a name that is none": ({"op": "two words"}, "'two words' is not the name of an op"),
    "an op that is no text": ({"op": ["mm"]}, "op must be text, not a list"),
    "an unknown op without inputs": ({"op": "conv", "inputs": []}, "conv: expected 1 to 64 inputs, not 0"),
    "an input without strides": (
        {"op": "conv", "inputs": [{"dtype": "bfloat16", "size": [4, 4], "stride": [1]}]},
        "conv: an input has 2 sizes and 1 strides",
    ),
    "a skew of text": (
        {"op": "grouped_mm", "scalars": {"skew": "much"}},
        "skew must be a number from 0 to 8, not 'much'",
    ),
    "scales that fit no recipe": (
        {
            "inputs": [
                *line()["inputs"][:2],
                {"dtype": "float32", "size": [16, 3], "stride": [3, 1]},
                line()["inputs"][3],
            ]
        },
        r"a scale of \[16, 3\] does not fit A of \[16, 32\]",
    ),
    "other dimensions": (
        {"dimensions": {"scaling": "tensor"}},
        r"dimensions {'scaling': 'tensor'} contradict the inputs, which make them {'scaling': 'row'}",
    ),
    "metrics of another length": (
        {"metrics": [["spills", "B", [1.0, 2.0]]]},
        "metric spills must hold a value for each of 3 timings, not 2",
    ),
    "metrics without a unit": ({"metrics": [["spills", [1.0, 2.0, 3.0]]]}, r"metrics\[0\] must hold 3 values, not 2"),
    "metrics of text": ({"metrics": [["spills", "B", ["x", 1, 2]]]}, "metric spills must be a number .*, not 'x'"),
    "metrics that are none": ({"metrics": {"spills": 1}}, "metrics must be an array"),
}


@pytest.mark.parametrize("what", BAD_LINES)
def test_bad_lines_are_named(diode: RunCommand, tmp_path: Path, what: str) -> None:
    """One line says what is wrong in a file of JSON lines."""
    import re

    changes, message = BAD_LINES[what]
    row = line(**changes)
    if row["op"] == "grouped_mm":
        row["inputs"] = [spec._asdict() for spec in grouped().inputs]
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(row) + "\n")
    result = diode("import", "--hardware", "h200", str(path))
    assert result.code == 1
    assert re.search(message, result.err), result.err


def test_a_benchmark_writes_metrics(store: Store, diode: RunCommand, tmp_path: Path) -> None:
    """A line of a script has them as columns, and an unknown op needs neither sizes nor a layout."""
    path = tmp_path / "good.jsonl"
    metrics = [["spills", "B", [0, 8, None]], ["registers_per_thread", "", 32]]
    bare = {"op": "conv", "inputs": line()["inputs"], "choices": line()["choices"]}
    path.write_text("\n".join(json.dumps(row) for row in (line(metrics=metrics), bare)))
    result = diode("import", "--hardware", "h200", "--json", str(path))
    assert json.loads(result.out)["unknown_ops"] == {"conv": 1}
    diode("export", "-o", str(tmp_path / "out.jsonl"))
    [known, _] = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert known["dimensions"] == {"scaling": "row"}
    assert known["metrics"] == [["registers_per_thread", "", 32.0], ["spills", "B", [0.0, 8.0, None]]]


def changed(table: pa.Table, column: str, value: str) -> pa.Table:
    """Return a table with one value in all rows of a column."""
    place = table.column_names.index(column)
    return table.set_column(place, column, pa.array([value] * table.num_rows))


BAD_COLUMNS: dict[str, tuple[str, str, str]] = {
    "other dimensions": (
        "dimensions",
        '{"scaling": "tensor"}',
        "dimensions {'scaling': 'tensor'} contradict the inputs",
    ),
    "a skew of text": ("scalars", '[["skew", "x"]]', "grouped_mm: skew must be a number from 0 to 8, not 'x'"),
    "an op that is none": ("op", "no op", "'no op' is not the name of an op"),
    "metrics without a unit": ("metrics", '{"spills": 1}', "metrics.'spills' must be a value and a unit, not 1"),
    "metrics of text": ("metrics", '{"spills": {"value": "x", "unit": "B"}}', "metric spills must be a number"),
    "metrics that are no JSON": ("metrics", "{", "column metrics is not JSON"),
    "metrics of a list": ("metrics", "[]", "column metrics must hold an object as JSON"),
}


@pytest.mark.parametrize("what", BAD_COLUMNS)
def test_bad_columns_are_named(
    store: Store, diode: RunCommand, tmp_path: Path, another_database: str, what: str
) -> None:
    """One line says what is wrong in a Parquet file."""
    column, value, message = BAD_COLUMNS[what]
    problem = grouped() if value.startswith("[[") else scaled()
    store.write([samples.measurement(1, problem=problem, metrics=samples.EVERY_FIELD["metrics"])])
    path = tmp_path / "bad.parquet"
    diode("export", "-o", str(path))
    pq.write_table(changed(pq.read_table(path), column, value), path)
    result = diode("import", str(path), "--database", another_database)
    assert result.code == 1
    assert message in result.err


BAD_RECORDS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "metrics of another length": (
        lambda record: record.update(metrics=[["spills", "B", [1.0]]]),
        "metric spills must hold a value for each of 3 timings, not 1",
    ),
    "too many metrics": (lambda record: record.update(metrics=[["m", "B", 1.0]] * 33), "at most 32 metrics, not 33"),
    "a metric twice": (lambda record: record.update(metrics=[["m", "B", 1.0]] * 2), "each metric once"),
    "no name": (lambda record: record.update(metrics=[[1, "B", 1.0]]), "a metric's name must be an identifier, not 1"),
    "no array": (lambda record: record.update(metrics="spills"), "metrics must be an array, not 'spills'"),
    "no values": (lambda record: record.update(metrics=[["m", "B", None]]), "metric m has no value"),
    "nested values": (
        lambda record: record.update(metrics=[["m", "B", [[1], 2, 3]]]),
        r"metric m must be a number .*\(1,\)",
    ),
}


@pytest.mark.parametrize("what", BAD_RECORDS)
def test_bad_records_are_named(what: str) -> None:
    """One line says what is wrong in a record."""
    change, message = BAD_RECORDS[what]
    record = with_rows(samples.measurement())
    change(record)
    with pytest.raises(CodecError, match=message):
        codec.decode(written(record))


def test_an_older_reader_keeps_metrics() -> None:
    """A reader that knows no metrics keeps the field as an unknown one: the version of a record is the same."""
    record = codec.encode(samples.measurement(1, **samples.EVERY_FIELD))
    assert codec.decode_head(record).uid == samples.measurement(1).uid
    assert codec.WIRE_VERSION == 2


@pytest.mark.parametrize(
    ("fmt", "unknown", "dimensions"),
    [
        (
            "torch-diode",
            "timings left out: conv is not an op that this torch-diode knows",
            "timings left out: the format has no field for the dimensions of scaled_mm",
        ),
        (
            "max-autotune-solution",
            "measurements left out: conv is not an op that this torch-diode knows",
            "measurements left out: the format has no field for the dimensions of scaled_mm",
        ),
        (
            "inductor-lut",
            "problems left out: conv is not an op that this torch-diode knows",
            "problems left out: Inductor's lookup tables cannot name problems of scaled_mm; `diode lock` can",
        ),
    ],
)
def test_foreign_formats_say_what_they_leave_out(
    store: Store, diode: RunCommand, tmp_path: Path, fmt: str, unknown: str, dimensions: str
) -> None:
    """One line for each op that a format cannot express; the others are written."""
    store.write([samples.measurement(n, problem=p, runtimes=(1e3, 1e3)) for n, (p, _) in enumerate(PROBLEMS.values())])
    space = ("--search-space", "EXHAUSTIVE") if fmt.startswith("max") else ()
    result = diode("export", "--format", fmt, "-o", str(tmp_path / "out.json"), *space)
    assert result.code == 0, result.err
    said = result.err.splitlines()
    assert [row.split(" ", 1)[1] for row in said if ": conv is" in row] == [unknown]
    for op in ("scaled_mm", "convolution"):
        assert [row.split(" ", 1)[1] for row in said if f" {op}" in row] == [dimensions.replace("scaled_mm", op)]
    assert sum("reduction is a fused kernel, not a matrix product" in row for row in said) == 1


def test_picks_leave_out_unknown_ops(store: Store, diode: RunCommand, tmp_path: Path) -> None:
    """`diode lock` names the op; the other problems are locked, and the file is read back."""
    problems = (samples.matmul(64, 256, 128), scaled(), CONV)
    store.write([samples.measurement(n, problem=p, runtimes=(1e3, 1e3)) for n, p in enumerate(problems)])
    result = diode("lock", "-o", str(tmp_path / "picks.json"))
    assert result.code == 0, result.err
    assert "1 problem left out: conv is not an op that this torch-diode knows" in result.err
    read = read_picks(tmp_path / "picks.json")
    assert {pick.name for pick in read.picks.values()} == {
        "mm bf16 64x256x128 nn",
        "scaled_mm e4m3 16x6144x4096 nt row fast → bf16",
    }
    assert isinstance(read, Picks)
    assert all(isinstance(pick, Pick) for pick in read.picks.values())
