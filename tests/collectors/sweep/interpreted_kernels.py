"""Runs kernels of a folder by Triton's interpreter, which has to be on before Triton is loaded; prints their errors."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import torch


def error_of(path: Path) -> float:
    """Return the largest difference of what a kernel computes from what it should, of the case in a folder."""
    spec = importlib.util.spec_from_file_location("kernel", path / "kernel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = next(value for name, value in vars(module).items() if name.startswith("triton_"))
    case = torch.load(path / "case.pt")
    output = torch.full_like(case["expected"], float("nan"))
    kernel[tuple(case["grid"])](*case["inputs"], output, *case["sizes"])
    return float((output - case["expected"]).abs().max())


sys.stdout.write(json.dumps({path.name: error_of(path) for path in sorted(Path(sys.argv[1]).iterdir())}))
