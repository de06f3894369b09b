"""Low-rank adapters (Hu et al., "LoRA: Low-rank adaptation of large language models", ICLR 2022).

A network's own weights stay as they are; a product of two thin matrices is learned for each linear layer and
convolution and added to its weights. It begins at 0, and is added in for good when the model is exported.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

ADAPTED = (nn.Linear, nn.Conv1d, nn.Conv2d)


class LowRank(nn.Module):
    """(out, …) weights -> the same plus B·A, B (out, rank) and A (rank, the rest); a kernel counts as one matrix."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        outside, inside = weight.flatten(1).shape
        self.a = nn.Parameter(torch.empty(rank, inside, dtype=weight.dtype))
        self.b = nn.Parameter(torch.zeros(outside, rank, dtype=weight.dtype))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))  # as the authors' code does

    def forward(self, weight: Tensor) -> Tensor:
        return weight + (self.b @ self.a).view_as(weight)


def add_adapters(network: nn.Module, rank: int) -> int:
    """Freeze the network, and give adapters of this rank to every linear layer and convolution whose weights are a
    larger matrix; return how many. Nothing but adapters learns."""
    network.requires_grad_(False)
    layers = [
        layer for layer in network.modules() if isinstance(layer, ADAPTED) and min(layer.weight.flatten(1).shape) > rank
    ]
    for layer in layers:
        parametrize.register_parametrization(layer, "weight", LowRank(layer.weight, rank))
    return len(layers)


def merge_adapters(network: nn.Module) -> None:
    """Add all adapters into the weights they belong to, in place."""
    for layer in network.modules():
        if parametrize.is_parametrized(layer, "weight"):
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
