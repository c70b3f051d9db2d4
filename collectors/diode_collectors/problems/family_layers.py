"""Matrix products of a model's layers, from the sizes in its configuration."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from diode_store.ops import OPS, swept_ops
from diode_store.ops.grouping import DEPTH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class Layer:
    """(M, K) x (K, N), as in a model's forward pass."""

    name: str
    n: int
    k: int
    op: str = "mm"
    layout: str = "nt"
    """A linear layer's weight is (N, K), so its product takes the transposed view."""
    b: int = 1
    m: tuple[int, ...] = ()
    """Sizes of M; empty for the family's."""
    rows: int = 1
    """Rows of A for each unit of M, such as the experts of each token."""
    words: str = ""
    """Dimensions in the form of ``parse_problem``, such as ``row/fast``. Of convolutions and attention everything after
    the op, with braces for M.
    """
    is_weight_gradient: bool = False
    """True if N and K are the sizes of the output, and M that of the summed dimension."""

    @property
    def gradients(self) -> tuple[Layer, Layer]:
        """Layers of a backward pass: the gradients of the input and of the weight.

        Float8 operands are quantized again, so that both keep the layout that torch demands.
        """
        entry = OPS[self.op]
        layouts = ("nt", "nt") if entry.is_scaled else ("nn", "tn")
        words = "/".join(filter(None, (self.words, DEPTH))) if entry.is_grouped else self.words
        return (
            replace(self, name=f"{self.name}/dgrad", n=self.k, k=self.n, layout=layouts[0]),
            replace(self, name=f"{self.name}/wgrad", layout=layouts[1], words=words, is_weight_gradient=True),
        )


def linear(name: str, n: int, k: int, *, bias: bool = False) -> tuple[Layer, ...]:
    """Return a linear layer from K to N features."""
    return (Layer(name, n, k, "addmm" if bias else "mm"),)


def batched(name: str, n: int, k: int, b: int) -> tuple[Layer, ...]:
    """Return a batched product."""
    return (Layer(name, n, k, "bmm", b=b),)


def attention_projections(
    hidden: int, heads: int, kv_heads: int, head_size: int, *, bias: bool = False
) -> tuple[Layer, ...]:
    """Return attention's projections: q, k and v fused into one product, as in inference engines, and the output's."""
    return (
        *linear("qkv", (heads + 2 * kv_heads) * head_size, hidden, bias=bias),
        *linear("o", hidden, heads * head_size),
    )


def gated_mlp(hidden: int, intermediate: int) -> tuple[Layer, ...]:
    """Return a gated feed-forward block: gate and up fused into one product, and down."""
    return (*linear("gate_up", 2 * intermediate, hidden), *linear("down", hidden, intermediate))


def decoder(
    hidden: int,
    heads: int,
    kv_heads: int,
    head_size: int,
    intermediate: int,
    vocabulary: int,
    *,
    qkv_bias: bool = False,
) -> tuple[Layer, ...]:
    """Return the layers of a decoder such as Llama."""
    return (
        *attention_projections(hidden, heads, kv_heads, head_size, bias=qkv_bias),
        *gated_mlp(hidden, intermediate),
        *linear("lm_head", vocabulary, hidden),
    )


def plain_decoder(hidden: int, qkv: int, intermediate: int, vocabulary: int) -> tuple[Layer, ...]:
    """Return the layers of a decoder such as OPT: without a gate, and with a bias except in ``lm_head``."""
    return (
        *linear("qkv", qkv, hidden, bias=True),
        *linear("o", hidden, hidden, bias=True),
        *linear("up", intermediate, hidden, bias=True),
        *linear("down", hidden, intermediate, bias=True),
        *linear("lm_head", vocabulary, hidden),
    )


def encoder(hidden: int, intermediate: int) -> tuple[Layer, ...]:
    """Return the layers of an encoder such as BERT, all with a bias."""
    return (
        *linear("qkv", 3 * hidden, hidden, bias=True),
        *linear("o", hidden, hidden, bias=True),
        *linear("up", intermediate, hidden, bias=True),
        *linear("down", hidden, intermediate, bias=True),
    )


def vision(hidden: int, intermediate: int, patch: int, images: list[int]) -> tuple[Layer, ...]:
    """Return the layers of a vision transformer with square patches and 1000 classes over images of 224 pixels."""
    patches = (224 // patch) ** 2
    return (
        replace(*linear("patches", hidden, 3 * patch * patch, bias=True), m=tuple(i * patches for i in images)),
        *encoder(hidden, intermediate),
        replace(*linear("classes", 1000, hidden, bias=True), m=tuple(images)),
    )


def experts(hidden: int, intermediate: int, experts: int, top_k: int) -> tuple[Layer, ...]:
    """Return the gated feed-forward blocks of a mixture of experts as grouped products: gate and up fused, and down."""
    return tuple(replace(layer, op="grouped_mm", b=experts, rows=top_k) for layer in gated_mlp(hidden, intermediate))


def convolution(name: str, image: int, channels: int, into: int, kernel: int, images: list[int]) -> tuple[Layer, ...]:
    """Return a convolution as one product over unfolded patches; ``image`` is the output's width and height."""
    return (Layer(name, into, channels * kernel * kernel, m=tuple(count * image * image for count in images)),)


def image_convolution(
    name: str,
    size: int,
    channels: int,
    into: int,
    kernel: int,
    stride: int = 1,
    padding: int = 0,
    groups: int = 1,
) -> tuple[Layer, ...]:
    """Return a convolution of square images, each M of them; ``size`` is their width and height."""
    named = {"stride": stride, "padding": padding, "groups": groups}
    usual = {"stride": 1, "padding": 0, "groups": 1}
    words = "/".join(f"{word}{value}" for word, value in named.items() if value != usual[word])
    sizes = f"{{}}x{channels}x{size}x{size}:{into}x{kernel}x{kernel}"
    return (Layer(name, into, channels, "convolution", words=f"{sizes}/{words}".rstrip("/")),)


def attention_products(head_size: int, length: int, heads: int, queries: int = 0) -> tuple[Layer, ...]:
    """Return attention's two batched products, ``queries`` (else ``length``) positions over ``length``."""
    m = queries or length
    name = f"d{head_size}-{m}x{length}"
    return (
        Layer(f"{name}/qk", length, head_size, "bmm", "nt", heads, (m,)),
        Layer(f"{name}/pv", head_size, length, "bmm", "nn", heads, (m,)),
    )


def flex_attention(
    name: str,
    heads: int,
    head_size: int,
    batch: int = 1,
    queries: int = 0,
    keys: str = "",
    mask: str = "",
) -> tuple[Layer, ...]:
    """Return flex attention over sequences of M positions.

    Args:
        name: name of the layer.
        heads: heads of the queries.
        head_size: size of a head.
        batch: number of sequences.
        queries: queries of a sequence, whose M keys are those of a cache; 0 for M.
        keys: sizes of the keys as in ``parse_problem``, with braces for M; empty for those of the queries.
        mask: mask as in ``parse_problem``; empty for none.
    """
    op = "flex_decoding" if queries else "flex_attention"
    sizes = f"{batch}x{heads}x{queries or '{0}'}x{head_size}:{keys or f'{heads}x{{0}}'}"
    # A projection leaves the heads of a position side by side, and a cache the positions of a head.
    layout = "nn" if queries else "tt"
    return (Layer(name, head_size, head_size, op, words=f"{sizes}/{layout}/{mask}".rstrip("/")),)


BLOCKS: dict[str, Callable[..., tuple[Layer, ...]]] = {
    make.__name__: make
    for make in (
        linear,
        batched,
        attention_projections,
        gated_mlp,
        decoder,
        plain_decoder,
        encoder,
        vision,
        experts,
        convolution,
        image_convolution,
        flex_attention,
        attention_products,
    )
}
_TYPES = {"int": int, "str": str, "bool": bool, "list[int]": list}
_COMMON = {"prefix": "str", "layout": "str", "m": "list[int]", "op": "str", "words": "str", "backward": "bool"}


def read_block(entry: Mapping[str, Any]) -> list[Layer]:
    """Return the layers of one entry of a family's ``layers``.

    ``block`` names a function of ``BLOCKS``, by default ``linear``; the other keys are its arguments. A list in place
    of one number stands for each number in turn. Every block also takes ``prefix`` for its layers' names. Its ``m``,
    ``layout`` and ``op`` replace those of the block. ``words`` are the dimensions of the op, and ``backward`` asks for
    the gradients of the layers in their place.

    Raises:
        ValueError: the block is unknown, or an argument is missing, unknown or of another type.
    """
    arguments = dict(entry)
    name = arguments.pop("block", "linear")
    if name not in BLOCKS:
        raise ValueError(f"unknown block {name!r}; known blocks: {', '.join(BLOCKS)}")
    make = BLOCKS[name]
    parameters = inspect.signature(make).parameters
    types = {**{key: str(parameter.annotation) for key, parameter in parameters.items()}, **_COMMON}
    needed = {key for key, parameter in parameters.items() if parameter.default is parameter.empty}
    for key in sorted(needed - arguments.keys()):
        raise ValueError(f"{name} needs {key}")
    for key, value in arguments.items():
        if key not in types:
            raise ValueError(f"{name} takes no {key}; known: {', '.join(types)}")
        _check(key, value, types[key])
    common = {key: arguments.pop(key) for key in _COMMON if key in arguments}
    each = [value if types[key] == "int" and isinstance(value, list) else [value] for key, value in arguments.items()]
    made = (make(**dict(zip(arguments, values, strict=True))) for values in product(*each))
    return [layer for layers in made for each_layer in layers for layer in _with_common(each_layer, common)]


def _with_common(layer: Layer, common: Mapping[str, Any]) -> tuple[Layer, ...]:
    changes = {key: common[key] for key in ("layout", "op", "words") if key in common}
    if changes.get("op", layer.op) not in OPS:
        raise ValueError(f"unknown op {changes['op']!r}; known ops: {', '.join(swept_ops())}")
    name, m = common.get("prefix", "") + layer.name, tuple(common.get("m", layer.m))
    found = replace(layer, name=name, m=m, **changes)
    return found.gradients if common.get("backward") else (found,)


def check_sizes(key: str, value: object) -> None:
    """Raise a ValueError unless a value is a list of whole numbers, each at least 1."""
    if not isinstance(value, list) or not value or not all(type(size) is int and size >= 1 for size in value):
        raise ValueError(f"{key} = {value!r}: whole numbers from 1 are expected")


def _check(key: str, value: object, wanted: str) -> None:
    if wanted in {"int", "list[int]"}:
        check_sizes(key, [value] if wanted == "int" and not isinstance(value, list) else value)
    elif not isinstance(value, _TYPES[wanted]):
        raise ValueError(f"{key} = {value!r}: {'true or false' if wanted == 'bool' else 'text'} is expected")
