"""Attention of a sweep: what a person types, and the families that have some."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diode_collectors.problems.choices import count_choices
from diode_collectors.problems.families import families, family_problems
from diode_collectors.problems.problem import SweepProblem, parse_problem
from diode_collectors.problems.search_space import SearchSpace
from diode_store.errors import SettingsError

_MASKS = ("", "/causal", "/window100", "/prefix64", "/documents96", "/causal/block64", "/window100/block256")


@given(
    st.sampled_from(("flex_attention", "flex_attention_backward")),
    st.tuples(
        st.integers(1, 8), st.integers(1, 4), st.sampled_from((128, 300, 2048)), st.sampled_from((16, 64, 80, 256))
    ),
    st.integers(1, 4),
    st.sampled_from(("", ":{}x{}", ":{}x{}x96")),
    st.sampled_from(_MASKS),
    st.sampled_from(("nn", "tt")),
    st.sampled_from(("bf16", "fp16")),
)
def test_what_it_prints_can_be_typed_again(
    op: str, sizes: tuple[int, int, int, int], shared: int, keys: str, mask: str, layout: str, dtype: str
) -> None:
    """The same problem, with the record's key and shape."""
    batch, kv_heads, m, head_size = sizes
    layout = "nn" if kv_heads * shared == 1 else layout
    text = f"{op}:{batch}x{kv_heads * shared}x{m}x{head_size}{keys.format(kv_heads, m)}{mask}/{layout}/{dtype}"
    problem = parse_problem(text)
    assert parse_problem(str(problem)) == problem
    assert SweepProblem.of_shape(problem.shape) == problem
    assert problem.problem().shape == problem.shape
    assert (problem.b, problem.m, problem.k) == (batch * kv_heads * shared, m, head_size)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("flex_attention:4x16x2048x64/causal", "flex_attention:4x16x2048x64/nn/bf16/causal"),
        ("flex_attention:4x16x2048x64:16x2048x64", "flex_attention:4x16x2048x64/nn/bf16"),
        ("flex_decoding:8x32x1x128:8x8192/fp16", "flex_decoding:8x32x1x128:8x8192/nn/fp16"),
        ("flex_attention:1x14x1x64:2x1024", "flex_attention:1x14x1x64:2x1024/nn/bf16"),
        (
            "flex_attention_backward:1x8x256x192:8x256x128/block128/causal/tt",
            "flex_attention_backward:1x8x256x192:8x256x128/tt/bf16/causal",
        ),
    ],
)
def test_the_order_of_words_does_not_matter(text: str, expected: str) -> None:
    """Usual values are left out when the problem is printed."""
    assert str(parse_problem(text)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "flex_attention:4x16x2048",
            "is no attention; write flex_attention:BxHxMxD (batch, heads, queries, head size)",
        ),
        ("flex_attention:0x16x2048x64", "sizes must be positive"),
        ("flex_attention:4x15x2048x64:4x2048", "are no queries, keys and values of one attention"),
        ("flex_attention:4x16x2048x8", "flex_attention needs head sizes of at least 16"),
        ("flex_attention:4x16x2048x64/fp32", "flex_attention takes no float32; known dtypes: bfloat16, float16"),
        ("flex_attention:4x1x2048x64/tt", "flex_attention with one head of keys, and one of queries or one query, has"),
        ("flex_decoding:1x32x64x64:1x1024/causal", "needs a block that is a multiple of the queries of a head of keys"),
        ("flex_attention:4x16x2048x64/nt", "flex_attention takes the layout nn or tt only, not nt"),
        (
            "flex_attention:4x16x2048x64/fast",
            "'fast' is neither a layout nor a dtype; known: layouts nn, tt; dtypes bf16",
        ),
        ("flex_attention:4x16x2048x64/causal/block40", "needs a block that is a multiple of 64"),
        ("flex_attention:4x16x2048x64/other", "nobody knows the blocks of another mask; known: causal, windowN"),
        ("flex_attention:4x16x1x64:16x512", "Inductor takes flex_decoding for these sizes; write that instead"),
        ("flex_decoding:4x16x256x64", "Inductor takes flex_attention for these sizes"),
        ("flex_decoding:1x14x1x64:2x1024", "Inductor takes flex_attention for these sizes"),
    ],
)
def test_a_mistake_is_named(text: str, message: str) -> None:
    """One line says what is wrong and what is expected."""
    with pytest.raises(SettingsError, match=re.escape(message)):
        parse_problem(text)


def test_families_have_forward_decoding_and_backward_passes() -> None:
    """More than 300 different problems, with head sizes of 64 to 256 and lengths of 128 to 131,072."""
    found = [
        problem
        for family in families()
        if family.name.endswith("-attention")
        for problem in family_problems(family.name)
    ]
    assert len(set(found)) > 310
    counts = Counter(problem.op for problem in set(found))
    assert min(counts[op] for op in ("flex_attention", "flex_decoding", "flex_attention_backward")) >= 70
    assert {64, 96, 128, 192, 256} <= {problem.k for problem in found}
    lengths = {problem.n for problem in found}
    assert (min(lengths), max(lengths)) == (77, 131_072)
    masks = {str(problem.shape.dimension("mask", "")).rstrip("0123456789") for problem in found}
    assert masks == {"", "causal", "window", "prefix", "documents"}


@pytest.mark.parametrize(
    ("op", "space", "count"),
    [
        ("flex_attention", "DEFAULT", 7),
        ("flex_attention", "EXHAUSTIVE", 147),
        ("flex_attention", "SAMPLE:40", 40),
        ("flex_attention_backward", "GUIDED:5", 13),
        ("flex_attention_backward", "SAMPLE:2000", 903),
        ("flex_attention", "VENDOR", 0),
    ],
)
def test_choices_are_estimated(op: str, space: str, count: int) -> None:
    """Inductor's list, or as many as were asked for; no vendor kernel computes it."""
    problem = parse_problem(f"{op}:4x16x2048x64/causal")
    found = count_choices(problem, SearchSpace.parse(space), shared_memory_bytes=None, include_tma=False)
    assert found == count
