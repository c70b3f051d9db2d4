"""Flex attention's Triton lowering on a machine without a GPU: Inductor's code, except where it asks for the CPU."""

from __future__ import annotations

import functools
import inspect
import re
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import torch._inductor.lowering as inductor_lowering
import torch.nn.attention.flex_attention as flex_module
from torch._inductor.async_compile import AsyncCompile

from inductor_harness import FAKE_MULTIPROCESSORS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BLOCK = re.compile(r"(BLOCK_[MN]\d?) : tl.constexpr = (\d+)")
REFUSED: list[dict[str, int]] = []
"""Block sizes of kernels that do not compile."""
HOPS = (torch.ops.higher_order.flex_attention, torch.ops.higher_order.flex_attention_backward)


def _for_triton(lower: Callable[..., Any]) -> Callable[..., Any]:
    """Return a lowering that takes tensors on the CPU for those on a GPU."""
    function = inspect.unwrap(lower)
    lines = inspect.getsource(function).splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("def "))
    source = "\n".join(lines[start:]).replace('== "cpu"', '== "no cpu"')
    space = dict(vars(inspect.getmodule(function)))
    exec(compile(source, inspect.getsourcefile(function) or "flex", "exec"), space)  # noqa: S102 - Inductor's own source
    return functools.wraps(lower)(space[function.__name__])


def _nothing(*_: Any, **__: Any) -> None:
    """Run no kernel, whatever the arguments."""


@contextmanager
def flex_on_cpu(*, runs: bool = False, multiprocessors: int = FAKE_MULTIPROCESSORS) -> Iterator[list[dict[str, int]]]:
    """Let a compile on CPU tensors lower flex attention to the Triton templates, forward, decoding and backward.

    Args:
        runs: True if something runs the graph's kernels, such as Triton's interpreter; else they compute nothing.
        multiprocessors: those of the device; keys are divided among as many.

    Yields:
        The block sizes of each kernel of attention whose source Inductor has compiled.
    """
    from torch._inductor import kernel  # noqa: F401 - registers the lowerings
    from torch._inductor.kernel import flex  # noqa: F401

    properties = SimpleNamespace(multi_processor_count=multiprocessors)
    with ExitStack() as stack:
        for hop in HOPS:
            stock = inductor_lowering.lowerings[hop]
            stack.callback(inductor_lowering.lowerings.__setitem__, hop, stock)
            inductor_lowering.lowerings[hop] = _for_triton(stock)
        stack.enter_context(mock.patch.object(flex_module, "_validate_device"))
        stack.enter_context(mock.patch.object(torch.cuda, "get_device_properties", return_value=properties))
        compiled, stock_compile = [], AsyncCompile.triton

        def compile_source(self: Any, name: str, source: str, *args: Any, **kwargs: Any) -> Any:
            blocks = {block: int(size) for block, size in _BLOCK.findall(source)}
            compiled.extend([blocks] if blocks else [])
            if blocks in REFUSED:
                raise RuntimeError("out of resources")
            return stock_compile(self, name, source, *args, **kwargs) if runs else SimpleNamespace(run=_nothing)

        stack.enter_context(mock.patch.object(AsyncCompile, "triton", compile_source))
        yield compiled
