"""Models of ``bench_models_gpu.py``: well-known architectures with a few layers and random weights."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from attention_models import FlexDecoder, causal_mask
from low_precision_models import DEEPSEEK_V2_LITE, QWEN3_30B_A3B, Decoder
from low_precision_models import LLAMA3_8B as LLAMA_BLOCK
from torch import Tensor, nn
from torch.nn import functional
from vision_models import UNet

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from low_precision_models import Sizes


DEVICE = "cuda"
"""Device of all models and inputs; a check of their code on a machine without a GPU sets it to "cpu"."""


class Workload(NamedTuple):
    """A model to compile, and the inputs of a call."""

    call: Callable[..., Tensor]
    """Function to compile: from the inputs to an output, or to a loss."""
    inputs: tuple[Tensor, ...]
    parameters: tuple[Tensor, ...] = ()
    """Parameters whose gradients a call computes as well; none in inference."""
    fp32_precision: str = "highest"
    """Setting of ``torch.set_float32_matmul_precision`` under which the model runs."""

    def run(self, call: Callable[..., Tensor]) -> Tensor:
        """Run one step with ``call`` in place of ``self.call``."""
        output = call(*self.inputs)
        if self.parameters:
            torch.autograd.backward(output)
        return output

    def forget_gradients(self) -> None:
        """Leave no gradient to the next step."""
        for parameter in self.parameters:
            parameter.grad = None


def decoder(tokens: int, batch: int = 1, **sizes: int) -> Workload:
    """Return a Llama-like decoder: the hidden states of a batch of tokens, without a cache."""
    model = _of_transformers("Llama", torch.bfloat16, num_hidden_layers=4, **sizes)
    return _of_tokens(model, batch, tokens, use_cache=False)


def softcapped_decoder(tokens: int = 256, **sizes: Any) -> Workload:
    """Return two layers of Gemma-2-2B and its head: the logits of a prompt, with eager, softcapped attention."""
    sizes = {"num_hidden_layers": 2, "attn_implementation": "eager", **sizes}
    model = _of_transformers("Gemma2", torch.bfloat16, "ForCausalLM", **sizes)
    ids = torch.randint(0, model.config.vocab_size, (1, tokens), device=DEVICE)
    return Workload(lambda ids: model(ids, use_cache=False).logits, (ids,))


def text_encoder(batch: int = 4, tokens: int = 512) -> Workload:
    """Return the encoder of T5-large with four layers."""
    sizes = {"d_model": 1024, "d_kv": 64, "d_ff": 4096, "num_heads": 16, "num_layers": 4}
    return _of_tokens(_of_transformers("T5", torch.bfloat16, "EncoderModel", **sizes), batch, tokens)


def mixture_of_experts() -> Workload:
    """Return a decoder of Qwen3-30B-A3B's sizes with fewer experts, each token routed to eight."""
    model = _of_transformers(
        "Qwen3Moe",
        torch.bfloat16,
        hidden_size=2048,
        moe_intermediate_size=768,
        num_hidden_layers=3,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        num_experts=32,
        num_experts_per_tok=8,
        vocab_size=151936,
    )
    return _of_tokens(model, 1, 512, use_cache=False)


def encoder() -> Workload:
    """Return BERT-large with six layers, 32 x 128 tokens."""
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 6, "num_attention_heads": 16}
    return _of_tokens(_of_transformers("Bert", torch.float16, **sizes), 32, 128)


def vision_transformer() -> Workload:
    """Return ViT-H/14 with six layers, 16 images of 224 x 224."""
    sizes = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 6, "num_attention_heads": 16}
    model = _of_transformers("ViT", torch.float16, patch_size=14, image_size=224, **sizes)
    return _of_images(model, 16)


def windowed_transformer(images: int = 16) -> Workload:
    """Return Swin-B with two blocks a stage, the second of them with shifted windows; images of 224 x 224."""
    sizes = {"embed_dim": 128, "depths": [2, 2, 2, 2], "num_heads": [4, 8, 16, 32], "window_size": 7}
    return _of_images(_of_transformers("Swin", torch.float16, **sizes), images)


def recommender(batch: int = 2048, rows: int = 100_000) -> Workload:
    """Return a DLRM (Naumov et al., 2019) in fp32, with TF32 in its products: a score for each user of a batch."""
    model = _made(lambda: _DLRM(tables=26, rows=rows, width=64), torch.float32)
    dense, sparse = _normal(batch, 13, dtype=torch.float32), torch.randint(0, rows, (batch, 26), device=DEVICE)
    return Workload(model, (dense, sparse), fp32_precision="high")


def convolutional() -> Workload:
    """Return ResNet-50, 32 images of 224 x 224."""
    return _of_images(_of_transformers("ResNet", torch.float16), 32)


def speech_encoder() -> Workload:
    """Return the encoder of Whisper-large with six layers, four pieces of 30 seconds."""
    model = _of_transformers(
        "Whisper",
        torch.bfloat16,
        d_model=1280,
        encoder_layers=6,
        decoder_layers=1,
        encoder_attention_heads=20,
        decoder_attention_heads=20,
        encoder_ffn_dim=5120,
        decoder_ffn_dim=5120,
        num_mel_bins=128,
    ).encoder
    return Workload(lambda mel: model(mel).last_hidden_state, (_normal(4, 128, 3000, dtype=torch.bfloat16),))


def diffusion_transformer() -> Workload:
    """Return DiT-XL/2 (Peebles and Xie, 2023) with six blocks, 16 latents of 32 x 32."""
    model = _made(lambda: _DiT(width=1152, heads=16, blocks=6), torch.bfloat16)
    return Workload(model, (_normal(16, 4, 32, 32, dtype=torch.bfloat16),))


def training_step() -> Workload:
    """Return a step of GPT-2 medium with four layers: loss and gradients of 8 x 512 tokens."""
    sizes = {"n_embd": 1024, "n_layer": 4, "n_head": 16}
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = _of_transformers("GPT2", torch.bfloat16, **sizes, **dropouts).train()
    vocabulary: int = model.config.vocab_size
    tokens = torch.randint(0, vocabulary, (8, 512), device=DEVICE)

    def loss(ids: Tensor) -> Tensor:
        hidden: Tensor = model(ids, use_cache=False).last_hidden_state[:, :-1]
        logits = functional.linear(hidden, model.wte.weight)  # the head is tied to the embedding
        return functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())

    return Workload(loss, (tokens,), tuple(model.parameters()))


def blocks(sizes: Sizes, tokens: int, *, fp8: bool = False) -> Workload:
    """Return two blocks of a decoder over hidden states."""
    model = _made(lambda: Decoder(sizes, 2, fp8=fp8), torch.bfloat16).requires_grad_(requires_grad=False)
    return Workload(model, (_normal(tokens, sizes.hidden, dtype=torch.bfloat16),))


def blocks_training(sizes: Sizes, tokens: int, *, fp8: bool = False) -> Workload:
    """Return a training step of one block of a decoder: a loss and the gradients."""
    model = _made(lambda: Decoder(sizes, 1, fp8=fp8, trained=True), torch.bfloat16).train()
    inputs = (_normal(tokens, sizes.hidden, dtype=torch.bfloat16),)
    return Workload(lambda x: model(x).float().square().mean(), inputs, tuple(model.parameters()))


def flex_training(sizes: Sizes, tokens: int) -> Workload:
    """Return a training step of one block with flex attention: a loss and the gradients."""
    model = _made(lambda: FlexDecoder(sizes, 1), torch.bfloat16).train()
    mask = causal_mask(tokens, DEVICE)
    inputs = (_normal(1, tokens, sizes.hidden, dtype=torch.bfloat16),)
    return Workload(lambda x: model(x, mask).float().square().mean(), inputs, tuple(model.parameters()))


def flex_decoding(sizes: Sizes, batch: int, cached: int) -> Workload:
    """Return a step of generation with flex attention: one token of each sequence over the cache of two blocks."""
    model = _made(lambda: FlexDecoder(sizes, 2, batch, cached), torch.bfloat16).requires_grad_(requires_grad=False)
    return Workload(model, (_normal(batch, 1, sizes.hidden, dtype=torch.bfloat16),))


def modern_convolutional() -> Workload:
    """Return ConvNeXt-T, 32 images of 224 x 224."""
    return _of_images(_of_transformers("ConvNext", torch.float16), 32)


def diffusion_unet(images: int = 2, size: int = 128) -> Workload:
    """Return a U-Net as wide as SDXL's, in the channels-last format."""
    model = _made(UNet, torch.float16).to(memory_format=torch.channels_last)
    latents = _normal(images, 4, size, size, dtype=torch.float16).to(memory_format=torch.channels_last)
    return Workload(model, (latents,))


LLAMA3_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
DECODER_2304 = {
    "hidden_size": 2304,
    "intermediate_size": 5760,
    "num_attention_heads": 36,
    "num_key_value_heads": 36,
    "vocab_size": 122753,
}
WORKLOADS: Mapping[str, Callable[[], Workload]] = {
    "llama3-8b-16": lambda: decoder(16, **LLAMA3_8B),
    "llama3-8b-512": lambda: decoder(512, **LLAMA3_8B),
    "decoder-2304": lambda: decoder(300, 4, **DECODER_2304),
    "qwen3-moe": mixture_of_experts,
    "bert-large": encoder,
    "vit-huge": vision_transformer,
    "resnet-50": convolutional,
    "dit-xl": diffusion_transformer,
    "whisper-encoder": speech_encoder,
    "gpt2-training": training_step,
    "llama3-8b-decode-32": lambda: decoder(1, 32, **LLAMA3_8B),
    "gemma2-2b": softcapped_decoder,
    "swin-b": windowed_transformer,
    "dlrm": recommender,
    "t5-encoder": text_encoder,
    **{f"llama3-8b-fp8-{tokens}": partial(blocks, LLAMA_BLOCK, tokens, fp8=True) for tokens in (16, 64, 512, 4096)},
    "llama3-8b-fp8-training": partial(blocks_training, LLAMA_BLOCK, 2048, fp8=True),
    "qwen3-30b-grouped": partial(blocks, QWEN3_30B_A3B, 512),
    "qwen3-30b-grouped-training": partial(blocks_training, QWEN3_30B_A3B, 4096),
    "deepseek-v2-lite-grouped": partial(blocks, DEEPSEEK_V2_LITE, 512),
    "deepseek-v2-lite-grouped-training": partial(blocks_training, DEEPSEEK_V2_LITE, 4096),
    "llama3-8b-flex-training": partial(flex_training, LLAMA_BLOCK, 4096),
    "llama3-8b-flex-decode": partial(flex_decoding, LLAMA_BLOCK, 8, 8192),
    "convnext-tiny": modern_convolutional,
    "unet-320": diffusion_unet,
}


class _Block(nn.Module):
    """A block of a DiT: attention and a perceptron, both shifted, scaled and gated by the condition."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.condition = nn.Linear(width, 6 * width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same."""
        shifts = self.condition(functional.silu(condition)).unsqueeze(1).chunk(6, -1)
        y = self.norm(x) * (1 + shifts[1]) + shifts[0]
        batch, tokens, width = y.shape
        qkv = self.qkv(y).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*qkv.unbind(0))
        x = x + shifts[2] * self.projection(attended.transpose(1, 2).reshape(batch, tokens, width))
        y = self.norm(x) * (1 + shifts[4]) + shifts[3]
        result: Tensor = x + shifts[5] * self.down(functional.gelu(self.up(y), approximate="tanh"))
        return result


class _DiT(nn.Module):
    """A diffusion transformer over latents, at one fixed time."""

    def __init__(self, width: int, heads: int, blocks: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, width, 2, stride=2)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(blocks))
        self.norm, self.out = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6), nn.Linear(width, 2 * 2 * 8)
        self.register_buffer("frequencies", torch.randn(1, 256))

    def forward(self, latents: Tensor) -> Tensor:
        """Map (batch, 4, 32, 32) to (batch, 256, 32)."""
        x = self.patches(latents).flatten(2).transpose(1, 2)
        condition = self.time(self.frequencies).expand(len(x), -1)
        for block in self.blocks:
            x = block(x, condition)
        result: Tensor = self.out(self.norm(x))
        return result


class _DLRM(nn.Module):
    """A recommender: embeddings and a perceptron, the products of all pairs of them, and another perceptron."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = _perceptron(13, 512, 256, width)
        features = tables + 1
        first, second = torch.tril_indices(features, features, offset=-1)
        self.register_buffer("pairs", first * features + second)
        self.top = _perceptron(width + len(first), 512, 256)
        self.score = nn.Linear(256, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """Map (batch, 13) numbers and (batch, tables) rows of the tables to (batch, 1)."""
        numbers = self.bottom(dense)
        features = torch.stack([numbers, *(table(sparse[:, i]) for i, table in enumerate(self.tables))], dim=1)
        products = torch.bmm(features, features.transpose(1, 2)).flatten(1)
        scores: Tensor = torch.sigmoid(self.score(self.top(torch.cat([numbers, products[:, self.pairs]], dim=1))))
        return scores


def _perceptron(*widths: int) -> nn.Sequential:
    """Return linear layers between these widths, each with a ReLU behind it."""
    return nn.Sequential(*(layer for sizes in pairwise(widths) for layer in (nn.Linear(*sizes), nn.ReLU())))


def _of_transformers(name: str, dtype: torch.dtype, suffix: str = "Model", **sizes: Any) -> Any:
    """Return ``transformers``' model of a name with these sizes and random weights, on the device."""
    import transformers

    configuration = getattr(transformers, f"{name}Config")(**sizes)
    return _made(lambda: getattr(transformers, f"{name}{suffix}")(configuration), dtype)


def _made(make: Callable[[], nn.Module], dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        with torch.device(DEVICE):
            return make().eval()
    finally:
        torch.set_default_dtype(torch.float32)


def _of_tokens(model: Any, batch: int, tokens: int, **options: bool) -> Workload:
    ids = torch.randint(0, model.config.vocab_size, (batch, tokens), device=DEVICE)

    def call(ids: Tensor) -> Tensor:
        hidden: Tensor = model(ids, **options).last_hidden_state
        return hidden

    return Workload(call, (ids,))


def _of_images(model: Any, images: int) -> Workload:
    """Return a model's last hidden state for fp16 images of 224 x 224."""
    inputs = (_normal(images, 3, 224, 224, dtype=torch.float16),)
    return Workload(lambda pixels: model(pixels).last_hidden_state, inputs)


def _normal(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=dtype)
