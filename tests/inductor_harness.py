"""Real Triton choices inside a real ``torch.compile``, on a machine without a GPU.

Inductor lists Triton templates for the CPU when ``cpu_backend`` is ``"triton"``, and builds their callers once a
Triton driver says which target to generate code for. Nothing can run them, so a stub driver stands in and the
benchmark is replaced: everything else (choices hook, template heuristics, code generation, feedback savers) is
Inductor's own, in torch 2.10 to 2.15.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import torch._inductor.config as inductor_config
from torch._inductor import select_algorithm
from torch._inductor.utils import fresh_cache
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VENDOR_MS = 0.5
"""What the default benchmark says of every choice that is not a Triton template; the fastest, so that it is run."""
FAKE_MULTIPROCESSORS = 132


class StubDriver:
    """What code generation asks of a Triton driver; nothing is ever launched."""

    def get_current_target(self) -> GPUTarget:
        """Say Hopper."""
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        """Say the first device."""
        return 0

    def get_active_torch_device(self) -> torch.device:
        """Say where the tensors really are."""
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        """Say what a CUDA driver says."""
        return torch.cuda

    @staticmethod
    def is_active() -> bool:
        """Say yes."""
        return True


def block_time_ms(choice: Any) -> float:
    """Time a choice by its tile: vendor 0.5 ms, Triton a little over 1 ms, larger tiles faster, 128 x 128 fails."""
    if not isinstance(choice, select_algorithm.TritonTemplateCaller):
        return VENDOR_MS
    block_m, block_k, block_n = (int(part) for part in choice.info_dict()["tile_shape"].strip("()").split(","))
    return float("inf") if block_m * block_n >= 128 * 128 else 1.0 + 1.0 / (block_m * block_n * block_k)


@contextmanager
def triton_choices_on_cpu(
    *,
    time_ms: Callable[[Any], float] = block_time_ms,
    backends: str = "TRITON,ATEN",
    search_space: str = "DEFAULT",
    deferred: bool = False,
    **config: Any,
) -> Iterator[None]:
    """Let ``torch.compile(..., mode="max-autotune")`` on CPU tensors choose among Triton kernels.

    Whatever it decides, vendor kernels must come out fastest: a Triton kernel cannot run here.

    Args:
        time_ms: the runtime of a choice in milliseconds, as Inductor's benchmark would return it.
        backends: the GEMM backends that offer choices.
        search_space: ``DEFAULT`` or ``EXHAUSTIVE``.
        deferred: choose in the scheduler, as CUDA does by default, instead of while lowering.
        config: further settings of ``torch._inductor.config``.
    """
    fusion = "benchmark_template_fusion"
    settings = {
        "cpu_backend": "triton",
        "max_autotune_gemm_backends": backends,
        "max_autotune_gemm_search_space": search_space,
        "max_autotune_report_choices_stats": False,
        "fx_graph_cache": False,
        "autotune_local_cache": False,
        fusion if hasattr(inductor_config, fusion) else "benchmark_epilogue_fusion": deferred,
        **config,
    }
    cache = select_algorithm.AlgorithmSelectorCache
    timed = classmethod(lambda _cls, choices, *_args, **_kwargs: {choice: time_ms(choice) for choice in choices})
    with ExitStack() as stack:
        stack.enter_context(quiet_torch())
        stack.enter_context(fresh_cache())
        stack.enter_context(inductor_config.patch(settings))
        stack.enter_context(mock.patch.object(driver, "_active", StubDriver()))
        stack.enter_context(mock.patch.object(cache, "benchmark_choices", timed))
        stack.enter_context(mock.patch.object(cache, "make_precompile_fn", return_value=dict))
        torch._dynamo.reset()
        try:
            yield
        finally:
            torch._dynamo.reset()


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Ignore what torch itself warns of while it compiles, and keep its autotuning tables off stderr."""
    with warnings.catch_warnings(), mock.patch.object(select_algorithm, "PRINT_AUTOTUNE", new=False):
        # Inductor's benchmark set-up, torch 2.13 and before, calls Tensor.storage().
        warnings.filterwarnings("ignore", "TypedStorage is deprecated", UserWarning)
        # Inductor, when it loads a fused kernel for the CPU.
        warnings.filterwarnings("ignore", "Could not find an active CPU backend", UserWarning)
        # torch.jit, which Dynamo imports, under Python 3.14 and in torch 2.15.
        warnings.filterwarnings("ignore", r".*torch\.jit", DeprecationWarning)
        yield


def compile_and_run(function: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> Any:
    """Compile ``function`` with max-autotune, from nothing, and return what it gives for ``inputs``."""
    torch._dynamo.reset()
    with torch.no_grad():
        return torch.compile(function, mode="max-autotune", **options)(*inputs)


def cuda_choices(kernel_inputs: Any, uid: str, op_name: str) -> list[Any]:
    """Return the CUDA heuristic's EXHAUSTIVE KernelTemplateChoices of a template for ``kernel_inputs``.

    Must be called where Inductor's graph is alive: in a choices hook. The device is taken to have 132
    multiprocessors, the workspace of the TMA templates is left out, and the tensors stay where they are.
    """
    registry, heuristics = heuristic_modules()
    template = templates()[uid]
    with ExitStack() as stack:
        stack.enter_context(inductor_config.patch(max_autotune_gemm_search_space="EXHAUSTIVE"))
        stack.enter_context(mock.patch.object(heuristics, "get_num_sms", return_value=FAKE_MULTIPROCESSORS))
        stack.enter_context(mock.patch.object(heuristics, "has_triton_stable_tma_api", return_value=True))
        mixin = heuristics.TMAWorkspaceMixin
        stack.enter_context(
            mock.patch.object(mixin, "get_extra_kwargs", lambda self, *args: super(mixin, self).get_extra_kwargs(*args))
        )
        heuristic = registry.get_template_heuristic(uid, "cuda", op_name)
        from torch._inductor.kernel_template_choice import make_ktc_generator  # torch 2.10+

        made = make_ktc_generator(
            template=template,
            cs=heuristic.get_template_configs(kernel_inputs, op_name),
            extra_kwargs=heuristic.get_extra_kwargs(kernel_inputs, op_name),
            overrides={},
            layout=kernel_inputs.output_layout(),
            inputs=kernel_inputs,
        )
        return list(made)


def heuristic_modules() -> tuple[Any, Any]:
    """Return Inductor's registry and Triton heuristics, which moved to another package in torch 2.14."""
    try:
        from torch._inductor.heuristics.template import registry, triton  # torch 2.14+
    except ImportError:
        from torch._inductor.template_heuristics import registry, triton  # torch 2.13 and before
    return registry, triton


def templates() -> dict[str, Any]:
    """Return Inductor's GEMM templates by uid."""
    from torch._inductor.kernel import bmm, mm  # registers lowerings: only when asked for

    found = (mm.mm_template, mm.persistent_tma_mm_template, bmm.bmm_template, mm.aten_mm)
    return {template.uid: template for template in found}
