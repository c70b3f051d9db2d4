"""Convolutions as Inductor lowers them: which problem a call is, and how to keep a 1 x 1 convolution one."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from diode_collectors.inductor.adapter import dtype_name, static, tf32_is_asked
from diode_store.ops.convolving import GROUPS, USUAL, convolution_strides, joined
from diode_store.records import Problem, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CONVOLUTION = "convolution"
"""Inductor's name of the op."""
ARGUMENTS = ("x", "weight", "bias", "stride", "padding", "dilation", "transposed", "output_padding", "groups")
"""Arguments of ``aten.convolution``, in order."""
_IMAGES = 4


def problem_of_call(given: Mapping[str, Any]) -> Problem | None:
    """Return the problem of a call that Inductor is about to lower; None if its sizes are symbolic, or transposed.

    The strides of the input may be open until then. Inductor prefers channels last where its layout optimization is
    on; otherwise the input keeps its format.

    Args:
        given: the call's arguments by the names in ``ARGUMENTS``; tensors are nodes of Inductor.

    Raises:
        RecordError: sizes that make no convolution.
    """
    x, weight = given["x"], given["weight"]
    sizes = [static(node.get_size()) for node in (x, weight)]
    size, kernel = sizes
    if given.get("transposed") or size is None or kernel is None or len(size) != len(kernel):
        return None
    dtype = dtype_name(x.get_dtype())
    strides = _strides(x, size)
    dense = convolution_strides(kernel, channels_last=strides == convolution_strides(size, channels_last=True))
    specs = TensorSpec(dtype, size, strides), TensorSpec(dtype, kernel, dense)
    scalars: dict[str, Any] = {name: joined([int(each) for each in given[name]]) for name in USUAL}
    scalars[GROUPS] = int(given["groups"])
    if dtype == "float32" and tf32_is_asked(is_convolution=True):
        scalars["ALLOW_TF32"] = True
    return Problem.create(CONVOLUTION, specs, scalars)


@contextmanager
def pointwise_convolutions_kept() -> Iterator[None]:
    """Keep Inductor from lowering a 1 x 1 convolution as a matrix product, so that its own kernels are choices.

    With max-autotune Inductor makes it a product before it lists a choice.
    """
    import torch._inductor.config as inductor_config
    from torch._inductor.kernel import conv

    convert, templates = conv.convert_1x1_conv_to_mm, conv.use_triton_template

    def keep(x: Any, weight: Any, bias: Any) -> Any:
        spatial = len(weight.get_size()) - 2
        ones, zeros = [1] * spatial, [0] * spatial
        # Without max-autotune there is no product, and no template unless the check for one is replaced.
        with inductor_config.patch(max_autotune=False, max_autotune_gemm=False, conv_1x1_as_mm=False):
            conv.use_triton_template = lambda *_, **__: True
            try:
                return conv.convolution(x, weight, bias, ones, zeros, ones, False, zeros, 1)  # noqa: FBT003 - not transposed
            finally:
                conv.use_triton_template = templates

    conv.convert_1x1_conv_to_mm = keep
    try:
        yield
    finally:
        conv.convert_1x1_conv_to_mm = convert


def _strides(x: Any, size: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of the input as the kernel will get it."""
    from torch._inductor.virtualized import V

    if len(size) == _IMAGES and V.graph.layout_opt:
        return convolution_strides(size, channels_last=True)
    strides = None
    with suppress(Exception):  # the strides of what is not computed yet are open
        strides = static(x.get_stride())
    return strides or convolution_strides(size, channels_last=False)
