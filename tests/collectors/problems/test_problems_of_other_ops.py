"""Scaled, grouped and int8 products: typed, checked, and the record that Inductor makes of each."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._inductor.kernel import mm_grouped
from torch._inductor.select_algorithm import AlgorithmSelectorCache

from diode_collectors.feedback.records import measurement_from_feedback
from diode_collectors.problems.problem import SweepProblem, parse_problem
from diode_collectors.problems.typed import OUTPUTS
from diode_collectors.sweep.lane.calling import activations, inputs_on, product
from diode_collectors.sweep.lane.values import give_values
from diode_store.errors import SettingsError
from diode_store.ops.grouping import FORMS, skew_of
from diode_store.ops.inputs import with_values_of
from inductor_events import saver
from inductor_harness import compile_and_run, triton_choices_on_cpu

H200_SHARED_MEMORY = 232_448


class _EnoughError(Exception):
    """Ends a compile."""


@pytest.fixture
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Inductor list Triton kernels of grouped products."""
    monkeypatch.setattr(mm_grouped, "can_use_triton_kernel", lambda *_: True)
    monkeypatch.setattr(mm_grouped, "get_num_sms", lambda *_: 132)
    monkeypatch.setattr(mm_grouped, "get_gpu_shared_memory", lambda *_: H200_SHARED_MEMORY)


def recorded(problem: SweepProblem) -> tuple[Any, list[list[torch.Tensor]]]:
    """Return the record of a real compile of a problem, and the inputs to benchmark for vendor kernels and others."""
    found: list[Any] = []

    def keep(timings: Any, name: str, nodes: Any, choices: Any, *_: Any) -> None:
        tensors = AlgorithmSelectorCache.get_inputs(list(timings), nodes, choices[0].layout, None)
        kinds = [list(tensors.get_benchmark_tensors(is_vendor).unpack()[0]) for is_vendor in (True, False)]
        for inputs in kinds:
            give_values(problem.problem(), inputs)
        found.extend((measurement_from_feedback(timings, name, nodes, choices), kinds))
        raise _EnoughError

    asked, inputs = problem.problem(), inputs_on(problem, "cpu")
    with triton_choices_on_cpu(), saver(keep), pytest.raises(Exception, match="_EnoughError"):
        compile_and_run(product(asked, inputs), *activations(asked, inputs))
    return found[0], found[1]


TEXTS = [
    "scaled_mm:16x512x256/nt/e4m3/row/fast",
    "scaled_mm:1x64x64/nt/e4m3/row",
    "scaled_mm:48x64x96/nt/e5m2+e4m3/tensor/bias",
    "scaled_mm:48x64x96/nt/e4m3+e5m2/row/out=fp32",
    "scaled_mm:48x64x96/nt/e4m3/row/bias/out=fp16",
    "int_mm:32x64x128/nt/int8",
    "int_mm:32x64x128/nn/int8",
    "mm_plus_mm:64x96x128/nt/bf16",
    "mm_plus_mm:64x96x128/nn/fp32",
    "grouped_mm:256x128x64:8/nt/bf16/2d3d/skew1",
    "grouped_mm:256x128x64:8/nn/bf16/2d3d",
    "grouped_mm:64x256x64:8/nt/bf16/3d2d",
    "grouped_mm:64x64x256:8/tn/bf16/2d2d/skew0.5",
    "grouped_mm:64x64x128:4/nt/bf16/3d3d",
    "scaled_grouped_mm:256x128x64:8/nt/e4m3/fast/2d3d",
    "scaled_grouped_mm:64x128x256:8/nt/e4m3/2d2d",
]


@pytest.mark.quick(3)
@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.parametrize("text", TEXTS)
def test_its_record_is_the_one_inductor_makes(text: str) -> None:
    """The key is that of a real compile with Triton kernels, once the sweep has said how it routes."""
    problem = parse_problem(text)
    assert str(problem) == text
    measurement, _ = recorded(problem)
    found = with_values_of(measurement.problem, problem.problem())
    assert found.key == problem.problem().key
    assert found.shape == problem.shape
    assert SweepProblem.of_shape(found.shape) == problem
    templates = {timing.config.template for timing in measurement.timings}
    assert templates == {problem.entry.template, *problem.entry.vendors}


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_kernels_get_the_values_that_the_problem_asks_for() -> None:
    """Groups end where the skew wants, scales are positive, and int8 is not all zero; the same for every kernel."""
    problem = parse_problem("grouped_mm:2560x64x64:8/nt/bf16/2d3d/skew1")
    _, kinds = recorded(problem)
    for inputs in kinds:
        ends = inputs[2].tolist()
        assert ends[-1] == 2560
        assert skew_of([end - start for start, end in zip([0, *ends], ends, strict=False)]) == pytest.approx(
            0.85, abs=0.2
        )
    _, (first, second) = recorded(parse_problem("scaled_mm:48x64x96/row"))
    for vendors, others in zip(first[2:], second[2:], strict=True):
        assert torch.equal(vendors, others)
        assert 0.5 <= vendors.min() < vendors.max() <= 1.5
    assert all(0 < tensor.float().abs().max() < 100 for tensor in first[:2])
    _, (first, _) = recorded(parse_problem("int_mm:32x64x128/nt"))
    assert first[0].min() < -100
    assert first[0].max() > 100


_MULTIPLES = st.integers(1, 64).map(lambda count: 128 * count)
_SKEWS = st.integers(0, 800).map(lambda skew: f"/skew{skew / 100:g}")
_SCALED = st.builds(
    "scaled_mm:{}x{}x{}/{}/{}{}{}".format,
    st.integers(1, 20_000),
    _MULTIPLES,
    _MULTIPLES.filter(lambda k: k > 128),
    st.sampled_from(("e4m3", "e5m2+e4m3", "e4m3+e5m2")),
    st.sampled_from(("tensor", "row", "1x128", "1x128+128x128")),
    st.sampled_from(("", "/bias", "/out=fp16", "/out=fp32")),
    st.sampled_from(("", "/fast")),
)
_GROUPED = st.builds(
    "{}:{}x{}x{}:{}/nt/{}{}".format,
    st.sampled_from(("grouped_mm", "scaled_grouped_mm")),
    _MULTIPLES,
    _MULTIPLES,
    _MULTIPLES,
    st.integers(1, 300),
    st.sampled_from(FORMS[:3]),
    _SKEWS,
)


@given(st.one_of(_SCALED, _GROUPED))
def test_what_it_prints_can_be_typed_again(text: str) -> None:
    """The text has every dimension, and only the words that a person would type."""
    problem = parse_problem(text)
    assert parse_problem(str(problem)) == problem
    assert parse_problem(str(problem)).problem().key == problem.problem().key
    assert problem.shape.out_dtype in OUTPUTS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scaled_mm:16x64x64/nn", "scaled_mm takes the layout nt only, not nn: A by rows, B by columns"),
        ("scaled_mm:16x64x60", "needs an N and a K that are multiples of 16, not 64 and 60"),
        ("scaled_mm:16x64x64/e5m2", "takes e5m2 for A or for B, not for both"),
        ("scaled_mm:16x64x64/bf16", "'bf16' is neither a layout nor a dtype; known: layouts nn"),
        ("scaled_mm:16x64x64/128x128", "'128x128' is neither a layout nor a dtype"),
        ("scaled_mm:16x64x64/bias/out=fp32", "adds no bias to an output in fp32"),
        ("scaled_mm:16x64x64/1x128", "those of another problem, with scaling row"),
        ("scaled_mm:16x64x64/skew1", "'skew1' is neither"),
        ("mm:16x64x64/row", "'row' is neither a layout nor a dtype; known: layouts nn, nt, tn, tt; dtypes bf16"),
        ("int_mm:16x64x64", "int_mm needs an M of at least 17, not 16"),
        ("int_mm:32x64x63", "multiples of 8, not 64 and 63"),
        ("grouped_mm:64x64x60:4/nt", "needs rows of A that are multiples of 16 bytes, not 60 elements"),
        ("grouped_mm:64x64x64:1024", "has at most 1023 groups, not 1024"),
        ("grouped_mm:64x64x64:4/3d3d/skew1", "has equal groups, so no skew"),
        ("grouped_mm:64x64x64:4/skew9", "a skew is from 0 to 8 with up to 2 decimals, not 9"),
        ("grouped_mm:64x64x64:4/skew0.123", "a skew is from 0 to 8"),
        ("grouped_mm:0x64x64:4", "sizes must be positive, not 0x64x64 of 4 groups"),
        ("grouped_mm:64x64x64:0", "sizes must be positive"),
        ("grouped_mm:64x64x64:4/fp16", "'fp16' is neither"),
        ("scaled_grouped_mm:64x64x64:4/tensor", "'tensor' is neither"),
    ],
)
def test_what_torch_refuses_is_refused(text: str, message: str) -> None:
    """Each mistake has one line of its own."""
    with pytest.raises(SettingsError, match=re.escape(message)):
        parse_problem(text)


def test_a_shape_without_its_dimensions_is_refused() -> None:
    """The constructor takes what ``ProblemShape`` has, and nothing that no record could have."""
    with pytest.raises(SettingsError, match="grouped_mm needs the total of its groups"):
        SweepProblem("grouped_mm", 64, 64, 64, 4, layout="nt", dimensions=(("form", "2d3d"),))
    with pytest.raises(SettingsError, match="those of another problem"):
        SweepProblem("grouped_mm", 64, 64, 64, 4, dimensions=(("form", "2d3d"), ("total", 512)))
    with pytest.raises(SettingsError, match="mm has no dimensions beside its sizes"):
        SweepProblem("mm", 64, 64, 64, dimensions=(("bias", True),))
