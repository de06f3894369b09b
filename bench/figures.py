"""The findings of a run: figures with what they are compared to, curves, and notes on what could not be measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from training.evaluation.speed import Speeds, Spread


@dataclass(frozen=True, slots=True)
class Goal:
    """The least, or the most, that a ratio should be."""

    ratio: float
    at_most: bool = False

    def reached(self, ratio: float) -> bool:
        return ratio <= self.ratio if self.at_most else ratio >= self.ratio

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.ratio:g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the result: `ours` in `unit`, and its ratio to what it is compared with.

    The ratio is ours divided by theirs, None where there is nothing to compare with.
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


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a plot: its name and its points."""

    plot: str
    name: str
    x: Sequence[float]
    y: Sequence[float]
    x_label: str
    y_label: str


@dataclass(slots=True)
class Findings:
    """Everything measured so far, in order."""

    figures: list[Figure] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
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
) -> Figure:
    """Return a figure from two contenders of one contest."""
    told = {"theirs": speeds.of(against).median, "rounds": len(speeds.rounds[name]), **(details or {})}
    return Figure(part, work, speeds.of(name).median, unit, against, speeds.ratio(name, against), goal, told)


def beside(
    part: str,
    work: str,
    speeds: Speeds,
    name: str,
    against: str,
    *,
    theirs: float,
    unit: str,
    goal: Goal | None = None,
    details: Mapping[str, object] | None = None,
) -> Figure:
    """Return a figure from a contender and a published speed of something that isn't installed here."""
    told = {"theirs": theirs, **(details or {})}
    return Figure(part, work, speeds.of(name).median, unit, against, speeds.against(name, theirs), goal, told)
