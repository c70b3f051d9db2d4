"""Convolutions of a sweep: what a person types, and the families that have some."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diode_collectors.problems.choices import count_choices
from diode_collectors.problems.families import families, family_problems
from diode_collectors.problems.problem import SweepProblem, parse_problem
from diode_collectors.problems.search_space import SearchSpace
from diode_store.errors import SettingsError


def _words(name: str, least: int) -> st.SearchStrategy[str]:
    """Draw no word, one number, or one for each dimension."""
    return st.one_of(
        st.just(""),
        st.integers(least, 3).map(lambda n: f"/{name}{n}"),
        st.tuples(st.integers(least, 3), st.integers(least, 3)).map(lambda n: f"/{name}{n[0]}x{n[1]}"),
    )


_TEXTS = st.builds(
    "convolution:{}x{}x{}x{}:{}x{}x{}/{}/{}{}{}{}{}".format,
    st.integers(1, 64),
    st.integers(1, 8).map(lambda n: 4 * n),
    st.integers(9, 64),
    st.integers(9, 64),
    st.integers(1, 8).map(lambda n: 4 * n),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from(("nt", "tt")),
    st.sampled_from(("bf16", "fp16", "fp32", "tf32")),
    _words("stride", 1),
    _words("padding", 0),
    _words("dilation", 1),
    st.sampled_from(("", "/groups2", "/groups4")),
)


@given(_TEXTS)
def test_what_it_prints_can_be_typed_again(text: str) -> None:
    """The same problem, with the record's key and shape."""
    problem = parse_problem(text)
    assert parse_problem(str(problem)) == problem
    assert SweepProblem.of_shape(problem.shape) == problem
    assert problem.problem().shape == problem.shape
    assert str(problem).partition("/")[0] == text.partition("/")[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("convolution:2x64x56x56:128x3x3", "convolution:2x64x56x56:128x3x3/nt/bf16"),
        ("convolution:2x64x9x9:8x3x3/padding1x1/stride2", "convolution:2x64x9x9:8x3x3/nt/bf16/stride2/padding1"),
        ("convolution:1x80x3000:384x3/padding1", "convolution:1x80x3000:384x3/tt/bf16/padding1"),
        ("convolution:1x16x8x32x32:32x3x3x3", "convolution:1x16x8x32x32:32x3x3x3/tt/bf16"),
    ],
)
def test_what_is_left_out(text: str, expected: str) -> None:
    """Images are channels last, signals and volumes contiguous; bf16; the usual stride, padding and dilation."""
    assert str(parse_problem(text)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("convolution:32x64:128x3x3", "is not a convolution; write convolution:NxCxHxW:OxKHxKW"),
        ("convolution:32x64x56x56", "is not a convolution"),
        ("convolution:32x64x56x56:128x3x3/huge", "'huge' is neither a layout nor a dtype; known: layouts nt, tt"),
        ("convolution:32x64x56x56:128x3x3/int8", "'int8' is neither a layout nor a dtype"),
        ("convolution:32x64x56x56:128x3x3/nn", "takes the layouts nt (channels last) and tt (contiguous), not nn"),
        ("convolution:32x64x56x56:128x3x3/groups7", "64 channels make no 7 groups"),
        ("convolution:32x64x56x56:128x3x3/groups0", "64 channels make no 0 groups"),
        ("convolution:32x64x56x56:129x3x3/groups2", "make no convolution of 2 groups"),
        ("convolution:32x64x2x2:128x3x3", "leave no output"),
        ("convolution:32x64x56x56:128x3x3x3", "make no convolution"),
        ("convolution:32x64x56x56:128x3x3/stride2x2x2", "stride must be 2 numbers"),
        ("convolution:32x0x56x56:128x3x3", "a size is 0"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    """One line that names the text and what was expected."""
    with pytest.raises(SettingsError, match=re.escape(message)) as raised:
        parse_problem(text)
    assert text in str(raised.value)


def test_a_shape_that_no_sweep_times() -> None:
    """A bias is added apart on a GPU, and sizes that a record would not have are refused."""
    shape = parse_problem("convolution:32x64x56x56:128x3x3").shape
    m, n, k, named = shape.m, shape.n, shape.k, shape.dimensions
    with pytest.raises(SettingsError, match="without its bias"):
        SweepProblem("convolution", m, n, k, dimensions=(*named, ("bias", True)), layout="nt")
    with pytest.raises(SettingsError, match="another problem, with"):
        SweepProblem("convolution", m + 1, n, k, dimensions=named, layout="nt")
    with pytest.raises(SettingsError, match="needs a size and a kernel"):
        SweepProblem("convolution", m, n, k, layout="nt")


def test_families_of_convolutions() -> None:
    """At least 400 of eight models: 1 x 1, strided, depthwise, of patches."""
    problems = (problem for family in families() for problem in family_problems(family.name))
    found = {problem.problem().key: problem for problem in problems if problem.op == "convolution"}
    assert len(found) >= 400
    shapes = [problem.shape for problem in found.values()]
    assert {shape.dimension("kernel") for shape in shapes} >= {"1x1", "3x3", "5x5", "7x7", "14x14", "16x16"}
    assert sum(shape.dimension("stride") is not None for shape in shapes) >= 50
    assert sum(shape.n == 1 for shape in shapes) >= 40
    assert sum(shape.dimension("kernel") == "1x1" for shape in shapes) >= 100


@pytest.mark.parametrize(("space", "number"), [("VENDOR", 1), ("DEFAULT", 18), ("EXHAUSTIVE", 18)])
def test_the_estimate_of_its_kernels(space: str, number: int) -> None:
    """Inductor has one list of templates for convolutions."""
    problem = parse_problem("convolution:32x64x56x56:128x3x3")
    found = count_choices(problem, SearchSpace.parse(space), shared_memory_bytes=232_448, include_tma=True)
    assert found == number
