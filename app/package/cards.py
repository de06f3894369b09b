"""Cards with separately measured error rates of a model: for groups of people, and for photos under poor conditions.

Also the types that all parts of a manifest use.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=100)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
GroupName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)?$", max_length=100)]
"""A group of people; a slash means that it is part of another group: `adults-18-59/female-asian`."""
Rate = Annotated[float, Field(ge=0, le=1)]
Score = Annotated[float, Field(ge=-1, le=1)]


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class GroupRate(Strict):
    """How often two different people of a group pass a threshold; low and high bound the 95 % interval."""

    fmr: float = Field(gt=0, lt=1)
    """The stated rate of the operating point with this threshold."""
    threshold: Score
    found: Rate
    low: Rate
    high: Rate

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.found <= self.high:
            raise ValueError("found must lie between low and high")
        return self


class Group(Strict):
    """One group of people. Each photo counts as a different person unless the card's `repeats` says otherwise."""

    name: GroupName
    photos: int = Field(gt=1)
    comparisons: int = Field(gt=0)
    """Non-mated comparisons within the group."""
    rates: tuple[GroupRate, ...] = Field(min_length=1)
    """At rising thresholds."""

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if any(later.threshold <= earlier.threshold for earlier, later in pairwise(self.rates)):
            raise ValueError("rates must have rising thresholds")
        return self


class BiasCard(Strict):
    """False match rates within groups of people, `python -m training evaluate groups`."""

    measured_on: str
    calibration: Name
    """The calibration whose operating points were measured."""
    repeats: str
    """How people who appear twice were handled."""
    groups: tuple[Group, ...] = Field(min_length=1)
    measured_with: Sha256
    """`Manifest.recipe_digest` of the model that was measured."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len({group.name for group in self.groups}) != len(self.groups):
            raise ValueError("two groups have the same name")
        return self

    def find(self, name: str) -> Group | None:
        return next((group for group in self.groups if group.name == name), None)


class RateInterval(Strict):
    """A measured error rate with its 95 % interval."""

    value: Rate
    low: Rate
    high: Rate

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.value <= self.high:
            raise ValueError("value must lie between low and high")
        return self


class ConditionRate(Strict):
    """The rates at one threshold, of photos under a condition against untouched ones."""

    fmr: float = Field(gt=0, lt=1)
    """The stated rate of the operating point with this threshold."""
    threshold: Score
    found: RateInterval
    """False match rate."""
    fnmr: RateInterval
    """False non-match rate; a photo without a detected face matches nobody."""


class Condition(Strict):
    """One condition of taking photos: a mask, little light."""

    name: Name
    photos: int = Field(gt=0)
    without_face: int = Field(ge=0)
    """Number of photos in which the face is no longer found."""
    mated: int = Field(gt=0)
    comparisons: int = Field(gt=0)
    """Number of non-mated comparisons."""
    rates: tuple[ConditionRate, ...] = Field(min_length=1)


class ConditionCard(Strict):
    """Error rates of photos taken under poor conditions, `python -m training evaluate conditions`."""

    measured_on: str
    calibration: Name
    """The calibration whose operating points were measured."""
    conditions: tuple[Condition, ...] = Field(min_length=1)
    measured_with: Sha256
    """`Manifest.recipe_digest` of the model that was measured."""
