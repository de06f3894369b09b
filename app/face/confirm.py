"""Confirm the detector's sights as faces, and measure their landmarks.

A sight is a face only if a look at it, upright and large, confirms its landmarks: YuNet sees a turned face as an
upright one, with wrong ("made-up") landmarks, and the templates of such faces match each other. A sight that is not
confirmed is looked at in eight directions, so that each face of a photo may be turned by its own angle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from app.concurrency.tasks import check_deadline
from app.face.align import mirrored, scale_of, similarity_transform, view
from app.face.detect import DIRECTIONS, SCORE_THRESHOLD, SURE_SCORE, Detector
from app.types import Box, Detection, Landmarks, Pixels

CONFIRMED = 0.85
"""Score that the upright look at a face has, either way, if its landmarks are not made up. Chosen on LFW View 1, turned
(docs/explanation/quality.md)."""
SURE_LOOK, SURE_LOOK_TURNED = 0.91, 0.92
"""Score of the upright look at a sight that seemed sure from which the whole photo is not searched again, and of any
look from which no surer one is searched for. In LFW View 1, turned in its plane, made-up landmarks had at most 0.914
and 0.918 there; 2 % of the right ones have less than 0.92, as have 16 of 1,058 sure sights in upright photos."""
SPOT_THRESHOLD, LIKE_SIZE = 0.15, 2.0
"""Score from which a place is looked at for a turned face though there is a sure one in the photo, and factor by which
a fainter place may be smaller or larger than a sure face. Of 24 photos of LFW View 1 turned every 15 degrees from 30
on, two sights of 528 have less than 0.15. Faces of 65 pixels in films, turned beside an upright one, have 0.03 to 0.15
in 25 of 77 photos, and seem 0.65 to 2.1 times as wide."""
TURNS = (90, 180, 270)
"""Clockwise degrees by which a photo is turned, one after the other, until a face is surely confirmed in it. Faces are
hardly seen further from upright than 45 degrees; one of the four looks is as near as that."""
SEEN_WITHIN, MOST_SEARCHES = 15.0, 5
"""Degrees by which a sure face may be turned until the photo is searched once more, held as that face is: YuNet is sure
of faces turned by up to 30, and people's heads lean by 15 either way. And the most searches of a photo."""
UPRIGHT_WITHIN = 6.0
"""Degrees by which a face may lean in its upright view."""
SAME_READING, SURE_READING = 0.16, 0.25
"""Mean distance between landmarks, in distances between the eyes, within which a sight reads a face as a look did, and
up to which the upright look may find those of a sight that seemed sure elsewhere, or it is looked at in eight
directions: one sight of two overlapping faces had 0.31. Of 411 in upright photos of LFW View 1 none has more than
0.24; of 230 in photos turned by 15 to 30 degrees three have more."""
SURE_WITHIN = 10.0
"""Degrees by which such a face may lean there: of 198 upright photos of LFW View 1 none leans by more than 9. Made-up
landmarks of sure sights in photos turned by 135 and 150 degrees had 0.87 to 0.89, and leaned by 9 to 17."""
QUARTERS: dict[float, int] = {90: cv2.ROTATE_90_CLOCKWISE, 180: cv2.ROTATE_180, 270: cv2.ROTATE_90_COUNTERCLOCKWISE}
"""Turns that need no interpolation, and a tenth of the time."""
DARK, LIT = 40.0, 110.0
"""Mean grey value under which a face is dark, and to which it is then brightened: what most photos' faces have. At a
twentieth of the light, the upright look at a face scores 0.94 so, and sees none without."""
VIEW_SIDE, VIEW_ZOOM = 256, 2.0
"""How large a face is shown to the detector to measure its landmarks again: twice the crop's scale, 70 pixels between
the eyes. Chosen on LFW View 1 (docs/explanation/accuracy.md)."""
_SCORE = attrgetter("score")


@dataclass(frozen=True, slots=True)
class Found:
    """The faces of a photo, surest first: those with confirmed landmarks, and those without."""

    faces: Sequence[Detection] = ()
    unalignable: Sequence[Detection] = ()


def find_faces(pixels: Pixels, sights: Sequence[Detection], detector: Detector, min_face: float) -> Found:
    """Return the faces of (H, W, 3) uint8 RGB ``pixels``, given what the detector sees in them.

    Until a face is surely confirmed, fainter places are looked at too, and the photo is searched again in all four
    quarter turns, for faces from ``min_face`` pixels wide. Beside a sure face, fainter places are looked at if they are
    about as large as it. Where it is turned, others may be turned like it: the photo is searched once more, held so
    that this face is upright.
    """
    found = _Faces(pixels, detector)
    found.confirm(sight for sight in sights if sight.score >= SPOT_THRESHOLD)
    found.confirm(sight for sight in sights if sight.score < SPOT_THRESHOLD and found.is_likely(sight))
    searched = [0.0]
    while len(searched) < MOST_SEARCHES and (degrees := found.next_turn(searched)) is not None:
        searched.append(degrees)
        turned, back = turn_pixels(pixels, degrees)
        look = detector.detect if degrees == TURNS[-1] else detector.search
        seen = look(turned, min_face=min_face / scale_of(back))
        found.confirm((mapped(sight, back) for sight in seen), unalignable_from=SURE_SCORE)
    return found.all()


class _Faces:
    """The faces that have been confirmed in a photo, and the sights that have not."""

    def __init__(self, pixels: Pixels, detector: Detector) -> None:
        self._pixels, self._detector = pixels, detector
        self._looks: list[_Look] = []
        self._sure: list[Detection] = []
        """The faces that were confirmed as made-up landmarks never are."""
        self._others: list[Detection] = []

    def is_likely(self, sight: Detection) -> bool:
        """Return whether a faint place is worth a look: any is until a face is sure, then only those of its size."""
        sure = self._sure
        return not sure or any(1 / LIKE_SIZE <= sight.box.width / face.box.width <= LIKE_SIZE for face in sure)

    def next_turn(self, searched: Sequence[float]) -> float | None:
        """Return the clockwise degrees by which to turn the photo and search it next; None if that is done."""
        turns = [upright_at(face.landmarks) for face in self._sure] or TURNS
        apart = [[abs((turn - each + 180) % 360 - 180) for each in searched] for turn in turns]
        return next((turn for turn, degrees in zip(turns, apart, strict=True) if min(degrees) > SEEN_WITHIN), None)

    def all(self) -> Found:
        """Return the faces, and the unconfirmed sights that may be faces."""
        faces = sorted((look.face for look in self._looks), key=_SCORE, reverse=True)
        return Found(faces, [sight for sight in self._others if not _is_near(sight, faces)])

    def confirm(self, sights: Iterable[Detection], *, unalignable_from: float = SCORE_THRESHOLD) -> None:
        """Look at the sights. Unconfirmed ones count as faces from the score ``unalignable_from`` on."""
        for sight in sorted(sights, key=_SCORE, reverse=True):
            check_deadline()
            if any(look.sure for look in self._looks_at(sight, sure=sight.score >= SURE_SCORE)):
                continue
            first = _look(self._pixels, sight, self._detector, one_way=True) if sight.score >= SURE_SCORE else None
            look = None
            if first is not None and first.score >= SURE_LOOK and first.leans <= SURE_WITHIN:
                alike = _reads_alike(sight, first, SURE_READING)
                look = _upright(self._pixels, first, self._detector, SURE_LOOK) if alike else None
            if look is None or not look.sure:
                seemed_sure, looks = look is not None, (look, self._read_turned(sight, first))
                look = max(filter(None, looks), key=_SCORE, default=None)
                look = look and look._replace(sure=look.sure or seemed_sure)
            if look is not None:
                self._add(look)
            elif sight.score >= unalignable_from and not _is_near(sight, self._others):
                self._others.append(sight)

    def _read_turned(self, sight: Detection, first: _Look | None) -> _Look | None:
        """Return the surest look that confirms a face at a sight, turned by any angle, or None. ``first`` is the look
        at the sight itself, if it seemed sure.

        A face that was already confirmed nearly surely was the surest of eight directions, so then only the sight
        itself is read.
        """
        seen = [sight]
        if not _is_near(sight, [look.face for look in self._looks if look.score >= SURE_LOOK]):
            directions: Sequence[int] = self._detector.promising(self._pixels, sight.box)
            if sight.score >= SCORE_THRESHOLD:  # also look closely at a sight that was seen upright
                directions = sorted({0, *directions}) if directions else DIRECTIONS
            elif not directions:
                return None
            seen += self._detector.turned(self._pixels, sight.box, directions)
        seen = [each for each in seen if each.score >= SCORE_THRESHOLD and not _is_near(each, self._sure)]
        looks: list[_Look] = []
        for each in sorted(seen, key=_SCORE, reverse=True):
            if self._sure and any(_reads_alike(each, look) for look in looks):
                continue  # a second try may be surer, which matters until a face is sure
            known = each is sight and sight.score >= SURE_SCORE
            look = first if known else _look(self._pixels, each, self._detector)
            look = look and _upright(self._pixels, look, self._detector)
            if look is not None:
                looks.append(look)
                if look.sure:
                    break
        return max(looks, key=_SCORE, default=None)

    def _looks_at(self, face: Detection, *, sure: bool) -> list[_Look]:
        """Return the looks at the face. Of two sure ones whose middles lie further apart than the eyes of either, each
        is of its own: the box around a turned face may hold a neighbour."""
        near = [look for look in self._looks if _is_near(face, [look.face])]
        return [look for look in near if not (sure and look.sure and _are_two(face, look.face))]

    def _add(self, look: _Look) -> None:
        """Keep the look; of several looks at the same face, keep the surest."""
        near = self._looks_at(look.face, sure=look.sure)
        if not any(each.sure or each.score >= look.score for each in near):
            self._looks = [*(each for each in self._looks if each not in near), look]
            self._sure = [each.face for each in self._looks if each.sure]


def _upright(pixels: Pixels, look: _Look, detector: Detector, least: float = CONFIRMED) -> _Look | None:
    """Return the look, or a second one if the face leans in the first; None if that scores less than ``least``.

    The first sight's landmarks show the face's angle, but those of a turned face are too close to upright.
    """
    second = _look(pixels, look.face, detector, least) if look.leans >= UPRIGHT_WITHIN else look
    return second and second._replace(sure=second.score >= SURE_LOOK_TURNED)


class _Look(NamedTuple):
    """The result of looking at a face in an upright view."""

    face: Detection
    """With the landmarks measured there."""
    score: float
    leans: float
    """Degrees by which the face leans there, 0-180."""
    sure: bool = False
    """No surer look needs to be searched for."""


def _look(
    pixels: Pixels, sight: Detection, detector: Detector, least: float = CONFIRMED, *, one_way: bool = False
) -> _Look | None:
    """Measure a face's landmarks again in a large, upright view and in its mirror image; None if either scores less
    than ``least``.

    YuNet's landmarks are biased to one side, more so if the face leans; the mean of the two looks is not. With
    ``one_way``, a face that is sure and upright in the view itself needs no second look.
    """
    seen = view(pixels, sight.landmarks, side=VIEW_SIDE, zoom=VIEW_ZOOM)
    shown = _lit(seen.pixels)
    one = detector.landmarks(shown, seen.landmarks)
    if one is None or one[1] < least:
        return None
    landmarks, score = one
    leans = _leans(landmarks, seen.landmarks)
    if not (one_way and score >= SURE_LOOK_TURNED and leans < UPRIGHT_WITHIN):
        other = detector.landmarks(np.asarray(cv2.flip(shown, 1), np.uint8), mirrored(seen.landmarks, VIEW_SIDE))
        if other is None or other[1] < least:
            return None
        landmarks, score = (landmarks + mirrored(other[0], VIEW_SIDE)) / 2, min(score, other[1])
        leans = _leans(landmarks, seen.landmarks)
    return _Look(replace(sight, landmarks=seen.to_photo(landmarks)), score, leans)


def _reads_alike(sight: Detection, look: _Look, within: float = SAME_READING) -> bool:
    """Return whether a sight has a face's landmarks where the look found them."""
    found = look.face.landmarks
    apart = np.linalg.norm(sight.landmarks - found, axis=1).mean()
    return bool(apart <= within * np.linalg.norm(found[1] - found[0]))


def _leans(landmarks: NDArray[np.float64], upright: NDArray[np.float64]) -> float:
    """Return by how many degrees a face with these (5, 2) landmarks leans, 0-180."""
    matrix = similarity_transform(landmarks, upright)
    return abs(math.degrees(math.atan2(matrix[1, 0], matrix[0, 0])))


def _lit(seen: Pixels) -> Pixels:
    """Return a view of a face, brightened if the face is dark, so that YuNet recognises it."""
    quarter = len(seen) // 4
    mean = sum(cv2.mean(seen[quarter:-quarter, quarter:-quarter])[:3]) / 3
    return seen if mean >= DARK else np.asarray(cv2.convertScaleAbs(seen, alpha=LIT / max(mean, 1.0)), np.uint8)


def _is_near(sight: Detection, faces: Iterable[Detection]) -> bool:
    """Return whether the sight is of one of the faces: the centre of one is in the ellipse in the other's box.

    The box around a turned face is larger than the face, and a neighbour may be in its corners.
    """
    return any(_holds(sight.box, face.box.centre) or _holds(face.box, sight.box.centre) for face in faces)


def _are_two(*faces: Detection) -> bool:
    """Return whether two faces' middles lie further apart than the eyes of either."""
    middles, eyes = zip(*((each.landmarks.mean(axis=0), math.dist(*each.landmarks[:2])) for each in faces), strict=True)
    return bool(math.dist(*middles) > max(eyes))


def _holds(box: Box, point: tuple[float, float]) -> bool:
    """Return whether the point is in the ellipse in the box."""
    x, y = box.centre
    return math.hypot((point[0] - x) / box.width, (point[1] - y) / box.height) <= 1 / 2


def quarter_of(landmarks: Landmarks) -> int:
    """Return by how much to turn a face clockwise to make it upright, as the nearest of 0, 90, 180 and 270 degrees."""
    return 90 * round(upright_at(landmarks) / 90) % 360


def upright_at(landmarks: Landmarks) -> float:
    """Return by how many degrees to turn a face clockwise to make it upright, -180 to 180."""
    x, y = (landmarks[0] + landmarks[1]) / 2 - (landmarks[3] + landmarks[4]) / 2  # from mouth to eyes
    return -math.degrees(math.atan2(x, -y))


def turn_pixels(pixels: Pixels, degrees: float) -> tuple[Pixels, NDArray[np.float64]]:
    """Turn a (H, W, 3) photo clockwise on a black canvas that holds all of it, at about the photo's number of pixels.

    Returns the canvas and the (2, 3) similarity from its coordinates to the photo's.
    """
    height, width = pixels.shape[:2]
    cos, sin = (abs(turn(math.radians(degrees))) for turn in (math.cos, math.sin))
    across, down = width * cos + height * sin, width * sin + height * cos
    scale = math.sqrt(width * height / (across * down))
    size = (max(1, round(across * scale)), max(1, round(down * scale)))
    matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), -degrees, scale)
    matrix[:, 2] += ((size[0] - width) / 2, (size[1] - height) / 2)
    turned = cv2.rotate(pixels, QUARTERS[degrees]) if degrees in QUARTERS else cv2.warpAffine(pixels, matrix, size)
    return np.asarray(turned, np.uint8), np.asarray(cv2.invertAffineTransform(matrix), np.float64)


def mapped(sight: Detection, matrix: NDArray[np.float64]) -> Detection:
    """Map the sight by a (2, 3) similarity: its box becomes the one around the turned ellipse in it. Landmarks keep
    their meaning: in a photo on its side, one eye is above the other.
    """
    box, turn = sight.box, matrix[:, :2]
    x, y = turn @ box.centre + matrix[:, 2]
    half_width, half_height = np.sqrt(turn**2 @ np.square([box.width / 2, box.height / 2])).tolist()
    landmarks = np.asarray(sight.landmarks @ turn.T + matrix[:, 2], np.float32)
    return Detection(
        Box(float(x) - half_width, float(y) - half_height, 2 * half_width, 2 * half_height), landmarks, sight.score
    )
