"""A trained network in PyTorch with the interface of a package's session, to time the two in turn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from app.inference.prepare import Target
from app.types import Pixels, Vectors
from training import checkpoint
from training.evaluation.speed import Precision, Runs
from training.recipe import Recipe

DTYPES = {Precision.FP32: None, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


class InTorch:
    """A network in PyTorch: (N, 112, 112, 3) uint8 RGB -> (N, D) float32 unit vectors; autocast unless ``precision``
    is fp32.
    """

    def __init__(self, module: nn.Module, device: str, precision: Precision) -> None:
        self._module, self._device, self._dtype = module, torch.device(device), DTYPES[precision]

    @torch.inference_mode()
    def run(self, crops: Pixels) -> Vectors:
        images = torch.from_numpy(crops).to(self._device)
        with torch.autocast(self._device.type, dtype=self._dtype, enabled=self._dtype is not None):
            vectors = self._module(images)
        found: Vectors = np.asarray(vectors.float().cpu().numpy(), np.float32)
        return found


def open_run(
    source: Path, device: Target, precisions: Sequence[Precision], *, compiled: bool, threads: int
) -> dict[str, Runs]:
    """Return the network of a run or checkpoint in each precision, with ``compiled`` also by torch.compile, by display
    name.

    ``threads`` applies to all of this process's PyTorch. Raises NotFound (``checkpoint_not_found``).
    """
    torch.set_num_threads(threads)
    saved = checkpoint.load(checkpoint.resolve(source))
    recipe = Recipe.model_validate(saved.state["recipe"])
    module = checkpoint.trained_embedder(saved, recipe).to(device)
    ways: dict[str, Any] = {"PyTorch": module}
    if compiled:
        ways["PyTorch, compiled"] = torch.compile(module, dynamic=False)
    return {
        f"{recipe.name} in {way}, {precision}": InTorch(each, device, precision)
        for precision in precisions
        for way, each in ways.items()
    }
