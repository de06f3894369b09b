"""Things timed beside each other, in turns, so that what else the machine does slows all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SHORTEST_S = 0.2
"""A turn lasts at least so long, far beyond the clock's grain and a scheduler's slice."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The median over rounds and the middle half of them."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Spread:
        low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
        return cls(float(median), float(low), float(high))


@dataclass(frozen=True, slots=True)
class Speeds:
    """Items a second of each contender, one number a round."""

    rounds: Mapping[str, NDArray[np.float64]]

    def of(self, name: str) -> Spread:
        return Spread.of(self.rounds[name])

    def ratio(self, name: str, against: str) -> Spread:
        """How many times as fast, within each round."""
        return Spread.of(self.rounds[name] / self.rounds[against])

    def against(self, name: str, constant: float) -> Spread:
        """How many times as fast as something that isn't here, whose speed is known."""
        return Spread.of(self.rounds[name] / constant)

    def times(self, name: str, factor: float) -> Speeds:
        """With one contender's items counted in another unit, ``factor`` of which are in one."""
        return Speeds({**self.rounds, name: factor * self.rounds[name]})

    def best(self, among: Iterable[str]) -> str:
        """Whose median is the highest."""
        return max(among, key=lambda name: self.of(name).median)


def contest(
    contenders: Mapping[str, Callable[[], int]],
    rounds: int,
    *,
    shortest_s: float = SHORTEST_S,
    say: Callable[[str], None] = lambda _what: None,
) -> Speeds:
    """Each contender, called, does some work and says how many items that was; it is called until its turn is over.

    The first round warms up and isn't counted; who begins moves on by one from round to round. ``say`` is told who has
    the turn.
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
