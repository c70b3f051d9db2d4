"""Which mask a function is, and the blocks of a mask that is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask

from diode_collectors.inductor.attention import block_mask, mask_function, mask_of
from diode_collectors.problems.problem import parse_problem
from diode_store.errors import RecordError
from diode_store.ops.attending import Mask
from diode_store.records import Problem

LISTS = [f"{full}{side}_{what}" for full in ("", "full_") for side in ("kv", "q") for what in ("num_blocks", "indices")]


@given(
    st.sampled_from(("causal", "window", "prefix", "documents")),
    st.integers(1, 400),
    st.integers(1, 300),
    st.integers(0, 99),
)
def test_a_known_mask_is_recognized(kind: str, size: int, queries: int, more: int) -> None:
    """By what it lets each query see; masks that are the same for these sizes have one name."""
    mask, keys = Mask(kind, 0 if kind == "causal" else size), queries + more
    found = mask_of(mask_function(mask, queries, keys), queries, keys)
    for query in range(queries):
        wanted, got = (each.seen(query, queries, keys) for each in (mask, found))
        assert wanted == got or wanted.length == got.length == 0


@pytest.mark.parametrize(
    "function",
    [
        lambda _b, _h, q, k: (q - k) % 3 == 0,
        lambda _b, _h, q, k: q <= k,
        lambda _b, _h, q, k: (q >= k) & (k > 5),
        lambda _b, _h, _q, _k: 1 / 0,
        lambda b, h, q, k: torch.full((), fill_value=True, device="meta") & (q >= k) & (b == h),
    ],
)
def test_any_other_function_is_another_mask(function: Any) -> None:
    """One that fails, or that looks at another device, too."""
    assert mask_of(function, 200, 200) == Mask("other")


def test_a_function_that_hides_nothing() -> None:
    """It is a prefix of all keys, whatever its form; a single query sees what a causal one sees."""
    assert mask_of(lambda _b, _h, q, k: q + k >= 0, 200, 300) == Mask("prefix", 300)
    assert mask_of(lambda _b, _h, q, _k: torch.ones_like(q, dtype=torch.bool), 200, 300) == Mask("prefix", 300)
    assert mask_of(lambda _b, _h, q, k: q + k >= 0, 1, 300) == Mask("causal")


@pytest.mark.parametrize(
    ("mask", "length"),
    [("documents1000", 16384), ("documents1000", 32768), ("documents2000", 65536), ("documents50", 2048)],
)
def test_documents_have_their_own_length(mask: str, length: int) -> None:
    """Not a multiple of it that begins at the same keys."""
    wanted = Mask.of("", mask)
    assert mask_of(mask_function(wanted, length, length), length, length) == wanted


@pytest.mark.parametrize(("is_combined", "expected"), [(True, Mask("window", 100)), (False, Mask("prefix", 512))])
def test_graphs_of_a_compile_for_a_gpu(is_combined: bool, expected: Mask) -> None:  # noqa: FBT001 - a case
    """What they make on that device is made here: masks that are combined begin with such a constant."""
    graph = torch.fx.Graph()
    inputs = tuple(graph.placeholder(name) for name in "bhqk")
    result = graph.call_function(torch.full, ((), True), {"device": torch.device("meta")})
    if is_combined:
        near = graph.call_function(torch.lt, (graph.call_function(torch.sub, inputs[2:]), 100))
        seen = graph.call_function(torch.bitwise_and, (graph.call_function(torch.ge, inputs[2:]), near))
        result = graph.call_function(torch.bitwise_and, (result, seen))
    graph.output(result)
    assert mask_of(torch.fx.GraphModule(torch.nn.Module(), graph), 512, 512) == expected


@pytest.mark.parametrize("place", [0, 1])
def test_masks_that_differ_by_sequence_or_head(place: int) -> None:
    """They are no mask that one name describes."""
    graph = torch.fx.Graph()
    inputs = [graph.placeholder(name) for name in "bhqk"]
    first = graph.call_function(torch.ge, (inputs[place], 0))
    seen = graph.call_function(torch.ge, tuple(inputs[2:]))
    graph.output(graph.call_function(torch.bitwise_and, (first, seen)))
    assert mask_of(torch.fx.GraphModule(torch.nn.Module(), graph), 512, 512) == Mask("other")


@pytest.mark.parametrize("words", ["causal", "window100/block64", "prefix70", "documents100/block32"])
def test_a_block_mask_is_the_one_that_torch_makes(words: str) -> None:
    """Every list of blocks, for queries and for keys."""
    mask, _, block_word = words.partition("/block")
    block = int(block_word or 128)
    shape = parse_problem("flex_attention:1x2x300x64:2x428")
    problem = Problem.create("flex_attention", shape.inputs(), {"mask": mask, "block": block})
    found = block_mask(problem, "cpu")
    expected = create_block_mask(found.mask_mod, None, None, 300, 428, device="cpu", BLOCK_SIZE=block)
    for name in LISTS:
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


def test_a_problem_without_a_mask_has_no_blocks() -> None:
    """Nor has one whose mask nobody described; no function is made up for it."""
    assert block_mask(parse_problem("flex_attention:1x2x300x64").problem(), "cpu") is None
    with pytest.raises(RecordError, match="a mask of the kind 'other' has no function"):
        mask_function(Mask("other"), 128, 128)
