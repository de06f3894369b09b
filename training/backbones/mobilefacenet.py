"""MobileFaceNet (Chen et al., "MobileFaceNets: Efficient CNNs for Accurate Real-time Face Verification on Mobile
Devices", CCBR 2018, arXiv 1804.07573, table 1).

Inverted residuals, PReLU, and a global depthwise convolution in place of pooling.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from app.package.manifest import CROP_SIDE
from training.backbones.iresnet import PRELU_SLOPE, initialise, last_side, scaled

TRUNK = (64, 64, 128, 128)
"""Channels of the stem and of the three stages (table 1)."""
STAGE_EXPANDED = (128, 256, 256)
"""Expanded channels of the stages' residual bottlenecks (t = 2 of 64, 128, 128)."""
DOWN_EXPANDED = (128, 256, 512)
"""Expanded channels of the three bottlenecks with stride 2 (t = 2 of 64, t = 4 of 64, t = 4 of 128)."""
SEPARATED = 512
"""Channels before the global depthwise convolution."""
PAPER_BLOCKS = (0, 4, 6, 2)
"""Residual bottlenecks at 56 pixels and after each of the three with stride 2. InsightFace's ``mbf`` has the
same with ``trunk=2`` and dim 512: 2.06 M parameters, 434 M MACs (theirs differ only in a first grouped convolution)."""


def convolution(inside: int, outside: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, BN, PReLU."""
    return nn.Sequential(*linear(inside, outside, kernel, stride, groups), nn.PReLU(outside, PRELU_SLOPE))


def linear(inside: int, outside: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution and BN with no activation (the paper's "linear" layers)."""
    return nn.Sequential(
        nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(outside)
    )


class Bottleneck(nn.Module):
    """Expand (1x1), depthwise (3x3), project (1x1, linear); with ``residual``, the input is added."""

    def __init__(self, inside: int, outside: int, expanded: int, stride: int, *, residual: bool) -> None:
        super().__init__()
        self.residual = residual
        self.body = nn.Sequential(
            convolution(inside, expanded),
            convolution(expanded, expanded, 3, stride, groups=expanded),
            linear(expanded, outside),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return x + out if self.residual else out


class GlobalDepthwise(nn.Module):
    """One weight per channel and pixel in place of pooling (section 3.1), then linear, BN: (B, C, h, h) -> (B, dim)."""

    def __init__(self, channels: int, side: int, dim: int) -> None:
        super().__init__()
        self.pool = nn.Sequential(
            nn.Conv2d(channels, channels, side, groups=channels, bias=False), nn.BatchNorm2d(channels)
        )
        self.linear = nn.Linear(channels, dim, bias=False)
        self.norm = nn.BatchNorm1d(dim)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.linear(torch.flatten(self.pool(x), 1)))
        return out


class MobileFaceNet(nn.Module):
    """(B, 3, size, size) float in [-1, 1] -> (B, dim); ``size`` a multiple of 16.

    The paper's net has dim 128 at 112 px: 221 M MACs and, with BN folded as in the exported graph, 0.99 M parameters.
    ``width`` multiplies every channel count (0.5 costs about a quarter, which suits two CPU cores), ``trunk`` only
    those between bottlenecks; ``blocks`` are the residual bottlenecks of each stage, the first at 56 pixels.
    """

    def __init__(
        self,
        dim: int = 512,
        *,
        size: int = CROP_SIDE,
        width: float = 1.0,
        trunk: float = 1.0,
        blocks: tuple[int, int, int, int] = PAPER_BLOCKS,
    ) -> None:
        super().__init__()
        channels = [scaled(c, width * trunk) for c in TRUNK]
        layers: list[nn.Module] = [convolution(3, channels[0], 3, 2)]
        layers.append(convolution(channels[0], channels[0], 3, groups=channels[0]))
        layers += _residuals(channels[0], scaled(STAGE_EXPANDED[0], width), blocks[0])
        for stage in range(3):
            down = scaled(DOWN_EXPANDED[stage], width)
            layers.append(Bottleneck(channels[stage], channels[stage + 1], down, 2, residual=False))
            layers += _residuals(channels[stage + 1], scaled(STAGE_EXPANDED[stage], width), blocks[stage + 1])
        separated = scaled(SEPARATED, width)
        layers.append(convolution(channels[-1], separated))
        self.layers = nn.Sequential(*layers)
        self.head = GlobalDepthwise(separated, last_side(size), dim)
        self.apply(initialise)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layers(x))
        return out


def _residuals(channels: int, expanded: int, count: int) -> list[nn.Module]:
    return [Bottleneck(channels, channels, expanded, 1, residual=True) for _ in range(count)]
