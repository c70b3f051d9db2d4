"""Rows of JSON Lines, good and bad, and what reading them gives."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

from diode_store.exchange import jsonl
from diode_store.exchange.context import BadLine, ImportContext
from diode_store.records import (
    Measurement,
)
from samples import H200

CONTEXT = ImportContext(hardware=H200)

TRITON_KWARGS = {
    "ACC_TYPE": "tl.float32",
    "ALLOW_TF32": False,
    "BLOCK_K": 32,
    "BLOCK_M": 64,
    "BLOCK_N": 16,
    "EVEN_K": True,
    "GROUP_M": 8,
    "USE_FAST_ACCUM": False,
    "num_stages": 3,
    "num_warps": 4,
}

ROW: dict[str, Any] = {
    "op": "mm",
    "dtype": "bf16",
    "B": 1,
    "M": 64,
    "N": 32,
    "K": 16,
    "layout": "nt",
    "inputs": [
        {"dtype": "bfloat16", "size": [64, 16], "stride": [16, 1]},
        {"dtype": "bfloat16", "size": [16, 32], "stride": [1, 16]},
    ],
    "choices": [
        {"template": "mm", "kwargs": {}, "runtime_us": 10.5},
        {"template": "triton_mm", "kwargs": TRITON_KWARGS, "runtime_us": 31.75},
        {"template": "triton_mm", "kwargs": {**TRITON_KWARGS, "num_warps": 8}, "runtime_us": None},
    ],
}


def row_with(**changes: Any) -> dict[str, Any]:
    """Return ``ROW`` with fields replaced."""
    return {**deepcopy(ROW), **changes}


def without(name: str) -> dict[str, Any]:
    """Return ``ROW`` without a field."""
    return {key: value for key, value in ROW.items() if key != name}


def with_choice(**changes: Any) -> dict[str, Any]:
    """Return ``ROW`` whose first choice has fields replaced."""
    first, *rest = deepcopy(ROW["choices"])
    return row_with(choices=[{**first, **changes}, *rest])


def with_input(**changes: Any) -> dict[str, Any]:
    """Return ``ROW`` whose first input has fields replaced."""
    first, second = deepcopy(ROW["inputs"])
    return row_with(inputs=[{**first, **changes}, second])


def read_rows(*rows: dict[str, Any], context: ImportContext = CONTEXT) -> list[Measurement | BadLine]:
    """Read rows as the lines of a file."""
    return list(jsonl.read([json.dumps(row).encode() + b"\n" for row in rows], context))


def good(row: dict[str, Any], context: ImportContext = CONTEXT) -> Measurement:
    """Read one row that must be good."""
    [measurement] = read_rows(row, context=context)
    assert isinstance(measurement, Measurement), measurement
    return measurement


def reason(line: bytes | dict[str, Any]) -> str:
    """Read one line that must be bad and return what is said of it."""
    [bad] = jsonl.read([line if isinstance(line, bytes) else json.dumps(line).encode()], CONTEXT)
    assert isinstance(bad, BadLine), bad
    assert bad.line == 1
    assert "\n" not in bad.reason
    return bad.reason
