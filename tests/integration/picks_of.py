"""Picks files for the ops that the hook's tests compile, and what is in the lists that they pick from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from hooked import compile_op, hooked

from diode_collectors.inductor.device import detect_environment
from diode_store.candidates.names import kernel_config
from diode_store.exchange.picks import Pick, Picks
from diode_store.records import Environment
from stand_ins import H200

if TYPE_CHECKING:
    from pathlib import Path

    from diode_store.records import KernelConfig, Problem

VENDOR = {"mm": kernel_config("mm", {}), "addmm": kernel_config("addmm", {}), "bmm": kernel_config("bmm", {})}
SLOW_MODEL_PICK = "triton 64x64x32 s3 w4"
OLD = Environment("2.9.0", template_hashes={"triton::mm": "0" * 64, "triton::bmm": "1" * 64})


def tile(op: str = "mm", block_m: int = 32, **others: Any) -> KernelConfig:
    """Return a kernel of Inductor's EXHAUSTIVE list that its DEFAULT list does not have."""
    kwargs = {"BLOCK_M": block_m, "BLOCK_N": 32, "BLOCK_K": 16, "GROUP_M": 8, "num_stages": 2, "num_warps": 4}
    return kernel_config("triton::bmm" if op == "bmm" else "triton::mm", {**kwargs, **others})


def source_hashes() -> dict[str, str]:
    """Return the hashes of this torch's templates."""
    from torch._inductor.kernel import bmm, mm

    return {template.uid: template.src_hash for template in (mm.mm_template, bmm.bmm_template)}


def here() -> Environment:
    """Return this environment, with its templates."""
    found = detect_environment()
    return replace(found, template_hashes=source_hashes())


_problems: dict[str, Problem] = {}


def problem_of(op: str) -> Problem:
    """Return what the hook takes an op of ``hooked.OPS`` for."""
    if op not in _problems:
        handler = hooked()
        compile_op(op, handler)
        problem = handler.decisions()[0].problem
        assert problem is not None
        _problems[op] = problem
    return _problems[op]


def write(path: Path, picks: dict[str, tuple[KernelConfig, ...]], **fields: Any) -> Path:
    """Write a picks file: op → its kernels, the fastest first; ``fields`` are of ``Pick`` and ``Picks``."""
    allow = fields.pop("allow_changed_template", False)
    device = fields.pop("device", H200)
    about = {"environment": here(), "runtime_us": 12.25, "regime": "graph", **fields}
    made = Picks.of(
        device, [Pick(problem_of(op), configs, **about) for op, configs in picks.items()], allow_changed_template=allow
    )
    made.write(path, force=True)
    return path


def torch_now() -> str:
    """Return this torch's version."""
    return str(torch.__version__)
