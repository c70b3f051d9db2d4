"""From real H200 timings in a warehouse, through `diode export`, into Inductor's own lookup."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch
from test_lookup_table import BF16, CASES, Listening, compile_with

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from conftest import RunCommand

SIZES = {"mm": (280, 432, 224), "bmm": (49, 32, 49)}
"""(M, N, K) of two problems of the excerpt whose fastest kernel is Triton's."""


def test_inductor_takes_what_was_fastest_on_the_device(
    diode: RunCommand, jsonl_path: Path, tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the very problems that were timed, transposed and broadcast operands as they were."""
    monkeypatch.setenv("DIODE_DATABASE_URL", database_url)
    assert diode("import", "--hardware", "h200", str(jsonl_path)).code == 0
    out = tmp_path / "table.json"
    options = ("--format", "inductor-lut", "--torch", torch.__version__)
    assert diode("export", *options, "-o", str(out)).code == 0
    table = json.loads(out.read_text())
    looked_up = []
    for line in map(json.loads, jsonl_path.read_text().splitlines()):
        op = line["op"]
        if (line["M"], line["N"], line["K"]) != SIZES.get(op):
            continue
        inputs = [torch.empty_strided(i["size"], i["stride"], dtype=_dtype(i["dtype"])) for i in line["inputs"]]
        monkeypatch.setitem(CASES, "real", (getattr(torch, op), inputs))
        handler = Listening()
        compile_with(handler, "real", table)
        fastest = min((c for c in line["choices"] if c["runtime_us"]), key=lambda choice: choice["runtime_us"])
        ((chosen,),) = handler.chosen
        assert chosen[0] == f"triton::{op}"
        names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages", "num_warps")
        assert [chosen[1][name] for name in names] == [fastest["kwargs"][name] for name in names]
        looked_up.append(op)
    assert sorted(looked_up) == sorted(SIZES)


def _dtype(name: str) -> torch.dtype:
    return {"bfloat16": BF16, "float16": torch.float16}[name]
