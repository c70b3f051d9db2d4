"""Models of ``bench_models_gpu.py`` with float8 products and grouped products, with a few blocks and random weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

FP8 = torch.float8_e4m3fn
_LARGEST = torch.finfo(FP8).max
_SMALLEST_SCALE = 1e-12


@dataclass(frozen=True)
class Sizes:
    """Sizes of a decoder's block."""

    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    """Width of the perceptron, or of one expert."""
    experts: int = 0
    """Number of experts; 0 for a dense perceptron."""
    chosen: int = 0
    """Number of experts for a token."""
    shared: int = 0
    """Width of the perceptron that every token passes beside its experts."""


LLAMA3_8B = Sizes(4096, 32, 8, 128, 14336)
QWEN3_30B_A3B = Sizes(2048, 32, 4, 128, 768, experts=128, chosen=8)
DEEPSEEK_V2_LITE = Sizes(2048, 16, 16, 128, 1408, experts=64, chosen=6, shared=2816)


def quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows in float8, and the scale of each row, shapes (M, K) and (M, 1)."""
    scale = (x.abs().amax(dim=-1, keepdim=True).float() / _LARGEST).clamp(min=_SMALLEST_SCALE)
    return (x.float() / scale).to(FP8), scale


def scaled_product(a: Tensor, b_rows: Tensor) -> Tensor:
    """Return a @ b_rows.T in float8 with a scale for each row of both, shapes (M, K) and (N, K)."""
    quantized_a, scale_a = quantized(a)
    quantized_b, scale_b = quantized(b_rows)
    return _multiplied(quantized_a, quantized_b, scale_a, scale_b)


def _multiplied(a: Tensor, b_rows: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    multiply = torch._scaled_mm  # noqa: SLF001 - libraries for float8 call it
    return multiply(a, b_rows.t(), scale_a, scale_b.t(), out_dtype=torch.bfloat16, use_fast_accum=True)


def _grouped(a: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Return the product of each group of rows and its weights (outputs, inputs)."""
    multiply = torch._grouped_mm  # noqa: SLF001 - libraries for mixtures of experts call it
    return multiply(a, weights.transpose(1, 2), ends)


class _TrainedProduct(torch.autograd.Function):
    """A linear layer whose forward product and both gradients are float8 products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Return x @ weight.T."""
        ctx.save_for_backward(x, weight)
        return scaled_product(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of x and weight."""
        x, weight = ctx.saved_tensors
        (gradient,) = gradients
        columns = gradient.t().contiguous()
        return scaled_product(gradient, weight.t().contiguous()), scaled_product(columns, x.t().contiguous())


class _Linear(nn.Module):
    """A linear layer in float8: weights quantized once for inference, at every step for training."""

    def __init__(self, inputs: int, outputs: int, *, trained: bool) -> None:
        super().__init__()
        weight = torch.randn(outputs, inputs) * inputs**-0.5
        self.trained = trained
        if trained:
            self.weight = nn.Parameter(weight)
        else:
            rows, scale = quantized(weight)
            self.register_buffer("rows", rows)
            self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        """Map (tokens, inputs) to (tokens, outputs)."""
        if self.trained:
            result: Tensor = _TrainedProduct.apply(x, self.weight)
            return result
        quantized_x, scale = quantized(x)
        return _multiplied(quantized_x, self.rows, scale, self.scale)


class _Attention(nn.Module):
    """Causal attention over one sequence."""

    def __init__(self, sizes: Sizes, linear: Any) -> None:
        super().__init__()
        self.sizes = sizes
        self.qkv = linear(sizes.hidden, (sizes.heads + 2 * sizes.kv_heads) * sizes.head_size)
        self.out = linear(sizes.heads * sizes.head_size, sizes.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Map (tokens, hidden) to the same."""
        sizes = self.sizes
        heads = self.qkv(x).view(1, len(x), -1, sizes.head_size).transpose(1, 2)
        q, k, v = heads.split([sizes.heads, sizes.kv_heads, sizes.kv_heads], dim=1)
        attended = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=sizes.heads != sizes.kv_heads
        )
        result: Tensor = self.out(attended.transpose(1, 2).reshape(len(x), -1))
        return result


class _Perceptron(nn.Module):
    """A gated perceptron."""

    def __init__(self, hidden: int, width: int, linear: Any) -> None:
        super().__init__()
        self.gate_up, self.down = linear(hidden, 2 * width), linear(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Map (tokens, hidden) to the same."""
        result: Tensor = self.down(_gated(self.gate_up(x)))
        return result


class _Experts(nn.Module):
    """A mixture of experts as grouped products: tokens are sorted by expert, and each expert is a group."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.router = nn.Linear(sizes.hidden, sizes.experts, bias=False)
        width = sizes.intermediate
        self.gate_up = nn.Parameter(torch.randn(sizes.experts, 2 * width, sizes.hidden) * sizes.hidden**-0.5)
        self.down = nn.Parameter(torch.randn(sizes.experts, sizes.hidden, width) * width**-0.5)
        self.shared = _Perceptron(sizes.hidden, sizes.shared, _plain_linear) if sizes.shared else None

    def forward(self, x: Tensor) -> Tensor:
        """Map (tokens, hidden) to the same."""
        sizes = self.sizes
        shares, chosen = self.router(x).softmax(dim=-1).topk(sizes.chosen, dim=-1)
        experts = chosen.flatten()
        order = experts.argsort(stable=True)
        tokens = order // sizes.chosen
        counts = (experts[:, None] == torch.arange(sizes.experts, device=x.device)).sum(dim=0)
        ends = counts.cumsum(0).to(torch.int32)
        hidden = _grouped(x[tokens], self.gate_up, ends)
        expert_out = _grouped(_gated(hidden), self.down, ends)
        weighted = expert_out * shares.flatten()[order, None]
        mixed = torch.zeros_like(x).index_add(0, tokens, weighted)
        return mixed if self.shared is None else mixed + self.shared(x)


class Decoder(nn.Module):
    """Blocks of a decoder without embedding and head: from hidden states to hidden states."""

    def __init__(self, sizes: Sizes, blocks: int, *, fp8: bool = False, trained: bool = False) -> None:
        super().__init__()

        def scaled_linear(inputs: int, outputs: int) -> nn.Module:
            return _Linear(inputs, outputs, trained=trained)

        linear = scaled_linear if fp8 else _plain_linear
        self.attention = nn.ModuleList(_Attention(sizes, linear) for _ in range(blocks))
        self.feed = nn.ModuleList(
            _Experts(sizes) if sizes.experts else _Perceptron(sizes.hidden, sizes.intermediate, linear)
            for _ in range(blocks)
        )
        self.width = sizes.hidden

    def forward(self, x: Tensor) -> Tensor:
        """Map (tokens, hidden) to the same."""
        for attention, feed in zip(self.attention, self.feed, strict=True):
            x = x + attention(functional.rms_norm(x, (self.width,)))
            x = x + feed(functional.rms_norm(x, (self.width,)))
        return x


def _plain_linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def _gated(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return functional.silu(gate) * up
