"""Find faces in frames by the service's own detector and quality gate, and choose the few looks of a person to keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from app.face.align import align
from app.face.confirm import find_faces, upright_at
from app.face.detect import Detector
from app.face.quality import QualityLevel, grade, measure
from app.features.surroundings import around
from app.inference.embedders import Embedder
from app.types import Box, Detection, Pixels, Quality, Vector

USABLE: Final = QualityLevel.LOW.minimum
"""Minimum quality for comparing a face: below it, most comparisons are false non-matches."""
KEPT: Final = 5
"""Maximum looks of a track to send. Five instead of one lower the FNIR from 16.3 to 0.67 % (measured on other people
than those whose tracks the number was chosen on)."""
LIES: Final = 30.0
"""Maximum angle from upright, in degrees, at which the detector finds a face without turning the frame."""
ALIKE: Final = 0.9
"""Cosine from which on two looks are so similar that the second adds nothing to a track's mean."""


@dataclass(frozen=True, slots=True)
class Look:
    """A face in one frame: its place, quality and template. ``at`` is in seconds on the camera's clock."""

    at: float
    detection: Detection
    quality: Quality
    crop: Pixels
    """(112, 112, 3) uint8 RGB, aligned."""
    photo: Pixels
    """The face with its surroundings: (H, W, 3) uint8 RGB."""
    vector: Vector | None = None
    """Template by the watcher's own package, (D,), a unit vector; None if the face is not usable or not embedded
    yet."""

    @property
    def box(self) -> Box:
        return self.detection.box

    @property
    def usable(self) -> bool:
        return self.quality.score >= USABLE

    @property
    def lies(self) -> bool:
        return abs(upright_at(self.detection.landmarks)) > LIES


@dataclass(frozen=True, slots=True)
class Looker:
    """Finds the faces in a camera's frames. Safe to share between threads."""

    detector: Detector
    embedder: Embedder
    min_face: int
    """Minimum width, in pixels of the frame, of the faces to look for."""

    def detect(self, frame: Pixels, at: float, min_face: int | None = None, *, turned: bool = False) -> list[Look]:
        """Return the faces in a (H, W, 3) uint8 RGB frame, usable or not, without vectors.

        ``min_face``: minimum width in place of the usual one; ``turned``: also find people who lie, as the service
        does, which takes several times as long.
        """
        height, width = frame.shape[:2]
        least = min_face or self.min_face
        seen: Sequence[Detection] = (self.detector.search if turned else self.detector.detect)(frame, min_face=least)
        if turned:
            seen = find_faces(frame, seen, self.detector, least).faces
        looks = []
        for detection in seen:
            crop = align(frame, detection.landmarks)
            quality = grade(measure(crop, detection, width, height))
            looks.append(Look(at, detection, quality, crop, around(frame, detection.box)))
        return looks

    def embed(self, looks: Sequence[Look]) -> list[Look]:
        """Return the looks in the same order, usable ones with their vectors."""
        templates = iter(self.embedder.embed([look.crop for look in looks if look.usable])[0])
        return [replace(look, vector=next(templates).vector) if look.usable else look for look in looks]


def keep_best(looks: list[Look], new: Look) -> list[Look]:
    """Return the best of these looks and the new one: at most KEPT, usable, best first. Looks that resemble a better
    one (ALIKE) are only taken if there are too few others."""
    if not new.usable or new.vector is None:
        return looks
    kept: list[Look] = []
    spare: list[Look] = []
    for look in sorted([*looks, new], key=lambda look: -look.quality.score):
        same = any(float(np.dot(look.vector, other.vector)) >= ALIKE for other in kept)  # type: ignore[arg-type]  # usable
        (spare if same else kept).append(look)
    # Similar looks fill the rest, so that a face that keeps still has several looks too.
    return sorted((kept + spare)[:KEPT], key=lambda look: -look.quality.score)
