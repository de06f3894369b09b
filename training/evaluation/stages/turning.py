"""Photos turned in their plane, and how often their faces are found, matched, and matched to strangers.

The service's promise is that a rate holds however a head is held: a face is read as it is upright, or not compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from app.models.stages import pixels_of
from app.types import Vectors
from training.evaluation.pairs import person_of
from training.evaluation.photos import Templates

MATCH_FMR, STRANGER_FMR = 1e-4, 1e-3
"""Stated FMR at which photos match, and the one that pairs of strangers are counted at: there are more of them."""
UNALIGNABLE = "face_unalignable"


@dataclass(frozen=True, slots=True)
class Turned:
    """What came of ``photos`` that were turned clockwise by so many ``degrees``."""

    degrees: int
    photos: int
    found: int
    unalignable: int
    with_itself: int
    """Match the same photo upright."""
    made_up: int
    """Found, and don't match the same photo upright."""
    mated: int
    """Pairs of one turned photo and another, upright one of the same person."""
    mated_matches: int
    strangers: int
    """Pairs of two people, both turned."""
    false_matches: int


def turn(data: bytes, degrees: float) -> bytes:
    """Return the photo turned clockwise on a black canvas that holds all of it, as PNG."""
    pixels = pixels_of(data)
    if degrees:
        height, width = pixels.shape[:2]
        side = math.ceil(math.hypot(height, width))
        matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), -degrees, 1)
        matrix[:, 2] += ((side - width) / 2, (side - height) / 2)
        pixels = np.asarray(cv2.warpAffine(pixels, matrix, (side, side)), np.uint8)
    return cv2.imencode(".png", pixels[:, :, ::-1], [cv2.IMWRITE_PNG_COMPRESSION, 1])[1].tobytes()


def sample(names: Sequence[str], most: int) -> list[str]:
    """Return up to ``most`` photos, all of the first people who have several, so that they have mates."""
    people: dict[str, list[str]] = {}
    for name in names:
        people.setdefault(person_of(name), []).append(name)
    several = [name for photos in people.values() if len(photos) > 1 for name in photos]
    return several[:most] if most else several


def measure(degrees: int, turned: Templates, upright: Templates, match: float, stranger: float) -> Turned:
    """Compare photos with the same ones upright, in the same order, at the thresholds of the two rates."""
    both = turned.found & upright.found
    itself = (turned.vectors * upright.vectors).sum(axis=1)
    who = np.unique([person_of(name) for name in turned.names], return_inverse=True)[1]
    same = who[:, None] == who[None, :]
    mated = same & ~np.eye(len(who), dtype=bool) & upright.found[:, None]
    matches = _scores(upright.vectors, turned.vectors) >= match
    strangers = np.triu(~same, 1) & turned.found[:, None] & turned.found[None, :]
    return Turned(
        degrees=degrees,
        photos=len(turned.names),
        found=int(turned.found.sum()),
        unalignable=sum(code == UNALIGNABLE for code in turned.failures.values()),
        with_itself=int((both & (itself >= match)).sum()),
        made_up=int((both & (itself < match)).sum()),
        mated=int(mated.sum()),
        mated_matches=int((mated & matches).sum()),
        strangers=int(strangers.sum()),
        false_matches=int((strangers & (_scores(turned.vectors, turned.vectors) >= stranger)).sum()),
    )


def _scores(first: Vectors, second: Vectors) -> Vectors:
    return np.asarray(first @ second.T, np.float32)
