"""Keep a step with a gradient or loss that isn't finite from changing anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from training import collectives
from training.run.faults import BufferCopy, VoidCount, VoidSteps
from training.run.precision import LossScale


class StepGuard:
    """Takes each optimiser step, or skips one that would spoil the run: a void step.

    Everything stays on the device, so that no step waits for it. `scaled`: the loss is multiplied by a factor that
    keeps fp16's gradients from vanishing.
    """

    def __init__(self, device: torch.device, *, scaled: bool) -> None:
        self._scale = LossScale(device, used=scaled)
        self._counts = VoidSteps(device)
        self._buffers = self._loss_buffers = BufferCopy(())

    @property
    def scale(self) -> Tensor:
        """Return the factor of the loss and of its gradients; 1 unless `scaled`."""
        return self._scale.value

    @property
    def searches_scale(self) -> bool:
        """Return whether void steps are expected: fp16 finds its factor by overflowing. Waits for the device."""
        return self._scale.used and float(self._scale.value) > 1

    def begin(self, model: nn.Module, objective: nn.Module) -> None:
        """Save both modules' buffers (running statistics, counters) before a step's batches change them."""
        self._buffers, self._loss_buffers = BufferCopy([model, objective]), BufferCopy([objective])

    def begin_further_batch(self) -> None:
        """Restore the objective's buffers, since the losses' running statistics change once per step, not per batch."""
        self._loss_buffers.put_back()

    def step(self, optimizer: torch.optim.Optimizer, norm: Tensor, losses: Sequence[Tensor], number: int) -> Tensor:
        """Step the optimiser and return 0. If the gradient's `norm` or one of the `losses` is not finite on some rank,
        leave everything as it was before step `number` and return 1."""
        finite = torch.isfinite(torch.stack([norm, *losses])).all()
        void = collectives.largest((~finite).float())
        if getattr(optimizer, "_step_supports_amp_scaling", False):  # torch's fused optimisers, and ours
            optimizer.found_inf = void  # type: ignore[attr-defined]  # makes them not step
            optimizer.step()
        elif not bool(void):  # for other optimisers the host has to decide
            optimizer.step()
        self._buffers.put_back(void)
        self._scale.update(void)
        self._counts.add(void, number)
        optimizer.zero_grad(set_to_none=True)
        return void

    def read(self) -> VoidCount:
        """Return how many steps were void. Waits for the device."""
        return self._counts.read()

    def state(self) -> dict[str, Any]:
        return {"loss_scale": self._scale.state(), "void_steps": self._counts.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state from a checkpoint, which may hold more."""
        self._scale.restore(state["loss_scale"])
        self._counts.restore(state["void_steps"])
