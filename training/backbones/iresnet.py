"""IResNet: the residual network of ArcFace (Deng et al., CVPR 2019, section 3.1, "ResNet100E-IR").

Its "IR" block is BN-conv-BN-PReLU-conv(stride)-BN with nothing after the sum (from "Deep Pyramidal Residual Networks",
Han et al., CVPR 2017); the stem keeps all 112 pixels, four stages halve them to 7, the head is BN-dropout-linear-BN.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from app.package.manifest import CROP_SIDE
from training.backbones.blocks import Blocks

DEPTHS: dict[int, tuple[int, int, int, int]] = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 14, 3),
    100: (3, 13, 30, 3),
    200: (6, 26, 60, 6),
}
"""Blocks in each stage. Published for dim 512 at 112 px: 24.0, 34.1, 43.6 and 65.2 million parameters;
2.6, 4.5, 6.3 and 12.1 GMACs."""
SQUEEZE = 16
"""Ratio of the channels to those of a squeeze-and-excitation block's bottleneck (Hu et al., CVPR 2018)."""

STAGE_CHANNELS = (64, 128, 256, 512)
STRIDE = 16
"""Input pixels per pixel of the last map."""
PRELU_SLOPE = 0.25
"""The initial slope (He et al., ICCV 2015)."""


def scaled(channels: int, width: float) -> int:
    """Return ``channels`` times ``width`` as a multiple of 8, which suits vector units and tensor cores; at least 8."""
    return max(8, round(channels * width / 8) * 8)


def last_side(size: int) -> int:
    """Return the side of the last map for crops of this size. Raises ValueError unless it is a multiple of 16."""
    if size % STRIDE:
        raise ValueError(f"size must be a multiple of {STRIDE}, not {size}")
    return size // STRIDE


def initialise(module: nn.Module) -> None:
    """Initialise convolutions by He's (normal) and linear layers by Xavier's method, in place."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, a=PRELU_SLOPE, mode="fan_out", nonlinearity="leaky_relu")
        # fan_out counts all groups' channels, though each group sees only its own
        with torch.no_grad():
            module.weight.mul_(math.sqrt(module.groups))
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Linear):
        nn.init.xavier_normal_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


class Embedding(nn.Module):
    """BN, dropout, a linear layer over the whole last map, and BN without scale: (B, C, h, w) -> (B, dim)."""

    def __init__(self, channels: int, pixels: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(channels * pixels, dim)
        self.features = nn.BatchNorm1d(dim)
        # The losses scale the embedding. A learned scale here could shrink some of its dimensions.
        self.features.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.features(self.linear(torch.flatten(self.dropout(self.norm(x)), 1)))
        return out


class SqueezeExcitation(nn.Module):
    """Weights channels by the content of the whole map: (B, C, h, w) -> the same shape."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        few = max(1, channels // SQUEEZE)
        self.gate = nn.Sequential(nn.Conv2d(channels, few, 1), nn.ReLU(), nn.Conv2d(few, channels, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        gate: Tensor = self.gate(x.mean((2, 3), keepdim=True))
        return x * gate


class Block(nn.Module):
    """One IR block, or with ``se`` an IR-SE block: (B, inside, h, w) -> (B, outside, h/stride, w/stride)."""

    def __init__(self, inside: int, outside: int, stride: int, *, se: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inside),
            nn.Conv2d(inside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.PReLU(outside, PRELU_SLOPE),
            nn.Conv2d(outside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        if se:
            self.body.append(SqueezeExcitation(outside))
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False),
                nn.BatchNorm2d(outside),
            )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x) + self.shortcut(x)
        return out


class IResNet(nn.Module):
    """(B, 3, size, size) float in [-1, 1] -> (B, dim); ``size`` a multiple of 16, ``width`` multiplies all channels,
    ``se`` makes it an IR-SE net."""

    def __init__(
        self,
        blocks: tuple[int, int, int, int],
        dim: int = 512,
        *,
        size: int = CROP_SIDE,
        width: float = 1.0,
        dropout: float = 0.0,
        se: bool = False,
    ) -> None:
        super().__init__()
        channels = [scaled(c, width) for c in STAGE_CHANNELS]
        inside = channels[0]
        self.stem = nn.Sequential(
            nn.Conv2d(3, inside, 3, 1, 1, bias=False), nn.BatchNorm2d(inside), nn.PReLU(inside, PRELU_SLOPE)
        )
        stages: list[nn.Module] = []
        for outside, count in zip(channels, blocks, strict=True):
            for index in range(count):
                stages.append(Block(inside, outside, stride=2 if index == 0 else 1, se=se))
                inside = outside
        self.stages = Blocks(*stages)
        self.head = Embedding(inside, last_side(size) ** 2, dim, dropout)
        self.apply(initialise)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.stages(self.stem(x)))
        return out
