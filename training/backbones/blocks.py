"""Blocks of a large net that can be recomputed in the backward pass, so that their results need not be kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


class Blocks(nn.Sequential):
    """A sequence of blocks; with `recompute` each keeps only its input (Chen et al., Training deep nets with sublinear
    memory cost, 2016)."""

    recompute = False

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  the base class's name
        for block in self:
            if self.recompute and torch.is_grad_enabled():
                input = checkpoint(block, input, use_reentrant=False, context_fn=partial(_contexts, block))  # noqa: A001
            else:
                input = block(input)  # noqa: A001
        return input


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _held_statistics(block)


@contextmanager
def _held_statistics(block: nn.Module) -> Iterator[None]:
    """Hold the running statistics for the block, so that recomputation doesn't update them a second time."""
    layers = [layer for layer in block.modules() if isinstance(layer, _BatchNorm)]
    kept = [(layer.momentum, layer.num_batches_tracked) for layer in layers]
    for layer in layers:
        layer.momentum, layer.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for layer, (momentum, tracked) in zip(layers, kept, strict=True):
            layer.momentum, layer.num_batches_tracked = momentum, tracked
