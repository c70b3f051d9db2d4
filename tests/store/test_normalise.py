from __future__ import annotations

import math
from typing import Any

import pytest

from diode_store.candidates.names import kernel_config, template_uid
from diode_store.errors import RecordError
from diode_store.records import KernelConfig

# A choice of the same kernel as three sources say it; golden vectors of real ones are in tests/golden.
JSONL = {
    "ACC_TYPE": "tl.float32",
    "ALLOW_TF32": False,
    "BLOCK_K": 32,
    "BLOCK_M": 64,
    "BLOCK_N": 128,
    "EVEN_K": True,
    "GROUP_M": 8,
    "USE_FAST_ACCUM": False,
    "num_stages": 3,
    "num_warps": 4,
}
KERNEL = KernelConfig("triton::mm", 64, 128, 32, 8, 3, 4, allow_tf32=False, use_fast_accum=False, acc_type="tl.float32")


@pytest.mark.parametrize(
    ("name", "uid"),
    [
        ("mm", "aten::mm"),
        ("bias_addmm", "aten::bias_addmm"),
        ("_scaled_mm", "aten::_scaled_mm"),
        ("aten::mm", "aten::mm"),
        ("triton_mm", "triton::mm"),
        ("triton_mm_17", "triton::mm"),
        ("triton_mm_persistent_tma_3", "triton::mm_persistent_tma"),
        ("triton::bmm", "triton::bmm"),
        ("cpp_CppMicroGemmFP32Vec_0", "cpp::CppMicroGemmFP32Vec"),
        ("cutlass_gemm_4", "cutlass::gemm"),
        ("decompose_k_mm_4_split_0", "decompose_k"),
        ("contiguous_addmm_1", "contiguous_addmm"),
    ],
)
def test_template_uid(name: str, uid: str) -> None:
    """Every name that a version of Inductor gives a template stands for one uid."""
    assert template_uid(name) == uid


@pytest.mark.parametrize("name", ["", "triton_", "conv", "triton", "x" * 5000])
def test_unknown_template(name: str) -> None:
    """A name that stands for nothing is refused in a short line that says what would do."""
    with pytest.raises(RecordError, match=r"unknown template .*expected an ATen op") as refused:
        template_uid(name)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    "kwargs",
    [
        JSONL,
        dict(reversed(JSONL.items())),
        {**JSONL, "EVEN_K": False, "OUT_DTYPE": "torch.bfloat16", "hint_override": None},
        {**JSONL, "ALLOW_TF32": "False", "USE_FAST_ACCUM": "False", "SPLIT": None, "TILE": "None"},
        {**JSONL, "tma_store": False, "num_consumer_groups": 0},
    ],
)
def test_one_kernel_has_one_config(kwargs: dict[str, Any]) -> None:
    """The order of arguments, what follows from the problem, reprs of flags, and implied values do not count."""
    config = kernel_config("triton_mm_5", kwargs)
    assert config == KERNEL
    assert config.key == KERNEL.key


def test_other_arguments_are_kept_sorted() -> None:
    """An argument without a column, or at another than its implied value, is part of the kernel."""
    config = kernel_config("triton_mm", {**JSONL, "TMA_SIZE": 128, "NUM_SMS": 132.0, "tma_store": True})
    assert config.kwargs == (("NUM_SMS", 132), ("TMA_SIZE", 128), ("tma_store", True))
    assert config.key != KERNEL.key


def test_vendor_kernel_has_no_arguments() -> None:
    """A vendor's kernel is its name."""
    assert kernel_config("mm", {}) == KernelConfig("aten::mm")


def test_extra_is_kept() -> None:
    """What the caller knows besides travels along."""
    assert kernel_config("mm", {}, {"cluster": 2}).extra == {"cluster": 2}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("BLOCK_M", "64", "BLOCK_M must be a whole number, not '64'"),
        ("BLOCK_M", 64.5, "BLOCK_M must be a whole number"),
        ("BLOCK_M", True, "BLOCK_M must be a whole number"),
        ("num_warps", -1, "num_warps must be a whole number"),
        ("ALLOW_TF32", 1, "ALLOW_TF32 must be true or false, not 1"),
        ("ACC_TYPE", 32, "ACC_TYPE must be a string"),
        ("SPLIT", math.nan, "SPLIT must be finite, not nan"),
        ("SPLIT", [1, 2], "SPLIT must be a number, a string or true/false, not list"),
    ],
)
def test_wrong_argument(name: str, value: object, message: str) -> None:
    """An argument of the wrong type is refused by name."""
    with pytest.raises(RecordError, match=message):
        kernel_config("triton_mm", {name: value})
