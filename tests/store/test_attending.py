"""Attention as matrix products: its blocks are those that torch makes of a mask, and what makes none is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask

from diode_collectors.inductor.attention import mask_function
from diode_store.errors import RecordError
from diode_store.ops.attending import (
    Mask,
    attention_layout,
    attention_of,
    attention_strides,
    dense_strides,
)
from diode_store.ops.inputs import plain_inputs, plain_problem, with_values_of
from diode_store.ops.work import bytes_read, bytes_written, flops
from diode_store.records import Problem, TensorSpec

OP = "flex_attention"
MASKS = st.one_of(
    st.just(Mask("causal")), st.builds(Mask, st.sampled_from(("window", "prefix", "documents")), st.integers(1, 400))
)


def spec(*size: int, letter: str = "n") -> TensorSpec:
    """Return a dense tensor."""
    return TensorSpec("bfloat16", size, attention_strides(size, letter))


def attention(*sizes: tuple[int, ...], op: str = OP, **scalars: object) -> Problem:
    """Return a problem of queries, keys and values."""
    return Problem.create(op, tuple(spec(*size) for size in sizes), scalars)  # type: ignore[arg-type]


@given(MASKS, st.integers(1, 300), st.integers(0, 300), st.sampled_from((16, 48, 128)))
def test_blocks_are_those_of_torch(mask: Mask, queries: int, more: int, block: int) -> None:
    """Full, partial and empty ones, in every row, also where the last block is not whole."""
    keys = queries + more
    function = mask_function(mask, queries, keys)
    theirs = create_block_mask(function, None, None, queries, keys, device="cpu", BLOCK_SIZE=block)
    computed, full, columns = mask.blocks(queries, keys, block)
    assert theirs.kv_indices.shape[-1] == columns
    counts = [getattr(theirs, name)[0, 0].tolist() for name in ("kv_num_blocks", "full_kv_num_blocks")]
    assert [each.length for each in full] == counts[1]
    assert [each.length - inner.length for each, inner in zip(computed, full, strict=True)] == counts[0]
    same = mask.normal(queries, keys)
    for query in range(queries):
        here, there = (each.seen(query, queries, keys) for each in (mask, same))
        assert here == there or here.length == there.length == 0
    for row, (first, last) in enumerate(full):
        listed = theirs.full_kv_indices[0, 0, row, : counts[1][row]].tolist()
        assert sorted(listed) == list(range(first, last + 1))
    assert Mask.of(OP, str(mask)) == mask


def test_what_the_sizes_leave_open_are_dimensions() -> None:
    """Heads with common keys, another size of the values, the mask, and the shares of its blocks."""
    plain = attention((4, 16, 2048, 64), (4, 16, 2048, 64), (4, 16, 2048, 64))
    assert plain.shape.dimensions == (("batch", 4), ("full", 1.0), ("heads", 16))
    assert (plain.shape.b, plain.shape.m, plain.shape.n, plain.shape.k, plain.shape.layout) == (
        64,
        2048,
        2048,
        64,
        "nn",
    )
    found = attention((1, 8, 256, 64), (1, 2, 512, 64), (1, 2, 512, 128), mask="causal", block=64).shape
    assert dict(found.dimensions) == {
        "batch": 1,
        "heads": 8,
        "kv_heads": 2,
        "value_size": 128,
        "mask": "causal",
        "block": 64,
        "full": 0.6875,
        "partial": 0.125,
    }


@pytest.mark.parametrize(("op", "products", "written"), [(OP, 2, 256 * 96), ("flex_attention_backward", 5, None)])
def test_work_is_that_of_the_blocks_that_are_computed(op: str, products: int, written: int | None) -> None:
    """Half of a causal mask's and its diagonal; backward five products, and three gradients to write."""
    causal = attention((1, 8, 256, 64), (1, 2, 256, 64), (1, 2, 256, 96), op=op, mask="causal").shape
    k, v = (1, 1) if products == 2 else (3, 2)
    assert flops(causal) == 2 * 8 * 256 * 256 * (k * 64 + v * 96) * 3 // 4
    inputs = 8 * 256 * 64 + 2 * 256 * (64 + 96)
    assert bytes_read(causal) == 2 * inputs
    assert bytes_written(causal) == 2 * (inputs if written is None else 8 * written)
    other = attention((1, 8, 256, 64), (1, 2, 256, 64), (1, 2, 256, 96), op=op, mask="other").shape
    assert flops(other) == 2 * 8 * 256 * 256 * (k * 64 + v * 96), "nobody knows its blocks"


@pytest.mark.parametrize("letters", ["nn", "tt"])
def test_plain_inputs_make_the_problem_again(letters: str) -> None:
    """With the mask, in both memory formats."""
    sizes = (2, 8, 300, 64), (2, 4, 428, 64), (2, 4, 428, 96)
    specs = tuple(spec(*size, letter=letters[0]) for size in sizes)
    problem = Problem.create(OP, specs, {"mask": "window100", "block": 64})
    assert problem.shape.layout == letters
    assert plain_inputs(problem.shape) == specs
    assert plain_problem(problem.shape).key == problem.key


def test_space_between_heads_and_positions_makes_no_other_problem() -> None:
    """As queries, keys and values have that are parts of one projection; elements apart do."""
    size = (2, 4, 128, 64)
    packed = TensorSpec("bfloat16", size, (128 * 768, 64, 768, 1))
    apart = TensorSpec("bfloat16", size, (128 * 512, 128, 512, 2))
    assert Problem.create(OP, (packed,) * 3).key == Problem.create(OP, (spec(*size, letter="t"),) * 3).key
    assert Problem.create(OP, (apart,) * 3).shape.layout == "ss"
    assert dense_strides(size, apart.stride) == apart.stride


def test_a_format_that_is_both_is_that_of_the_other_input() -> None:
    """One query, or one head, has no order of its own."""
    one, two = (1, 4, 1, 64), (1, 4, 128, 64)
    for letter in "nt":
        other = two, attention_strides(two, letter)
        for mine in "nt":
            assert attention_layout((one, attention_strides(one, mine)), other) == 2 * letter
    single = (1, 1, 128, 64), attention_strides((1, 1, 128, 64), "t")
    assert attention_layout(single, single) == "nn"


def test_usual_scalars_are_left_out() -> None:
    """One problem has one key, whoever reports it."""
    sizes = ((1, 2, 128, 64),) * 3
    assert attention(*sizes, block=128).key == attention(*sizes, mask="", block=64).key == attention(*sizes).key
    assert attention(*sizes, mask="causal", block=128).key == attention(*sizes, mask="causal").key
    assert attention(*sizes, mask="causal", block=64).key != attention(*sizes, mask="causal").key


def test_a_compile_gets_the_mask_that_only_its_caller_knows() -> None:
    """Inductor times with a mask of its own; other problems stay as they are."""
    sizes = ((1, 2, 128, 64),) * 3
    asked = attention(*sizes, mask="causal")
    assert with_values_of(attention(*sizes, mask="other"), asked).key == asked.key
    assert with_values_of(attention(*sizes, mask="other"), attention(*sizes)).key == attention(*sizes).key
    assert with_values_of(asked, attention(*sizes, op="flex_decoding")) is asked


@pytest.mark.parametrize(
    ("sizes", "scalars", "message"),
    [
        (((2, 4, 64), (2, 4, 64), (2, 4, 64)), {}, "batch, heads, positions and a head size"),
        (((2, 4, 8, 64), (1, 4, 8, 64), (1, 4, 8, 64)), {}, "of one attention"),
        (((2, 4, 8, 64), (2, 3, 8, 64), (2, 3, 8, 64)), {}, "of one attention"),
        (((2, 4, 8, 64), (2, 4, 8, 32), (2, 4, 8, 64)), {}, "of one attention"),
        (((2, 4, 8, 64), (2, 4, 8, 64), (2, 4, 9, 64)), {}, "of one attention"),
        (((2, 4, 8, 64),) * 3, {"mask": "windows"}, "mask must be causal, windowN, prefixN, documentsN or other"),
        (((2, 4, 8, 64),) * 3, {"mask": "window0"}, "mask must be"),
        (((2, 4, 8, 64),) * 3, {"mask": "causal", "block": 0}, "block must be a number of queries and keys from 1"),
        (((2, 4, 8, 64),) * 3, {"mask": "causal", "block": True}, "block must be"),
    ],
)
def test_what_makes_no_attention(sizes: tuple[tuple[int, ...], ...], scalars: dict[str, object], message: str) -> None:
    """One line says what is expected."""
    with pytest.raises(RecordError, match=message):
        attention_of(OP, sizes, scalars)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mask", "queries", "keys", "expected"),
    [
        ("window4096", 4096, 4096, "causal"),
        ("documents300", 256, 256, "causal"),
        ("prefix1", 256, 256, "causal"),
        ("prefix101", 100, 200, "causal"),
        ("prefix999", 256, 256, "prefix256"),
        ("prefix999", 1, 256, "causal"),
        ("documents100", 1, 250, "window50"),
        ("documents1", 64, 64, "window1"),
        ("window100", 256, 256, "window100"),
        ("other", 1, 256, "other"),
    ],
)
def test_masks_that_hide_the_same_have_one_name(mask: str, queries: int, keys: int, expected: str) -> None:
    """So that a sweep and a compile make the same problem of a call."""
    sizes = (1, 2, queries, 64), (1, 2, keys, 64), (1, 2, keys, 64)
    assert attention(*sizes, mask=mask).key == attention(*sizes, mask=expected).key
    assert attention(*sizes, mask=expected).shape.dimension("mask") == expected


def test_inputs_that_are_missing() -> None:
    """Queries alone make no attention."""
    with pytest.raises(RecordError, match="flex_attention needs at least 3 inputs, not 2"):
        Problem.create(OP, (spec(1, 2, 8, 64),) * 2)
    with pytest.raises(RecordError, match="flex_attention takes at most 3 inputs, not 4"):
        Problem.create(OP, (spec(1, 2, 8, 64),) * 4)
