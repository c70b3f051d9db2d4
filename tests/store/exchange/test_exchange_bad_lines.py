"""What is said of a line that is no measurement."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

import pytest
from jsonl_rows import CONTEXT, ROW, TRITON_KWARGS, good, read_rows, reason, row_with, with_choice, with_input, without

from diode_store.exchange import jsonl
from diode_store.exchange.context import NO_HARDWARE, BadLine, ImportContext
from diode_store.records import (
    Measurement,
)


def test_good_lines_beside_bad_ones_are_kept() -> None:
    """A bad line costs nothing but itself."""
    read = read_rows(ROW, row_with(op="no op"), with_choice(runtime_us=7))
    assert [isinstance(item, Measurement) for item in read] == [True, False, True]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"op": "mm"', "malformed JSON at column 12: Expecting ',' delimiter; correct or remove the line"),
        (b"\xff\xfe", "not JSON text"),
        (b"[" * 100_000, "not JSON text"),
        (b"[1]", "a line must be a JSON object, not a list"),
        (b"3", "a line must be a JSON object, not a number"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON text"),
    ],
    ids=["cut off", "binary", "deep", "list", "number", "long number"],
)
def test_a_line_that_is_no_object(line: bytes, expected: str) -> None:
    """What is not a JSON object is said to be what it is."""
    assert reason(line).startswith(expected)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_times_without_a_finite_value(text: str) -> None:
    """Python's JSON reads them; we do not."""
    line = json.dumps(ROW).replace("10.5", text).encode()
    assert reason(line).startswith(text)
    assert "finite and positive, or null for a failure" in reason(line)


@pytest.mark.parametrize("value", [0, -3.5])
def test_times_that_are_not_positive(value: float) -> None:
    """A time of nothing, or less, is a mistake of whoever measured."""
    assert reason(with_choice(runtime_us=value)).startswith("choices[0].runtime_us must be")


@pytest.mark.parametrize("name", ["op", "dtype", "B", "M", "N", "K", "layout", "inputs", "choices"])
def test_missing_fields(name: str) -> None:
    """Each field of a problem is needed, and named when it is not there."""
    assert reason(without(name)) == f"no {name}; add what is missing or remove the line"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (row_with(op="no op"), "'no op' is not the name of an op"),
        (row_with(op=["mm"]), "op must be text, not a list"),
        (row_with(dtype="fp16"), "dtype 'fp16' contradicts the inputs, which are bfloat16"),
        (row_with(dtype=16), "dtype must be text, not a number"),
        (row_with(M=65), "M = 65 contradicts the inputs, which make it 64"),
        (row_with(N=24), "N = 24 contradicts the inputs, which make it 32"),
        (row_with(K="16"), "K = '16' contradicts the inputs, which make it 16"),
        (row_with(B=2), "B = 2 contradicts the inputs, which make it 1"),
        (row_with(M=True), "M = True contradicts the inputs"),
        (row_with(layout="nn"), "layout 'nn' contradicts the inputs' strides, which make it 'nt'"),
        (row_with(layout="n"), "layout 'n' contradicts"),
        (row_with(layout=None), "layout must be two letters, not null"),
        (row_with(inputs={}), "inputs must be a list, not an object"),
        (row_with(inputs=[[1]]), "inputs[0] must be an object, not a list"),
        (row_with(inputs=ROW["inputs"][:1]), "mm needs at least 2 inputs, not 1"),
        (with_input(size="64"), "inputs[0].size must be a list of whole numbers, not text"),
        (with_input(size=[64, 16.5]), "inputs[0].size must be a list of whole numbers, not [64, 16.5]"),
        (with_input(size=[64, -16]), "inputs[0].size must be a list of whole numbers, not [64, -16]"),
        (with_input(size=[64, 2**70]), "inputs[0].size must be a list of whole numbers"),
        (with_input(stride=[16]), "mm: an input has 2 sizes but 1 strides"),
        (with_input(size=[64, 17]), "mm: [64, 17] x [16, 32] is not a matrix product"),
        (with_input(dtype=None), "inputs[0].dtype must be text such as bfloat16, not null"),
        (row_with(choices={}), "choices must be a list, not an object"),
        (row_with(choices=[]), "choices is empty"),
        (row_with(choices=[7]), "choices[0] must be an object, not a number"),
        (row_with(choices=[{"template": "mm"}]), "no choices[0].runtime_us"),
        (row_with(choices=[{"runtime_us": 1}]), "no choices[0].template"),
        (with_choice(runtime_us="10"), "choices[0].runtime_us must be a number of microseconds, not text"),
        (with_choice(runtime_us=True), "choices[0].runtime_us must be a number of microseconds, not true/false"),
        (with_choice(runtime_ms=1), "choices[0] has unknown fields: runtime_ms; remove them"),
        (with_choice(template="warp_drive"), "choices[0]: unknown template 'warp_drive'"),
        (with_choice(template=7), "choices[0].template must be a template's name, not a number"),
        (with_choice(kwargs=[1]), "choices[0].kwargs must be an object, not a list"),
        (with_choice(kwargs={"BLOCK_M": "64"}), "choices[0]: BLOCK_M must be a whole number, not '64'"),
        (with_choice(kwargs={"BLOCK_M": True}), "choices[0]: BLOCK_M must be a whole number, not True"),
        (with_choice(kwargs={"ALLOW_TF32": 1}), "choices[0]: ALLOW_TF32 must be true or false, not 1"),
        (with_choice(kwargs={"WHAT": [1]}), "choices[0]: WHAT must be a number, a string or true/false, not list"),
        (with_choice(outcome="timeout"), "choices[0].outcome timeout does not go with runtime 10.5"),
        (with_choice(outcome="exploded"), "choices[0].outcome must be one of ok, "),
        (with_choice(is_estimate=1), "choices[0].is_estimate must be true or false, not 1"),
        (with_choice(repeats=0), "choices[0].repeats must be"),
        (with_choice(template="triton_mm", kwargs=TRITON_KWARGS), "a measurement must time each config once"),
        (
            row_with(hardware="abacus"),
            "unknown hardware 'abacus'; describe it (vendor, name, arch, multiprocessors) as an object in the row",
        ),
        (row_with(hardware="a100"), "'a100' could be any of: "),
        (row_with(hardware={"name": "x"}), "hardware has no vendor"),
        (row_with(environment={"torch": 2}), "environment.torch must be text, not 2"),
        (row_with(measured_at="yesterday"), "measured_at must be an ISO 8601 time, not 'yesterday'"),
        (row_with(measured_at="2026-11-20"), "measured_at must name its time zone, as in 2026-11-20Z for UTC"),
        (row_with(measured_at=7), "measured_at must be an ISO 8601 time, not a number"),
        (row_with(uid="xyz"), "uid must be 32 hexadecimal digits, not 'xyz'"),
        (row_with(uid="ab"), "uid must be 32 hexadecimal digits, not 'ab'"),
        (row_with(uid=None), "uid must be 32 hexadecimal digits, not null"),
        (row_with(superseded_by="no"), "superseded_by must be 32 hexadecimal digits"),
        (row_with(source="hearsay"), "source must be one of feedback, "),
        (row_with(scalars=[1]), "scalars must be an object, not a list"),
        (row_with(v=2), "record version 2 is newer than 1"),
    ],
)
def test_fields_that_are_wrong(row: dict[str, Any], expected: str) -> None:
    """Each mistake is named with its place."""
    assert reason(row).startswith(expected)


def test_a_bool_does_not_pass_for_a_number_seen_before() -> None:
    """1 and true are equal as dictionary keys; a config cached for one must not be returned for the other."""
    fine = with_choice(template="triton_mm", kwargs={**TRITON_KWARGS, "NUM_SMS": 1})
    flagged = with_choice(template="triton_mm", kwargs={**TRITON_KWARGS, "NUM_SMS": True})
    assert good(fine).timings[0].config.key != good(flagged).timings[0].config.key


def test_hardware_that_nobody_names() -> None:
    """Without a context the line is bad, and the option that helps is named."""
    [bad] = read_rows(ROW, context=ImportContext())
    assert bad == BadLine(1, NO_HARDWARE)
    assert "--hardware" in NO_HARDWARE
    assert bad.at("runs.jsonl") == f"runs.jsonl:1: {NO_HARDWARE}"


def test_a_stream_that_breaks_off() -> None:
    """What was whole before the break is kept; the break is a bad line."""
    packed = gzip.compress(b"".join(json.dumps(with_choice(runtime_us=i)).encode() + b"\n" for i in range(1, 300)))
    with gzip.open(io.BytesIO(packed[: len(packed) // 2])) as stream:
        *kept, last = jsonl.read(stream, CONTEXT)
    assert kept
    assert all(isinstance(item, Measurement) for item in kept)
    assert isinstance(last, BadLine)
    assert last.line == len(kept) + 1
    assert last.reason.startswith("the file breaks off here")
