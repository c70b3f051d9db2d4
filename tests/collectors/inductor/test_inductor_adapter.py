"""Inductor's inputs and choices as records, from real compiles on this CPU."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from diode_collectors.inductor.adapter import (
    columns_of_choices,
    config_of_choice,
    config_of_ktc,
    problem_of_inputs,
    problem_of_nodes,
)
from diode_store.candidates.columns import INT_COLUMNS, ConfigColumns
from diode_store.errors import RecordError
from diode_store.records import KernelConfig, TensorSpec
from inductor_events import A, B, asked, events, plain_choice, problems, remembered_ktc, with_cuda_list


def test_addmm_carries_its_scalars_and_its_broadcast_bias() -> None:
    """An alpha other than 1 is part of the problem; the bias is the view that the kernels read."""
    bias = torch.zeros(256)
    [measurement] = events(lambda c, a, b: torch.addmm(c, a, b, alpha=2), bias, A, B)
    assert measurement.problem.scalars == (("alpha", 2),)
    assert measurement.problem.inputs[0] == TensorSpec("float32", (128, 256), (0, 1))
    assert "triton::mm" in {timing.config.template for timing in measurement.timings}


def test_hook_and_feedback_mean_the_same_problem() -> None:
    """What a model is asked in the hook is what was recorded, in each of addmm's calls."""
    bias = torch.zeros(256)
    seen: list[Any] = []
    [measurement] = events(torch.addmm, bias, A, B, look=lambda *call: seen.append(problems(*call)))
    assert {measurement.problem.key} == {problem.key for problem in seen}


def test_bmm_has_a_batch() -> None:
    """A bmm keeps its batch, and its kernels are those of another template."""
    [measurement] = events(torch.bmm, torch.zeros(4, 64, 32), torch.zeros(4, 32, 48))
    shape = measurement.problem.shape
    assert (shape.op, shape.b, shape.m, shape.n, shape.k) == ("bmm", 4, 64, 48, 32)
    assert {timing.config.template for timing in measurement.timings} == {"aten::bmm", "triton::bmm"}


def test_symbolic_sizes_are_their_hints() -> None:
    """With dynamic shapes, a record holds the sizes that were really timed."""
    seen: list[Any] = []
    [measurement] = events(torch.mm, A, B, dynamic=True, look=lambda *call: seen.append(problems(*call)))
    assert measurement.problem.inputs == (
        TensorSpec("float32", (128, 512), (512, 1)),
        TensorSpec("float32", (512, 256), (256, 1)),
    )
    assert [measurement.problem] == seen


def test_a_hint_override_stands_for_symbolic_sizes() -> None:
    """Where Inductor compiles for several sizes, the one it timed with is recorded; static sizes stay."""

    def look(kernel_inputs: Any, op_name: str, _: Any) -> Any:
        assert not isinstance(kernel_inputs.nodes()[0].get_size()[0], int)
        return problem_of_nodes(op_name, kernel_inputs.nodes(), hint_override=64)

    a = A.clone()
    torch._dynamo.mark_dynamic(a, 0)
    [problem] = asked(torch.mm, a, B, look=look)
    assert (problem.shape.m, problem.shape.n, problem.shape.k) == (64, 256, 512)


def test_tf32_is_part_of_a_float32_problem_only_when_asked_for(request: pytest.FixtureRequest) -> None:
    """Allowing TF32 makes another float32 problem, and means nothing for bfloat16."""
    request.addfinalizer(lambda: torch.set_float32_matmul_precision("highest"))
    torch.set_float32_matmul_precision("high")
    assert [problem.scalars for problem in asked(torch.mm, A, B, look=problems)] == [(("ALLOW_TF32", True),)]
    assert [problem.scalars for problem in asked(torch.mm, A.bfloat16(), B.bfloat16(), look=problems)] == [()]


@pytest.mark.parametrize(("dtype", "expected"), [(torch.float32, True), (torch.bfloat16, False)])
def test_tf32_is_part_of_a_float32_kernel_only(dtype: torch.dtype, expected: bool) -> None:  # noqa: FBT001 - a case
    """Triton ignores the flag for other dtypes, so it must not make another kernel of the same."""
    ktc = remembered_ktc("triton::mm", {"BLOCK_M": 16}, dtype, ALLOW_TF32=True)
    assert config_of_ktc(ktc).allow_tf32 is expected
    assert columns_of_choices([ktc]).allow_tf32.tolist() == [expected]


def test_output_dtype_is_part_of_the_problem_where_it_differs() -> None:
    """An int8 product with int32 output says so; a bfloat16 one with bfloat16 output does not."""
    [problem] = asked(torch._int_mm, A.to(torch.int8), B.to(torch.int8), look=problems)
    assert (problem.op, problem.scalars) == ("int_mm", (("out_dtype", "int32"),))
    [problem] = asked(torch.mm, A.bfloat16(), B.bfloat16(), look=problems)
    assert problem.scalars == ()


def test_an_autoheuristic_mm_is_an_mm() -> None:
    """AutoHeuristic asks for its extra configs under a name of its own."""
    [problem] = asked(torch.mm, A, B, look=lambda inputs, _, __: problem_of_inputs(inputs, "mm-ah"))
    assert problem.op == "mm"


def test_an_op_without_inputs_is_refused() -> None:
    """Any op can be recorded, also one that the table of ops does not have, but not without its inputs."""
    with pytest.raises(RecordError, match="paged_attention: expected 1 to 64 inputs, not 0"):
        problem_of_nodes("paged_attention", [])


@pytest.mark.parametrize("uid", ["triton::mm", "triton::mm_persistent_tma"])
def test_columns_hold_what_each_config_holds(uid: str) -> None:
    """The fast path gives the hook the very numbers that configs hold, for vendor and Triton kernels mixed."""
    ktcs = asked(torch.mm, A, B, look=with_cuda_list(uid))[0]
    assert len(ktcs) > 100
    fast = columns_of_choices(ktcs)
    slow = ConfigColumns.from_configs([config_of_ktc(ktc) for ktc in ktcs])
    assert fast.templates == slow.templates
    for name in ("template_index", *INT_COLUMNS, "allow_tf32"):
        np.testing.assert_array_equal(getattr(fast, name), getattr(slow, name))
        assert getattr(fast, name).dtype == getattr(slow, name).dtype
    assert len(fast) == len(ktcs)


def test_no_choices_make_empty_columns() -> None:
    """A call that lists nothing is no error."""
    columns = columns_of_choices([])
    assert (len(columns), columns.templates, columns.block_m.tolist()) == (0, (), [])


def test_columns_of_a_template_without_blocks_are_zero() -> None:
    """decompose_k has a k_split and no blocks."""
    ktc = remembered_ktc("decompose_k", {"k_split": 4}, torch.bfloat16)
    columns = columns_of_choices([ktc])
    assert (columns.templates, columns.block_m.tolist(), columns.num_warps.tolist()) == (("decompose_k",), [0], [0])
    assert config_of_ktc(ktc) == KernelConfig("decompose_k", kwargs=(("k_split", 4),))


TILE = {"tile_shape": "(64, 32, 128)", "num_stages": 3, "num_warps": 4, "GROUP_M": 8, "allow_tf32": "True"}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (plain_choice("bias_addmm", backend="extern"), KernelConfig("aten::bias_addmm")),
        (
            plain_choice("decompose_k_mm_4_split_0", "k_split=4", backend="subgraph", kernel_name="x"),
            KernelConfig("decompose_k", kwargs=(("k_split", 4),)),
        ),
        (
            plain_choice("contiguous_mm_0", "contiguous mm", backend="subgraph", kernel_name="x"),
            KernelConfig("contiguous_mm"),
        ),
        (
            plain_choice("triton_mm_7", backend="Triton", acc_type="tl.float32", kpack=2, **TILE),
            KernelConfig("triton::mm", 64, 128, 32, 8, 3, 4, allow_tf32=False, acc_type="tl.float32"),
        ),
        (
            plain_choice("cutlass_9f3", backend="CUDA", op_type="GemmOperation", op_name="s128", swizzle="2"),
            KernelConfig("cutlass::GemmOperation", kwargs=(("op_name", "s128"), ("swizzle", "2"))),
        ),
        (
            plain_choice("nv_universal_gemm_3", backend="nv_universal_gemm", name="x", kernel_name="k128"),
            KernelConfig("nv_universal_gemm::nv_universal_gemm", kwargs=(("kernel_name", "k128"),)),
        ),
    ],
    ids=lambda value: value.name if isinstance(value, SimpleNamespace) else "",
)
def test_choices_without_ktc(choice: Any, expected: KernelConfig) -> None:
    """Choices that the hook never listed are read from their names, descriptions and info."""
    assert expected == config_of_choice(choice)


def test_triton_arguments_of_other_versions() -> None:
    """Older Triton prints arguments that newer ones lack; a value may be a word in quotes or a refusal of TF32."""
    old = "ACC_TYPE='tl.float32', ALLOW_TF32='False', BLOCK_K=16, num_consumer_groups=0, num_stages=1, num_warps=2"
    expected = KernelConfig(
        "triton::mm", block_k=16, num_stages=1, num_warps=2, allow_tf32=False, acc_type="tl.float32"
    )
    assert expected == config_of_choice(plain_choice("triton_mm_7", old, backend="Triton"))


def test_a_choice_that_says_nothing_is_refused() -> None:
    """Rather no record than a made-up name."""
    with pytest.raises(RecordError, match="does not say which backend"):
        config_of_choice(plain_choice("mystery"))


def test_columns_of_1400_choices_are_quick() -> None:
    """The hook may spend well under two milliseconds on a whole exhaustive list (0.5 ms when measured)."""
    inputs = torch.zeros(512, 1024).bfloat16(), torch.zeros(1024, 768).bfloat16()
    ktcs = asked(torch.mm, *inputs, look=with_cuda_list("triton::mm"))[0]
    assert len(ktcs) > 1400
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        columns_of_choices(ktcs)
        best = min(best, time.perf_counter() - start)
    assert best < 0.005
