"""Times packages, and networks in PyTorch, against each other: the same crops through each in turn, round by round,
so that other load on the machine slows all of them alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np

from app.calibration.intervals import Interval
from app.types import Pixels, Vectors
from training.evaluation.speed.contest import contest


class Precision(StrEnum):
    """The format of numbers in which a net in PyTorch computes."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


class Runs(Protocol):
    """A package's session, or a net in PyTorch."""

    def run(self, crops: Pixels) -> Vectors:
        """(N, 112, 112, 3) uint8 RGB -> (N, D) float32 unit vectors."""
        ...


@dataclass(frozen=True, slots=True)
class Speed:
    """Milliseconds a crop: the median over rounds. ``ratio`` is the first one's time over this one's in the same
    round (2: twice as fast): median, and the middle half of the rounds as its low and high."""

    package: str
    batch: int
    milliseconds: float
    ratio: Interval


def compare_speed(
    sessions: Mapping[str, Runs], batch: int, *, rounds: int, progress: Callable[[int], None] = lambda _turns: None
) -> list[Speed]:
    """Time every one on the same random crops, `batch` a call; ``progress`` counts the turns, a warm round included."""
    crops = np.random.default_rng(0).integers(0, 256, (batch, 112, 112, 3), np.uint8)

    def contender(session: Runs) -> Callable[[], int]:
        return lambda: len(session.run(crops))

    speeds = contest(
        {name: contender(session) for name, session in sessions.items()}, rounds, say=lambda _turn: progress(1)
    )
    first = next(iter(sessions))
    ratios = {name: speeds.ratio(name, first) for name in sessions}
    return [
        Speed(name, batch, 1000 / speeds.of(name).median, Interval(ratio.median, ratio.low, ratio.high))
        for name, ratio in ratios.items()
    ]
