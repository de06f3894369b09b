"""Find the faces in a photo's bytes: the only module that composes the stages."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Protocol

import numpy as np

from app.choices import Stage
from app.concurrency.threads import TASK, check_deadline
from app.errors import NoFace, Unalignable
from app.face.align import Cut, align, cut_face, scale_of, similarity_transform
from app.face.confirm import Found, find_faces, quarter_of
from app.face.detect import SCORE_THRESHOLD, Detector, levels
from app.face.formats import Limits
from app.face.image import REDUCTIONS, Decoded, EncodedImage, open_image
from app.face.quality import grade, measure
from app.inference.embedders import Embedder
from app.types import CANONICAL_LANDMARKS, Box, Detection, Face, Photo, Pixels, Quality, Reason

AMBIGUOUS_SHARE = 0.5
"""A photo whose second face is at least half as prominent as the first is ambiguous, and not enrolled."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The face of a photo that an operation uses, and why."""

    index: int
    """Index of the face in ``Photo.faces``."""
    why: str
    """The reason as a sentence."""
    runner_up: float
    """The next face's prominence as a share of the chosen one's, 0 (no other face) to 1. Of the 1,119 photos of LFW
    View 1 with several faces, half have less than 0.09, 41 more than 0.3 and 4 more than 0.5."""


class TooCostly(Exception):
    """The photo decodes to more pixels than `Pipeline.most_pixels`."""


class Reader(Protocol):
    """Finds faces: a `Pipeline`, or an object that shares photos between threads or processes (`app.workers`). Safe to
    share between threads."""

    def detect(self, image: bytes, cuts: Sequence[Cut] = ()) -> Photo:
        """Return every face of a photo, as `Pipeline.detect` does."""
        ...

    @property
    def free(self) -> int:
        """Return how many more small photos could be processed now."""
        ...


class Pipeline:
    """Decode, detect, align, assess quality and embed. Safe to share between threads."""

    free = 1
    """Photos of one caller are processed one by one."""

    def __init__(self, detector: Detector, limits: Limits, *, most_pixels: float = math.inf) -> None:
        """Photos that decode to more than ``most_pixels`` are not read: `detect` raises TooCostly."""
        self._detector = detector
        self._limits = limits
        self.most_pixels = most_pixels

    def detect(self, image: bytes, cuts: Sequence[Cut] = ()) -> Photo:
        """Return every face of a photo with its aligned crop and quality, highest detector score first; without a crop
        if its landmarks could not be confirmed.

        ``cuts``: the cuts that liveness models take of each face, which are kept with it.

        A photo without a face is not an error. Raises EmptyImage, UnsupportedImage, InvalidImage,
        ImageTooLarge, ImageTooSmall and Overloaded; within a request also LikenessError (``request_timeout``).
        """
        check_deadline()
        stages: dict[str, float] = {}
        with timed(stages, "decode"):
            encoded = open_image(image, self._limits)
            factor = 1
            if encoded.reducible:  # as far as the detector loses nothing by it
                finest = levels(encoded.width, encoded.height, self._detector.min_face)[0].scale
                factor = next((factor for factor in REDUCTIONS if factor * finest <= 1), 1)
        seen = self._seen(encoded, factor, cuts, stages)
        if isinstance(seen, Photo):
            return seen
        # The crop of a small face needs all of the photo's pixels.
        return self._whole(open_image(image, self._limits), seen, cuts, stages)

    def _decoded(self, encoded: EncodedImage, factor: int, stages: dict[str, float]) -> Decoded:
        """Decode the photo. Raises TooCostly."""
        if encoded.pixels(factor) > self.most_pixels:
            raise TooCostly
        with timed(stages, "decode"):
            return encoded.decode(factor)

    def _seen(
        self, encoded: EncodedImage, factor: int, cuts: Sequence[Cut], stages: dict[str, float]
    ) -> Photo | list[Detection]:
        """Return the photo's faces; if their crops need more pixels than were decoded, only the detections, in the
        original's coordinates.
        """
        decoded = self._decoded(encoded, factor, stages)
        with timed(stages, "detect"):
            min_face = self._detector.min_face / decoded.scale
            sights = self._detector.search(decoded.pixels, min_face=min_face)
            more = _need_more(decoded, (sight for sight in sights if sight.score >= SCORE_THRESHOLD), cuts)
            found = Found() if more else find_faces(decoded.pixels, sights, self._detector, min_face)
        if more or _need_more(decoded, found.faces, cuts):
            return [_scaled(sight, decoded) for sight in sights]
        return self._aligned(decoded, found, cuts, stages)

    def _whole(
        self, encoded: EncodedImage, sights: Sequence[Detection], cuts: Sequence[Cut], stages: dict[str, float]
    ) -> Photo:
        """Return the faces of earlier detections, with crops from all the photo's pixels."""
        decoded = self._decoded(encoded, 1, stages)
        with timed(stages, "detect"):
            found = find_faces(decoded.pixels, sights, self._detector, self._detector.min_face)
        return self._aligned(decoded, found, cuts, stages)

    def _aligned(self, decoded: Decoded, found: Found, cuts: Sequence[Cut], stages: dict[str, float]) -> Photo:
        """Align the confirmed faces, assess their quality, and make the cuts for liveness models."""
        check_deadline()
        stages |= {"align": 0.0, "quality": 0.0}
        faces = []
        for face in found.faces:
            with timed(stages, "align"):
                crop, turned = align(decoded.pixels, face.landmarks), quarter_of(face.landmarks) if cuts else 0
                shown = tuple(cut_face(decoded.pixels, face.box, cut, turned=turned) for cut in cuts)
            with timed(stages, "quality"):
                original = _scaled(face, decoded)
                quality = grade(measure(crop, original, decoded.width, decoded.height))
            faces.append(Face(original.box, original.landmarks, original.score, quality, crop, cuts=shown))
        for sight in found.unalignable:
            shown, original = tuple(cut_face(decoded.pixels, sight.box, cut) for cut in cuts), _scaled(sight, decoded)
            faces.append(
                Face(original.box, None, original.score, Quality(0.0, (Reason.UNALIGNABLE,)), None, cuts=shown)
            )
        faces.sort(key=attrgetter("score"), reverse=True)
        rotated = quarter_of(found.faces[0].landmarks) if found.faces else 0
        return Photo(decoded.width, decoded.height, tuple(faces), rotated, stages)


def keep_crops(photo: Photo, keep: Callable[[int], None]) -> None:
    """Count the bytes of a photo's crops for the current request, until it ends. Raises what ``keep`` raises."""
    if TASK.get().caller:
        kept = (pixels for face in photo.faces for pixels in (face.crop, *face.cuts) if pixels is not None)
        keep(sum(pixels.nbytes for pixels in kept))


def embed_faces(photos: Sequence[Photo], embedder: Embedder, which: Sequence[Sequence[int]]) -> list[Photo]:
    """Return the photos with templates of the faces whose indices ``which`` lists per photo, embedded in one call.

    Raises Overloaded, and Unalignable for a face without a crop.
    """
    crops = [crop_of(photo.faces[place]) for photo, places in zip(photos, which, strict=True) for place in places]
    if not crops:
        return list(photos)
    check_deadline()
    spent: dict[str, float] = {}
    with timed(spent, "embed"):
        templates, batch_size = embedder.embed(crops)
    left, embedded = iter(templates), []
    for photo, places in zip(photos, which, strict=True):
        faces, stages = list(photo.faces), {**photo.stages, "embed": spent["embed"] / len(photos)}
        for place in places:
            faces[place] = replace(faces[place], template=next(left))
        embedded.append(replace(photo, faces=tuple(faces), stages=stages, batch_size=batch_size))
    return embedded


def choose_face(photo: Photo, index: int | None = None) -> Choice:
    """Return the face at ``index``, by default the most prominent one. Raises NoFace if there is none.

    Prominence = area × (1 − d / D)², with the distance d of the box's centre from the photo's, and half the photo's
    diagonal D. In LFW View 1, whose photos are named after the person in the middle, this chooses the right face in
    1,118 of 1,119 photos with several faces (area alone: 1,094).
    """
    if index is not None and index >= len(photo.faces):
        count = len(photo.faces)
        raise NoFace(f"The photo has no face {index}: it has {count}, counted from 0.", faces=count)
    if not photo.faces:
        raise NoFace("No face was found in the image.")
    if index is not None:
        return Choice(index, "chosen by the request", 0.0)
    boxes, size = [face.box for face in photo.faces], (photo.width, photo.height)
    prominences = [prominence(box, *size) for box in boxes]
    first, *others = sorted(range(len(boxes)), key=prominences.__getitem__, reverse=True)
    if not others:
        return Choice(first, "the only face", 0.0)
    share = prominences[others[0]] / prominences[first] if prominences[first] > 0 else 1.0
    largest = boxes[first].area >= max(box.area for box in boxes)
    nearest = _off_centre(boxes[first], *size) <= min(_off_centre(box, *size) for box in boxes)
    why = {
        (True, True): f"the largest of {len(boxes)} faces and the nearest to the centre",
        (True, False): f"the largest of {len(boxes)} faces, near enough to the centre",
        (False, True): f"the nearest to the centre of {len(boxes)} faces, large enough",
        (False, False): f"large and near the centre at once, of {len(boxes)} faces",
    }
    return Choice(first, why[largest, nearest], share)


def crop_of(face: Face) -> Pixels:
    """Return the face's aligned crop. Raises Unalignable if it has none."""
    if face.crop is None:
        raise Unalignable(
            "The face can't be compared: its eyes, nose and mouth are covered, blurred or turned away.",
            reasons=[Reason.UNALIGNABLE.value],
        )
    return face.crop


def main_crop(photo: Photo) -> Pixels:
    """Return the aligned crop of a photo's most prominent face. Raises NoFace and Unalignable."""
    return crop_of(photo.faces[choose_face(photo).index])


def prominence(box: Box, width: int, height: int) -> float:
    """Return the prominence of a face in a photo of ``width`` × ``height``; only ratios within one photo matter."""
    half_diagonal = math.hypot(width, height) / 2
    closeness = max(0.0, 1 - _off_centre(box, width, height) / half_diagonal)
    return box.area * closeness**2


def _off_centre(box: Box, width: int, height: int) -> float:
    return math.hypot(box.x + box.width / 2 - (width - 1) / 2, box.y + box.height / 2 - (height - 1) / 2)


def _need_more(decoded: Decoded, faces: Iterable[Detection], cuts: Sequence[Cut]) -> bool:
    """Return whether the photo was decoded too small for these faces: a crop or a cut would have more pixels than its
    part of the photo."""
    return decoded.scale != 1 and any(
        any(cut.enlarges(face.box) for cut in cuts)
        or scale_of(similarity_transform(face.landmarks, CANONICAL_LANDMARKS)) > 1
        for face in faces
    )


def _scaled(detection: Detection, decoded: Decoded) -> Detection:
    """Map a detection from the decoded pixels' coordinates to the original's."""
    if decoded.scale == 1:
        return detection
    scale, shift = decoded.scale, np.array([decoded.left, decoded.top], np.float32)
    box = detection.box
    x, y = (np.array([box.x, box.y]) + 0.5) * scale - 0.5 + shift
    landmarks = (detection.landmarks + np.float32(0.5)) * np.float32(scale) - np.float32(0.5) + shift
    return Detection(Box(float(x), float(y), box.width * scale, box.height * scale), landmarks, detection.score)


@contextmanager
def timed(stages: dict[str, float], name: Stage) -> Iterator[None]:
    """Add the block's milliseconds to those of the stage `name`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        stages[name] = stages.get(name, 0.0) + (time.perf_counter() - start) * 1000
