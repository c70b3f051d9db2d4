"""Features of a convolution and of candidate kernels, as a model sees them.

A template computes the product that a convolution is. A tile of positions and output channels walks over the weights
of a channel, a block of input channels at a time. The library's kernels hide their parameters. They pad channels that
are not a multiple of 8, so the widths of both kinds of channels are features. Sizes and ratios are base-2 logarithms.
Raise ``CONVOLUTION_VERSION`` with any change to a formula here.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from diode_store.candidates.operands import ACCESS_BYTES
from diode_store.devices.descriptor import describe
from diode_store.kernels import is_vendor_template
from diode_store.ops import OPS
from diode_store.ops.convolving import DILATION, STRIDE, numbers_of
from diode_store.ops.work import itemsize
from diode_store.timing.roofline import roofline
from diode_trainer.work import widest_access

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diode_store.candidates.columns import ConfigColumns
    from diode_store.devices.descriptor import Descriptor
    from diode_store.records import Hardware, ProblemShape

    Floats = NDArray[np.float32]

CONVOLUTION_VERSION = 1
PROBLEM_FEATURES = (
    "log_groups",
    "log_m",
    "log_n",
    "log_k",
    "log_channels",
    "log_kernel",
    "log_stride",
    "log_dilation",
    "is_patch",
    "is_fp32",
    "is_tf32",
    "is_channels_last",
    "log_access_in",
    "log_access_out",
    "log_padding_in",
    "log_padding_out",
    "log_roofline",
    "log_memory_over_compute",
)
"""Names of the problem features, in order."""
CONFIG_FEATURES = (
    "is_vendor",
    "is_vendor_product",
    "is_generated",
    "one_stage",
    "num_stages",
    "log_warps",
    "log_block_m",
    "log_block_n",
    "log_block_k",
    "log_waves",
    "log_quantisation",
    "log_padding_m",
    "log_padding_n",
    "log_padding_k",
    "log_iterations",
    "log_accumulators",
    "log_tile_intensity",
    "log_buffers",
)
"""Names of the config features, in order. All but the first two are 0 for kernels that no template has."""
_FIRST_OF_TEMPLATES = CONFIG_FEATURES.index("is_generated")
_PADDED = 8
"""Channels of which the library's kernels for tensor cores compute a multiple."""
_WARP = 32
_MOST_QUANTISED = 8
"""Waves from which the last one hardly counts."""


class _Sizes(NamedTuple):
    """Sizes of a problem."""

    groups: int
    m: int
    n: int
    k: int
    channels: int
    """Input channels of a group."""
    kernel: int
    """Weights of one channel."""
    stride: int
    dilation: int
    is_patch: bool
    """True if the patches neither overlap nor leave gaps."""
    element_bytes: int

    @classmethod
    def of(cls, shape: ProblemShape) -> _Sizes:
        kernel, stride, dilation = (numbers_of(shape.dimension(name, "1")) for name in ("kernel", STRIDE, DILATION))
        weights = prod(kernel)
        return cls(
            groups=shape.b,
            m=shape.m,
            n=shape.n,
            k=shape.k,
            channels=max(shape.k // weights, 1),
            kernel=weights,
            stride=prod(stride),
            dilation=prod(dilation),
            is_patch=weights > 1 and kernel == stride,
            element_bytes=itemsize(shape.dtype),
        )


class ConvolutionInputs:
    """Features of one problem and n kernels, and the kernels that can run."""

    def __init__(self, shape: ProblemShape, hardware: Hardware, columns: ConfigColumns) -> None:
        self.roofline_us = roofline(shape, describe(hardware)).us
        self.problem = convolution_problem_features(shape, hardware)
        """Shape (P,), in the order of ``PROBLEM_FEATURES``."""
        self.configs = _of_configs(shape, describe(hardware), columns)
        """Shape (C, n), in the order of ``CONFIG_FEATURES``."""
        self.possible = np.ones(len(columns), dtype=np.bool_)
        """Shape (n,)."""


def convolution_problem_features(shape: ProblemShape, hardware: Hardware) -> Floats:
    """Return the features of a problem alone, shape (P,), in the order of ``PROBLEM_FEATURES``."""
    sizes, bound = _Sizes.of(shape), roofline(shape, describe(hardware))
    access = [widest_access(channels * sizes.groups, sizes.element_bytes) for channels in (sizes.channels, sizes.n)]
    before = [sizes.groups, sizes.m, sizes.n, sizes.k, sizes.channels, sizes.kernel, sizes.stride, sizes.dilation]
    flags = [sizes.is_patch, shape.dtype == "float32", shape.tf32, shape.layout[0] == "n"]
    after = [
        *(each / ACCESS_BYTES for each in access),
        *(_rounded(channels, _PADDED) / channels for channels in (sizes.channels, sizes.n)),
        bound.us,
        bound.memory_s / bound.compute_s,
    ]
    return np.array([*np.log2(before), *flags, *np.log2(after)], dtype=np.float32)


def _of_configs(shape: ProblemShape, device: Descriptor, columns: ConfigColumns) -> Floats:
    sizes = _Sizes.of(shape)
    block_m, block_n, block_k, warps, stages = (
        np.maximum(each, 1).astype(np.float64)
        for each in (columns.block_m, columns.block_n, columns.block_k, columns.num_warps, columns.num_stages)
    )
    tiles_m, tiles_n = np.ceil(sizes.m / block_m), np.ceil(sizes.n / block_n)
    steps = np.ceil(sizes.channels / block_k)
    waves = tiles_m * tiles_n * sizes.groups / device.multiprocessors
    of_templates = np.concatenate(
        (
            [np.ones(len(columns)), stages == 1, stages],
            np.log2(
                [
                    warps,
                    block_m,
                    block_n,
                    block_k,
                    waves,
                    np.where(waves < _MOST_QUANTISED, np.ceil(waves) / waves, 1),
                    tiles_m * block_m / sizes.m,
                    tiles_n * block_n / sizes.n,
                    steps * block_k / sizes.channels,
                    steps * sizes.kernel,
                    block_m * block_n / (_WARP * warps),
                    block_m * block_n / (block_m + block_n),
                    (block_m + block_n) * block_k * stages * sizes.element_bytes,
                ]
            ),
        )
    )
    products = columns.template_mask(OPS[shape.op].other_vendors.__contains__)
    vendor = columns.template_mask(is_vendor_template)
    features = np.concatenate(([vendor, products], of_templates)).astype(np.float32)
    features[_FIRST_OF_TEMPLATES:, vendor] = 0
    return features


def _rounded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
