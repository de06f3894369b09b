"""Low-rank adapters of linear layers (Hu et al., "LoRA: Low-rank adaptation of large language models", ICLR 2022).

The layer's own weights stay as they are; a product of two thin matrices is learned and added to them. It begins at 0,
and is added into the weights for good when the model is exported.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize


class LowRank(nn.Module):
    """(out, in) weights -> the same plus B·A, B (out, rank) and A (rank, in)."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        outside, inside = weight.shape
        self.a = nn.Parameter(torch.empty(rank, inside, dtype=weight.dtype))
        self.b = nn.Parameter(torch.zeros(outside, rank, dtype=weight.dtype))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))  # as the authors' code does

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.b @ self.a


def add_adapters(network: nn.Module, rank: int) -> int:
    """Give every linear layer that is larger than them adapters of this rank, and freeze its weights; return how
    many."""
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear) and min(layer.weight.shape) > rank]
    for layer in layers:
        layer.weight.requires_grad_(False)
        parametrize.register_parametrization(layer, "weight", LowRank(layer.weight, rank))
    return len(layers)


def merge_adapters(network: nn.Module) -> None:
    """Add all adapters into the weights they belong to, in place."""
    for layer in network.modules():
        if parametrize.is_parametrized(layer, "weight"):
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
