"""Detects a run that collapses although its loss looks good."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

FALLEN = 0.8
"""The loss counts as fallen below this share of the first one logged."""
PATIENCE = 5
"""Logs in a row before the alarm."""
ALIKE = 0.99
"""Mean score between a batch's crops from which on all embeddings are one."""


class CollapseAlarm:
    """Warns of a loss that falls while accuracy is 0 (a margin beyond π − m rewards moving away), of embeddings that
    are all alike, and of embeddings of length zero, which get no gradient from most losses.

    `observe` answers a warning once in each such episode.
    """

    def __init__(self, people: int) -> None:
        self._chance = 2 / people
        self._first: float | None = None
        self._wrong = 0
        self._alike = 0
        self._zero = 0

    def observe(self, loss: float, accuracy: float | None, embeddings: Tensor) -> str | None:
        """Return a warning if the batch shows a new problem. `accuracy` of the class-level head in 0…1, None without
        one; `embeddings` (B, D).
        """
        self._first = loss if self._first is None else self._first
        wrong = accuracy is not None and accuracy <= self._chance and loss < FALLEN * self._first
        self._wrong = self._wrong + 1 if wrong else 0
        unit = F.normalize(embeddings.float())
        count = len(unit)
        pairs = count * (count - 1)  # none where this rank's share of a batch is a single crop
        mean = (float(unit.sum(dim=0).square().sum()) - count) / pairs if pairs else 0.0
        self._alike = self._alike + 1 if mean > ALIKE else 0
        zeros = int((embeddings == 0).all(dim=1).sum())
        self._zero = self._zero + 1 if zeros else 0
        if self._wrong == PATIENCE:
            return (
                "the loss falls but accuracy stays at chance: the margin is satisfied by moving away from the class. "
                'Warm the margin up (schedule.margin_warmup), lower s or m, or use grad = "detached".'
            )
        if self._alike == PATIENCE:
            return f"all embeddings point the same way (mean score {mean:.3f}): the net has collapsed; lower the rates."
        if self._zero == PATIENCE:
            return f"{zeros} of {count} embeddings are zero, which teaches the net nothing: lower the rates."
        return None

    def state(self) -> dict[str, Any]:
        return {"first": self._first, "wrong": self._wrong, "alike": self._alike, "zero": self._zero}

    def restore(self, state: dict[str, Any]) -> None:
        self._first, self._wrong, self._alike = state["first"], state["wrong"], state["alike"]
        self._zero = state.get("zero", 0)  # runs from before it was counted
