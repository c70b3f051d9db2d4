"""Picks of scaled, int8 and grouped products and of sums: written by a run, and obeyed by a compile."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from hooked import benchmarks, hooked, watching
from test_grouped import compiled
from test_other_products import FP8, K, M, N, values
from torch._inductor import select_algorithm

from diode_collectors.inductor.adapter import detect_environment
from diode_integration.decide.decision import DecidedBy
from diode_integration.install import install
from diode_integration.picks.lock import lock
from diode_store.candidates.names import kernel_config
from diode_store.exchange.picks import Pick, Picks
from diode_store.exchange.picks_reading import read_picks
from inductor_harness import compile_and_run
from stand_ins import H200, KNOWS_OTHERS, TileModel, card_of

if TYPE_CHECKING:
    from pathlib import Path

    from diode_store.records import KernelConfig, Problem

MODEL = TileModel(card=card_of(KNOWS_OTHERS), vendor_us=1.0)
A, B = values(M, K).to(FP8), values(N, K).to(FP8).t()
SCALES = torch.rand(M, 1), torch.rand(1, N)


def scaled(*inputs: torch.Tensor) -> torch.Tensor:
    """Multiply float8 matrices."""
    return torch._scaled_mm(*inputs, out_dtype=torch.bfloat16)


def written(path: Path, problem: Problem | None, *configs: KernelConfig) -> Path:
    """Write a picks file of one problem."""
    assert H200 is not None
    assert problem is not None
    hashes = {each.uid: each.src_hash for each in select_algorithm.TritonTemplate.all_templates.values()}
    environment = replace(detect_environment(), template_hashes=hashes)
    Picks.of(H200, [Pick(problem, configs, environment, 12.5, "graph")]).write(path, force=True)
    return path


def test_a_grouped_product(tmp_path: Path) -> None:
    """The picked kernel alone is made, and nothing is benchmarked."""
    asked = hooked(MODEL, mode="zero")
    compiled(asked)
    tile = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 128, "num_stages": 3, "num_warps": 8}
    config = kernel_config("triton::grouped_mm", tile)
    path = written(tmp_path / "p.json", asked.decisions()[0].problem, config)
    handler = hooked(MODEL, picks=path)
    watch = compiled(handler, run_vendor=True)
    assert [name.startswith("triton_grouped_mm") for name in watch.left[0]] == [True]
    assert benchmarks() == 0
    (decision,) = handler.decisions()
    assert decision.decided_by is DecidedBy.PICKS
    kept = decision.chosen[0].config
    assert (kept.block_m, kept.block_n, kept.block_k, kept.num_warps) == (128, 64, 128, 8)


def test_a_picked_vendor_kernel_of_a_grouped_product(tmp_path: Path) -> None:
    """No template is made."""
    asked = hooked(MODEL, mode="zero")
    compiled(asked)
    path = written(tmp_path / "p.json", asked.decisions()[0].problem, kernel_config("_grouped_mm", {}))
    handler = hooked(TileModel(card=card_of(KNOWS_OTHERS), vendor_us=1000.0), picks=path)
    assert compiled(handler).offered == [["_grouped_mm"]]
    assert handler.decisions()[0].decided_by is DecidedBy.PICKS


def test_a_scaled_product(tmp_path: Path) -> None:
    """The picked kernel alone is left, and keeps the accumulation of the product."""
    asked = hooked(MODEL, mode="zero")
    with watching(run_vendor=True), install(asked):
        compile_and_run(scaled, A, B, *SCALES)
    tile = {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 32, "GROUP_M": 8, "num_stages": 4, "num_warps": 4}
    path = written(tmp_path / "p.json", asked.decisions()[0].problem, kernel_config("triton::mm", tile))
    handler = hooked(MODEL, picks=path)
    with watching(run_vendor=True) as watch, install(handler):
        compile_and_run(scaled, A, B, *SCALES)
    assert watch.left == [["triton 64x32x32 s4 w4"]]
    (decision,) = handler.decisions()
    assert decision.decided_by is DecidedBy.PICKS
    ((kept,),) = watch.kept
    assert kept.annotations["ktc"].params.to_kwargs()["USE_FAST_ACCUM"] is False


@pytest.mark.parametrize("op", ["scaled_mm", "grouped_mm", "int_mm", "mm_plus_mm"])
def test_what_a_run_chose_is_locked(op: str, tmp_path: Path) -> None:
    """The file names the problem as the hook does, and the kernel that stock Inductor timed fastest."""
    path = tmp_path / "p.json"
    with lock(path):
        if op == "grouped_mm":
            compiled(None)
        else:
            with watching():
                _compile(op)
    (pick,) = read_picks(path).picks.values()
    assert pick.problem.op == op
    assert [config.template for config in pick.configs] == [f"aten::_{op}"]
    assert pick.runtime_us == 500.0


def _compile(op: str) -> None:
    if op == "scaled_mm":
        compile_and_run(scaled, A, B, *SCALES)
    elif op == "int_mm":
        compile_and_run(torch._int_mm, values(M, K).to(torch.int8), values(K, N).to(torch.int8))
    else:
        one, other = values(M, K), values(K, N)
        compile_and_run(lambda a, b, c, d: a @ b + c @ d, one, other, one + 1, other - 1)
