"""Small files in the layouts of upstream torch-diode, written by hand."""

from __future__ import annotations

import json
from typing import Any

SHAPE = {
    "version": 1,
    "B": 1,
    "M": 64,
    "M_dtype": "float16",
    "N": 32,
    "K": 48,
    "K_dtype": "float16",
    "out_dtype": "float16",
    "out_size": [1, 64, 32],
    "out_stride": [2048, 32, 1],
}
CONFIG = {
    "ACC_TYPE": "tl.float32",
    "ALLOW_TF32": False,
    "EVEN_K": False,
    "USE_FAST_ACCUM": False,
    "block_k": 32,
    "block_m": 64,
    "block_n": 16,
    "grid": 1,
    "group_m": 8,
    "name": "triton_mm",
    "num_stages": 3,
    "num_warps": 4,
    "version": 1,
}
SLOW = {**CONFIG, "num_warps": 8}
FAILING = {**CONFIG, "num_stages": 5}


def timed(config: Any, time: float) -> dict[str, Any]:
    """Return an entry of ``timed_configs``."""
    return {"config": config, "time": time, "version": 1}


def dataset(*entries: dict[str, Any], hardware: str = "NVIDIA H200", op: str = "mm", **shape: Any) -> dict[str, Any]:
    """Return a data set of one problem."""
    timings = list(entries) or [timed(SLOW, 0.02), timed(FAILING, float("inf")), timed(CONFIG, 0.0105)]
    problem = json.dumps({**SHAPE, **shape})
    solutions = {"solution": {problem: {"timed_configs": timings, "version": 1}}, "version": 1}
    return {"hardware": {hardware: {"operation": {op: solutions}, "version": 1}}, "version": 1}


def older(data: dict[str, Any]) -> dict[str, Any]:
    """Return a data set as older files have it: with names, and with configs as JSON text."""
    hardware = {}
    for device, ops in data["hardware"].items():
        operation = {}
        for op, problems in ops["operation"].items():
            solution = {}
            for problem, found in problems["solution"].items():
                texts = [{**entry, "config": json.dumps(entry["config"])} for entry in found["timed_configs"]]
                solution[problem] = {"name": op, "timed_configs": texts, "version": 1}
            operation[op] = {"name": op, "solution": solution, "version": 1}
        hardware[device] = {"operation": operation, "version": 1}
    return {"hardware": hardware, "version": 1}


TABLE_SOLUTION = {"config": [CONFIG, SLOW], "version": 1}
