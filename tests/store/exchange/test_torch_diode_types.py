"""Upstream's files, read and written with its fields and in its layout."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
from torch_diode_files import (
    CONFIG,
    FAILING,
    SHAPE,
    SLOW,
    TABLE_SOLUTION,
    dataset,
    older,
    timed,
)

from diode_store.errors import ExportError, ImportFileError, RecordError
from diode_store.exchange.foreign.torch_diode_files import packed, parsed, read_file, write_file
from diode_store.exchange.foreign.torch_diode_types import (
    Dataset,
    MMShape,
    Table,
    TimedConfig,
    TritonGEMMConfig,
)

if TYPE_CHECKING:
    from pathlib import Path

    from diode_store.exchange.context import BadProblem

DATA = dataset()
TABLE = {
    "hardware": {
        "NVIDIA H200": {
            "operation": {"mm": {"solution": {json.dumps(SHAPE): TABLE_SOLUTION}, "version": 1}},
            "version": 1,
        }
    },
    "version": 1,
}
FILES: list[tuple[type[Dataset | Table], dict[str, Any]]] = [(Dataset, DATA), (Table, TABLE)]
KINDS = [kind.__name__ for kind, _ in FILES]


def shape(**changes: Any) -> MMShape:
    """Return ``SHAPE`` as an object."""
    tuples = {name: tuple(value) for name, value in SHAPE.items() if isinstance(value, list)}
    return MMShape(**{**SHAPE, **tuples, **changes})


def config(**changes: Any) -> TritonGEMMConfig:
    """Return ``CONFIG`` as an object."""
    return TritonGEMMConfig(**{**CONFIG, **changes})


@pytest.mark.parametrize(("kind", "content"), FILES, ids=KINDS)
def test_json_comes_back_as_it_was(kind: type[Dataset | Table], content: dict[str, Any]) -> None:
    """What is read is written again byte for byte."""
    text = json.dumps(content, indent=2).encode()
    assert packed(parsed(text, kind, is_json=True), as_msgpack=False) == text


@pytest.mark.parametrize(("kind", "content"), FILES, ids=KINDS)
def test_msgpack_holds_the_same(kind: type[Dataset | Table], content: dict[str, Any]) -> None:
    """A file is the same in both formats; keys are JSON text there, too."""
    read = parsed(json.dumps(content).encode(), kind, is_json=True)
    written = packed(read, as_msgpack=True)
    assert parsed(written, kind, is_json=False) == read
    assert msgpack.unpackb(written) == content


def test_older_files_are_read() -> None:
    """Names beside solutions, and configs as text, make the same data set, which is written in the newer layout."""
    read = Dataset.from_dict(older(DATA))
    assert read.to_dict() == Dataset.from_dict(DATA).to_dict() == DATA


def test_fields_of_a_file() -> None:
    """Dtypes are names, times are upstream's numbers, sizes are tuples."""
    ((place, solution),) = Dataset.from_dict(DATA).problems.items()
    dtypes = dict.fromkeys(("M_dtype", "K_dtype", "out_dtype"), "float16")
    expected = MMShape(B=1, M=64, N=32, K=48, **dtypes, out_size=(1, 64, 32), out_stride=(2048, 32, 1))
    assert place == ("NVIDIA H200", "mm", expected)
    assert solution.timed_configs[2] == TimedConfig(config=config(), time=0.0105)


def test_a_table_lists_the_fastest_first() -> None:
    """Without those that failed; equals stay in their order."""
    data = Dataset.from_dict(dataset(timed(SLOW, 0.02), timed(FAILING, float("inf")), timed(CONFIG, 0.0105)))
    table = data.to_table()
    assert table.to_dict() == TABLE
    assert data.get_fastest_configs() == {("NVIDIA H200", "mm", shape()): config()}


def test_a_table_leaves_out_problems_where_all_failed() -> None:
    """There is nothing to choose."""
    data = Dataset.from_dict(dataset(timed(CONFIG, float("inf"))))
    assert data.get_fastest_configs() == {}
    assert data.to_table() == Table()


def test_adding_timings() -> None:
    """Devices, ops and problems are made as they come."""
    data = Dataset()
    data.add_timing("NVIDIA H200", "mm", shape(), config(num_warps=8), 0.02)
    data.add_timing("NVIDIA H200", "mm", shape(), config(num_stages=5), float("inf"))
    data.add_timing("NVIDIA H200", "mm", shape(), config(), 0.0105)
    assert data == Dataset.from_dict(DATA)


WHERE = "hardware 'NVIDIA H200', op 'mm', problem 1"
BAD: list[tuple[Any, str]] = [
    ([], "expected an object, not a list; correct or remove it"),
    ({"version": 1, "hardwares": {}}, "unknown fields ['hardwares']; remove them"),
    ({"version": 2, "hardware": {}}, "version 2 is not known, only 1; upgrade torch-diode"),
    ({"hardware": []}, "hardware must be an object, not a list; correct or remove it"),
    ({"hardware": {"x": 3}}, "hardware 'x': expected an object, not a number; correct or remove it"),
    ({"hardware": {"x": {}}}, "hardware 'x': no operation; add what is missing or remove the entry"),
    (dataset(timed(3, 0.1)), f"{WHERE}, config 1: expected an object, not a number; correct or remove it"),
    (dataset(timed(CONFIG, 1), timed("{", 1)), f"{WHERE}, config 2: it is not JSON (line 1, column 2: "),
    (dataset({"config": CONFIG}), f"{WHERE}, config 1: no time; add what is missing or remove the entry"),
    (dataset(timed(CONFIG, "fast")), f"{WHERE}, config 1: time must be a number, not 'fast'; correct or remove it"),  # type: ignore[arg-type]
    (
        dataset(timed({**CONFIG, "block_m": True}, 1)),
        f"{WHERE}, config 1: block_m must be a whole number, not True; correct or remove it",
    ),
    (dataset(M=0), f"{WHERE}: M must be positive, not 0; correct or remove it"),
    (dataset(M_dtype="float17"), f"{WHERE}: M_dtype: unknown dtype 'float17'; write PyTorch's name"),
    (dataset(out_size=[1, 2, 2**70]), f"{WHERE}: out_size must be 3 whole numbers, not [1, 2, 1180591620717411303424]"),
    (dataset(timed({**CONFIG, "name": "\ud800"}, 1)), f"{WHERE}, config 1: name must be text, not '\\ud800'"),
    (dataset(timed({**CONFIG, "name": "x" * 5000}, 1)), f"{WHERE}, config 1: name must be text, not 'xxx"),
    (dataset(out_size=[1, 2]), f"{WHERE}: out_size must be 3 whole numbers, not [1, 2]; correct or remove it"),
]


@pytest.mark.parametrize(("content", "expected"), BAD, ids=range(len(BAD)))
def test_a_bad_file_says_where(content: Any, expected: str, tmp_path: Path) -> None:
    """File, path inside it, what is wrong and what to do are in one line."""
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ImportFileError) as caught:
        read_file(path, Dataset)
    assert str(caught.value).startswith(f"{path}: {expected}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\x00", '{"hardware": ' + "9" * 5000 + "}"])
@pytest.mark.parametrize("is_json", [True, False])
def test_garbage(text: str, is_json: bool) -> None:  # noqa: FBT001 - a parameter
    """Bytes that hold nothing give a reason, never another error."""
    with pytest.raises(RecordError, match=r"; |get a whole copy"):
        parsed(text.encode(), Dataset, is_json=is_json)


def test_a_problem_that_is_there_twice() -> None:
    """Two keys that say the same in other words would lose one of them."""
    data = dataset()
    solutions = data["hardware"]["NVIDIA H200"]["operation"]["mm"]["solution"]
    solutions[json.dumps(SHAPE, indent=1)] = solutions[json.dumps(SHAPE)]
    with pytest.raises(RecordError, match="problem 2: occurs twice; merge the two"):
        Dataset.from_dict(data)


def test_good_problems_beside_bad_ones() -> None:
    """Whoever wants to be told gets the good problems."""
    data = dataset()
    data["hardware"]["NVIDIA H200"]["operation"]["mm"]["solution"][json.dumps({**SHAPE, "K": "x"})] = {}
    told: list[BadProblem] = []
    assert Dataset.from_dict(data, on_bad=told.append) == Dataset.from_dict(DATA)
    ((number, reason),) = [(bad.line, bad.reason) for bad in told]
    assert number == 2
    assert reason == (
        "hardware 'NVIDIA H200', op 'mm', problem 2: K must be a whole number, not 'x'; correct or remove it"
    )


@pytest.mark.parametrize("name", ["data.json", "data.msgpack"])
def test_files_by_suffix(name: str, tmp_path: Path) -> None:
    """The suffix says the format, for writing and reading; a file that is there is replaced."""
    path = tmp_path / name
    path.write_text("before")
    data = Dataset.from_dict(DATA)
    write_file(path, data)
    assert read_file(path, Dataset) == data
    assert [found.name for found in tmp_path.iterdir()] == [name]


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    """Nobody has to guess what a file holds."""
    expected = "the file's suffix sets its format; name it .json or .msgpack"
    with pytest.raises(ExportError, match=expected):
        write_file(tmp_path / "data.pt", Dataset())
    with pytest.raises(ImportFileError, match=expected):
        read_file(tmp_path / "data.pt", Dataset)
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_not_there(tmp_path: Path) -> None:
    """A wrong name is said."""
    with pytest.raises(ImportFileError, match=r"none\.json: No such file or directory; check the file's name"):
        read_file(tmp_path / "none.json", Dataset)
    with pytest.raises(ExportError, match="cannot be written"):
        write_file(tmp_path / "no" / "data.json", Dataset())


def test_bytes_that_broke() -> None:
    """Whatever one byte becomes, the file is read or refused with a line."""
    whole = packed(Dataset.from_dict(DATA), as_msgpack=True)
    said = []
    for position in range(len(whole)):
        for value in (0x00, 0x81, 0x90, 0xC1, 0xCF, 0xFF):
            try:
                parsed(whole[:position] + bytes([value]) + whole[position + 1 :], Dataset, is_json=False)
            except RecordError as error:
                said.append(str(error))
    assert len(said) > len(whole)
    assert [line for line in said if "\n" in line] == []
