"""Configs of attention's kernels that a sweep may draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_store.ops.attending import BACKWARD, DECODING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diode_store.ops.problem import ProblemShape

_THREADS_PER_WARP = 32
REGISTERS_PER_THREAD = 255
"""Most 32-bit registers of a CUDA thread, since compute capability 3.2 (CUDA C++ programming guide)."""
_DECODED_ROWS = 16
"""Fewest rows of a block of queries: those of Triton's dot product."""


def decoded_rows(shape: ProblemShape) -> int:
    """Return the rows of a block of queries in decoding: the queries of all heads that share keys, as a power of 2."""
    heads = int(shape.dimension("heads", 1))
    queries = shape.m * (heads // int(shape.dimension("kv_heads", heads)))
    return max(_DECODED_ROWS, 1 << (queries - 1).bit_length())


def accumulators_fit(shape: ProblemShape, blocks: Mapping[str, int], num_warps: int) -> bool:
    """Return whether the registers of a kernel's threads can hold its float32 accumulators and scores.

    Others spill: on an H200 they took 2.5 to 159 times the time of the fastest config, and seconds to compile.

    Args:
        shape: Problem of attention.
        blocks: Sizes of blocks as Inductor's configs name them: ``block_m`` and ``block_n`` forward, ``block_n`` for
            decoding, ``block_m1``, ``block_n1``, ``block_m2`` and ``block_n2`` backward.
        num_warps: Warps of the kernel.
    """
    value_size = int(shape.dimension("value_size", shape.k))
    if shape.op == BACKWARD:
        keys = blocks["block_n1"] * (shape.k + value_size + blocks["block_m1"])
        queries = blocks["block_m2"] * (shape.k + blocks["block_n2"])
        elements = max(keys, queries)
    else:
        rows = decoded_rows(shape) if shape.op == DECODING else blocks["block_m"]
        elements = rows * (value_size + blocks["block_n"])
    return elements <= REGISTERS_PER_THREAD * _THREADS_PER_WARP * num_warps
