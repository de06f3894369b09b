"""Time packages against each other. Each embeds the same crops in turn, round by round, so that other load on the
machine slows all of them equally.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from app.models.calibration.intervals import Interval
from app.package.manifest import CROP_SIDE

if TYPE_CHECKING:
    from app.inference.session import EmbedderSession

SHORTEST_S = 0.2
"""Minimum seconds of a turn: far more than the clock's resolution and a scheduler's time slice."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The median over rounds, and the quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Spread:
        low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
        return cls(float(median), float(low), float(high))


@dataclass(frozen=True, slots=True)
class Speeds:
    """Items per second of each contender, one number per round."""

    rounds: Mapping[str, NDArray[np.float64]]

    def of(self, name: str) -> Spread:
        return Spread.of(self.rounds[name])

    def ratio(self, name: str, against: str) -> Spread:
        """Return the median over rounds of one contender's speed divided by another's."""
        return Spread.of(self.rounds[name] / self.rounds[against])

    def against(self, name: str, constant: float) -> Spread:
        """Return one contender's speed divided by the known speed of something that does not take part."""
        return Spread.of(self.rounds[name] / constant)

    def times(self, name: str, factor: float) -> Speeds:
        """Return the speeds with one contender's items counted in another unit: each item is ``factor`` units."""
        return Speeds({**self.rounds, name: factor * self.rounds[name]})

    def best(self, among: Iterable[str]) -> str:
        """Return the contender with the highest median."""
        return max(among, key=lambda name: self.of(name).median)


def contest(
    contenders: Mapping[str, Callable[[], int]],
    rounds: int,
    *,
    shortest_s: float = SHORTEST_S,
    say: Callable[[str], None] = lambda _what: None,
) -> Speeds:
    """Time contenders in turns.

    A contender does some work when it is called and returns its number of items; it is called until its turn ends. The
    first round is a warm-up and not counted. Each round starts with another contender. ``say`` gets the name of the
    current one.
    """
    names = list(contenders)
    speeds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for place in range(len(names)):
            name = names[(place + number) % len(names)]
            say(f"{name}, {f'round {number} of {rounds}' if number else 'warming up'}")
            speed = _turn(contenders[name], shortest_s)
            if number:
                speeds[name].append(speed)
    return Speeds({name: np.array(values) for name, values in speeds.items()})


def _turn(run: Callable[[], int], shortest_s: float) -> float:
    done, begin = 0, time.perf_counter()
    while (spent := time.perf_counter() - begin) < shortest_s:
        done += run()
    return done / spent


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a package is: the median over all rounds of the milliseconds per crop.

    ``ratio`` is the first package's time divided by this one's in the same round (2: this one is twice as fast): the
    median, and the quartiles as low and high.
    """

    package: str
    batch: int
    milliseconds: float
    ratio: Interval


def compare_speed(
    sessions: Mapping[str, EmbedderSession], batch: int, *, rounds: int, progress: Callable[[int], None]
) -> list[Speed]:
    """Time every package on the same random crops, `batch` per call. ``progress`` counts turns, those of the warm-up
    included."""
    crops = np.random.default_rng(0).integers(0, 256, (batch, CROP_SIDE, CROP_SIDE, 3), np.uint8)

    def contender(session: EmbedderSession) -> Callable[[], int]:
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
