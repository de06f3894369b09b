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
"""Minimum quality for comparing a face: below it false non-matches become the rule."""
KEPT: Final = 5
"""Maximum looks of a track to send. With five, FNIR fell from 16.3 to 0.67 % (other people than it was chosen on)."""
LIES: Final = 30.0
"""Maximum degrees from upright at which the detector finds a face without turning the frame."""
ALIKE: Final = 0.9
"""Cosine from which on two looks show the same: the second adds nothing to a track's mean."""


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
    """Template by the watcher's own package; None where the face is not usable, or not embedded yet."""

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
    """Pixels of a frame; narrower faces are not looked for."""

    def detect(self, frame: Pixels, at: float, min_face: int | None = None, *, turned: bool = False) -> list[Look]:
        """Return the faces in a (H, W, 3) uint8 RGB frame, usable or not, without vectors.

        ``min_face``: look for narrower faces than usual; ``turned``: also for people who lie, as the service does,
        which takes several times as long.
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
        """Return the looks, the usable ones with their vectors."""
        templates = iter(self.embedder.embed([look.crop for look in looks if look.usable])[0])
        return [replace(look, vector=next(templates).vector) if look.usable else look for look in looks]


def keep_best(looks: list[Look], new: Look) -> list[Look]:
    """Return at most KEPT usable looks, best first: of two that show the same, the better one; then by quality."""
    if not new.usable or new.vector is None:
        return looks
    kept: list[Look] = []
    spare: list[Look] = []
    for look in sorted([*looks, new], key=lambda look: -look.quality.score):
        same = any(float(np.dot(look.vector, other.vector)) >= ALIKE for other in kept)  # type: ignore[arg-type]  # usable
        (spare if same else kept).append(look)
    # Diverse looks first; others fill up, so that a still face also has several frames.
    return sorted((kept + spare)[:KEPT], key=lambda look: -look.quality.score)
