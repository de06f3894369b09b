"""Find the faces in a photo's bytes: the only module that composes the stages."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Protocol

from app.choices import Stage
from app.concurrency.threads import TASK, Lanes, check_deadline
from app.errors import ImageTooLarge, NoFace, Unalignable
from app.face.align import Cut, align, cut_face, scale_of, similarity_transform
from app.face.confirm import FoundFaces, find_faces, upright_at
from app.face.detect import SCORE_THRESHOLD, Detector, levels
from app.face.formats import BYTES_A_PIXEL, READABLE, UNBOUNDED, Limits, TooCostly, format_of, open_image
from app.face.image import Decoded, decode_opened
from app.face.quality import grade, measure
from app.inference.embedders import Embedder
from app.types import CANONICAL_LANDMARKS, Detection, Face, Photo, Pixels, Quality, Reason

AMBIGUOUS_SHARE = 0.5
"""A photo whose second face is at least half as prominent as the first is ambiguous, and not enrolled."""
COSTLY_PIXELS = 4_000_000
"""Pixels from which on searching a photo without a face takes a core at least half a second."""
COSTLY_MEMORY = 2 * 1024**3
"""More bytes than one photo of COSTLY_PIXELS, or one of 50 megapixels, takes in any format."""
SMALL_PHOTO_MEMORY = BYTES_A_PIXEL * COSTLY_PIXELS
UNBOUNDED_MEMORY = 1024**3
"""Minimum memory for one costly photo to read UNBOUNDED formats, too. Their decoders may take twice as much, for which
such a server has room: as much again is reserved for bodies, small photos and everything else."""
SMALL_PHOTOS_SHARE = 2 / 3
"""Share of the memory for photos that small ones get, but at most one photo per core."""


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
    """Decode, detect, align and assess quality. Safe to share between threads."""

    free = 1
    """Photos of one caller are processed one by one."""

    def __init__(self, detector: Detector, limits: Limits) -> None:
        self._detector = detector
        self.limits = limits

    def detect(self, image: bytes, cuts: Sequence[Cut] = ()) -> Photo:
        """Return every face of a photo with its aligned crop and quality, highest detector score first; without a crop
        if its landmarks could not be confirmed.

        ``cuts``: the cuts that liveness models take of each face, which are kept with it.

        A photo without a face is not an error. Raises EmptyImage, UnsupportedImage, InvalidImage,
        ImageTooLarge, ImageTooSmall, Overloaded and TooCostly; within a request also LikenessError
        (``request_timeout``).
        """
        check_deadline()
        stages: dict[str, float] = {}
        with timed(stages, "decode"):
            opened = open_image(image, self.limits)
            finest = levels(*opened.size, self._detector.min_face)[0].scale  # the detector sees no finer pixels
            decoded = decode_opened(opened, image, self.limits, finest)
        with timed(stages, "detect"):
            min_face = self._detector.min_face / decoded.scale
            sights = self._detector.search(decoded.pixels, min_face=min_face)
            found = None
            if not _need_more(decoded, (sight for sight in sights if sight.score >= SCORE_THRESHOLD), cuts):
                found = find_faces(decoded.pixels, sights, self._detector, min_face)
        if found is None or _need_more(decoded, found.faces, cuts):
            sights = [decoded.original(sight) for sight in sights]
            del decoded  # frees its pixels before all are decoded
            with timed(stages, "decode"):
                decoded = decode_opened(open_image(image, self.limits), image, self.limits)
            with timed(stages, "detect"):
                found = find_faces(decoded.pixels, sights, self._detector, self._detector.min_face)
        check_deadline()
        return _photo(decoded, found, cuts, stages)


def _need_more(decoded: Decoded, faces: Iterable[Detection], cuts: Sequence[Cut]) -> bool:
    """Return whether the photo was decoded too small for these faces: a crop or a cut would have more pixels than its
    part of the photo."""
    return decoded.scale != 1 and any(
        any(cut.enlarges(face.box) for cut in cuts)
        or scale_of(similarity_transform(face.landmarks, CANONICAL_LANDMARKS)) > 1
        for face in faces
    )


def _photo(decoded: Decoded, found: FoundFaces, cuts: Sequence[Cut], stages: dict[str, float]) -> Photo:
    """Align the confirmed faces, assess their quality, and make the cuts for liveness models."""
    stages |= {"align": 0.0, "quality": 0.0}
    faces = []
    quarters = [90 * round(upright_at(face.landmarks) / 90) % 360 for face in found.faces]
    for face, turned in zip(found.faces, quarters, strict=True):
        with timed(stages, "align"):
            crop = align(decoded.pixels, face.landmarks)
            shown = tuple(cut_face(decoded.pixels, face.box, cut, turned=turned) for cut in cuts)
        with timed(stages, "quality"):
            original = decoded.original(face)
            quality = grade(measure(crop, original, decoded.width, decoded.height))
        faces.append(Face(original.box, original.landmarks, original.score, quality, crop, cuts=shown))
    for sight in found.unalignable:
        shown, original = tuple(cut_face(decoded.pixels, sight.box, cut) for cut in cuts), decoded.original(sight)
        faces.append(Face(original.box, None, original.score, Quality(0.0, (Reason.UNALIGNABLE,)), None, cuts=shown))
    faces.sort(key=attrgetter("score"), reverse=True)
    return Photo(decoded.width, decoded.height, tuple(faces), quarters[0] if quarters else 0, stages)


class PhotoThreads:
    """Finds faces as `Pipeline` does, in as many photos at a time as there are cores and memory. Safe to share between
    threads.

    The system doesn't limit a photo's memory here, so it is counted as BYTES_A_PIXEL, and a photo that exceeds all
    memory is too large. One of an UNBOUNDED format, for which this is no upper bound, counts as costly, and is rejected
    below UNBOUNDED_MEMORY.
    """

    def __init__(self, detector: Detector, limits: Limits, count: int, count_bytes: Callable[[int], None]) -> None:
        """Until `start`, allow ``count`` small photos at a time. ``count_bytes`` is as in `PhotoWorkers`."""
        self._detector, self._limits, self._count, self._count_bytes = detector, limits, count, count_bytes
        self._small = self._large = Pipeline(detector, replace(limits, most_pixels=COSTLY_PIXELS))
        self.ended: Counter[str] = Counter()
        """Photos that were given up, as in `PhotoWorkers.ended`; here there are none."""
        self._lanes = Lanes(count, 1)

    def start(self, memory: float) -> None:
        """Let photos take ``memory`` bytes together."""
        small = max(1, min(self._count, round(memory * SMALL_PHOTOS_SHARE / SMALL_PHOTO_MEMORY)))
        rest = memory - small * SMALL_PHOTO_MEMORY
        costly = max(1, min(self._count // 2, int(rest / COSTLY_MEMORY)))
        per_photo = rest / costly
        limits = replace(self._limits, most_pixels=max(per_photo / BYTES_A_PIXEL, COSTLY_PIXELS))
        if per_photo < UNBOUNDED_MEMORY:
            limits = replace(limits, formats=frozenset(READABLE) - UNBOUNDED)
        self._large = Pipeline(self._detector, limits)
        self._lanes = Lanes(small, costly)

    @property
    def free(self) -> int:
        """Return how many more small photos could be worked on now."""
        return self._lanes.quick.free

    @property
    def waiting(self) -> int:
        """Return how many photos wait for a thread's turn."""
        return self._lanes.quick.waiting + self._lanes.costly.waiting

    def detect(self, image: bytes, cuts: Sequence[Cut] = ()) -> Photo:
        """Return what `Pipeline.detect` returns. Raises what it raises, and ImageTooLarge."""
        photo = None
        if format_of(image) not in UNBOUNDED:
            with suppress(TooCostly):
                photo = self._lanes.run(partial(self._small.detect, image, cuts), costly=False)
        if photo is None:
            try:
                photo = self._lanes.run(partial(self._large.detect, image, cuts), costly=True)
            except TooCostly:
                raise ImageTooLarge("Reading the image takes more memory than this server has for one image.") from None
        count_crops(photo, self._count_bytes)
        return photo


def count_crops(photo: Photo, count_bytes: Callable[[int], None]) -> None:
    """Count the bytes of a photo's crops for the current request, until it ends. Raises what ``count_bytes`` raises."""
    if TASK.get().caller:
        kept = (pixels for face in photo.faces for pixels in (face.crop, *face.cuts) if pixels is not None)
        count_bytes(sum(pixels.nbytes for pixels in kept))


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

    Prominence = area × (1 − d / D)², where d is the distance of the box's centre from the photo's, and D half the
    photo's diagonal. In LFW View 1, whose photos are named after the person in the middle, this chooses the right face
    in 1,118 of 1,119 photos with several faces (area alone: 1,094).
    """
    if index is not None and index >= len(photo.faces):
        count = len(photo.faces)
        raise NoFace(f"The photo has no face {index}: it has {count}, counted from 0.", faces=count)
    if not photo.faces:
        raise NoFace("No face was found in the image.")
    if index is not None:
        return Choice(index, "chosen by the request", 0.0)
    centre = (photo.width - 1) / 2, (photo.height - 1) / 2
    half_diagonal = math.hypot(photo.width, photo.height) / 2
    areas = [face.box.area for face in photo.faces]
    apart = [math.dist(face.box.centre, centre) for face in photo.faces]
    prominences = [area * max(0.0, 1 - d / half_diagonal) ** 2 for area, d in zip(areas, apart, strict=True)]
    first, *others = sorted(range(len(areas)), key=prominences.__getitem__, reverse=True)
    if not others:
        return Choice(first, "the only face", 0.0)
    share = prominences[others[0]] / prominences[first] if prominences[first] > 0 else 1.0
    why = {
        (True, True): f"the largest of {len(areas)} faces and the nearest to the centre",
        (True, False): f"the largest of {len(areas)} faces, near enough to the centre",
        (False, True): f"the nearest to the centre of {len(areas)} faces, large enough",
        (False, False): f"large and near the centre at once, of {len(areas)} faces",
    }
    return Choice(first, why[areas[first] >= max(areas), apart[first] <= min(apart)], share)


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


@contextmanager
def timed(stages: dict[str, float], name: Stage) -> Iterator[None]:
    """Add the block's milliseconds to those of the stage `name`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        stages[name] = stages.get(name, 0.0) + (time.perf_counter() - start) * 1000
