"""Choose the number format of the backbone, and the factor that keeps fp16's gradients from vanishing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor, nn

Precision = Literal["fp32", "bf16", "fp16"]
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
FIRST_SCALE, GROWTH_STEPS = 2.0**16, 2000
"""First scale of the loss, and steps until it is doubled, as in Micikevicius et al., Mixed precision training, 2018,
and torch's GradScaler."""


def choose(wanted: Literal["auto"] | Precision, device: torch.device, model: nn.Module) -> Precision:
    """Return the wanted precision, or for `auto` the one that the device computes this network fastest in.

    On a GPU: bf16 from compute capability 8 on, but fp16 for networks with depthwise convolutions, whose gradient is
    very slow in bf16 (docs/explanation/performance.md); fp16 from 7 on. On a CPU: bf16 if it has AMX, but fp32 for such
    networks.
    """
    if wanted != "auto":
        return wanted
    depthwise = _is_depthwise(model)
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)[0]
        return "bf16" if capability >= 8 and not depthwise else "fp16" if capability >= 7 else "fp32"
    return "bf16" if has_amx() and not depthwise else "fp32"


def warning(precision: Precision, device: torch.device, model: nn.Module) -> str | None:
    """Return why this precision may be slow here, or None."""
    if device.type == "cpu" and precision != "fp32" and not has_amx():
        return f'this processor has no AMX: {precision} may be several times slower than "fp32".'
    if device.type == "cuda" and precision == "bf16" and _is_depthwise(model):
        return 'bf16 is slow in depthwise convolutions on GPUs: "fp16" may be many times faster.'
    return None


def has_amx() -> bool:
    """Return whether this processor multiplies matrices of bf16 in hardware."""
    return torch.cpu._is_amx_tile_supported()


def _is_depthwise(model: nn.Module) -> bool:
    return any(isinstance(layer, nn.Conv2d) and layer.groups > 1 for layer in model.modules())


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    return nullcontext() if precision == "fp32" else torch.autocast(device.type, dtype=TYPES[precision])


class LossScale:
    """The factor of the loss in fp16: halved by a void step, doubled after GROWTH_STEPS good steps; 1 unless `used`.

    torch's GradScaler waits for the device at every step; this one doesn't.
    """

    def __init__(self, device: torch.device, *, used: bool) -> None:
        self.used = used
        self.value = torch.full((), FIRST_SCALE if used else 1.0, device=device)
        self._good = torch.zeros((), device=device)

    def update(self, void: Tensor) -> None:
        """Count a step; `void` is 1 if its gradient was not finite, else 0."""
        if not self.used:
            return
        good = (self._good + 1) * (1 - void)
        grown = torch.where(good >= GROWTH_STEPS, 2.0, 1.0)
        self.value = self.value * torch.where(void.bool(), 0.5, grown)
        self._good = good % GROWTH_STEPS

    def state(self) -> dict[str, float]:
        return {"value": float(self.value), "good": float(self._good)}

    def restore(self, state: dict[str, float]) -> None:
        if self.used and state["value"] != 1.0:
            self.value.fill_(state["value"])
            self._good.fill_(state["good"])
