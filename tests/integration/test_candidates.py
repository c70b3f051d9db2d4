"""Lists that Inductor made once for a class of problems, against what it lists for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hooked import hooked, watching
from torch._inductor import config as inductor_config

from diode_collectors.inductor.adapter import columns_of_choices, config_of_ktc, problem_of_inputs
from diode_integration.inductor.candidates import Candidates, KnownList, KnownLists, class_of
from diode_integration.install import install
from diode_store.candidates.columns import INT_COLUMNS
from inductor_events import asked
from inductor_harness import compile_and_run, cuda_choices
from lanes import long

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = [
    (512, 512, 512),
    (300, 320, 640),
    (1000, 1000, 1000),
    (257, 512, 264),
    (16, 512, 512),
    (9, 700, 520),
    (12, 300, 400),
    (17, 512, 512),
    (32, 1024, 320),
    (512, 24, 300),
    (700, 20, 512),
    (512, 512, 40),
    (300, 700, 48),
    (512, 512, 72),
    (333, 333, 128),
    (64, 64, 64),
    (50, 60, 40),
    (512, 320, 640),
]
"""M, N, K: several of a class each, EVEN_K or not, dimensions below and above the largest block, TF32 for some."""
COLUMNS = (*INT_COLUMNS, "template_index", "allow_tf32")
Key = Any


def products(*operands: torch.Tensor) -> list[torch.Tensor]:
    """Return the product of each pair."""
    return [a @ b for a, b in zip(operands[::2], operands[1::2], strict=True)]


def operands(dtype: torch.dtype, batch: tuple[int, ...], *, transposed: bool) -> list[torch.Tensor]:
    """Return the pairs of ``SIZES``."""
    made = []
    for m, n, k in SIZES:
        b = torch.zeros(*batch, n, k, dtype=dtype).mT if transposed else torch.zeros(*batch, k, n, dtype=dtype)
        made += [torch.zeros(*batch, m, k, dtype=dtype), b]
    return made


def compared(uid: str, known: KnownLists, met: dict[Key, int]) -> Callable[..., None]:
    """Return a look at a hook call that compares the list of an earlier problem of the class with Inductor's own."""

    def look(kernel_inputs: Any, op_name: str, _: Any) -> None:
        with inductor_config.patch(max_autotune_gemm_search_space="EXHAUSTIVE"):
            fresh = cuda_choices(kernel_inputs, uid, op_name)
        problem = problem_of_inputs(kernel_inputs, op_name)
        key = class_of(uid, problem, kernel_inputs, op_name, {}, "EXHAUSTIVE")
        assert key is not None
        earlier = known.get(key)
        met[key] = met.get(key, 0) + 1
        if earlier is None:
            known.keep(key, fresh, problem.shape.k)
            return
        made = Candidates(problem.shape.k)
        made.extend_like(fresh[0], earlier)
        assert len(made) == len(fresh)
        for ours, theirs in zip(made, fresh, strict=True):
            assert ours.params.to_kwargs() == theirs.params.to_kwargs()
            assert config_of_ktc(ours) == config_of_ktc(theirs)
            assert (ours.template, ours.layout, ours.inputs) == (theirs.template, theirs.layout, theirs.inputs)
            assert ours.extra_kwargs is fresh[0].extra_kwargs
            assert ours.annotations["ktc"] is ours
        columns = [(made.columns, columns_of_choices(fresh))]
        assert all((getattr(a, name) == getattr(b, name)).all() for a, b in columns for name in COLUMNS)

    return look


@pytest.mark.long
@pytest.mark.quick(1)
@pytest.mark.parametrize("transposed", [False, pytest.param(True, marks=long)], ids=["nn", "nt"])
@pytest.mark.parametrize(
    ("uid", "dtype", "batch", "precision"),
    [
        ("triton::mm", torch.bfloat16, (), "highest"),
        pytest.param("triton::mm", torch.float32, (), "highest", marks=long),
        pytest.param("triton::mm", torch.float32, (), "high", marks=long),
        ("triton::bmm", torch.float16, (3,), "highest"),
        pytest.param("triton::mm_persistent_tma", torch.bfloat16, (), "highest", marks=long),
    ],
    ids=["mm-bf16", "mm-fp32", "mm-tf32", "bmm-fp16", "tma-bf16"],
)
def test_problems_of_a_class_have_one_list(
    uid: str,
    dtype: torch.dtype,
    batch: tuple[int, ...],
    precision: str,
    transposed: bool,  # noqa: FBT001 - a parameter of pytest's
) -> None:
    """Made from the list of another problem, candidates are those that Inductor lists, parameter by parameter."""
    met: dict[Key, int] = {}
    inputs = operands(dtype, batch, transposed=transposed)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        asked(products, *inputs, look=compared(uid, KnownLists(), met))
    finally:
        torch.set_float32_matmul_precision(before)
    assert sum(met.values()) == len(SIZES)
    assert len(met) < len(SIZES) - 5


def test_a_hooked_compile_makes_what_it_keeps() -> None:
    """Of the second problem of a class the hook makes only the candidates that it keeps."""
    handler = hooked()
    made: list[Candidates] = []
    inner = handler._list
    handler._list = lambda *call: _noted(inner(*call), made)  # type: ignore[method-assign]
    inputs = [torch.randn(m, k) for m, k in ((300, 512), (512, 300), (400, 1000), (1000, 400))]
    with watching(run_vendor=True), install(handler):
        results = compile_and_run(products, *inputs)
    torch.testing.assert_close(results, products(*inputs), rtol=1e-4, atol=1e-3)
    first, second = made
    assert len(first) == len(second) > 500
    assert sum(ktc is not None for ktc in first._made) == len(first)
    assert 0 < sum(ktc is not None for ktc in second._made) < 10
    assert len(handler.decisions()) == 2


def _noted(listing: Any, made: list[Candidates]) -> Any:
    made.append(listing.ranked)
    return listing


def test_lists_that_cannot_stand_for_others_are_not_kept() -> None:
    """One with a block larger than any known, or a parameter that is no plain value, is listed each time anew."""
    kept = []

    def look(kernel_inputs: Any, op_name: str, _: Any) -> None:
        choices = cuda_choices(kernel_inputs, "triton::mm", op_name)
        k = problem_of_inputs(kernel_inputs, op_name).shape.k
        kept.append(KnownList.of(choices, k) is not None)
        for name, value in (("BLOCK_K", 512), ("EVEN_K", True), ("ANY", object())):
            before = dict(choices[-1].params.kwargs)
            choices[-1].params.kwargs[name] = value
            kept.append(KnownList.of(choices, k + (name == "EVEN_K")) is not None)
            choices[-1].params.kwargs.clear()
            choices[-1].params.kwargs.update(before)

    asked(torch.mm, torch.zeros(512, 512), torch.zeros(512, 512), look=look)
    assert kept == [True, False, False, False]


def test_a_dynamic_k_is_of_no_class() -> None:
    """Whether blocks divide a symbolic K is Inductor's to say; other symbolic sizes count as their hints."""
    found = []

    def look(kernel_inputs: Any, op_name: str, _: Any) -> None:
        problem = problem_of_inputs(kernel_inputs, op_name)
        found.append(class_of("triton::mm", problem, kernel_inputs, op_name, {}, "EXHAUSTIVE"))

    for dynamic in (0, 1):
        a, b = torch.zeros(300, 512), torch.zeros(512, 256)
        torch._dynamo.mark_dynamic(a, dynamic)
        if dynamic:
            torch._dynamo.mark_dynamic(b, 0)
        asked(torch.mm, a, b, look=look)
    assert found[0] is not None
    assert found[1] is None
