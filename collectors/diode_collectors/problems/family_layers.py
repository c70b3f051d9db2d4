"""The matrix products of a model's layers, from the sizes in its config."""

from __future__ import annotations

from dataclasses import dataclass, replace

HUB = "https://huggingface.co"
TOKENS = (2, 4, 7, 8, 16, 32, 33, 64, 100, 128, 256, 333, 512, 1000, 1024, 2048, 3000, 4096, 8192, 16384)
"""How many tokens go through a layer at once: decoding, prefilling and training; not only powers of two."""


@dataclass(frozen=True)
class Layer:
    """(M, K) x (K, N), as a model's forward pass asks for it."""

    name: str
    n: int
    k: int
    op: str = "mm"
    layout: str = "nt"
    """A linear layer's weight is (N, K), so its product takes the transposed view."""
    b: int = 1
    m: tuple[int, ...] = ()
    """The sizes M has here; empty for those of the family."""

    def of(self, name: str, m: tuple[int, ...] = ()) -> Layer:
        """Return this layer under another name, and for other sizes of M if some are given."""
        return replace(self, name=name, m=m or self.m)

    def as_conv1d(self) -> Layer:
        """Return it as GPT-2 has it, whose linear layers keep their weight as (K, N)."""
        return replace(self, op="addmm", layout="nn")


@dataclass(frozen=True)
class Family:
    """The layers of one public model."""

    name: str
    source: str
    """Where its sizes are published."""
    layers: tuple[Layer, ...]
    m: tuple[int, ...] = TOKENS


def linear(name: str, n: int, k: int, *, bias: bool = False, m: tuple[int, ...] = ()) -> Layer:
    """Return a linear layer from K to N features."""
    return Layer(name, n, k, "addmm" if bias else "mm", m=m)


def attention(hidden: int, heads: int, kv_heads: int, head_size: int, *, bias: bool = False) -> tuple[Layer, ...]:
    """Return attention's projections: q, k and v as one product, as inference engines fuse them, and the output's."""
    return (
        linear("qkv", (heads + 2 * kv_heads) * head_size, hidden, bias=bias),
        linear("o", hidden, heads * head_size),
    )


def gated_mlp(hidden: int, intermediate: int, prefix: str = "") -> tuple[Layer, ...]:
    """Return a gated feed-forward block: gate and up as one product, and down."""
    return (
        linear(f"{prefix}gate_up", 2 * intermediate, hidden),
        linear(f"{prefix}down", hidden, intermediate),
    )


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
        *attention(hidden, heads, kv_heads, head_size, bias=qkv_bias),
        *gated_mlp(hidden, intermediate),
        linear("lm_head", vocabulary, hidden),
    )


def plain_decoder(hidden: int, qkv: int, intermediate: int, vocabulary: int) -> tuple[Layer, ...]:
    """Return the layers of a decoder such as OPT: no gate, and a bias everywhere but at the vocabulary."""
    return (
        linear("qkv", qkv, hidden, bias=True),
        linear("o", hidden, hidden, bias=True),
        linear("up", intermediate, hidden, bias=True),
        linear("down", hidden, intermediate, bias=True),
        linear("lm_head", vocabulary, hidden),
    )


def encoder(hidden: int, intermediate: int) -> tuple[Layer, ...]:
    """Return the layers of an encoder such as BERT, all with a bias."""
    return (
        linear("qkv", 3 * hidden, hidden, bias=True),
        linear("o", hidden, hidden, bias=True),
        linear("up", intermediate, hidden, bias=True),
        linear("down", hidden, intermediate, bias=True),
    )


def vision(hidden: int, intermediate: int, patch: int, images: tuple[int, ...]) -> tuple[Layer, ...]:
    """Return the layers of a vision transformer with square patches and 1000 classes over images of 224 pixels."""
    patches = (224 // patch) ** 2
    return (
        linear("patches", hidden, 3 * patch * patch, bias=True, m=tuple(count * patches for count in images)),
        *encoder(hidden, intermediate),
        linear("classes", 1000, hidden, bias=True, m=images),
    )


def convolution(name: str, image: int, channels: int, into: int, kernel: int, images: tuple[int, ...]) -> Layer:
    """Return a convolution as one product over unfolded patches; ``image`` is the output's width and height."""
    return linear(name, into, channels * kernel * kernel, m=tuple(count * image * image for count in images))


def scores_and_values(head_size: int, length: int, heads: int, queries: int | None = None) -> tuple[Layer, ...]:
    """Return attention's two batched products, ``queries`` (else ``length``) positions over ``length``."""
    m = (queries or length,)
    name = f"d{head_size}-{m[0]}x{length}"
    return (
        Layer(f"{name}/qk", length, head_size, "bmm", "nt", heads, m),
        Layer(f"{name}/pv", head_size, length, "bmm", "nn", heads, m),
    )
