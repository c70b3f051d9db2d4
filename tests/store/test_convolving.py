"""Convolutions as matrix products: sizes are those that torch computes, and what makes none is refused."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diode_store.errors import RecordError
from diode_store.ops.convolving import convolution_of, convolution_strides, joined, memory_formats
from diode_store.ops.inputs import plain_inputs, plain_problem
from diode_store.ops.work import bytes_read, bytes_written, flops
from diode_store.records import Problem, TensorSpec

if TYPE_CHECKING:
    from diode_store.records import Scalar

    Drawn = tuple[tuple[int, ...], tuple[int, ...], dict[str, Scalar]]


@st.composite
def convolutions(draw: st.DrawFn) -> Drawn:
    """Draw sizes of an input and of weights, with scalars."""
    spatial, groups = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    kernel = draw(st.tuples(*[st.integers(1, 4)] * spatial))
    stride, padding, dilation = (
        draw(st.tuples(*[st.integers(least, most)] * spatial)) for least, most in ((1, 3), (0, 2), (1, 2))
    )
    size = tuple(d * (k - 1) + 1 + draw(st.integers(0, 9)) for k, d in zip(kernel, dilation, strict=True))
    channels, out_channels = draw(st.integers(1, 3)) * groups, draw(st.integers(1, 3)) * groups
    scalars: dict[str, Scalar] = {
        "stride": joined(stride),
        "padding": joined(padding),
        "dilation": joined(dilation),
        "groups": groups,
    }
    return (draw(st.integers(1, 3)), channels, *size), (out_channels, channels // groups, *kernel), scalars


def specs_of(*sizes: tuple[int, ...], channels_last: bool = False) -> tuple[TensorSpec, ...]:
    """Return dense tensors."""
    return tuple(TensorSpec("bfloat16", s, convolution_strides(s, channels_last=channels_last)) for s in sizes)


@given(convolutions())
def test_sizes_are_those_of_torch(drawn: Drawn) -> None:
    """M and N make torch's output, K is what each of its elements sums, and the work is that of the product."""
    size, weight, scalars = drawn
    found = convolution_of("convolution", size, weight, scalars)
    b, m, n, k = found.sizes
    named = ("stride", "padding", "dilation")
    arguments = [[int(number) for number in str(scalars[name]).split("x")] for name in named]
    output = torch.convolution(
        torch.empty(size, device="meta"),
        torch.empty(weight, device="meta"),
        None,
        *arguments,
        False,  # noqa: FBT003 - not transposed
        [0] * len(arguments[0]),
        b,
    )
    assert output.shape == (size[0], weight[0], *found.out_size)
    assert (b * m * n, k) == (output.numel(), prod(weight[1:]))
    for channels_last in (True, False):
        problem = Problem.create("convolution", specs_of(size, weight, channels_last=channels_last), scalars)
        shape = problem.shape
        assert (shape.b, shape.m, shape.n, shape.k) == (b, m, n, k)
        assert flops(shape) == 2 * output.numel() * k
        assert bytes_read(shape) == 2 * (prod(size) + prod(weight))
        assert bytes_written(shape) == 2 * output.numel()
        assert plain_problem(shape).shape == shape
        assert [spec.size for spec in plain_inputs(shape)] == [size, weight]


def test_usual_scalars_make_no_other_problem() -> None:
    """A stride of ones is the same as none, and one number stands for all."""
    specs = specs_of((1, 8, 9, 9), (4, 8, 3, 3))
    plain = Problem.create("convolution", specs)
    told = Problem.create("convolution", specs, {"stride": "1x1", "padding": "0x0", "dilation": 1, "groups": 1})
    assert (plain.key, plain.scalars) == (told.key, ())
    one, both = (Problem.create("convolution", specs, {"stride": stride}) for stride in (2, "2x2"))
    assert one.key == both.key != plain.key


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_strides_are_those_of_torch(memory_format: torch.memory_format) -> None:
    """Dense tensors of both memory formats; a channel alone is in both."""
    tensor, is_last = torch.empty(2, 3, 4, 5), memory_format == torch.channels_last
    strides = tensor.contiguous(memory_format=memory_format).stride()
    assert convolution_strides(tensor.shape, channels_last=is_last) == strides
    assert memory_formats((tensor.shape, strides), (tensor.shape, strides)) == ("nn" if is_last else "tt")
    apart = tensor.shape, torch.empty(2, 3, 4, 10)[..., ::2].stride()
    assert memory_formats(apart, apart) == "ss"


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize(
    ("size", "weight", "groups"),
    [((2, 16, 9, 9), (8, 16, 1, 1), 1), ((2, 16, 9, 9), (16, 1, 3, 3), 16), ((2, 3, 1, 1), (8, 3, 1, 1), 1)],
)
def test_strides_of_single_elements_make_no_other_problem(
    size: tuple[int, ...], weight: tuple[int, ...], groups: int, memory_format: torch.memory_format
) -> None:
    """Weights of 1 x 1 and of one channel have both formats, so they have that of the input."""
    image = torch.empty(size).contiguous(memory_format=memory_format)
    keys = set()
    for weights in (torch.empty(weight), torch.empty(weight).contiguous(memory_format=torch.channels_last)):
        specs = tuple(TensorSpec("float16", tuple(each.shape), tuple(each.stride())) for each in (image, weights))
        problem = Problem.create("convolution", specs, {"groups": groups})
        keys.add(problem.key)
        assert plain_problem(problem.shape).key == problem.key
    assert len(keys) == 1


def test_an_image_of_one_channel_has_the_format_of_its_weights() -> None:
    """And with weights of one channel the two are channels last."""
    image, weights = torch.empty(2, 1, 28, 28), torch.empty(8, 1, 3, 3)
    assert memory_formats((image.shape, image.stride()), (weights.shape, weights.stride())) == "nn"
    signal, kernel = torch.empty(2, 1, 28), torch.empty(8, 1, 5)
    assert memory_formats((signal.shape, signal.stride()), (kernel.shape, kernel.stride())) == "nn"


@pytest.mark.parametrize(
    ("size", "weight", "scalars", "message"),
    [
        ((1, 8, 9, 9), (4, 8, 3), {}, "make no convolution"),
        ((1, 8), (4, 8), {}, "make no convolution"),
        ((1, 8, 9, 9), (4, 7, 3, 3), {}, "make no convolution of 1 groups"),
        ((1, 8, 9, 9), (4, 2, 3, 3), {"groups": 3}, "make no convolution of 3 groups"),
        ((1, 8, 9, 9), (4, 8, 3, 3), {"groups": 0}, "make no convolution of 0 groups"),
        ((1, 8, 9, 9), (4, 8, 3, 3), {"groups": "two"}, "make no convolution of two groups"),
        ((1, 8, 2, 9), (4, 8, 3, 3), {}, "leave no output"),
        ((1, 8, 9, 9), (4, 8, 3, 3), {"stride": "0x1"}, "leave no output"),
        ((1, 8, 9, 9), (4, 8, 3, 3), {"stride": "1x1x1"}, "stride must be 2 numbers such as 1x1"),
        ((1, 8, 9, 9), (4, 8, 3, 3), {"padding": "same"}, "padding must be 2 numbers such as 1x1"),
        ((1, 8, 9, 9), (4, 8, 3, 3), {"dilation": -1}, "dilation must be 2 numbers such as 1x1"),
    ],
)
def test_no_convolution(
    size: tuple[int, ...], weight: tuple[int, ...], scalars: dict[str, Scalar], message: str
) -> None:
    """The error names the sizes, or the scalar."""
    with pytest.raises(RecordError, match=message):
        Problem.create("convolution", specs_of(size, weight), scalars)
