"""Lowering of matrix products without tensors, to ask a handler what it would choose."""

from __future__ import annotations

import warnings
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config
from torch._subclasses.fake_tensor import FakeTensorMode

from diode_collectors.inductor.calls import add_call
from diode_integration.inductor.entry import taking_the_first
from diode_store.ops import OPS, Role
from diode_store.ops.inputs import plain_inputs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from diode_store.records import Problem

_LEFT_WHOLE = frozenset(getattr(torch.ops.aten, name).default for name, op in OPS.items() if op.decomposes)
"""Ops whose small products Inductor takes apart on a CPU, which compiles here, but not on a GPU."""
_QUIET = {"autotune_num_choices_displayed": 0, "max_autotune_report_choices_stats": False}
_SETTINGS = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "ATEN", "fx_graph_cache": False}


def lower(problems: Sequence[Problem], *, tf32: bool) -> None:
    """Compile products as one graph of tensors that have sizes and no values; the result cannot be run.

    Inductor takes the first of each op's choices and times none.
    """
    graph = torch.fx.Graph()
    operands: list[torch.Tensor] = []
    products = []
    with _pretending(tf32=tf32):
        from torch._inductor import compile_fx  # torch 2.10 and 2.11 warn at the import
        from torch._inductor.decomposition import select_decomp_table

        for problem in problems:
            of_op = _operands(problem)
            nodes = tuple(graph.placeholder(f"operand_{len(operands) + place}") for place in range(len(of_op)))
            operands += of_op
            products.append(add_call(graph, problem, nodes))
        graph.output(tuple(products))
        table = {op: how for op, how in select_decomp_table().items() if op not in _LEFT_WHOLE}
        compile_fx.compile_fx(torch.fx.GraphModule({}, graph), operands, decompositions=table)


@contextmanager
def _pretending(*, tf32: bool) -> Iterator[None]:
    """Have compiles take the first of each op's choices, time none, and print nothing."""
    before = torch.backends.cuda.matmul.allow_tf32
    fake = FakeTensorMode()
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # Inductor's warnings about the compile do not concern the answer
        stack.callback(setattr, torch.backends.cuda.matmul, "allow_tf32", before)
        torch.backends.cuda.matmul.allow_tf32 = tf32
        stack.enter_context(inductor_config.patch({**_SETTINGS, **_known(_QUIET)}))
        stack.enter_context(taking_the_first())
        stack.enter_context(fake)
        stack.enter_context(tracing(TracingContext(fake)))
        stack.enter_context(torch.no_grad())
        yield


def _known(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if hasattr(inductor_config, name)}


def _operands(problem: Problem) -> list[torch.Tensor]:
    specs = problem.inputs
    if OPS[problem.op].is_grouped:  # records have a scale of one element as a matrix, and torch takes it as a vector
        plain = plain_inputs(problem.shape)
        specs = tuple(
            plain[i] if role in {Role.SCALE_A, Role.SCALE_B} else specs[i] for i, role in enumerate(problem.roles())
        )
    return [torch.empty_strided(spec.size, spec.stride, dtype=getattr(torch, spec.dtype)) for spec in specs]
