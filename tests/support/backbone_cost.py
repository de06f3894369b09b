"""What a backbone costs: its parameters, and its multiply-accumulates for one crop."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from training.backbones.vit import Attention


@dataclass(frozen=True, slots=True)
class Cost:
    """``macs`` counts convolutions, linear layers and attention, as papers do: a norm folds away, the rest is small."""

    parameters: int
    macs: int


def measure(backbone: nn.Module, size: int = 112) -> Cost:
    """Count the cost of one (3, size, size) crop by running it once. The mode (train, eval) is kept."""
    macs = 0

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal macs
        macs += _macs(module, inputs[0], output)

    handles: list[RemovableHandle] = [
        module.register_forward_hook(count)
        for module in backbone.modules()
        if isinstance(module, nn.Conv2d | nn.Linear | Attention)
    ]
    training = backbone.training
    device = next(backbone.parameters()).device
    try:
        with torch.no_grad():
            backbone.eval()(torch.zeros(1, 3, size, size, device=device))
    finally:
        backbone.train(training)
        for handle in handles:
            handle.remove()
    return Cost(parameters=sum(p.numel() for p in backbone.parameters()), macs=macs)


def _macs(module: nn.Module, x: Tensor, output: Tensor) -> int:
    if isinstance(module, nn.Conv2d):
        height, width = module.kernel_size
        return output.numel() * (module.in_channels // module.groups) * height * width
    if isinstance(module, nn.Linear):
        return output.numel() * module.in_features
    _, tokens, channels = x.shape
    return 2 * tokens * tokens * channels  # queries by keys, then weights by values; its linear layers count themselves
