"""What a bad line, file or option is told: the field, what is wrong with it, and what to do."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
from jsonl_rows import CONTEXT, ROW, reason, row_with, with_choice, with_input

from diode_store.errors import CodecError
from diode_store.exchange import jsonl
from diode_store.exchange.context import BadLine
from diode_store.wire import codec

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import MakeMeasurement, RunCommand


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (row_with(environment="x"), "environment must be a map, not 'x'; correct or remove the line"),
        (row_with(host=5), "host must be text, not 5; correct or remove the line"),
        (row_with(flags=5), "flags must be an array, not 5; correct or remove the line"),
        (row_with(choices=[]), "choices is empty: a problem needs at least one timing; correct or remove the line"),
        (with_choice(extra="x"), "choices[0].extra must be an object, not text; correct or remove the line"),
        (
            with_choice(p10_us="x"),
            "choices[0].p10_us must be a finite, positive number of microseconds, not 'x'; correct or remove the line",
        ),
        (
            with_choice(runtime_us=1e15),
            (
                "choices[0].runtime_us must be a finite, positive number of microseconds below 1e+15 (31 years), "
                "not 1000000000000000; check its unit"
            ),
        ),
        (
            row_with(dtype="bfloat17"),
            "dtype: unknown dtype 'bfloat17'; write PyTorch's name, such as bfloat16 or float32",
        ),
        (
            with_input(dtype="bfloat17"),
            "inputs[0].dtype: unknown dtype 'bfloat17'; write PyTorch's name, such as bfloat16 or float32",
        ),
    ],
)
def test_a_bad_line_names_its_field_and_a_remedy(row: dict[str, Any], expected: str) -> None:
    """The message is about the line, not about our code."""
    assert reason(row) == expected


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (row_with(sample_seed=2**64), "sample_seed must be a number of at most 64 bits, not 18446744073709551616"),
        (
            row_with(sample_seed=-(2**63) - 1),
            "sample_seed must be a number of at most 64 bits, not -9223372036854775809",
        ),
        (row_with(host="a\ud800"), r"host must be text of whole Unicode characters, not 'a\ud800'"),
        (row_with(notes=[1, {"a": [2**70]}]), f"notes[1].a[0] must be a number of at most 64 bits, not {2**70}"),
        (row_with(**{"\udfff": 1}), r"a name in the line must be whole Unicode characters, not '\udfff'"),
        (row_with(environment={"\udfff": 1}), r"a name in environment must be whole Unicode characters, not '\udfff'"),
        (
            with_choice(kwargs={"BLOCK_M": 2**70}),
            f"choices[0].kwargs.BLOCK_M must be a number of at most 64 bits, not {2**70}",
        ),
        (
            with_choice(extra={"x": "\ud800"}),
            r"choices[0].extra.x must be text of whole Unicode characters, not '\ud800'",
        ),
    ],
)
def test_a_value_that_no_record_holds_is_named(row: dict[str, Any], expected: str) -> None:
    """Numbers that are too long and half characters, which JSON can spell, wherever in the line they are."""
    assert reason(row) == f"{expected}; correct or remove the line"


def test_an_option_that_no_record_holds_is_named() -> None:
    """What a terminal gave for bytes that are no text is not the line's fault, so the option's field is named."""
    [bad] = jsonl.read([json.dumps(ROW).encode()], replace(CONTEXT, dataset="a\udcff"))
    assert isinstance(bad, BadLine)
    assert bad.reason.startswith(r"dataset must be text of whole Unicode characters, not 'a\udcff'")


def test_a_line_nested_too_deeply() -> None:
    """Python's own words about recursion are kept away."""
    assert reason(b"[" * 100_000) == "not JSON text: it is nested too deeply; correct or remove the line"


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("environment", "x", "environment must be a map, not 'x'"),
        ("problem", "x", "problem must be a map, not 'x'"),
        ("problem", {"op": "mm"}, "problem has no inputs"),
        ("problem", {"op": "mm", "inputs": [["bfloat16", [1]]]}, r"inputs\[0\] must hold 3 values, not 2"),
        ("problem", {"op": "mm", "inputs": [], "scalars": [["alpha"]]}, "a scalar must hold 2 values, not 1"),
        ("measured_at", "soon", "measured_at must be an ISO 8601 time, not 'soon'"),
        ("configs", [None], "configs must hold bytes"),
        ("timings", 5, "timings must be an array, not 5"),
        ("timings", [[0], [1.0]], "timings must hold 7 values, not 2"),
    ],
)
def test_a_record_of_wrong_types_names_the_field(
    make_measurement: MakeMeasurement, field: str, value: object, expected: str
) -> None:
    """What no collector of ours would write is refused by name too."""
    content = msgpack.unpackb(codec.encode(make_measurement()))
    with pytest.raises(CodecError, match=f"^{expected}$"):
        codec.decode(msgpack.packb({**content, field: value}))


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        (5, "kwargs must be an array, not 5"),
        ([5], "a kwarg must be an array, not 5"),
        ([["X", {"a": 1}]], "kwarg 'X' must be a finite number, text or true/false, not {'a': 1}"),
    ],
)
def test_a_config_of_wrong_types(make_measurement: MakeMeasurement, kwargs: object, expected: str) -> None:
    """Kwargs that are no pairs of plain values are refused."""
    content = msgpack.unpackb(codec.encode(make_measurement()))
    columns = content["config_columns"]
    configs = [[*msgpack.unpackb(config)[: columns.index("kwargs")], kwargs] for config in content["configs"]]
    with pytest.raises(CodecError, match=re.escape(expected)):
        codec.decode(msgpack.packb({**content, "configs": list(map(msgpack.packb, configs))}))


def test_bytes_that_are_no_record_have_a_reason() -> None:
    """Also where the decoder has nothing to say."""
    with pytest.raises(CodecError, match=r"^not a msgpack record: it is malformed$"):
        codec.decode(b"\xc1")


def test_no_good_line_is_not_called_kept(diode: RunCommand, tmp_path: Path, database_url: str) -> None:
    """Good lines are mentioned where there are any."""
    path = tmp_path / "runs.jsonl"
    path.write_text("{\n")
    args = ("import", str(path), "--hardware", "h200", "--database", database_url)
    assert diode(*args).err.splitlines()[-1] == "error: 1 bad line; correct the files and import again"
    path.write_text(f"{{\n{json.dumps(ROW)}\n")
    kept = "error: 1 bad line; the good ones are in the warehouse; correct the files and import again"
    assert diode(*args).err.splitlines()[-1] == kept


def test_export_tells_parquet_by_the_suffix(diode: RunCommand, tmp_path: Path, jsonl_path: Path) -> None:
    """A file with that suffix is Parquet unless --format says otherwise."""
    database, path = str(tmp_path / "w.db"), tmp_path / "out.parquet"
    diode("db", "upgrade", "--database", database)
    diode("import", str(jsonl_path), "--hardware", "h200", "--database", database)
    assert diode("export", "-o", str(path), "--database", database).code == 0
    assert path.read_bytes()[:4] == b"PAR1"
    assert diode("export", "-o", str(path), "--force", "--format", "jsonl", "--database", database).code == 0
    assert path.read_bytes()[:1] == b"{"
