"""Judge a challenge: one frame for each step that a person follows in front of a camera. No liveness model is needed.

This rejects most photos that are held up to the camera, and steps in the wrong order. It does not reject a film of the
right steps, replayed or generated, or photos of all the poses (docs/how-to/liveness.md).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.choices import Step
from app.errors import InvalidInput
from app.features.pose import pose_of
from app.gallery.records import Gallery
from app.gallery.service import Galleries
from app.inference.embedders import Embedders
from app.pipeline import AMBIGUOUS_SHARE, Reader, choose_face
from app.recognition.decisions import cosine, verify_point
from app.types import Pixels

FIRST: Step = "ahead"
MOVES: tuple[Step, ...] = ("left", "right", "nearer")
AHEAD_MOST = 15.0
"""Maximum yaw, in degrees, of a head that looks ahead: yaw's standard deviation among 1,000 people of LFW View 1."""
TURN_LEAST = 18.0
"""Minimum difference of yaw, in degrees, between the first frame and a turned head. It is more than a print can fake.
661 of the 1,000 people look ahead. On life-size prints of their landmarks, yaw changes by at most 7 degrees if the
print is flat, 20 cm away and tilted by up to 60 degrees, and by at most 12 degrees if it is bent to a radius of 10 cm,
30 cm away and tilted by 45 degrees."""
NEARER_LEAST = 1.25
"""Minimum factor by which a face grows when it comes nearer, as from 60 cm to 48 cm before the camera. Chosen, not
measured."""
TILT_MOST = 30.0
"""Maximum roll, in degrees, of an upright head."""
REASONS = {
    "no_face": "no face was found",
    "tilted": "the head is not held upright",
    "several_faces": "several faces are about as prominent",
    "not_ahead": "the head does not look straight ahead",
    "not_turned": "the head is not turned that way, or not far enough",
    "not_nearer": "the face is not much larger than in the first frame",
    "other_person": "this is not surely the person of the first frame",
}
"""The reasons why a step fails, in words for people."""


def draw_steps() -> tuple[Step, ...]:
    """Return the steps of a new challenge: FIRST, then MOVES in a random order."""
    return FIRST, *secrets.SystemRandom().sample(MOVES, len(MOVES))


@dataclass(frozen=True, slots=True)
class FrameFace:
    """The face of a frame.

    ``yaw``: degrees, positive to the person's right; ``size``: the eyes' distance as a share of the frame's width.
    """

    yaw: float
    size: float
    crop: Pixels


class ChallengeJudge:
    """Checks the frames of a challenge. Safe to share between threads; keeps nothing of the frames."""

    def __init__(self, reader: Reader, embedders: Embedders, galleries: Galleries, fmr: float) -> None:
        """``fmr``: the false match rate at which two frames count as one person."""
        self._reader = reader
        self._embedders = embedders
        self._galleries = galleries
        self._fmr = fmr

    def check(self, gallery: Gallery, steps: Sequence[Step], frames: Sequence[bytes]) -> None:
        """Check that each frame shows its step, and that all frames show the same person, by the gallery's package.

        Raises InvalidInput: ``challenge_failed`` with the first step that failed and why, and the errors of
        `Pipeline.detect`; Overloaded.
        """
        seen: list[FrameFace] = []
        for place, frame in enumerate(frames):
            seen.append(self._only_face(frame, place, steps[place]))
            if reason := why_not(steps[place], seen[place], seen[0]):
                raise _failed(place, steps[place], reason)
        with self._embedders.use(self._galleries.probed_by(gallery)) as opened:
            (first, *others), _ = opened.embedder.embed([face.crop for face in seen])
            threshold = verify_point(opened.thresholds, None, self._fmr).threshold
        for place, other in enumerate(others, 1):
            if cosine(first, other) < threshold:
                raise _failed(place, steps[place], "other_person")

    def _only_face(self, frame: bytes, place: int, step: Step) -> FrameFace:
        """Return the frame's prominent face. Raises InvalidInput ``challenge_failed`` if there is none, several, or a
        tilted one."""
        try:
            photo = self._reader.detect(frame)
        except InvalidInput as error:
            raise type(error)(error.message, code=error.code, **error.details, index=place) from error
        if not photo.faces:
            raise _failed(place, step, "no_face")
        choice = choose_face(photo)
        if choice.runner_up >= AMBIGUOUS_SHARE:
            raise _failed(place, step, "several_faces")
        face = photo.faces[choice.index]
        pose = None if face.landmarks is None else pose_of(face.landmarks)
        if face.landmarks is None or face.crop is None or pose is None or abs(pose.roll) > TILT_MOST:
            raise _failed(place, step, "tilted")
        eyes = float(np.linalg.norm(face.landmarks[1] - face.landmarks[0]))
        return FrameFace(pose.yaw, eyes / photo.width, face.crop)


def why_not(step: Step, face: FrameFace, first: FrameFace) -> str | None:
    """Return why a face does not show the step, a key of `REASONS`, or None. ``first``: the face in the first frame."""
    turned = face.yaw - first.yaw
    if step in {"left", "right"}:
        return None if (turned if step == "right" else -turned) >= TURN_LEAST else "not_turned"
    if abs(face.yaw) > AHEAD_MOST:
        return "not_ahead"
    return "not_nearer" if step == "nearer" and face.size < NEARER_LEAST * first.size else None


def _failed(place: int, step: Step, reason: str) -> InvalidInput:
    message = f"Step {place + 1} ({step}): {REASONS[reason]}."
    return InvalidInput(message, code="challenge_failed", index=place, step=step, reason=reason)
