"""Layer shapes of the public models that were measured first, with the sizes in each source's config or paper."""

from __future__ import annotations

from itertools import chain

from diode_collectors.problems.family_layers import (
    HUB,
    TOKENS,
    Family,
    Layer,
    attention,
    convolution,
    decoder,
    encoder,
    gated_mlp,
    linear,
    scores_and_values,
    vision,
)

_IMAGES = (1, 2, 8, 32, 64)
_VIT_TOKENS = tuple(197 * images for images in _IMAGES)
_WHISPER_DECODED = (2, 5, 8, 16, 64, 224, 448)
_WHISPER_TOKENS = (*_WHISPER_DECODED, 1500, 3000, 6000, 12000)
_UNET_LEVELS = ((64, 320), (32, 640), (16, 1280), (8, 1280))
_GUIDED = 2


def _unet() -> tuple[Layer, ...]:
    """Return the attention blocks and convolutions of Stable Diffusion's U-Net for images of 512 pixels."""
    layers: list[Layer] = []
    for image, channels in _UNET_LEVELS:
        m = tuple(images * _GUIDED * image * image for images in (1, 4))
        text = tuple(images * _GUIDED * 77 for images in (1, 4))
        prefix = f"{image}px"
        layers += [
            linear(f"{prefix}/q", channels, channels, m=m),
            linear(f"{prefix}/out", channels, channels, bias=True, m=m),
            linear(f"{prefix}/text_kv", channels, 768, m=text),
            linear(f"{prefix}/geglu", 8 * channels, channels, bias=True, m=m),
            linear(f"{prefix}/ff_out", channels, 4 * channels, bias=True, m=m),
            convolution(f"{prefix}/conv3x3", image, channels, channels, 3, (_GUIDED, 4 * _GUIDED)),
            convolution(f"{prefix}/skip3x3", image, 2 * channels, channels, 3, (_GUIDED, 4 * _GUIDED)),
        ]
    return tuple(layers)


def _resnet50() -> tuple[Layer, ...]:
    layers = [convolution("stem", 112, 3, 64, 7, _IMAGES)]
    channels = 64
    for stage, (image, width) in enumerate(((56, 64), (28, 128), (14, 256), (7, 512)), 1):
        wide, before = 4 * width, image if stage == 1 else 2 * image
        layers += [
            convolution(f"stage{stage}/first1x1", before, channels, width, 1, _IMAGES),
            convolution(f"stage{stage}/skip1x1", image, channels, wide, 1, _IMAGES),
            convolution(f"stage{stage}/reduce1x1", image, wide, width, 1, _IMAGES),
            convolution(f"stage{stage}/conv3x3", image, width, width, 3, _IMAGES),
            convolution(f"stage{stage}/expand1x1", image, width, wide, 1, _IMAGES),
        ]
        channels = wide
    layers.append(linear("classes", 1000, 2048, bias=True, m=_IMAGES))
    return tuple(layers)


_ATTENTION_SHAPES = (
    # head size, length, batch x heads, queries (None: as many as the length)
    *((64, length, heads, None) for length in (128, 197, 384, 512, 1024, 2048) for heads in (12, 64, 192)),
    *((128, length, 32, None) for length in (128, 333, 512, 1000, 1024, 2048, 4096)),
    *((80, length, 40, None) for length in (64, 256, 577, 1024)),
    *((96, length, 32, None) for length in (256, 1024, 2048)),
    *((256, length, 16, None) for length in (256, 777, 1024, 4096)),
    *((40, length, 16, None) for length in (64, 256, 1024, 4096)),
    # Grouped queries while decoding: the heads that share keys stand in for the queries.
    *((128, length, heads, queries) for length in (1024, 4096, 8192) for heads in (8, 64) for queries in (4, 8)),
    # Cross-attention to a text or an encoded sound.
    *((64, 1500, 20, queries) for queries in (4, 64, 448)),
    *((64, 77, heads, queries) for heads in (16, 20) for queries in (256, 1024, 4096)),
)

FAMILIES = (
    Family(
        "llama3-8b",
        f"{HUB}/meta-llama/Meta-Llama-3-8B/blob/main/config.json",
        decoder(4096, 32, 8, 128, 14336, 128256),
    ),
    Family(
        "llama3-70b",
        f"{HUB}/meta-llama/Meta-Llama-3-70B/blob/main/config.json",
        decoder(8192, 64, 8, 128, 28672, 128256),
    ),
    Family(
        "llama2-7b",
        f"{HUB}/meta-llama/Llama-2-7b-hf/blob/main/config.json",
        decoder(4096, 32, 32, 128, 11008, 32000),
    ),
    Family(
        "mistral-7b",
        f"{HUB}/mistralai/Mistral-7B-v0.1/blob/main/config.json",
        decoder(4096, 32, 8, 128, 14336, 32000),
    ),
    Family(
        "qwen2.5-7b",
        f"{HUB}/Qwen/Qwen2.5-7B/blob/main/config.json",
        decoder(3584, 28, 4, 128, 18944, 152064, qkv_bias=True),
    ),
    Family(
        "qwen2.5-72b",
        f"{HUB}/Qwen/Qwen2.5-72B/blob/main/config.json",
        decoder(8192, 64, 8, 128, 29568, 152064, qkv_bias=True),
    ),
    Family(
        "gemma2-9b",
        f"{HUB}/google/gemma-2-9b/blob/main/config.json",
        decoder(3584, 16, 8, 256, 14336, 256000),
    ),
    Family(
        "phi3-mini",
        f"{HUB}/microsoft/Phi-3-mini-4k-instruct/blob/main/config.json",
        decoder(3072, 32, 32, 96, 8192, 32064),
    ),
    Family(
        "gpt2-xl",
        f"{HUB}/openai-community/gpt2-xl/blob/main/config.json",
        (
            *(layer.as_conv1d() for layer in encoder(1600, 6400)),
            linear("lm_head", 50257, 1600),
        ),
    ),
    Family(
        "mixtral-8x7b",
        f"{HUB}/mistralai/Mixtral-8x7B-v0.1/blob/main/config.json",
        (
            *attention(4096, 32, 8, 128),
            linear("router", 8, 4096),
            *gated_mlp(4096, 14336, "expert_"),
            linear("lm_head", 32000, 4096),
        ),
    ),
    Family(
        "deepseek-v2-lite",
        f"{HUB}/deepseek-ai/DeepSeek-V2-Lite/blob/main/config.json",
        (
            linear("q", 3072, 2048),
            linear("kv_a", 576, 2048),
            linear("kv_b", 4096, 512),
            linear("o", 2048, 2048),
            *gated_mlp(2048, 10944, "dense_"),
            *gated_mlp(2048, 1408, "expert_"),
            *gated_mlp(2048, 2816, "shared_"),
            linear("router", 64, 2048),
            linear("lm_head", 102400, 2048),
        ),
    ),
    Family(
        "deepseek-v3",
        f"{HUB}/deepseek-ai/DeepSeek-V3/blob/main/config.json",
        (
            linear("q_a", 1536, 7168),
            linear("q_b", 24576, 1536),
            linear("kv_a", 576, 7168),
            linear("kv_b", 32768, 512),
            linear("o", 7168, 16384),
            *gated_mlp(7168, 18432, "dense_"),
            *gated_mlp(7168, 2048, "expert_"),
            linear("router", 256, 7168),
            linear("lm_head", 129280, 7168),
        ),
    ),
    Family(
        "bert-large",
        f"{HUB}/google-bert/bert-large-uncased/blob/main/config.json",
        (*encoder(1024, 4096), linear("vocabulary", 30522, 1024, bias=True)),
    ),
    Family("vit-b16", "https://arxiv.org/abs/2010.11929", vision(768, 3072, 16, _IMAGES), _VIT_TOKENS),
    Family("vit-l16", "https://arxiv.org/abs/2010.11929", vision(1024, 4096, 16, _IMAGES), _VIT_TOKENS),
    Family(
        "t5-large",
        f"{HUB}/google-t5/t5-large/blob/main/config.json",
        (
            *attention(1024, 16, 16, 64),
            linear("up", 4096, 1024),
            linear("down", 1024, 4096),
            linear("lm_head", 32128, 1024),
        ),
    ),
    Family(
        "whisper-large-v3",
        f"{HUB}/openai/whisper-large-v3/blob/main/config.json",
        (
            linear("k", 1280, 1280),
            linear("qvo", 1280, 1280, bias=True),
            linear("up", 5120, 1280, bias=True),
            linear("down", 1280, 5120, bias=True),
            linear("vocabulary", 51866, 1280, m=_WHISPER_DECODED),
        ),
        _WHISPER_TOKENS,
    ),
    Family(
        "stable-diffusion-unet",
        f"{HUB}/stable-diffusion-v1-5/stable-diffusion-v1-5/blob/main/unet/config.json",
        _unet(),
    ),
    Family("resnet50", "https://arxiv.org/abs/1512.03385", _resnet50()),
    Family(
        "attention",
        "https://arxiv.org/abs/1706.03762",
        tuple(chain.from_iterable(scores_and_values(*shape) for shape in _ATTENTION_SHAPES)),
        TOKENS,
    ),
)
