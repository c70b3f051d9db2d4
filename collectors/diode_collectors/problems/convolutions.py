"""Convolutions of a sweep as text: ``convolution:32x64x56x56:128x3x3/stride2/padding1/nt/fp16``.

The sizes of the input come first (batch, channels, height, width), then the output channels and the kernel. A stride,
padding or dilation is one number, or one for each spatial dimension.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diode_store.errors import RecordError, SettingsError
from diode_store.ops import OPS
from diode_store.ops.convolving import BETWEEN, GROUPS, USUAL, convolution_of, numbers_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_store.ops import ProblemShape
    from diode_store.records import Scalar

OP = "convolution"
NAMES = (OP,)
EXAMPLE = f"{OP}:32x64x56x56:128x3x3"
LAYOUTS = OPS[OP].layouts
_IMAGES = 4
"""Dimensions of a batch of images."""
_SHAPE = re.compile(rf"{OP}:(\d+(?:x\d+){{2,4}}):(\d+(?:x\d+){{1,3}})((?:/[\w+=.]+)*)")
_WORD = re.compile(rf"({'|'.join((*USUAL, GROUPS))})(\d+(?:x\d+)*)")
WORDS: tuple[str, ...] = (*(f"{name}N" for name in USUAL), f"{GROUPS}N")
"""Words that may follow the sizes, besides layouts and dtypes."""


def split_text(text: str) -> tuple[str, tuple[tuple[int, ...], ...], list[str]]:
    """Return the op, the sizes of the input and the output channels with the kernel, and the words behind them.

    Raises:
        SettingsError: the text is no convolution.
    """
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise SettingsError(
            f"{text!r} is not a {OP}; write {OP}:NxCxHxW:OxKHxKW (batch, channels, sizes: output channels, kernel), "
            f"then words such as /stride2/padding1/groups32 if you like, such as {EXAMPLE}"
        )
    size, kernel, words = match.groups()
    return OP, (numbers_of(size), numbers_of(kernel)), words.split("/")[1:]


def scalar_of(word: str) -> dict[str, Scalar] | None:
    """Return the scalar or dimension that a word means; None for any other word."""
    match = _WORD.fullmatch(word)
    if match is None:
        return None
    name, value = match.groups()
    return {name: int(value) if name == GROUPS and value.isdecimal() else value}


def sizes_of(
    op: str, sizes: tuple[tuple[int, ...], ...], scalars: dict[str, Scalar]
) -> tuple[tuple[int, int, int, int], dict[str, Scalar]]:
    """Return B, M, N and K of a convolution, and its dimensions.

    Args:
        op: name of the op.
        sizes: batch, channels and spatial sizes of the input; output channels, and the kernel.
        scalars: stride, padding, dilation and groups.

    Raises:
        SettingsError: there is no such convolution.
    """
    (size, kernel), groups = sizes, scalars.get(GROUPS, 1)
    if type(groups) is not int or groups < 1 or size[1] % groups or min(*size, *kernel) < 1:
        raise SettingsError(f"{op}: {size[1]} channels make no {groups} groups, or a size is 0")
    weight = (kernel[0], size[1] // groups, *kernel[1:])
    try:
        found = convolution_of(op, size, weight, scalars)
    except RecordError as error:
        raise SettingsError(str(error)) from error
    return found.sizes, found.dimensions


def usual_layout(sizes: Sequence[Sequence[int]]) -> str:
    """Return the layout that Inductor prefers: channels last for images, contiguous for signals and volumes."""
    return LAYOUTS[0] if len(sizes[0]) == _IMAGES else LAYOUTS[1]


def text_of(shape: ProblemShape) -> str:
    """Return the sizes of a convolution as ``split_text`` takes them, without layout and dtype."""
    kernel = str(shape.dimension("kernel"))
    channels = shape.k * shape.b
    for number in numbers_of(kernel):
        channels //= number
    size = f"{shape.dimension('batch')}x{channels}x{shape.dimension('size')}"
    return f"{shape.op}:{size}:{shape.n * shape.b}x{kernel}"


def words_of(shape: ProblemShape) -> list[str]:
    """Return the words for the scalars of a convolution."""
    found = [f"{name}{_short(str(value))}" for name in USUAL if (value := shape.dimension(name))]
    return [*found, *([f"{GROUPS}{shape.b}"] if shape.b > 1 else [])]


def check_convolution(shape: ProblemShape) -> None:
    """Check a convolution against what a sweep can time.

    Raises:
        SettingsError: the dtype or the memory format is another.
    """
    entry = OPS[shape.op]
    if shape.dtype not in entry.dtypes:
        raise SettingsError(f"{shape.op} takes no {shape.dtype}; known dtypes: {', '.join(entry.dtypes)}")
    if shape.layout not in entry.layouts:
        raise SettingsError(f"{shape.op} takes the layouts nt (channels last) and tt (contiguous), not {shape.layout}")
    if not shape.dimension("kernel"):
        raise SettingsError(f"{shape.op} needs a size and a kernel; write it as {EXAMPLE}")
    if shape.dimension("bias"):
        raise SettingsError(f"{shape.op} is timed without its bias, which Inductor adds apart on a GPU; leave it out")


def _short(value: str) -> str:
    """Return one number for equal numbers."""
    numbers = value.split(BETWEEN)
    return numbers[0] if len(set(numbers)) == 1 else value
