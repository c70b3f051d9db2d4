"""Damaged files of every format: a line about what is wrong, never anything else, and nothing that was not written."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import msgpack
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch_diode_files import dataset

from diode_store.devices.known import require_device
from diode_store.errors import ImportFileError
from diode_store.exchange import jsonl, records
from diode_store.exchange.context import BadLine, ImportContext, StatedProblem
from diode_store.exchange.foreign import t4
from diode_store.exchange.formats import ImportFormat, detect
from diode_store.exchange.importing import _reader
from diode_store.records import Measurement
from samples import measurement

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

CONTEXT = ImportContext(hardware=require_device("h200"), problem=StatedProblem("mm", 64, 64, 64, "bf16"))
GIVEN = [measurement(1), measurement(2, host="gpu-7", flags=("hot",))]


def written(write: Callable[[IO[bytes]], object]) -> bytes:
    """Return what is written to a stream."""
    stream = io.BytesIO()
    write(stream)
    return stream.getvalue()


def tuned() -> bytes:
    """Return a file of Kernel Tuner's."""
    results = [
        {"configuration": {"x": x}, "times": {"runtimes": [1.0, x]}, "invalidity": "correct", "correctness": 1}
        for x in (1, 2)
    ]
    return json.dumps({"results": results, "schema_version": "1.0.0"}).encode()


def in_parquet() -> bytes:
    """Return a Parquet file of two timings."""
    row = {
        "measurement_uid": "0" * 31 + "1",
        "hardware": "NVIDIA H200",
        "vendor": "nvidia",
        "arch": "sm_90",
        "multiprocessors": 132,
        "op": "mm",
        "inputs": '[["bfloat16",[64,16],[16,1]],["bfloat16",[16,64],[64,1]]]',
        "m": 64,
        "template": "aten::mm",
        "runtime_us": 10.5,
        "outcome": "ok",
        "source": "import",
        "kwargs": "[]",
    }
    table = pa.Table.from_pylist([row, {**row, "measurement_uid": "0" * 31 + "2"}])
    return written(lambda stream: pq.write_table(table, stream))


@cache
def good_file(name: str) -> bytes:
    """Return a good file of a format."""
    files: dict[str, Callable[[], bytes]] = {
        "jsonl": lambda: written(lambda stream: jsonl.write(stream, GIVEN)),
        "records": lambda: written(lambda stream: records.write(stream, GIVEN)),
        "segment": lambda: written(lambda stream: records.write(stream, GIVEN, as_segment=True)),
        "t4": lambda: written(lambda stream: t4.write(stream, GIVEN)),
        "tuned": tuned,
        "parquet": in_parquet,
        "dataset.json": lambda: json.dumps(dataset()).encode(),
        "dataset.msgpack": lambda: bytes(msgpack.packb(dataset())),
    }
    return files[name]()


FORMATS = {
    "jsonl": ImportFormat.JSONL,
    "records": ImportFormat.RECORDS,
    "segment": ImportFormat.RECORDS,
    "t4": ImportFormat.T4,
    "tuned": ImportFormat.T4,
    "parquet": ImportFormat.PARQUET,
    "dataset.json": ImportFormat.TORCH_DIODE,
    "dataset.msgpack": ImportFormat.TORCH_DIODE,
}
formats = pytest.mark.parametrize("name", FORMATS)


def read(data: bytes, fmt: ImportFormat) -> list[Measurement | BadLine]:
    """Return what the reader of a format makes of ``data``; a file that is refused whole is one bad line."""
    stream = io.BufferedReader(io.BytesIO(data))  # type: ignore[arg-type]  # mypy: BytesIO is no RawIOBase
    try:
        return list(_reader(fmt)(stream, CONTEXT))
    except ImportFileError as error:
        return [BadLine(0, str(error))]


def check(found: list[Measurement | BadLine]) -> None:
    """What is bad is said in one line."""
    for item in found:
        if isinstance(item, BadLine):
            said = item.at("FILE")
            assert said.startswith("FILE:")
            assert "\n" not in said
            assert len(said) < 1000
        else:
            assert isinstance(item, Measurement)


@formats
def test_a_good_file_is_told_and_read(name: str) -> None:
    """By its first bytes, under any name."""
    stream = io.BufferedReader(io.BytesIO(good_file(name)))  # type: ignore[arg-type]  # likewise
    assert detect("x", stream) is FORMATS[name]
    found = read(good_file(name), FORMATS[name])
    assert found
    assert [item.at("FILE") for item in found if isinstance(item, BadLine)] == []
    if name in {"jsonl", "records", "segment", "t4"}:
        assert [replace(item, timings=tuple(item.timings)) for item in found if isinstance(item, Measurement)] == GIVEN


@formats
@given(data=st.data())
def test_damage_is_said_in_a_line(name: str, data: st.DataObject) -> None:
    """Bytes that are flipped, lost or put in make bad lines or other measurements, no tracebacks."""
    content = bytearray(good_file(name))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        change = data.draw(st.sampled_from(("flip", "cut", "drop", "put")))
        if change == "flip" and at < len(content):
            content[at] ^= data.draw(st.integers(1, 255))
        elif change == "cut":
            del content[at:]
        elif change == "drop":
            del content[at : at + data.draw(st.integers(1, 40))]
        else:
            content[at:at] = data.draw(st.binary(max_size=12))
    check(read(bytes(content), FORMATS[name]))


@given(content=st.binary(max_size=200), fmt=st.sampled_from(sorted(set(ImportFormat) - {ImportFormat.AUTO})))
def test_any_bytes_in_any_format(content: bytes, fmt: ImportFormat) -> None:
    """Are refused in a line, or are nothing."""
    found = read(content, fmt)
    check(found)
    assert [item for item in found if isinstance(item, Measurement)] == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(data=st.data())
def test_t4_with_other_values(data: st.DataObject) -> None:
    """Whatever stands where a T4 file has something else, a line says so."""
    content = json.loads(good_file(data.draw(st.sampled_from(("t4", "tuned")))))
    place = content
    while isinstance(place, (dict, list)) and place:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], (dict, list)) or not place[key] or data.draw(st.booleans()):
            place[key] = data.draw(JSON)
            break
        place = place[key]
    check(read(json.dumps(content).encode(), ImportFormat.T4))
