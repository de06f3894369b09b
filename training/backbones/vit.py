"""A plain vision transformer for faces (Dosovitskiy et al., ICLR 2021), in the sizes of InsightFace's ViT-T to ViT-L.

Two departures from the image classifier, both usual for aligned faces: no class token, and the head reads all tokens
at once (a face's parts are always in the same place, so each place may have its own weights).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from app.package.manifest import CROP_SIDE
from training.backbones.blocks import Blocks

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"channels": 256, "depth": 12, "heads": 8},
    "small": {"channels": 512, "depth": 12, "heads": 8},
    "base": {"channels": 512, "depth": 24, "heads": 8},
    "large": {"channels": 768, "depth": 24, "heads": 8},
}
"""Sizes of the transformers, as published with the WebFace42M models."""

DEFAULT_PATCH = 9
"""The published size: 12 x 12 tokens of 9 px cover 108 of the 112 pixels (1.5 and 5.7 GMACs). With 8 px, 14 x 14 tokens
cover all pixels, and cost a third more."""
MLP_RATIO = 4
INITIAL_STD = 0.02


class Attention(nn.Module):
    """Multi-head self-attention: (B, T, C) -> (B, T, C)."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(channels, channels * 3)
        self.out = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        # (B, T, 3C) -> three of (B, heads, T, C / heads)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class DropPath(nn.Module):
    """Stochastic depth (Huang et al., ECCV 2016): drops a sample's residual with probability ``rate`` in training."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        keep = torch.rand(x.shape[0], 1, 1, device=x.device) >= self.rate
        return x * keep.to(x.dtype) / (1 - self.rate)


class Layer(nn.Module):
    """Pre-norm transformer layer: (B, T, C) -> (B, T, C)."""

    def __init__(self, channels: int, heads: int, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(channels)
        self.attention = Attention(channels, heads)
        self.norm2 = nn.LayerNorm(channels)
        self.mlp = nn.Sequential(
            nn.Linear(channels, channels * MLP_RATIO), nn.GELU(), nn.Linear(channels * MLP_RATIO, channels)
        )
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.attention(self.norm1(x)))
        out: Tensor = x + self.drop_path(self.mlp(self.norm2(x)))
        return out


class FaceViT(nn.Module):
    """(B, 3, size, size) float in [-1, 1] -> (B, dim). Pixels that don't fill a patch are cropped evenly all around."""

    def __init__(
        self,
        dim: int = 512,
        *,
        channels: int = 256,
        depth: int = 12,
        heads: int = 8,
        patch: int = DEFAULT_PATCH,
        size: int = CROP_SIDE,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        side = size // patch
        self.crop = (size - side * patch) // 2
        self.used = side * patch
        self.patches = nn.Conv2d(3, channels, patch, patch)
        self.positions = nn.Parameter(torch.zeros(1, side * side, channels))
        rates = [drop_path * index / max(1, depth - 1) for index in range(depth)]
        self.layers = Blocks(*(Layer(channels, heads, rate) for rate in rates))
        self.norm = nn.LayerNorm(channels)
        self.head = nn.Sequential(
            nn.Linear(side * side * channels, channels, bias=False),
            nn.BatchNorm1d(channels),
            nn.Linear(channels, dim, bias=False),
            nn.BatchNorm1d(dim),
        )
        self.apply(_initialise)
        nn.init.trunc_normal_(self.positions, std=INITIAL_STD)

    def forward(self, x: Tensor) -> Tensor:
        inner = slice(self.crop, self.crop + self.used)
        tokens = self.patches(x[:, :, inner, inner]).flatten(2).transpose(1, 2)  # (B, C, s, s) -> (B, s*s, C)
        tokens = self.norm(self.layers(tokens + self.positions))
        out: Tensor = self.head(torch.flatten(tokens, 1))
        return out


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.trunc_normal_(module.weight, std=INITIAL_STD)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
