"""A diffusion model of ``bench_models_gpu.py`` that consists of convolutions: a U-Net as wide as SDXL's."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

_GROUPS = 32


class UNet(nn.Module):
    """Residual blocks at falling and then at rising resolutions, without attention.

    Args:
        channels: channels of the latents.
        widths: channels at each resolution, the highest first; multiples of 32.
    """

    def __init__(self, channels: int = 4, widths: tuple[int, ...] = (320, 640, 1280)) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, widths[0], 3, padding=1)
        self.down = nn.ModuleList(_Residual(width, width) for width in widths)
        self.shrink = nn.ModuleList(
            nn.Conv2d(wide, narrow, 3, stride=2, padding=1) for wide, narrow in pairwise(widths)
        )
        self.middle = _Residual(widths[-1], widths[-1])
        self.up = nn.ModuleList(_Residual(2 * width, width) for width in reversed(widths))
        self.grow = nn.ModuleList(nn.Conv2d(wide, narrow, 3, padding=1) for wide, narrow in pairwise(widths[::-1]))
        self.last = nn.Conv2d(widths[0], channels, 3, padding=1)

    def forward(self, latents: Tensor) -> Tensor:
        """Map (images, channels, height, width) to the same."""
        x, seen = self.first(latents), []
        for place, block in enumerate(self.down):
            x = block(x)
            seen.append(x)
            if place < len(self.shrink):
                x = self.shrink[place](x)
        x = self.middle(x)
        for place, block in enumerate(self.up):
            x = block(torch.cat([x, seen.pop()], dim=1))
            if place < len(self.grow):
                x = self.grow[place](functional.interpolate(x, scale_factor=2.0))
        result: Tensor = self.last(x)
        return result


class _Residual(nn.Module):
    """Two convolutions of 3 x 3, and a 1 x 1 one beside them where the channels change."""

    def __init__(self, channels: int, into: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList((nn.GroupNorm(_GROUPS, channels), nn.GroupNorm(_GROUPS, into)))
        self.convolutions = nn.ModuleList(
            (nn.Conv2d(channels, into, 3, padding=1), nn.Conv2d(into, into, 3, padding=1))
        )
        self.beside = nn.Conv2d(channels, into, 1) if channels != into else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            y = convolution(functional.silu(norm(y)))
        result: Tensor = self.beside(x) + y
        return result
