"""Times packages, and networks in PyTorch, against each other: the same crops through each in turn, round by round,
so that other load on the machine slows all of them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.calibration.intervals import Interval
from app.types import Pixels, Vectors

CALLS = 20
"""Least number of crops a package embeds in one round: long compared with the clock's resolution, and still short."""


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
    sessions: Mapping[str, Runs],
    batch: int,
    *,
    rounds: int,
    seed: int = 0,
    progress: Callable[[int], None] = lambda _rounds: None,
) -> list[Speed]:
    """Every one on the same random crops, `batch` a call, after one warm round."""
    crops = np.random.default_rng(seed).integers(0, 256, (batch, 112, 112, 3), np.uint8)
    calls = max(1, -(-CALLS // batch))
    times = np.empty((rounds + 1, len(sessions)))
    for number in range(rounds + 1):
        for place, session in enumerate(sessions.values()):
            times[number, place] = _seconds(session, crops, calls) / (calls * batch)
        progress(1)
    warm = times[1:]
    return [
        Speed(name, batch, 1000 * float(np.median(warm[:, place])), _middle(warm[:, 0] / warm[:, place]))
        for place, name in enumerate(sessions)
    ]


def _seconds(session: Runs, crops: Pixels, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        session.run(crops)
    return time.perf_counter() - start


def _middle(ratios: NDArray[np.float64]) -> Interval:
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    return Interval(float(middle), float(low), float(high))
