"""Problems of every op, and of one that no version knows, for tests of what stores and shows them."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from diode_store.ops.convolving import convolution_strides
from diode_store.ops.fused import fused_problem
from diode_store.records import Problem, TensorSpec

if TYPE_CHECKING:
    from diode_store.records import Scalar

FLOAT8, HALF, FLOAT, INT = "float8_e4m3fn", "bfloat16", "float32", "int32"


def rows(dtype: str, *size: int) -> TensorSpec:
    """Return a row-major input."""
    strides = [*accumulate([1, *size[:0:-1]], lambda stride, length: stride * length)][::-1]
    return TensorSpec(dtype, size, tuple(strides[: len(size)]))


def transposed(dtype: str, *size: int) -> TensorSpec:
    """Return an input whose last two dimensions are swapped in memory."""
    spec = rows(dtype, *size[:-2], size[-1], size[-2])
    return TensorSpec(dtype, size, (*spec.stride[:-2], spec.stride[-1], spec.stride[-2]))


def channels_last(dtype: str, *size: int) -> TensorSpec:
    """Return an input whose channels lie side by side."""
    return TensorSpec(dtype, size, convolution_strides(size, channels_last=True))


def scaled(**scalars: Scalar) -> Problem:
    """Return a product of float8 with a scale for each row, 16x6144x4096."""
    inputs = (rows(FLOAT8, 16, 4096), transposed(FLOAT8, 4096, 6144), rows(FLOAT, 16, 1), rows(FLOAT, 1, 6144))
    return Problem.create("scaled_mm", inputs, {"out_dtype": HALF, "use_fast_accum": True, **scalars})


def grouped(total: int = 2048, **scalars: Scalar) -> Problem:
    """Return a product of eight groups along M."""
    inputs = (rows(HALF, total, 2048), transposed(HALF, 8, 2048, 4096), rows(INT, 8))
    return Problem.create("grouped_mm", inputs, scalars)


CONV = Problem.create("conv", (rows(HALF, 128, 256), TensorSpec("int64", (), ())), {"groups": 2})
"""A problem of an unknown op."""

_A, _B = rows(HALF, 64, 128), rows(HALF, 128, 256)
PROBLEMS = {
    "mm": (Problem.create("mm", (_A, _B)), "mm bf16 64x256x128 nn"),
    "addmm": (Problem.create("addmm", (rows(HALF, 256), _A, _B)), "addmm bf16 64x256x128 nn"),
    "bmm": (Problem.create("bmm", (rows(HALF, 8, 64, 128), rows(HALF, 8, 128, 256))), "bmm bf16 8x64x256x128 nn"),
    "baddbmm": (
        Problem.create("baddbmm", (rows(HALF, 8, 64, 256), rows(HALF, 8, 64, 128), rows(HALF, 8, 128, 256))),
        "baddbmm bf16 8x64x256x128 nn",
    ),
    "a repeated input": (
        Problem.create("mm", (TensorSpec(HALF, (64, 128), (0, 1)), _B)),
        "mm bf16 64x256x128 nn",
    ),
    "tf32": (
        Problem.create("mm", (rows(FLOAT, 64, 128), rows(FLOAT, 128, 256)), {"ALLOW_TF32": True}),
        "mm tf32 64x256x128 nn",
    ),
    "fp32": (Problem.create("mm", (rows(FLOAT, 64, 128), rows(FLOAT, 128, 256))), "mm fp32 64x256x128 nn"),
    "int_mm": (Problem.create("int_mm", (rows("int8", 64, 128), rows("int8", 128, 256))), "int_mm int8 64x256x128 nn"),
    "mm_plus_mm": (Problem.create("mm_plus_mm", (_A, _B, _A, _B)), "mm_plus_mm bf16 64x256x128 nn"),
    "scaled by rows": (scaled(), "scaled_mm e4m3 16x6144x4096 nt row fast → bf16"),
    "scaled whole": (
        Problem.create(
            "scaled_mm",
            (rows(FLOAT8, 16, 32), rows(FLOAT8, 32, 64), rows(FLOAT, 1), rows(FLOAT, 1), rows(HALF, 64)),
        ),
        "scaled_mm e4m3 16x64x32 nn tensor bias",
    ),
    "float8 of two kinds": (
        Problem.create(
            "scaled_mm",
            (rows("float8_e5m2", 16, 32), transposed(FLOAT8, 32, 64), rows(FLOAT, 1), rows(FLOAT, 1)),
            {"out_dtype": HALF},
        ),
        "scaled_mm e5m2+e4m3 16x64x32 nt tensor → bf16",
    ),
    "groups of M": (grouped(skew=1), "grouped_mm bf16 8 x (256x4096x2048) nt 2d3d skew 1"),
    "uneven groups": (grouped(1001, skew=1.5), "grouped_mm bf16 8 x (125x4096x2048) nt 2d3d total 1001 skew 1.5"),
    "fewer rows than groups": (grouped(4), "grouped_mm bf16 8 x (1x4096x2048) nt 2d3d total 4"),
    "groups of N": (
        Problem.create("grouped_mm", (rows(HALF, 8, 64, 128), rows(HALF, 128, 4097), rows(INT, 8))),
        "grouped_mm bf16 8 x (64x512x128) nn 3d2d total 4097",
    ),
    "groups of K": (
        Problem.create("grouped_mm", (rows(HALF, 64, 2000), rows(HALF, 2000, 4097), rows(INT, 8))),
        "grouped_mm bf16 8 x (64x4097x250) nn 2d2d",
    ),
    "a batch of groups": (
        Problem.create("grouped_mm", (rows(HALF, 8, 64, 128), rows(HALF, 8, 128, 256))),
        "grouped_mm bf16 8 x (64x256x128) nn 3d3d",
    ),
    "scaled groups": (
        Problem.create(
            "scaled_grouped_mm",
            (
                rows(FLOAT8, 512, 128),
                transposed(FLOAT8, 8, 128, 256),
                rows(FLOAT, 512),
                rows(FLOAT, 8, 256),
                rows(INT, 8),
            ),
            {"out_dtype": HALF},
        ),
        "scaled_grouped_mm e4m3 8 x (64x256x128) nt 2d3d row → bf16",
    ),
    "convolution": (
        Problem.create(
            "convolution",
            (channels_last(HALF, 32, 64, 56, 56), channels_last(HALF, 128, 32, 3, 3)),
            {"stride": "2x2", "padding": "1x1", "dilation": "1x1", "groups": 2},
        ),
        "convolution bf16 2x25088x64x288 nt 32x56x56 kernel 3x3 stride 2x2 padding 1x1",
    ),
    "convolution, contiguous": (
        Problem.create("convolution", (rows(FLOAT, 1, 3, 224), rows(FLOAT, 8, 3, 5), rows(FLOAT, 8)), {"dilation": 2}),
        "convolution fp32 216x8x15 tt 1x224 kernel 5 dilation 2 bias",
    ),
    "attention": (
        Problem.create("flex_attention", (rows(HALF, 4, 16, 2048, 64),) * 3, {"mask": "causal"}),
        "flex_attention bf16 64x2048x2048x64 nn heads 16 causal",
    ),
    "attention with common keys": (
        Problem.create(
            "flex_attention_backward",
            (rows(HALF, 1, 8, 256, 64), rows(HALF, 1, 2, 512, 64), rows(HALF, 1, 2, 512, 128)),
            {"mask": "window100", "block": 64},
        ),
        "flex_attention_backward bf16 8x256x512x64 nn heads 8 kv_heads 2 value_size 128 window100 block 64",
    ),
    "attention of one query": (
        Problem.create(
            "flex_decoding", (rows(HALF, 2, 8, 1, 64), *(rows(HALF, 2, 8, 512, 64),) * 2), {"mask": "other"}
        ),
        "flex_decoding bf16 16x1x512x64 nn heads 8 other",
    ),
    "fused": (
        fused_problem("reduction", (HALF, FLOAT), "3f2a91b0" * 4, {"r0_": 1024, "x": 512}, {"num_load": 3}),
        "reduction bf16 x512 r0_1024 3f2a91b0",
    ),
    "unknown": (CONV, "conv[bf16 128x256, int64]"),
    "unknown, many inputs": (Problem.create("conv", (_A,) * 6), "conv[" + "bf16 64x128, " * 4 + "…]"),
}
"""Problem and its text."""
