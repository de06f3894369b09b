"""From a photo's bytes to its faces: the only module that composes the stages."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np

from app.concurrency.admission import Budget, check_deadline, current_task
from app.errors import ImageTooLarge, NoFace
from app.face.align import CANONICAL_LANDMARKS, Cut, align, cut_face, scale_of, similarity_transform, view
from app.face.detect import SURE_SCORE, Detector
from app.face.formats import Limits
from app.face.image import REDUCTIONS, Decoded, EncodedImage, open_image
from app.face.quality import assess
from app.inference.embedders import Embedder
from app.types import Box, Detection, Face, Photo, Pixels

T = TypeVar("T")

SECOND_LOOK = (90, 180, 270)
"""Clockwise degrees by which a photo is turned when nothing sure was found in it."""
SURER_BY = 0.02
"""A turned photo's best score must be higher by this much, and sure: an unsure one is as often made up as found. With
both, 441 of 450 photos of LFW View 1 that lie on their side or head are turned right, and 150 of 150 upright ones stay;
the other 9 are unsure when upright."""

RGB_BYTES = 3
"""Of a decoded pixel."""

VIEW_SIDE, VIEW_ZOOM = 256, 2.0
"""How large a face is shown to the detector to measure its landmarks again: twice the crop's scale, 70 pixels between
the eyes. Chosen on LFW View 1 (docs/explanation/accuracy.md)."""
AMBIGUOUS_SHARE = 0.5
"""A photo whose second face is at least half as prominent as the first does not say whom it shows: not enrolled."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The face that an operation uses where a photo has several."""

    index: int
    """Of the face in ``Photo.faces``."""
    why: str
    """In words, for people."""
    runner_up: float
    """The next face's prominence as a share of the chosen one's: 0 without another, up to 1. Of the 1,119 photos of
    LFW View 1 with several faces, half have less than 0.09, 41 more than 0.3 and 4 more than 0.5."""


class TooCostly(Exception):
    """The photo decodes to more pixels than `Pipeline.most_pixels`."""


class Reader(Protocol):
    """Finds faces: a `Pipeline`, in this process or in others (`app.workers`). Safe to share between threads."""

    def detect(self, image: bytes, cuts: Sequence[Cut] = ()) -> Photo:
        """Return every face of a photo, as `Pipeline.detect` does."""
        ...

    def best_score(self, pixels: Pixels) -> float:
        """Return the score of the surest face in a small picture; 0 without one."""
        ...

    @property
    def free(self) -> int:
        """Return how many more small photos could be worked on now."""
        ...


class Pipeline:
    """Decode, detect, align, assess quality and embed. Safe to share between threads."""

    most_pixels: float = math.inf
    """Photos that decode to more are not read: `detect` raises TooCostly."""

    def __init__(
        self, detector: Detector, limits: Limits, *, refine: bool = True, budget: Budget | None = None
    ) -> None:
        """``refine`` measures each face's landmarks a second time before alignment (docs/explanation/accuracy.md).

        ``budget`` limits the photos that are in work at once and the memory that they take, from decoding to the crops.
        """
        self._detector = detector
        self._limits = limits
        self._refine = refine
        self._budget = budget

    def detect(self, image: bytes, cuts: Sequence[Cut] = ()) -> Photo:
        """Return every face of a photo with its aligned crop and quality, highest detector score first.

        ``cuts``: what liveness models are shown of each face, kept with it.

        A photo without a face is an answer, not an error. Raises EmptyImage, UnsupportedImage, InvalidImage,
        ImageTooLarge and ImageTooSmall; within a request also LikenessError (``request_timeout``) and Overloaded.
        """
        check_deadline()
        stages: dict[str, float] = {}
        with timed(stages, "decode"):
            encoded = open_image(image, self._limits)
            factor = 1
            if encoded.can_reduce():  # as far as the detector loses nothing
                finest = self._detector.finest_scale(encoded.width, encoded.height)
                factor = next((factor for factor in REDUCTIONS if factor * finest <= 1), 1)
        seen = self._in_room(encoded, factor, lambda: self._seen(encoded, factor, cuts, stages))
        if not isinstance(seen, Photo):
            # The crop of a small face needs all the pixels there are.
            encoded, (places, turned) = open_image(image, self._limits), seen
            seen = self._in_room(
                encoded, 1, lambda: self._aligned(_decoded(encoded, 1, stages), places, turned, cuts, stages)
            )
        task = current_task()
        if self._budget and task.caller:  # the crops count for the request until its work ends; raises Overloaded
            size = sum(pixels.nbytes for face in seen.faces for pixels in (face.crop, *face.cuts))
            self._budget.keep(task.caller, size)
            task.kept += size
        return seen

    @property
    def free(self) -> int:
        """Return how many more small photos could be worked on now; 1 where nothing limits them."""
        return self._budget.free if self._budget else 1

    def bytes_needed(self, encoded: EncodedImage, factor: int = 1) -> int:
        """Return the most memory that a photo decoded ``factor`` times smaller takes beside its file, known from the
        header alone: first to decode it; then its pixels, a turned copy and the search for faces. What malloc keeps of
        freed memory is not counted.
        """
        width, height = -(-encoded.width // factor), -(-encoded.height // factor)
        searched = self._detector.search_bytes(width, height, self._detector.min_face / factor)
        return max(encoded.decode_bytes(factor), 2 * RGB_BYTES * width * height + searched)

    def _in_room(self, encoded: EncodedImage, factor: int, work: Callable[[], T]) -> T:
        """Return what ``work`` on the photo returns, done when there is memory and a core for it.

        Raises ImageTooLarge if the server never has so much memory.
        """
        if encoded.pixels(factor) > self.most_pixels:
            raise TooCostly
        if self._budget is None:
            return work()
        size, most = self.bytes_needed(encoded, factor), self._budget.most_work
        if size > most:
            message = f"Working on the image takes {size} bytes; this server has {most:.0f} for one image."
            raise ImageTooLarge(message, width=encoded.width, height=encoded.height)
        return self._budget.run(work, size, pixels=encoded.pixels(factor))

    def _seen(
        self, encoded: EncodedImage, factor: int, cuts: Sequence[Cut], stages: dict[str, float]
    ) -> Photo | tuple[list[Detection], int]:
        """Return the photo's faces; where their crops need more pixels than were decoded, only their places and the
        photo's turn.
        """
        decoded = _decoded(encoded, factor, stages)
        with timed(stages, "detect"):
            detections, turned = self._find(decoded)
        if decoded.scale == 1 or not any(_enlarged(detection, cuts) for detection in detections):
            return self._aligned(decoded, detections, turned, cuts, stages)
        return [_scaled(detection, decoded) for detection in detections], turned

    def _aligned(
        self, decoded: Decoded, detections: list[Detection], turned: int, cuts: Sequence[Cut], stages: dict[str, float]
    ) -> Photo:
        """Align the faces, assess their quality, and cut out what liveness models are shown."""
        check_deadline()
        stages |= {"align": 0.0, "quality": 0.0}
        faces = []
        for rough in detections:
            with timed(stages, "align"):
                detection = self._refined(decoded.pixels, rough) if self._refine else rough
                crop = align(decoded.pixels, detection.landmarks)
                shown = tuple(cut_face(decoded.pixels, detection.box, cut, turned=turned) for cut in cuts)
            with timed(stages, "quality"):
                original = _scaled(detection, decoded)
                quality = assess(crop, original, decoded.width, decoded.height)
            faces.append(Face(original.box, original.landmarks, original.score, quality, crop, cuts=shown))
        return Photo(decoded.width, decoded.height, tuple(faces), turned, stages)

    def best_score(self, pixels: Pixels) -> float:
        """Return the score of the surest face in a small picture; 0 without one."""
        return _best_score(self._detector.detect(pixels))

    def _refined(self, pixels: Pixels, detection: Detection) -> Detection:
        """Measure the face's landmarks again in a large, upright view; unchanged if none are found there."""
        seen = view(pixels, detection.landmarks, side=VIEW_SIDE, zoom=VIEW_ZOOM)
        landmarks = self._detector.landmarks(seen.pixels, seen.landmarks)
        return detection if landmarks is None else replace(detection, landmarks=seen.to_photo(landmarks))

    def _find(self, decoded: Decoded) -> tuple[list[Detection], int]:
        """Return the faces in the decoded pixels' coordinates, and the photo's clockwise turn in degrees."""
        pixels, min_face = decoded.pixels, self._detector.min_face / decoded.scale
        upright = self._detector.detect(pixels, min_face=min_face)
        best = _best_score(upright)
        if best >= SURE_SCORE:
            return upright, 0
        # The faces keep about their size when the photo is turned, so smaller ones need not be looked for.
        widest = max((detection.box.width for detection in upright), default=0.0)
        scores = {}
        for turn in SECOND_LOOK:
            check_deadline()
            turned = self._detector.detect(turn_pixels(pixels, turn), min_face=max(min_face, widest / 2))
            scores[turn] = _best_score(turned)
        turn, score = max(scores.items(), key=lambda scored: scored[1])
        if score < SURE_SCORE or score <= best + SURER_BY:
            return upright, 0
        height, width = pixels.shape[:2]
        turned = self._detector.detect(turn_pixels(pixels, turn), min_face=min_face)
        return ([turn_back(detection, turn, width, height) for detection in turned], turn) if turned else (upright, 0)


def embed_faces(photos: Sequence[Photo], embedder: Embedder, which: Sequence[Sequence[int]]) -> list[Photo]:
    """Return the photos with templates of the faces whose indices ``which`` lists per photo, embedded in one call.

    Raises Overloaded.
    """
    crops = [photo.faces[place].crop for photo, places in zip(photos, which, strict=True) for place in places]
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


def choose_face(photo: Photo) -> Choice:
    """Return the most prominent face. Raises NoFace if there is none.

    Prominence = area × (1 − d / D)², with the distance d of the box's centre from the photo's, and half the photo's
    diagonal D. In LFW View 1, where the person a photo is named after is the one in the middle, 1,118 of 1,119 photos
    with several faces are answered so (by area alone: 1,094).
    """
    if not photo.faces:
        raise NoFace("No face was found in the image.")
    boxes, size = [face.box for face in photo.faces], (photo.width, photo.height)
    prominences = [prominence(box, *size) for box in boxes]
    first, *others = sorted(range(len(boxes)), key=lambda i: -prominences[i])
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


def pick_face(photo: Photo, index: int) -> Choice:
    """Return the choice of the face at ``index`` of ``photo.faces``. Raises NoFace if there is none."""
    if index >= len(photo.faces):
        raise NoFace(
            f"The photo has no face {index}: it has {len(photo.faces)}, counted from 0.", faces=len(photo.faces)
        )
    return Choice(index, "chosen by the request", 0.0)


def prominence(box: Box, width: int, height: int) -> float:
    """Return the prominence of a face in a photo of ``width`` × ``height``; only ratios within one photo matter."""
    half_diagonal = math.hypot(width, height) / 2
    closeness = max(0.0, 1 - _off_centre(box, width, height) / half_diagonal)
    return box.area * closeness**2


def _off_centre(box: Box, width: int, height: int) -> float:
    return math.hypot(box.x + box.width / 2 - (width - 1) / 2, box.y + box.height / 2 - (height - 1) / 2)


def _best_score(detections: list[Detection]) -> float:
    return detections[0].score if detections else 0.0  # the highest comes first


def turn_pixels(pixels: Pixels, degrees: int) -> Pixels:
    """Turn clockwise by a multiple of 90 degrees."""
    return np.ascontiguousarray(np.rot90(pixels, -degrees // 90))


def turn_back(detection: Detection, degrees: int, width: int, height: int) -> Detection:
    """Return where a face found in a turned photo lies in the original of ``width`` × ``height``.

    Landmarks keep their meaning: in a photo that lies on its side, one eye is above the other.
    """
    box = detection.box
    corners = np.array([[box.x, box.y], [box.x + box.width, box.y + box.height]])
    x, y = np.concatenate([corners, detection.landmarks]).T
    back = {
        90: (y, height - 1 - x),
        180: (width - 1 - x, height - 1 - y),
        270: (width - 1 - y, x),
    }
    points = np.stack(back[degrees], axis=1)
    (left, top), (right, bottom) = np.sort(points[:2], axis=0).tolist()
    return Detection(Box(left, top, right - left, bottom - top), points[2:].astype(np.float32), detection.score)


def _decoded(encoded: EncodedImage, factor: int, stages: dict[str, float]) -> Decoded:
    with timed(stages, "decode"):
        return encoded.decode(factor)


def _enlarged(detection: Detection, cuts: Sequence[Cut]) -> bool:
    """Return whether the crop or a cut would have more pixels than the part of the photo it is taken from."""
    if any(cut.enlarges(detection.box) for cut in cuts):
        return True
    return scale_of(similarity_transform(detection.landmarks, CANONICAL_LANDMARKS)) > 1


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
def timed(stages: dict[str, float], name: str) -> Iterator[None]:
    """Add the milliseconds that the block takes to those of the stage `name`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        stages[name] = stages.get(name, 0.0) + (time.perf_counter() - start) * 1000
