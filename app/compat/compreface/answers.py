"""Faces in CompreFace's form."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from app.compat.compreface.requests import FaceParams
from app.errors import NoFace
from app.face.pose import pose_of
from app.types import Face, Photo

DIGITS = 5
"""Decimals of similarities and probabilities, as in CompreFace."""
Json: TypeAlias = dict[str, Any]


def wanted_faces(photo: Photo, det_prob_threshold: float | None, limit: int = 0) -> list[Face]:
    """Return the photo's faces of at least ``det_prob_threshold``, the largest first; ``limit`` 0: all of them.

    Raises NoFace if there is none: no CompreFace call answers with an empty list.
    """
    least = det_prob_threshold or 0.0
    faces = [face for face in photo.faces if face.detection.score >= least]
    if not faces:
        raise NoFace("No face is found in the given image")
    faces.sort(key=lambda face: -face.detection.box.area)
    return faces[:limit] if limit else faces


def face_answer(face: Face, photo: Photo, params: FaceParams, *, embedded: bool) -> Json:
    """Return a face with the requested plugins; ``embedded``: whether the calculator ran."""
    answer: Json = {"box": _box(face, photo)}
    if params.wants("landmarks"):
        answer["landmarks"] = [[round(float(x)), round(float(y))] for x, y in face.detection.landmarks]
    if params.wants("pose") and (pose := pose_of(face.detection.landmarks)):
        answer["pose"] = {"pitch": round(pose.pitch, 2), "roll": round(pose.roll, 2), "yaw": round(pose.yaw, 2)}
    if params.wants("calculator") and face.template is not None:
        answer["embedding"] = face.template.vector.tolist()
    if params.status:
        answer["execution_time"] = _times(photo, embedded=embedded)
    return answer


def rounded(similarity: float) -> float:
    """Round down, so that rounding lifts no similarity to a client's threshold."""
    scale = 10.0**DIGITS
    return math.floor(similarity * scale) / scale


def _box(face: Face, photo: Photo) -> Json:
    """Return the box in whole pixels, clipped to the photo."""
    box = face.detection.box
    return {
        "probability": round(face.detection.score, DIGITS),
        "x_max": _within(box.x + box.width, photo.width),
        "y_max": _within(box.y + box.height, photo.height),
        "x_min": _within(box.x, photo.width),
        "y_min": _within(box.y, photo.height),
    }


def _within(value: float, size: int) -> int:
    return min(max(round(value), 0), size)


def _times(photo: Photo, *, embedded: bool) -> dict[str, float]:
    """Return the milliseconds per face of each plugin; the detector's include decoding and aligning."""
    share = {name: spent / len(photo.faces) for name, spent in photo.stages.items()}
    times = {"detector": round(sum(spent for name, spent in share.items() if name != "embed"), 1)}
    if embedded:
        times["calculator"] = round(share.get("embed", 0.0), 1)
    return times
