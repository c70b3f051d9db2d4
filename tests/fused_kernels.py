"""Fused kernels for tests: real sources of Inductor, and functions whose kernels Triton's interpreter can run."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.runtime import triton_heuristics

from inductor_harness import compile_and_run, triton_choices_on_cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest


def scaled_rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return the sum of each row of a product: a persistent reduction."""
    return (x * w).sum(1)


def transposed(x: torch.Tensor) -> torch.Tensor:
    """Return a copy in another order: a pointwise kernel of two ranges."""
    return x.t().contiguous() * 2


def sums_of_columns(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of each long column: a reduction in a loop."""
    return x.sum(0)


CASES: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "persistent_reduction": (scaled_rows, (torch.randn(64, 512), torch.randn(512))),
    "pointwise": (transposed, (torch.randn(48, 64),)),
    "reduction": (sums_of_columns, (torch.randn(5120, 1024),)),
}
"""Op → function that Inductor makes one kernel of, with its inputs."""


def sources_of(function: Callable[..., Any], *inputs: torch.Tensor) -> list[str]:
    """Return the sources of the kernels that Inductor generates for a function with max-autotune."""
    found: list[str] = []
    stock = TritonKernel.codegen_kernel

    def keep(self: Any, *args: Any, **kwargs: Any) -> str:
        found.append(stock(self, *args, **kwargs))
        raise _GeneratedError

    with triton_choices_on_cpu(), mock.patch.object(TritonKernel, "codegen_kernel", keep):
        try:
            compile_and_run(function, *inputs)
        except Exception as error:  # Inductor wraps it in an error of its own
            if not found:
                raise AssertionError("no kernel was generated") from error
    return found


class _GeneratedError(Exception):
    """Ends a compile, since there is nothing here that runs its kernels."""


@contextmanager
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Have Triton's interpreter run fused kernels on the CPU; yield the autotuners of the kernels that ran."""
    ran: list[Any] = []
    stock = triton_heuristics.CachingAutotuner.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        ran.append(self)
        return stock(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setenv("TRITON_INTERPRET", "1")
        patched.setattr(triton_heuristics.CachingAutotuner, "run", run)
        with triton_choices_on_cpu():
            yield ran
