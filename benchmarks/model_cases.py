"""Models and ways of ``bench_models_gpu.py``, and their distribution over processes. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True)
class Case:
    """A model with its name in tables and its cost."""

    title: str
    cost_s: float
    """Seconds that one process takes for the default ways. Shards are balanced by these seconds."""


CASES = {
    "llama3-8b-16": Case("Llama-3-8B, 16 tokens, bf16", 70),
    "llama3-8b-512": Case("Llama-3-8B, 512 tokens, bf16", 75),
    "decoder-2304": Case("a decoder of 2304 and 5760, 4 x 300 tokens, bf16", 65),
    "qwen3-moe": Case("Qwen3's mixture, 32 experts, 512 tokens, bf16", 115),
    "bert-large": Case("BERT-large, 32 x 128 tokens, fp16", 90),
    "vit-huge": Case("ViT-H/14, 16 images, fp16", 105),
    "resnet-50": Case("ResNet-50, 32 images, fp16", 90),
    "dit-xl": Case("DiT-XL/2, 16 latents, bf16", 85),
    "whisper-encoder": Case("Whisper-large's encoder, 4 x 30 s, bf16", 95),
    "gpt2-training": Case("GPT-2 medium, a training step of 8 x 512 tokens, bf16", 100),
    "llama3-8b-decode-32": Case("Llama-3-8B, decoding 32 x 1 tokens, bf16", 90),
    "gemma2-2b": Case("Gemma-2-2B and its head, eager attention, 256 tokens, bf16", 225),
    "swin-b": Case("Swin-B, 16 images, fp16", 130),
    "dlrm": Case("DLRM, batch of 2048, fp32 with TF32", 150),
    "t5-encoder": Case("T5-large's encoder, 4 x 512 tokens, bf16", 80),
    "llama3-8b-fp8-16": Case("Llama-3-8B, two blocks in float8 by rows, 16 tokens", 240),
    "llama3-8b-fp8-64": Case("Llama-3-8B, two blocks in float8 by rows, 64 tokens", 420),
    "llama3-8b-fp8-512": Case("Llama-3-8B, two blocks in float8 by rows, 512 tokens", 420),
    "llama3-8b-fp8-4096": Case("Llama-3-8B, two blocks in float8 by rows, 4096 tokens", 440),
    "llama3-8b-fp8-training": Case("Llama-3-8B, a training step of a block in float8 by rows, 2048 tokens", 600),
    "qwen3-30b-grouped": Case("Qwen3-30B-A3B, two blocks with grouped products, 512 tokens, bf16", 150),
    "qwen3-30b-grouped-training": Case("Qwen3-30B-A3B, a training step of a block, 4096 tokens, bf16", 200),
    "deepseek-v2-lite-grouped": Case("DeepSeek-V2-Lite, two blocks with grouped products, 512 tokens, bf16", 150),
    "deepseek-v2-lite-grouped-training": Case("DeepSeek-V2-Lite, a training step of a block, 4096 tokens, bf16", 200),
    "llama3-8b-flex-training": Case("Llama-3-8B with flex attention, a training step of 4096 tokens, bf16", 120),
    "llama3-8b-flex-decode": Case("Llama-3-8B with flex attention, decoding 8 x 1 tokens of 8192, bf16", 90),
    "convnext-tiny": Case("ConvNeXt-T, 32 images, fp16", 90),
    "unet-320": Case("a U-Net of 320 to 1280 channels, 2 latents of 128 x 128, fp16", 120),
}

PLAIN, STOCK = "plain", "stock"
WAYS = {
    PLAIN: "`torch.compile`",
    STOCK: "stock `max_autotune_gemm`",
    "zero": "zero",
    "adaptive": "adaptive",
    "top_k": "top 3",
    "eager": "eager",
    "plain-picks": "`torch.compile` with a picks file",
    "max-autotune": '`mode="max-autotune"`',
    "max-autotune-zero": '`mode="max-autotune"`, zero',
    "max-autotune-adaptive": '`mode="max-autotune"`, adaptive',
    "max-autotune-top_k": '`mode="max-autotune"`, top 3',
}
"""Ways to run a model, by their names in tables."""
DEFAULT_WAYS = (PLAIN, STOCK, "zero", "adaptive")


def left(models: Iterable[str], repeat: int, results: Iterable[dict[str, Any]]) -> list[str]:
    """Return the models that have no result for this repeat, in their order."""
    there = {(result["model"], result["repeat"]) for result in results}
    return [model for model in models if (model, repeat) not in there]


def shard(models: Sequence[str], number: int, shards: int) -> list[str]:
    """Return the models of one shard, counted from 1, the longest first.

    Each model goes to the shard with the least to do so far, starting with the longest.
    """
    parts: list[list[str]] = [[] for _ in range(shards)]
    for model in sorted(models, key=lambda model: -CASES[model].cost_s):
        min(parts, key=lambda part: sum(CASES[name].cost_s for name in part)).append(model)
    return parts[number - 1]
