"""Turn photos in their plane, and measure how often their faces are found, matched, and matched to strangers.

The service promises that its rates hold for every angle: it compares a turned face as if upright, or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import reduce
from operator import add

import cv2
import numpy as np

from app.face.quality import QualityLevel
from app.models.calibration.intervals import Floats, Interval, Ints, people_weights, percentile_interval
from app.models.stages import pixels_of
from app.package.thresholds import Thresholds
from app.types import Vectors
from training.evaluation.pairs import person_of
from training.evaluation.photos import Templates

MATCH_FMR, STRANGER_FMR, FPIR = 1e-4, 1e-3, 0.1
"""Stated FMR at which photos match; FMR and FPIR at which strangers are counted, high enough for some to match."""
UNALIGNABLE = "face_unalignable"
ALL_TURNED = "all turned"
"""Name of the row of all angles but 0."""
ROUNDS = 1000
"""Rounds of the bootstrap over people."""
LEAST_EVENTS = 10
"""Minimum number of events of upright photos, as a multiple of which turned photos' events are given: with fewer, too
many rounds of the bootstrap draw none."""


@dataclass(frozen=True, slots=True)
class Turned:
    """Counts over ``photos`` that were turned clockwise by ``degrees``."""

    degrees: int
    photos: int
    found: int
    unalignable: int
    with_itself: int
    """Number of photos whose face matches that of the same photo upright."""
    made_up: int
    """Number of photos with a face that does not match the same photo upright."""
    made_up_enrolled: int
    """How many of these an enrollment accepts by default."""
    mated: int
    """Number of pairs of a turned photo with another photo of the same person, upright."""
    mated_matches: int
    strangers: int
    """Number of pairs of photos of two people, both turned."""
    false_matches: int
    mixed: int
    """Number of pairs of photos of two people, one turned and one upright."""
    mixed_matches: int
    searches: int
    """Number of turned photos with which one turned photo of each other person is searched."""
    false_finds: int


def together(figures: Sequence[Turned]) -> Turned:
    """Return the sums over all angles but 0, of which there must be at least one. Ignore the result's ``degrees``."""
    return Turned(*map(sum, zip(*(astuple(row) for row in figures if row.degrees), strict=True)))


def turn(data: bytes, degrees: float) -> bytes:
    """Return the photo as BMP, turned clockwise on a black canvas that holds all of it."""
    pixels = pixels_of(data)
    if degrees:
        height, width = pixels.shape[:2]
        side = math.ceil(math.hypot(height, width))
        matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), -degrees, 1)
        matrix[:, 2] += ((side - width) / 2, (side - height) / 2)
        pixels = np.asarray(cv2.warpAffine(pixels, matrix, (side, side)), np.uint8)
    return cv2.imencode(".bmp", pixels[:, :, ::-1])[1].tobytes()


def sample(names: Sequence[str], most: int, *, skipped: int = 0, singles: bool = False) -> list[str]:
    """Return up to ``most`` photos (0: all) of the first people who have several, so that all photos have mates, or of
    all people, with ``singles``; skip the first ``skipped`` people.

    Raises ValueError if nobody is left.
    """
    people: dict[str, list[str]] = {}
    for name in names:
        people.setdefault(person_of(name), []).append(name)
    mates = [photos for photos in people.values() if singles or len(photos) > 1]
    several = [name for photos in mates[skipped:] for name in photos]
    if not several:
        raise ValueError(f"nobody has several photos, or nobody after the first {skipped} people who have")
    return several[:most] if most else several


@dataclass(frozen=True, slots=True)
class MatchThresholds:
    """Three thresholds: from which on two photos match, a pair of strangers counts as matching, and a stranger's search
    finds somebody."""

    match: float
    stranger: float
    find: float

    @staticmethod
    def of(thresholds: Thresholds, people: int) -> MatchThresholds:
        """Return the thresholds at the stated rates; the last is for a gallery of all other people.

        Raises OperatingPointUnavailable.
        """
        fmr = 1 - (1 - FPIR) ** (1 / max(1, people - 1))
        rates = (MATCH_FMR, STRANGER_FMR, min(fmr, thresholds.highest or fmr))
        return MatchThresholds(*map(thresholds.threshold, rates))


@dataclass(frozen=True, slots=True)
class Events:
    """How often something happened, and how often it could have happened: by person, (P,), or by pair of people,
    (P, P)."""

    happened: Floats
    of: Floats

    def __add__(self, other: Events) -> Events:
        return Events(self.happened + other.happened, self.of + other.of)

    def rates(self, weights: Ints) -> Floats:
        """Return the rate in each round, (rounds,); ``weights`` (rounds, P) says how often each person is drawn."""
        happened, of = (self._counted(counts, weights) for counts in (self.happened, self.of))
        return np.asarray(np.divide(happened, of, out=np.full(len(weights), math.nan), where=of > 0))

    @staticmethod
    def _counted(counts: Floats, weights: Ints) -> Floats:
        return np.asarray(weights @ counts if counts.ndim == 1 else ((weights @ counts) * weights).sum(axis=1))


@dataclass(frozen=True, slots=True)
class ByPeople:
    """The counts of `Turned` at one angle, by the photos' people, whose order is the same at all angles."""

    mated: Events
    strangers: Events
    mixed: Events
    searches: Events

    def __add__(self, other: ByPeople) -> ByPeople:
        return ByPeople(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Beside:
    """Rates of turned photos as multiples of the upright photos' rates, with 95 % intervals over people. None if the
    event happened less than LEAST_EVENTS times upright."""

    turned_by: str
    mated: Interval | None
    strangers: Interval | None
    mixed: Interval | None
    searches: Interval | None


def beside_upright(counted: Mapping[int, ByPeople], *, rounds: int = ROUNDS) -> list[Beside]:
    """Return the rates at each angle but 0, and over all these angles together, as multiples of the rates at 0."""
    people = len(counted[0].mated.of)
    weights = np.concatenate([np.ones((1, people), np.int64), people_weights(people, rounds)])
    rows = {f"{degrees}°": found for degrees, found in counted.items() if degrees}
    if rows:
        rows[ALL_TURNED] = reduce(add, rows.values())
    return [
        Beside(name, *(_times(getattr(found, what), getattr(counted[0], what), weights) for what in ByPeople.__slots__))
        for name, found in rows.items()
    ]


def _times(turned: Events, upright: Events, weights: Ints) -> Interval | None:
    """Return ``turned``'s rate as a multiple of ``upright``'s: in the first round, in which everybody counts once, with
    the interval over the other rounds."""
    if upright.happened.sum() < LEAST_EVENTS:
        return None
    rates, beside = turned.rates(weights), upright.rates(weights)
    value, *drawn = np.divide(rates, beside, out=np.full(len(rates), math.nan), where=beside > 0).tolist()
    return percentile_interval(value, drawn)


def measure(degrees: int, turned: Templates, upright: Templates, at: MatchThresholds) -> tuple[Turned, ByPeople]:
    """Compare turned photos with the same photos upright; both are in the same order."""
    both = turned.found & upright.found
    made_up = both & ((turned.vectors * upright.vectors).sum(axis=1) < at.match)
    people, who = np.unique([person_of(name) for name in turned.names], return_inverse=True)
    same = who[:, None] == who[None, :]
    mixed_scores, scores = _scores(upright.vectors, turned.vectors), _scores(turned.vectors, turned.vectors)
    mated = same & ~np.eye(len(who), dtype=bool) & upright.found[:, None]
    strangers = np.triu(~same, 1) & turned.found[:, None] & turned.found[None, :]
    mixed = ~same & upright.found[:, None] & turned.found[None, :]
    enrolled = np.unique(who[turned.found], return_index=True)[1]
    others = np.where(same, -np.inf, scores)[:, np.flatnonzero(turned.found)[enrolled]]
    finds = others.max(axis=1, initial=-np.inf) >= at.find

    shows = np.equal.outer(np.arange(len(people)), who).astype(np.float64)  # (P, N)
    counted = ByPeople(
        mated=Events(shows @ (mated & (mixed_scores >= at.match)).sum(axis=1), shows @ mated.sum(axis=1)),
        strangers=Events(*(shows @ counts @ shows.T for counts in (strangers & (scores >= at.stranger), strangers))),
        mixed=Events(*(shows @ counts @ shows.T for counts in (mixed & (mixed_scores >= at.stranger), mixed))),
        searches=Events(shows @ (turned.found & finds), shows @ turned.found),
    )
    return Turned(
        degrees=degrees,
        photos=len(turned.names),
        found=int(turned.found.sum()),
        unalignable=sum(code == UNALIGNABLE for code in turned.failures.values()),
        with_itself=int((both & ~made_up).sum()),
        made_up=int(made_up.sum()),
        made_up_enrolled=int((made_up & (turned.quality >= QualityLevel.MEDIUM.minimum)).sum()),
        mated=round(counted.mated.of.sum()),
        mated_matches=round(counted.mated.happened.sum()),
        strangers=round(counted.strangers.of.sum()),
        false_matches=round(counted.strangers.happened.sum()),
        mixed=round(counted.mixed.of.sum()),
        mixed_matches=round(counted.mixed.happened.sum()),
        searches=round(counted.searches.of.sum()),
        false_finds=round(counted.searches.happened.sum()),
    ), counted


def _scores(first: Vectors, second: Vectors) -> Vectors:
    return np.asarray(first @ second.T, np.float32)
