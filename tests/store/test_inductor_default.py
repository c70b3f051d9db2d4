from __future__ import annotations

import pytest

from diode_store.candidates.default_space import DEFAULT_CONFIGS, default_configs
from diode_store.records import ProblemShape


def test_default_list_is_that_of_inductor() -> None:
    """The list as data is the list of PyTorch 2.13, where that is what is installed."""
    torch = pytest.importorskip("torch")
    if not torch.__version__.startswith("2.13."):
        pytest.skip("the list is that of PyTorch 2.13")
    from torch._inductor.template_heuristics.triton import CUDAConfigHeuristic

    expected = [(c.block_m, c.block_n, c.block_k, c.num_stages, c.num_warps) for c in CUDAConfigHeuristic().mm_configs]
    assert [tuple(config) for config in DEFAULT_CONFIGS] == expected


def test_default_list_is_scaled_to_the_problem() -> None:
    """No block is larger than the problem, none under 16, no warp idle; what becomes equal is one config."""
    small = default_configs(ProblemShape("mm", "bfloat16", 1, 20, 8, 100, "nn"))
    assert {(c.block_m, c.block_n) for c in small} == {(32, 16)}
    assert max(c.block_k for c in small) == 128
    assert {c.num_warps for c in small} == {2}
    assert len(small) < len(DEFAULT_CONFIGS)
    assert default_configs(ProblemShape("mm", "bfloat16", 1, 1024, 1024, 1024, "nn")) == frozenset(DEFAULT_CONFIGS)
