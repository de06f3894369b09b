"""Photos turned in their plane, and how often their faces are found, matched, and matched to strangers.

The service's promise is that a rate holds however a head is held: a face is read as it is upright, or not compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from app.face.quality import QualityLevel
from app.models.stages import pixels_of
from app.package.thresholds import Thresholds
from app.types import Vectors
from training.evaluation.pairs import person_of
from training.evaluation.photos import Templates

MATCH_FMR, STRANGER_FMR, FPIR = 1e-4, 1e-3, 0.1
"""Stated FMR at which photos match; FMR and FPIR at which strangers are counted: high, so that there are some."""
UNALIGNABLE = "face_unalignable"


@dataclass(frozen=True, slots=True)
class Turned:
    """Counts of ``photos`` that were turned clockwise by so many ``degrees``."""

    degrees: int
    photos: int
    found: int
    unalignable: int
    with_itself: int
    """Photos whose face matches that of the same photo upright."""
    made_up: int
    """Photos with a face that does not match the same photo upright."""
    made_up_enrolled: int
    """Of these, the ones that an enrollment takes by default."""
    mated: int
    """Pairs of one turned photo and another, upright one of the same person."""
    mated_matches: int
    strangers: int
    """Pairs of two people, both turned."""
    false_matches: int
    mixed: int
    """Pairs of two people, one turned and one upright."""
    mixed_matches: int
    searches: int
    """Turned photos that are searched for among one turned photo of everybody else."""
    false_finds: int


def turn(data: bytes, degrees: float) -> bytes:
    """Return the photo turned clockwise on a black canvas that holds all of it, as BMP."""
    pixels = pixels_of(data)
    if degrees:
        height, width = pixels.shape[:2]
        side = math.ceil(math.hypot(height, width))
        matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), -degrees, 1)
        matrix[:, 2] += ((side - width) / 2, (side - height) / 2)
        pixels = np.asarray(cv2.warpAffine(pixels, matrix, (side, side)), np.uint8)
    return cv2.imencode(".bmp", pixels[:, :, ::-1])[1].tobytes()


def sample(names: Sequence[str], most: int, *, skipped: int = 0) -> list[str]:
    """Return up to ``most`` photos (0: all), all of the first people who have several, so that they have mates, after
    so many ``skipped`` people.

    Raises ValueError if nobody has.
    """
    people: dict[str, list[str]] = {}
    for name in names:
        people.setdefault(person_of(name), []).append(name)
    mates = [photos for photos in people.values() if len(photos) > 1]
    several = [name for photos in mates[skipped:] for name in photos]
    if not several:
        raise ValueError(f"nobody has several photos, or nobody after the first {skipped} people who have")
    return several[:most] if most else several


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores from which photos match, pairs of strangers are counted, and a stranger's search finds somebody."""

    match: float
    stranger: float
    find: float

    @staticmethod
    def of(thresholds: Thresholds, people: int) -> Scores:
        """Return the scores at the stated rates; the last is for a gallery of all other people.

        Raises OperatingPointUnavailable.
        """
        one = 1 - (1 - FPIR) ** (1 / max(1, people - 1))
        rates = (MATCH_FMR, STRANGER_FMR, min(one, thresholds.highest or one))
        return Scores(*map(thresholds.threshold, rates))


def measure(degrees: int, turned: Templates, upright: Templates, at: Scores) -> Turned:
    """Compare photos with the same ones upright, in the same order."""
    both = turned.found & upright.found
    made_up = both & ((turned.vectors * upright.vectors).sum(axis=1) < at.match)
    who = np.unique([person_of(name) for name in turned.names], return_inverse=True)[1]
    same = who[:, None] == who[None, :]
    mixed_scores, scores = _scores(upright.vectors, turned.vectors), _scores(turned.vectors, turned.vectors)
    mated = same & ~np.eye(len(who), dtype=bool) & upright.found[:, None]
    strangers = np.triu(~same, 1) & turned.found[:, None] & turned.found[None, :]
    mixed = ~same & upright.found[:, None] & turned.found[None, :]
    enrolled = np.unique(who[turned.found], return_index=True)[1]
    others = np.where(same, -np.inf, scores)[np.ix_(turned.found, np.flatnonzero(turned.found)[enrolled])]
    return Turned(
        degrees=degrees,
        photos=len(turned.names),
        found=int(turned.found.sum()),
        unalignable=sum(code == UNALIGNABLE for code in turned.failures.values()),
        with_itself=int((both & ~made_up).sum()),
        made_up=int(made_up.sum()),
        made_up_enrolled=int((made_up & (turned.quality >= QualityLevel.MEDIUM.minimum)).sum()),
        mated=int(mated.sum()),
        mated_matches=int((mated & (mixed_scores >= at.match)).sum()),
        strangers=int(strangers.sum()),
        false_matches=int((strangers & (scores >= at.stranger)).sum()),
        mixed=int(mixed.sum()),
        mixed_matches=int((mixed & (mixed_scores >= at.stranger)).sum()),
        searches=len(others),
        false_finds=int((others.max(axis=1, initial=-np.inf) >= at.find).sum()),
    )


def _scores(first: Vectors, second: Vectors) -> Vectors:
    return np.asarray(first @ second.T, np.float32)
