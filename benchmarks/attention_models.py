"""Decoders with flex attention of ``bench_models_gpu.py``: a training step, and a step of generation over a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

if TYPE_CHECKING:
    from low_precision_models import Sizes


class FlexDecoder(nn.Module):
    """Blocks of a decoder over hidden states, whose attention is flex attention.

    Args:
        sizes: sizes of a block.
        blocks: number of blocks.
        batch: number of sequences, for the cache.
        cached: positions of the cache. With 0 a call takes whole sequences, and each position sees those before it.
    """

    def __init__(self, sizes: Sizes, blocks: int, batch: int = 1, cached: int = 0) -> None:
        super().__init__()
        self.sizes, self.cached = sizes, cached
        heads = sizes.heads + 2 * sizes.kv_heads
        self.qkv = nn.ModuleList(nn.Linear(sizes.hidden, heads * sizes.head_size, bias=False) for _ in range(blocks))
        width = sizes.heads * sizes.head_size
        self.out = nn.ModuleList(nn.Linear(width, sizes.hidden, bias=False) for _ in range(blocks))
        self.gate_up = nn.ModuleList(nn.Linear(sizes.hidden, 2 * sizes.intermediate, bias=False) for _ in range(blocks))
        self.down = nn.ModuleList(nn.Linear(sizes.intermediate, sizes.hidden, bias=False) for _ in range(blocks))
        if cached:
            cache = torch.randn(2, blocks, batch, sizes.kv_heads, cached, sizes.head_size)
            self.register_buffer("cache", cache)

    def forward(self, x: Tensor, mask: Any = None) -> Tensor:
        """Map (batch, tokens, hidden) to the same; with a cache the tokens are written to its end."""
        for block in range(len(self.qkv)):
            x = x + self._attended(block, functional.rms_norm(x, (self.sizes.hidden,)), mask)
            gate, up = self.gate_up[block](functional.rms_norm(x, (self.sizes.hidden,))).chunk(2, dim=-1)
            x = x + self.down[block](functional.silu(gate) * up)
        return x

    def _attended(self, block: int, x: Tensor, mask: Any) -> Tensor:
        sizes, (batch, tokens, _) = self.sizes, x.shape
        heads = self.qkv[block](x).view(batch, tokens, -1, sizes.head_size).transpose(1, 2)
        query, key, value = heads.split([sizes.heads, sizes.kv_heads, sizes.kv_heads], dim=1)
        if self.cached:
            self.cache[0, block, :, :, -tokens:] = key
            self.cache[1, block, :, :, -tokens:] = value
            key, value = self.cache[0, block], self.cache[1, block]
        attended: Any = flex_attention(query, key, value, block_mask=mask, enable_gqa=sizes.heads != sizes.kv_heads)
        result: Tensor = self.out[block](attended.transpose(1, 2).reshape(batch, tokens, -1))
        return result


def causal_mask(tokens: int, device: str) -> Any:
    """Return the mask with which each position sees those before it."""
    return create_block_mask(lambda _b, _h, query, key: query >= key, None, None, tokens, tokens, device=device)
