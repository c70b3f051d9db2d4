"""Convolutions as matrix products: their sizes, and what tells two of one size apart.

A convolution multiplies the patches of its input by its weights. A has a row for each position of the output and a
column for each weight of a channel, and nobody writes it to memory. B counts the groups. M counts the positions of all
images. N counts the output channels of a group, and K the weights of one output channel.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from diode_store.errors import RecordError
from diode_store.values.checks import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from diode_store.kernels import Scalar

BETWEEN = "x"
"""Separator of the numbers of a scalar or dimension, such as ``3x3``."""
STRIDE, PADDING, DILATION, GROUPS = "stride", "padding", "dilation", "groups"
USUAL = {STRIDE: 1, PADDING: 0, DILATION: 1}
"""Scalars with a number for each spatial dimension, and the number that a problem leaves out."""
SPATIAL = (1, 2, 3)
"""Numbers of spatial dimensions that a convolution may have."""
CHANNELS_LAST, _CONTIGUOUS, _OTHER = "n", "t", "s"
"""Letters of memory formats."""
Input = tuple["Sequence[int]", "Sequence[int]"]
"""Size and strides of an input."""
_LEADING = 2


@dataclass(frozen=True)
class Convolution:
    """Sizes of one convolution."""

    batch: int
    channels: int
    size: tuple[int, ...]
    """Spatial sizes of the input."""
    out_channels: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def out_size(self) -> tuple[int, ...]:
        """Spatial sizes of the output, as in the documentation of ``torch.nn.Conv2d``."""
        return tuple(
            (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, stride, padding, dilation in zip(
                self.size, self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        )

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """B, M, N and K of the product."""
        m = self.batch * prod(self.out_size)
        return self.groups, m, self.out_channels // self.groups, self.channels // self.groups * prod(self.kernel)

    @property
    def dimensions(self) -> dict[str, Scalar]:
        """Named dimensions of the problem: what the sizes of the product leave open."""
        found: dict[str, Scalar] = {
            "batch": self.batch,
            "size": joined(self.size),
            "kernel": joined(self.kernel),
            "input": self.batch * self.channels * prod(self.size),
        }
        return found | self.scalars()

    def scalars(self) -> dict[str, Scalar]:
        """Return the stride, padding and dilation that are not the usual ones."""
        named = {STRIDE: self.stride, PADDING: self.padding, DILATION: self.dilation}
        return {name: joined(each) for name, each in named.items() if set(each) != {USUAL[name]}}


def convolution_of(op: str, size: Sequence[int], weight: Sequence[int], scalars: Mapping[str, Scalar]) -> Convolution:
    """Return the sizes of a convolution.

    Args:
        op: name of the op, for errors.
        size: sizes of the input: batch, channels and spatial sizes.
        weight: sizes of the weights: output channels, input channels of a group, and the kernel.
        scalars: ``stride``, ``padding``, ``dilation`` and ``groups``; each is the usual one if it is missing.

    Raises:
        RecordError: sizes that make no convolution.
    """
    spatial = len(weight) - _LEADING
    groups = scalars.get(GROUPS, 1)
    if spatial not in SPATIAL or len(size) != len(weight):
        raise RecordError(f"{op}: an input of {list(size)} and weights of {list(weight)} make no convolution")
    if type(groups) is not int or groups < 1 or weight[0] % groups or size[1] != weight[1] * groups:
        raise RecordError(f"{op}: {list(size)} and weights of {list(weight)} make no convolution of {groups} groups")
    stride, padding, dilation = (split(op, name, scalars.get(name), spatial) for name in USUAL)
    found = Convolution(
        size[0], size[1], tuple(size[2:]), weight[0], tuple(weight[2:]), stride, padding, dilation, groups
    )
    if min(*stride, *dilation) < 1 or min(found.out_size) < 1:
        raise RecordError(f"{op}: {list(size)} and weights of {list(weight)} leave no output")
    return found


def joined(numbers: Sequence[int]) -> str:
    """Return numbers as one scalar: ``3x3``."""
    return BETWEEN.join(map(str, numbers))


def numbers_of(value: Scalar) -> tuple[int, ...]:
    """Return the numbers of a scalar or dimension, the reverse of ``joined``."""
    return tuple(map(int, str(value).split(BETWEEN)))


def split(op: str, name: str, value: Scalar | None, spatial: int) -> tuple[int, ...]:
    """Return the numbers of a scalar, one for each spatial dimension; None is the usual number.

    Raises:
        RecordError: the scalar has other than one number, or one for each dimension.
    """
    words = str(USUAL.get(name, 1) if value is None else value).split(BETWEEN)
    if not all(word.isdecimal() for word in words) or len(words) not in {1, spatial}:
        example = joined((1,) * spatial)
        raise RecordError(f"{op}: {name} must be {spatial} numbers such as {example}, not {shown(value)}")
    return tuple(map(int, words if len(words) == spatial else words * spatial))


def convolution_strides(size: Sequence[int], *, channels_last: bool) -> tuple[int, ...]:
    """Return the strides of a dense input or of dense weights, in elements."""
    order = [0, *range(2, len(size)), 1] if channels_last else list(range(len(size)))
    strides, step = [0] * len(size), 1
    for place in reversed(order):
        strides[place] = step
        step *= size[place]
    return tuple(strides)


def memory_formats(data: Input, weights: Input) -> str:
    """Return the letters of the memory formats of an input and of weights, each a size and strides.

    In the channels-last format (NHWC) the channels of a position lie side by side, as in a row-major A: n. In the
    contiguous format (NCHW) the positions of a channel do, as in a transposed A: t. Any other format is s. A tensor may
    have both formats, as weights of 1 x 1 and images of one channel do; then it has that of the other.
    """
    first, second = _letters(*data), _letters(*weights)
    if len(first) > 1:
        first = second if len(second) == 1 and second != _OTHER else CHANNELS_LAST
    return first + (second if len(second) == 1 else (first if first != _OTHER else CHANNELS_LAST))


def normal_strides(size: Sequence[int], stride: Sequence[int], letter: str) -> tuple[int, ...]:
    """Return the strides of a tensor of a memory format: where a size is 1, any stride means the same."""
    if letter == _OTHER:
        return tuple(stride)
    return convolution_strides(size, channels_last=letter == CHANNELS_LAST)


def _letters(size: Sequence[int], stride: Sequence[int]) -> str:
    """Return the letter of each memory format that a tensor has."""
    found = ""
    for letter in (CHANNELS_LAST, _CONTIGUOUS):
        dense = normal_strides(size, stride, letter)
        if all(step == wanted or n == 1 for n, step, wanted in zip(size, stride, dense, strict=True)):
            found += letter
    return found or _OTHER
