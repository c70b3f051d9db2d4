"""Matrix products of a model's layers, from the sizes in its configuration."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

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


def convolution(name: str, image: int, channels: int, into: int, kernel: int, images: list[int]) -> tuple[Layer, ...]:
    """Return a convolution as one product over unfolded patches; ``image`` is the output's width and height."""
    return (Layer(name, into, channels * kernel * kernel, m=tuple(count * image * image for count in images)),)


def attention_products(head_size: int, length: int, heads: int, queries: int = 0) -> tuple[Layer, ...]:
    """Return attention's two batched products, ``queries`` (else ``length``) positions over ``length``."""
    m = queries or length
    name = f"d{head_size}-{m}x{length}"
    return (
        Layer(f"{name}/qk", length, head_size, "bmm", "nt", heads, (m,)),
        Layer(f"{name}/pv", head_size, length, "bmm", "nn", heads, (m,)),
    )


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
        convolution,
        attention_products,
    )
}
_TYPES = {"int": int, "str": str, "bool": bool, "list[int]": list}
_COMMON = {"prefix": "str", "layout": "str", "m": "list[int]"}


def read_block(entry: Mapping[str, Any]) -> list[Layer]:
    """Return the layers of one entry of a family's ``layers``.

    ``block`` names a function of ``BLOCKS``, by default ``linear``; the other keys are its arguments. A list in place
    of one number stands for each number in turn. Every block also takes ``prefix`` for its layers' names. Its ``m`` and
    ``layout`` replace those of the block.

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
    prefix, layout, m = arguments.pop("prefix", ""), arguments.pop("layout", ""), tuple(arguments.pop("m", ()))
    each = [value if types[key] == "int" and isinstance(value, list) else [value] for key, value in arguments.items()]
    return [
        replace(layer, name=prefix + layer.name, layout=layout or layer.layout, m=m or layer.m)
        for values in product(*each)
        for layer in make(**dict(zip(arguments, values, strict=True)))
    ]


def check_sizes(key: str, value: object) -> None:
    """Raise a ValueError unless a value is a list of whole numbers, each at least 1."""
    if not isinstance(value, list) or not value or not all(type(size) is int and size >= 1 for size in value):
        raise ValueError(f"{key} = {value!r}: whole numbers from 1 are expected")


def _check(key: str, value: object, wanted: str) -> None:
    if wanted in {"int", "list[int]"}:
        check_sizes(key, [value] if wanted == "int" and not isinstance(value, list) else value)
    elif not isinstance(value, _TYPES[wanted]):
        raise ValueError(f"{key} = {value!r}: {'true or false' if wanted == 'bool' else 'text'} is expected")
