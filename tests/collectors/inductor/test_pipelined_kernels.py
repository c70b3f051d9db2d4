"""Inductor's own templates, as Triton compiles them for sm_90: which numbers make another kernel, or a long one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
import triton
from torch._inductor.choices import InductorChoices
from torch._inductor.codecache import PyCodeCache
from torch._inductor.select_algorithm import TritonTemplateCaller
from torch._inductor.virtualized import V
from triton.compiler import ASTSource

from diode_collectors.inductor.adapter import config_of_ktc
from diode_store.candidates.default_space import GemmConfig
from diode_store.candidates.pipelining import is_pipelined
from diode_store.devices.known import NVIDIA
from diode_store.records import ProblemShape, is_vendor_template
from inductor_harness import VENDOR_MS, StubDriver, compile_and_run, triton_choices_on_cpu

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning")  # Triton 3.9

K_BLOCK = 64
STAGES = (1, 2, 4, 5)
_NAMES = re.compile(r"//.*|^\s*\.(?:loc|file)\b.*|triton_\w+", re.MULTILINE)
"""What differs by the file that a kernel comes from."""


class Listed(InductorChoices):
    """Lists some configs, and the vendor's kernel."""

    def __init__(self, wanted: Iterable[GemmConfig]) -> None:
        super().__init__()
        self._wanted = frozenset(wanted)

    def _finalize_template_configs(self, *arguments: Any, **named: Any) -> list[Any]:
        listed = super()._finalize_template_configs(*arguments, **named)
        return [
            ktc for ktc in listed
            if is_vendor_template(ktc.template.uid) or GemmConfig.of(config_of_ktc(ktc)) in self._wanted
        ]  # fmt: skip


def ptx_of(choice: TritonTemplateCaller) -> str:
    """Compile a choice for sm_90, its tensors being whole 16 bytes as a GPU's are, and return the instructions."""
    request: Any = choice.bmreq
    kernel = getattr(PyCodeCache.load_by_key_path(request.module_cache_key, request.module_path), request.kernel_name)
    signature = dict(kernel.triton_meta["signature"])
    aligned: Any = {(place,): [["tt.divisibility", 16]] for place in range(len(signature))}
    (config,) = kernel.configs
    compiled = triton.compile(
        ASTSource(kernel.fn, signature, dict(config.kwargs), aligned),
        target=StubDriver().get_current_target(),
        options={"num_warps": config.num_warps, "num_stages": config.num_stages},
    )
    return _NAMES.sub("", compiled.asm["ptx"].partition(".section")[0])


def kernels(left: torch.Tensor, right: torch.Tensor, wanted: Sequence[GemmConfig]) -> Iterator[tuple[str, str]]:
    """Yield the description and the PTX of each of the configs."""
    choices: list[TritonTemplateCaller] = []

    def time_ms(choice: Any) -> float:
        if isinstance(choice, TritonTemplateCaller):
            choices.append(choice)
            return 1.0
        return VENDOR_MS

    with triton_choices_on_cpu(time_ms=time_ms, search_space="EXHAUSTIVE"), V.set_choices_handler(Listed(wanted)):
        compile_and_run(torch.mm, left, right)
        assert len(choices) == len(wanted)
        yield from ((choice.description, ptx_of(choice)) for choice in choices)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("m", "n", "k", "layout"),
    [
        pytest.param(64, 304, 97, "nt", id="odd rows"),
        pytest.param(64, 304, 97, "nn", id="odd rows of A alone", marks=pytest.mark.long),
        pytest.param(64, 304, 98, "nt", id="rows of whole 4 bytes", marks=pytest.mark.long),
        pytest.param(64, 304, K_BLOCK, "nt", id="one iteration"),
        pytest.param(65, 1, 128, "tn", id="odd rows of A and a vector", marks=pytest.mark.long),
    ],
)
def test_stages_make_other_kernels_where_the_loop_is_pipelined(m: int, n: int, k: int, layout: str) -> None:
    """And one kernel where it is not, of one stage or of five."""
    left, right = (
        torch.zeros(rows, columns, dtype=torch.bfloat16)
        if letter == "n"
        else torch.zeros(columns, rows, dtype=torch.bfloat16).t()
        for rows, columns, letter in ((m, k, layout[0]), (k, n, layout[1]))
    )
    found = {ptx for _, ptx in kernels(left, right, [GemmConfig(16, 16, K_BLOCK, stages, 1) for stages in STAGES])}
    shape = ProblemShape("mm", "bfloat16", 1, m, n, k, layout)
    assert len(found) == (len(STAGES) if is_pipelined(shape, K_BLOCK, NVIDIA) else 1)


@pytest.mark.parametrize("config", [GemmConfig(16, 16, 16, 1, 1), GemmConfig(16, 16, K_BLOCK, 2, 1)])
def test_without_tensor_cores_each_product_is_an_instruction(config: GemmConfig) -> None:
    """So the time that fp32 takes to compile follows from the products of a thread in an iteration of its loop."""
    left, right = torch.zeros(64, 96), torch.zeros(96, 64)
    ((_, ptx),) = kernels(left, right, [config])
    products = config.block_m * config.block_n * config.block_k // (32 * config.num_warps)
    assert ptx.count("fma.rn.f32") == products
