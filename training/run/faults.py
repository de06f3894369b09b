"""Handle faults of a run: steps whose gradient is not finite, runs that collapse although their loss looks good, and
signals to stop.

A void step changes nothing, and is counted without waiting for the device. A run stops between two steps, so that it
loses nothing it has learned.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BufferCopy:
    """A copy of every buffer of some modules (running statistics, counters)."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        by_kind: dict[torch.dtype, list[Tensor]] = {}
        for module in modules:
            for buffer in module.buffers():
                by_kind.setdefault(buffer.dtype, []).append(buffer)
        self._buffers = list(by_kind.values())
        self._values = [_joined(buffers) for buffers in self._buffers]

    @torch.no_grad()
    def put_back(self, void: Tensor | None = None) -> None:
        """Restore the values. If `void` is given, a number on the device, they are restored only if `void` is 1."""
        for buffers, values in zip(self._buffers, self._values, strict=True):
            chosen = values if void is None else torch.where(void.bool(), values, _joined(buffers))
            parts = torch.split(chosen, [buffer.numel() for buffer in buffers])
            torch._foreach_copy_(buffers, [part.view_as(b) for part, b in zip(parts, buffers, strict=True)])


def _joined(buffers: list[Tensor]) -> Tensor:
    return torch.cat([buffer.flatten() for buffer in buffers])


@dataclass(frozen=True, slots=True)
class VoidCount:
    """Counts of void steps: all of them; those in a row at the end; the longest row since the last reading. And the
    number of the last void step."""

    total: int
    in_a_row: int
    longest: int
    last: int


class VoidSteps:
    """Counts void steps on the device; the run reads the counts when it logs."""

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
        counts = VoidCount(*self._counts.tolist())
        self._counts[2] = self._counts[1]
        return counts

    def state(self) -> list[int]:
        return [int(count) for count in self._counts.tolist()]

    def restore(self, state: list[int]) -> None:
        self._counts.copy_(torch.tensor(state))


FALLEN = 0.8
"""The loss counts as fallen if it is below this share of the first logged loss."""
PATIENCE = 5
"""Number of logs in a row that must show the problem before the alarm."""
ALIKE = 0.99
"""From this mean score between the crops of a batch on, all embeddings count as alike."""


class CollapseAlarm:
    """Warns if the loss falls while accuracy stays 0 (beyond θ = π − m a margin rewards moving away), if all embeddings
    are alike, or if embeddings have length zero, for which most losses have no gradient.

    `observe` returns one warning for each such episode.
    """

    def __init__(self, people: int) -> None:
        self._chance = 2 / people
        self._first: float | None = None
        self._in_a_row = {"wrong": 0, "alike": 0, "zero": 0}

    def observe(self, loss: float, accuracy: float | None, embeddings: Tensor) -> str | None:
        """Return a warning if the batch shows a new problem. `accuracy` is that of the class-level head, 0…1, or None
        if there is no head; `embeddings` are (B, D)."""
        self._first = loss if self._first is None else self._first
        unit = F.normalize(embeddings.float())
        count = len(unit)
        pairs = count * (count - 1)  # 0 if this rank's share of a batch is a single crop
        mean = (float(unit.sum(dim=0).square().sum()) - count) / pairs if pairs else 0.0
        zeros = int((embeddings == 0).all(dim=1).sum())
        wrong = accuracy is not None and accuracy <= self._chance and loss < FALLEN * self._first
        for problem, there in {"wrong": wrong, "alike": mean > ALIKE, "zero": zeros > 0}.items():
            self._in_a_row[problem] = self._in_a_row[problem] + 1 if there else 0
        warnings = {
            "wrong": "the loss falls but accuracy stays at chance: the margin is satisfied by moving away from the "
            'class. Warm the margin up (schedule.margin_warmup), lower s or m, or use grad = "detached".',
            "alike": f"all embeddings point the same way (mean score {mean:.3f}): the net has collapsed; lower the "
            "rates.",
            "zero": f"{zeros} of {count} embeddings are zero, which teaches the net nothing: lower the rates.",
        }
        return next((text for problem, text in warnings.items() if self._in_a_row[problem] == PATIENCE), None)

    def state(self) -> dict[str, Any]:
        return {"first": self._first, **self._in_a_row}

    def restore(self, state: dict[str, Any]) -> None:
        self._first = state["first"]
        # Older runs may lack one of the counts.
        self._in_a_row = {problem: state.get(problem, 0) for problem in self._in_a_row}


SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_signals() -> Iterator[list[str]]:
    """Yield a list that gets the name of the first SIGTERM or SIGINT while the block runs; a second signal ends the
    process as usual.

    Outside of the main thread, where Python can't handle signals, the list stays empty.
    """
    names: list[str] = []
    before: dict[signal.Signals, Any] = {}

    def note(number: int, _frame: FrameType | None) -> None:
        names.append(signal.Signals(number).name)
        restore()

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    if threading.current_thread() is threading.main_thread():
        before |= {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield names
    finally:
        restore()
