"""Layer shapes of further public models of images, sound, molecules and clicks, with the sizes in each source."""

from __future__ import annotations

from itertools import chain

from diode_collectors.problems.family_layers import (
    HUB,
    Family,
    Layer,
    convolution,
    encoder,
    linear,
    scores_and_values,
    vision,
)

_IMAGES = (1, 2, 8, 32, 64)
_STAGES = (56, 28, 14, 7)
"""Widths and heights of a hierarchical model's stages for images of 224 pixels."""
_EFFICIENTNET_B0 = (
    # output's width and height, channels in and out of a 1 x 1 convolution
    *((112, 32, 16), (112, 16, 96), (56, 96, 24), (56, 24, 144), (28, 144, 40), (28, 40, 240), (14, 240, 80)),
    *((14, 80, 480), (14, 480, 112), (14, 112, 672), (7, 672, 192), (7, 192, 1152), (7, 1152, 320), (7, 320, 1280)),
)
_MOBILENET_V2 = (
    # as above; the widths are those of the paper's table 2
    *((112, 32, 16), (112, 16, 96), (56, 96, 24), (56, 24, 144), (28, 144, 32), (28, 32, 192), (14, 192, 64)),
    *((14, 64, 384), (14, 384, 96), (14, 96, 576), (7, 576, 160), (7, 160, 960), (7, 960, 320), (7, 320, 1280)),
)
_CLICKS = (128, 2048, 8192, 32768)
_RAYS = (4096, 65536)
_RESIDUES = (192, 256, 384)


def _tokens(count: int) -> tuple[int, ...]:
    return tuple(count * images for images in _IMAGES)


def _swin_b() -> tuple[Layer, ...]:
    layers: list[Layer] = []
    for stage, (size, channels) in enumerate(zip(_STAGES, (128, 256, 512, 1024), strict=True), 1):
        m = _tokens(size * size)
        layers += [layer.of(f"stage{stage}/{layer.name}", m) for layer in encoder(channels, 4 * channels)]
        windows = (size // 7) ** 2 * channels // 32
        layers += [layer.of(f"stage{stage}/{layer.name}") for layer in scores_and_values(32, 49, 8 * windows)]
        if stage > 1:
            layers.append(linear(f"stage{stage}/merge", channels, 2 * channels, m=m))
    return tuple(layers)


def _convnext_l() -> tuple[Layer, ...]:
    stages = zip(_STAGES, (192, 384, 768, 1536), strict=True)
    return tuple(
        chain.from_iterable(
            (
                linear(f"{size}px/up", 4 * channels, channels, bias=True, m=_tokens(size * size)),
                linear(f"{size}px/down", channels, 4 * channels, bias=True, m=_tokens(size * size)),
            )
            for size, channels in stages
        )
    )


def _mlp_mixer_b16() -> tuple[Layer, ...]:
    channels = tuple(768 * images for images in _IMAGES)
    return (
        linear("patches", 768, 768, bias=True),
        linear("token_up", 384, 196, bias=True, m=channels),
        linear("token_down", 196, 384, bias=True, m=channels),
        linear("channel_up", 3072, 768, bias=True),
        linear("channel_down", 768, 3072, bias=True),
    )


def _sdxl_unet() -> tuple[Layer, ...]:
    layers: list[Layer] = []
    for size, channels in ((64, 640), (32, 1280)):
        m = tuple(images * 2 * size * size for images in (1, 4))
        layers += [
            linear(f"{size}px/q", channels, channels, m=m),
            linear(f"{size}px/out", channels, channels, bias=True, m=m),
            linear(f"{size}px/text_kv", channels, 2048, m=(154, 616)),
            linear(f"{size}px/geglu", 8 * channels, channels, bias=True, m=m),
            linear(f"{size}px/ff_out", channels, 4 * channels, bias=True, m=m),
            *(layer.of(f"{size}px/{layer.name}") for layer in scores_and_values(64, 77, channels // 32, size * size)),
        ]
    return tuple(layers)


def _alphafold2() -> tuple[Layer, ...]:
    pairs = tuple(n * n for n in _RESIDUES)
    triangles = (Layer(f"triangle-{n}", n, n, "bmm", layout, 128, (n,)) for n in _RESIDUES for layout in ("nt", "tn"))
    return (
        linear("pair_up", 512, 128, bias=True, m=pairs),
        linear("pair_down", 128, 512, bias=True, m=pairs),
        linear("pair_qkv", 384, 128, m=pairs),
        linear("pair_bias", 4, 128, m=pairs),
        linear("msa_up", 1024, 256, bias=True, m=tuple(512 * n for n in _RESIDUES)),
        linear("msa_qkv", 768, 256, m=tuple(512 * n for n in _RESIDUES)),
        *triangles,
    )


OTHER_FAMILIES = (
    Family("vit-h14", "https://arxiv.org/abs/2010.11929", vision(1280, 5120, 14, _IMAGES), _tokens(257)),
    Family(
        "clip-vit-l14",
        f"{HUB}/openai/clip-vit-large-patch14/blob/main/config.json",
        (*encoder(1024, 4096), *scores_and_values(64, 257, 16), *scores_and_values(64, 257, 128)),
        _tokens(257),
    ),
    Family(
        "siglip-so400m",
        f"{HUB}/google/siglip-so400m-patch14-384/blob/main/config.json",
        (*encoder(1152, 4304), *scores_and_values(72, 729, 16), *scores_and_values(72, 729, 128)),
        _tokens(729),
    ),
    Family(
        "dinov2-giant",
        f"{HUB}/facebook/dinov2-giant/blob/main/config.json",
        (
            linear("qkv", 4608, 1536, bias=True),
            linear("o", 1536, 1536, bias=True),
            linear("weights_in", 8192, 1536, bias=True),
            linear("weights_out", 1536, 4096, bias=True),
            *scores_and_values(64, 1370, 24),
        ),
        _tokens(257),
    ),
    Family(
        "deit-small",
        "https://arxiv.org/abs/2012.12877",
        (*vision(384, 1536, 16, _IMAGES), *scores_and_values(64, 197, 6), *scores_and_values(64, 197, 192)),
        _tokens(197),
    ),
    Family(
        "clip-text-l14",
        f"{HUB}/openai/clip-vit-large-patch14/blob/main/config.json",
        (*encoder(768, 3072), linear("projection", 768, 768, m=_IMAGES), *scores_and_values(64, 77, 96)),
        _tokens(77),
    ),
    Family(
        "sam-vit-h",
        f"{HUB}/facebook/sam-vit-huge/blob/main/config.json",
        (*encoder(1280, 5120), *scores_and_values(80, 196, 400), *scores_and_values(80, 4096, 16)),
        (4096, 4900, 16384, 19600),
    ),
    Family("mlp-mixer-b16", "https://arxiv.org/abs/2105.01601", _mlp_mixer_b16(), _tokens(196)),
    Family("swin-b", "https://arxiv.org/abs/2103.14030", _swin_b()),
    Family("convnext-l", "https://arxiv.org/abs/2201.03545", _convnext_l()),
    Family(
        "mobilenet-v2",
        "https://arxiv.org/abs/1801.04381",
        (
            *(convolution(f"{size}px-{c}-{into}", size, c, into, 1, _IMAGES) for size, c, into in _MOBILENET_V2),
            linear("classes", 1000, 1280, bias=True, m=_IMAGES),
        ),
    ),
    Family(
        "efficientnet-b0",
        "https://arxiv.org/abs/1905.11946",
        (
            *(convolution(f"{size}px-{c}-{into}", size, c, into, 1, _IMAGES) for size, c, into in _EFFICIENTNET_B0),
            linear("classes", 1000, 1280, bias=True, m=_IMAGES),
        ),
    ),
    Family(
        "dit-xl-2",
        "https://arxiv.org/abs/2212.09748",
        (
            *encoder(1152, 4608),
            linear("modulation", 6912, 1152, bias=True, m=(2, 8, 32, 128)),
            linear("final", 32, 1152, bias=True),
            *scores_and_values(72, 256, 16),
            *scores_and_values(72, 256, 256),
        ),
        tuple(256 * images for images in (1, 2, 8, 32)),
    ),
    Family(
        "sd3-medium",
        "https://arxiv.org/abs/2403.03206",
        (
            *encoder(1536, 6144),
            linear("modulation", 9216, 1536, bias=True, m=(2, 8, 32)),
            linear("context", 1536, 4096, bias=True, m=(154, 333, 666)),
            linear("image_in", 1536, 64, bias=True),
            linear("image_out", 64, 1536, bias=True),
            *scores_and_values(64, 1357, 48),
        ),
        (154, 333, 1024, 4096, 8192),
    ),
    Family(
        "flux-dev",
        f"{HUB}/black-forest-labs/FLUX.1-dev/blob/main/transformer/config.json",
        (
            linear("qkv", 9216, 3072, bias=True),
            linear("proj", 3072, 3072, bias=True),
            linear("mlp_in", 12288, 3072, bias=True),
            linear("mlp_out", 3072, 12288, bias=True),
            linear("single_in", 21504, 3072, bias=True),
            linear("single_out", 3072, 15360, bias=True),
            linear("context_in", 3072, 4096, bias=True),
            linear("image_in", 3072, 64, bias=True),
            linear("image_out", 64, 3072, bias=True),
        ),
        (512, 1024, 1536, 4096, 4608),
    ),
    Family(
        "sdxl-unet",
        f"{HUB}/stabilityai/stable-diffusion-xl-base-1.0/blob/main/unet/config.json",
        _sdxl_unet(),
    ),
    Family(
        "wav2vec2-large",
        f"{HUB}/facebook/wav2vec2-large-960h/blob/main/config.json",
        (
            *encoder(1024, 4096),
            linear("features", 512, 1536),
            linear("projection", 1024, 512, bias=True),
            linear("letters", 32, 1024, bias=True),
            *scores_and_values(64, 499, 16),
        ),
        (49, 149, 499, 1996, 7984),
    ),
    Family(
        "conformer-l",
        "https://arxiv.org/abs/2005.08100",
        (
            *encoder(512, 2048),
            linear("pointwise_in", 1024, 512, bias=True),
            linear("pointwise_out", 512, 512, bias=True),
            linear("predictor", 2560, 640, bias=True, m=(1, 8, 32, 256)),
            linear("joint", 1025, 640, bias=True),
            *scores_and_values(64, 375, 64),
        ),
        (93, 375, 750, 3000, 12000),
    ),
    Family(
        "whisper-small",
        f"{HUB}/openai/whisper-small/blob/main/config.json",
        (*encoder(768, 3072), linear("vocabulary", 51865, 768, m=(2, 5, 16, 64, 224))),
        (2, 5, 16, 64, 224, 448, 1500, 3000, 12000),
    ),
    Family(
        "whisper-tiny",
        f"{HUB}/openai/whisper-tiny/blob/main/config.json",
        (*encoder(384, 1536), linear("vocabulary", 51865, 384, m=(2, 5, 16, 64, 224))),
        (2, 5, 16, 64, 224, 448, 1500, 3000, 12000),
    ),
    Family("alphafold2", "https://doi.org/10.1038/s41586-021-03819-2", _alphafold2()),
    Family(
        "dlrm",
        "https://arxiv.org/abs/1906.00091",
        (
            linear("bottom1", 512, 13, bias=True),
            linear("bottom2", 256, 512, bias=True),
            linear("bottom3", 128, 256, bias=True),
            linear("top1", 1024, 479, bias=True),
            linear("top2", 1024, 1024, bias=True),
            linear("top3", 512, 1024, bias=True),
            linear("top4", 256, 512, bias=True),
            linear("click", 1, 256, bias=True),
            *(Layer(f"interaction-{b}", 27, 128, "bmm", "nt", b, (27,)) for b in (512, 8192)),
        ),
        _CLICKS,
    ),
    Family(
        "dcn-v2",
        "https://arxiv.org/abs/2008.13535",
        (
            # Criteo's 13 numbers, and 26 categories as embeddings of 16 (of 39 in the paper).
            linear("cross", 429, 429, bias=True),
            linear("deep1", 768, 429, bias=True),
            linear("deep2", 768, 768, bias=True),
            linear("click", 1, 1197, bias=True),
        ),
        _CLICKS,
    ),
    Family(
        "deepfm",
        "https://arxiv.org/abs/1703.04247",
        (
            linear("deep1", 400, 390, bias=True),
            linear("deep2", 400, 400, bias=True),
            linear("click", 1, 400, bias=True),
        ),
        _CLICKS,
    ),
    Family(
        "mnist-mlp",
        "https://arxiv.org/abs/1207.0580",
        (
            linear("input", 800, 784, bias=True),
            linear("hidden", 800, 800, bias=True),
            linear("digits", 10, 800, bias=True),
        ),
        (32, 100, 256, 1000, 10000),
    ),
    Family(
        "pinn",
        "https://arxiv.org/abs/1711.10561",
        (
            linear("input", 100, 2, bias=True),
            linear("hidden", 100, 100, bias=True),
            linear("output", 2, 100, bias=True),
        ),
        (50, 1000, 20000),
    ),
    Family(
        "nerf",
        "https://arxiv.org/abs/2003.08934",
        (
            linear("position", 256, 63, bias=True),
            linear("hidden", 256, 256, bias=True),
            linear("skip", 256, 319, bias=True),
            linear("direction", 128, 283, bias=True),
            linear("colour", 3, 128, bias=True),
        ),
        _RAYS,
    ),
    Family(
        "graphsage",
        "https://arxiv.org/abs/1706.02216",
        (
            linear("reddit1", 256, 602, bias=True, m=(512, 5120, 232965)),
            linear("reddit2", 41, 256, bias=True, m=(512, 5120, 232965)),
            linear("ppi1", 256, 50, bias=True, m=(512, 5120, 56944)),
            linear("ppi2", 121, 256, bias=True, m=(512, 5120, 56944)),
        ),
    ),
    Family(
        "graph-convolution",
        "https://arxiv.org/abs/1609.02907",
        (
            linear("cora1", 16, 1433, m=(2708,)),
            linear("cora2", 7, 16, m=(2708,)),
            linear("pubmed1", 16, 500, m=(19717,)),
            linear("pubmed2", 3, 16, m=(19717,)),
            linear("arxiv1", 256, 128, m=(169343,)),
            linear("arxiv2", 40, 256, m=(169343,)),
        ),
    ),
)
