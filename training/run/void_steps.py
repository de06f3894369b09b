"""Steps whose gradient is not finite: they change nothing, and nobody waits for the device to know of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


class BufferCopy:
    """Every buffer of some modules (running statistics, counters) as it was when this was made."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        by_kind: dict[torch.dtype, list[Tensor]] = {}
        for module in modules:
            for buffer in module.buffers():
                by_kind.setdefault(buffer.dtype, []).append(buffer)
        self._buffers = list(by_kind.values())
        self._values = [_joined(buffers) for buffers in self._buffers]

    @torch.no_grad()
    def put_back(self, void: Tensor | None = None) -> None:
        """Restore the values; with `void`, a number on the device, only if that is 1."""
        for buffers, values in zip(self._buffers, self._values, strict=True):
            chosen = values if void is None else torch.where(void.bool(), values, _joined(buffers))
            parts = torch.split(chosen, [buffer.numel() for buffer in buffers])
            torch._foreach_copy_(buffers, [part.view_as(b) for part, b in zip(parts, buffers, strict=True)])


def _joined(buffers: list[Tensor]) -> Tensor:
    return torch.cat([buffer.flatten() for buffer in buffers])


@dataclass(frozen=True, slots=True)
class VoidCount:
    """Void steps: how many in all, in a row at last, most in a row since the last reading; the last one's number."""

    total: int
    in_a_row: int
    longest: int
    last: int


class VoidSteps:
    """Counts void steps on the device, to be read where the run logs."""

    def __init__(self, device: torch.device) -> None:
        self._counts = torch.tensor([0, 0, 0, -1], device=device)

    def add(self, void: Tensor, step: int) -> None:
        """Count step `step`; `void` is 1 if it changed nothing, else 0."""
        happened = void.long()
        total, in_a_row, longest, last = self._counts
        in_a_row = (in_a_row + 1) * happened
        counts = [total + happened, in_a_row, torch.maximum(longest, in_a_row), torch.where(void.bool(), step, last)]
        self._counts = torch.stack(counts)

    def read(self) -> VoidCount:
        """Return the counts. Waits for the device."""
        found = VoidCount(*self._counts.tolist())
        self._counts[2] = self._counts[1]
        return found

    def state(self) -> list[int]:
        return [int(count) for count in self._counts.tolist()]

    def restore(self, state: list[int]) -> None:
        self._counts.copy_(torch.tensor(state))
