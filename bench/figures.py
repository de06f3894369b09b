"""The findings of a run: figures with their comparisons, and notes on what could not be measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from training.evaluation.speed import Speeds, Spread


@dataclass(frozen=True, slots=True)
class Goal:
    """The minimum or maximum that a ratio should have."""

    ratio: float
    at_most: bool = False

    def reached(self, ratio: float) -> bool:
        return ratio <= self.ratio if self.at_most else ratio >= self.ratio

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.ratio:g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the result: `ours` in `unit`, and its ratio to the compared figure.

    The ratio is ours divided by theirs, None if there is nothing to compare with.
    """

    part: str
    work: str
    ours: float
    unit: str
    against: str = ""
    ratio: Spread | None = None
    goal: Goal | None = None
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def reached(self) -> bool | None:
        return None if self.goal is None or self.ratio is None else self.goal.reached(self.ratio.median)


@dataclass(slots=True)
class Findings:
    """Everything measured so far, in order."""

    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was not measured, and why."""


def compared(
    part: str,
    work: str,
    speeds: Speeds,
    name: str,
    against: str,
    *,
    unit: str,
    goal: Goal | None = None,
    details: Mapping[str, object] | None = None,
    published: float | None = None,
) -> Figure:
    """Return a figure from two contenders of one contest, or from one contender and the `published` speed of a program
    that is not run here."""
    theirs = speeds.of(against).median if published is None else published
    ratio = speeds.ratio(name, against) if published is None else speeds.against(name, published)
    told = {"theirs": theirs, "rounds": len(speeds.rounds[name]), **(details or {})}
    return Figure(part, work, speeds.of(name).median, unit, against, ratio, goal, told)


PEER: Final = "InsightFace Server 0.2.0, keys checked (its published range's best)"
"""The nearest other self-hosted server, which PyPI doesn't have with weights, by published speeds.

InsightFace Server 0.2.0 (deepinsight/insightface, folder `server`), measured in 2026 on a machine of two cores (Zen 5,
AVX-512) with authentication on: its HTTP server with a stand-in for the model, and its real stages separately, so each
figure combines the two. Ratios mean something only on a machine of that kind.
"""
PEER_IDENTIFY: Final = 29.0
"""Photos that it searches among 1,000 people in a second; 20 to 29 are published."""
PEER_VERIFY: Final = 21.0
"""Pairs of photos that it compares in a second; 15 to 21 are published."""
PEER_ENROLL: Final = 20.0
"""Photos that it enrolls in a second."""
PEER_IMPORT: Final = 380.0
"""Templates, made elsewhere, that it imports in a second, in batches of twenty; 320 to 380 are published."""
