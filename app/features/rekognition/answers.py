"""Convert our values to Rekognition's shapes. Members that this service does not compute are left out."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

from app.db.pagination import Page
from app.face.quality import RAMPS, measure
from app.features.pose import pose_of
from app.features.similarity import probability_of
from app.gallery.records import Gallery, Origin, StoredFace
from app.gallery.text import is_unnamed
from app.types import Box, Detection, Face, Photo, Reason

Shape: TypeAlias = dict[str, Any]
ACCOUNT = "000000000000"
"""The AWS account number used in resource names."""
LANDMARKS = ("eyeLeft", "eyeRight", "nose", "mouthLeft", "mouthRight")
"""Rekognition's names of the landmarks, in our order. Left and right are those of somebody who looks at the photo."""
STEPS = 10_000
"""Number of steps per percent: percentages have four decimals."""
_VERSION = re.compile(r"[0-9.]+")
REASONS = {
    Reason.SMALL_FACE: "SMALL_BOUNDING_BOX",
    Reason.LOW_SHARPNESS: "LOW_SHARPNESS",
    Reason.LOW_BRIGHTNESS: "LOW_BRIGHTNESS",
    Reason.OVEREXPOSED: "LOW_FACE_QUALITY",
    Reason.EXTREME_POSE: "EXTREME_POSE",
    Reason.CUT_OFF: "LOW_FACE_QUALITY",
    Reason.LOW_SCORE: "LOW_CONFIDENCE",
    Reason.UNALIGNABLE: "LOW_FACE_QUALITY",
}


def arn(gallery: str, region: str) -> str:
    """Return a collection's name as `CreateCollection` writes it; `DescribeCollection` puts `arn:` before it."""
    return f"aws:rekognition:{region}:{ACCOUNT}:collection/{gallery}"


def face_id_to(face_id: str) -> str:
    """Return a face id, 32 hexadecimal digits, grouped as a UUID."""
    return "-".join((face_id[:8], face_id[8:12], face_id[12:16], face_id[16:20], face_id[20:]))


def face_id_from(face_id: str) -> str:
    return face_id.replace("-", "")


def percent(share: float) -> float:
    """Return a share (0 to 1) in percent (0 to 100), rounded down so that rounding never raises it above a
    threshold."""
    return math.floor(min(1.0, max(0.0, share)) * 100 * STEPS) / STEPS


def bounding_box(box: Box, width: int, height: int) -> Shape:
    """Return a box in fractions of the photo's width and height. Our coordinates refer to pixel centres, Rekognition's
    to pixel edges."""
    return {
        "Left": (box.x + 0.5) / width,
        "Top": (box.y + 0.5) / height,
        "Width": box.width / width,
        "Height": box.height / height,
    }


def face_detail(face: Face, photo: Photo) -> Shape:
    """Return a `FaceDetail`, which is also a `ComparedFace`.

    Brightness is the mean grey value of the face's middle, in percent. Sharpness is this service's measure: at 0 a face
    is too blurred to be recognized, and at 100 more sharpness would not help. A face that could not be aligned has no
    landmarks, quality or pose.
    """
    detail: Shape = {
        "BoundingBox": bounding_box(face.box, photo.width, photo.height),
        "Confidence": percent(probability_of(face.score)),
        "Landmarks": [],
    }
    if face.landmarks is None or face.crop is None:
        return detail
    detail["Landmarks"] = [
        {"Type": name, "X": (float(x) + 0.5) / photo.width, "Y": (float(y) + 0.5) / photo.height}
        for name, (x, y) in zip(LANDMARKS, face.landmarks, strict=True)
    ]
    measures = measure(face.crop, Detection(face.box, face.landmarks, face.score), photo.width, photo.height)
    sharpness = RAMPS[Reason.LOW_SHARPNESS](measures.sharpness)
    detail["Quality"] = {"Brightness": percent(measures.brightness / 255), "Sharpness": percent(sharpness)}
    pose = pose_of(face.landmarks)
    if pose is not None:
        # Rekognition's angles are positive clockwise, to the photo's right and upwards, as its documentation's examples
        # show.
        angles = {"Roll": -pose.roll, "Yaw": -pose.yaw, "Pitch": pose.pitch}
        detail["Pose"] = {name: round(angle, 2) for name, angle in angles.items()}
    return detail


def searched_face(face: Face, photo: Photo) -> tuple[Shape, float]:
    return bounding_box(face.box, photo.width, photo.height), percent(probability_of(face.score))


def stored_face(face: StoredFace, gallery: Gallery) -> Shape:
    """Return an enrolled face as a `Face`; the photo it was found in is included if it is known."""
    shape: Shape = {"FaceId": face_id_to(face.face_id)}
    if face.origin is not None:
        shape |= _origin(face.origin, face.box)
    version = gallery.embedder.partition("@")[2]
    if _VERSION.fullmatch(version):
        shape["IndexFacesModelVersion"] = version
    if user := user_of(face.subject):
        shape["UserId"] = user
    return shape


def user_of(subject: str) -> str | None:
    """Return the user that this subject's faces are associated with; None if the subject is unnamed."""
    return None if is_unnamed(subject) else subject


def paged(shape: Shape, page: Page[Any]) -> Shape:
    """Add the token of the next page, if there is one."""
    return shape if page.next_cursor is None else shape | {"NextToken": page.next_cursor}


def quality_reasons(face: Face) -> list[str]:
    """Return the reasons why a face's quality is too low, at least one."""
    return sorted({REASONS[reason] for reason in face.quality.reasons}) or ["LOW_FACE_QUALITY"]


def largest_first(faces: Sequence[Face]) -> list[Face]:
    return sorted(faces, key=lambda face: -face.box.area)


def status_of(has_faces: bool) -> str:
    return "ACTIVE" if has_faces else "CREATED"


def _origin(origin: Origin, box: Box) -> Shape:
    shape: Shape = {
        "BoundingBox": bounding_box(box, origin.width, origin.height),
        "ImageId": face_id_to(origin.image_id),
        "Confidence": percent(probability_of(origin.score)),
    }
    return shape | ({} if origin.external_id is None else {"ExternalImageId": origin.external_id})
