"""Which kernels are the same whatever their number of stages."""

from __future__ import annotations

import numpy as np
import pytest

from diode_store.candidates.default_space import GemmConfig
from diode_store.candidates.pipelining import gemm_kernel, is_pipelined, kernel_of
from diode_store.devices.known import AMD, NVIDIA
from diode_store.records import KernelConfig, ProblemShape


def shape(k: int, layout: str = "nt", *, m: int = 64, n: int = 304, dtype: str = "bfloat16") -> ProblemShape:
    """Return an mm."""
    return ProblemShape("mm", dtype, 1, m, n, k, layout)


@pytest.mark.parametrize(
    ("product", "pipelined"),
    [
        pytest.param(shape(97), False, id="rows of both are an odd number of elements"),
        pytest.param(shape(98), True, id="an even number is whole 4 bytes"),
        pytest.param(shape(97, dtype="float32"), True, id="as is any number of fp32"),
        pytest.param(shape(97, "nn"), True, id="rows of B are whole"),
        pytest.param(shape(128, "nn", n=305), True, id="rows of A are"),
        pytest.param(shape(97, "nn", n=305), False, id="neither are"),
        pytest.param(shape(128, "tn", m=65, n=305), False, id="rows of A have M elements"),
        pytest.param(shape(97, "tt", m=66), True, id="rows of B have K"),
        pytest.param(shape(97, "st"), True, id="nothing is known of the rows of A"),
        pytest.param(shape(128, "tn", m=65, n=1), True, id="B is a vector, which is one row along K"),
        pytest.param(shape(129, "tn", m=65, n=1), False, id="of an odd number"),
        pytest.param(shape(128, "nn", m=1, n=305), True, id="A is a vector"),
        pytest.param(shape(64), False, id="one iteration"),
        pytest.param(shape(65), False, id="one and a rest, of odd rows"),
        pytest.param(shape(66), True, id="two"),
    ],
)
def test_what_is_pipelined(product: ProblemShape, pipelined: bool) -> None:  # noqa: FBT001
    """By how often it iterates over K, and by whether cp.async can load the rows of an operand."""
    assert is_pipelined(product, 64, NVIDIA) is pipelined
    assert is_pipelined(product, np.array([16, 64]), NVIDIA).tolist()[1] is pipelined


def test_other_vendors_are_not_judged() -> None:
    """Their compilers were not looked at."""
    assert is_pipelined(shape(97), 64, AMD)
    assert is_pipelined(shape(64), 64, AMD)


def test_kernels_that_are_the_same_get_one_name() -> None:
    """Only those of the plain templates, and only where the loop is not pipelined."""

    def config(template: str, stages: int) -> KernelConfig:
        return KernelConfig(template, 64, 64, 64, 8, stages, 4)

    names = {template: {kernel_of(config(template, stages), shape(97), NVIDIA) for stages in (1, 3, 5)} for template in
             ("triton::mm", "triton::bmm", "triton::mm_persistent_tma")}  # fmt: skip
    assert {template: len(of) for template, of in names.items()} == {
        "triton::mm": 1, "triton::bmm": 1, "triton::mm_persistent_tma": 3
    }  # fmt: skip
    assert kernel_of(config("triton::mm", 5), shape(98), NVIDIA).num_stages == 5
    assert kernel_of(KernelConfig("aten::mm"), shape(97), NVIDIA) == KernelConfig("aten::mm")
    listed = GemmConfig(64, 64, 64, 5, 4)
    assert gemm_kernel(listed, shape(97), NVIDIA) == listed._replace(num_stages=1)
    assert gemm_kernel(listed, shape(98), NVIDIA) == listed
