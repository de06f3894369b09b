"""From what the detector saw to faces with landmarks.

A sight is a face's only if an upright, large look at its landmarks confirms it: of a turned face YuNet sees an upright
one, with landmarks that are made up, and the templates of such faces match each other. A sight that is not confirmed is
looked at in eight directions. So each face of a photo may be turned in its own way.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from app.concurrency.tasks import check_deadline
from app.face.align import mirrored, similarity_transform, view
from app.face.detect import DIRECTIONS, SCORE_THRESHOLD, SURE_SCORE, Detector
from app.types import Box, Detection, Landmarks, Pixels

CONFIRMED = 0.85
"""Score that the upright look at a face has, either way, if its landmarks are not made up. Chosen on LFW View 1, turned
(docs/explanation/quality.md)."""
SURE_LOOK, SURE_LOOK_TURNED = 0.91, 0.92
"""Score of the upright look from which no surer one is searched for: of a sight that seemed sure, and of others. In
photos of LFW View 1 turned in their plane (972 views of 162 photos, and 192 of 8 that were read wrong before) made-up
landmarks had at most 0.908 and 0.918 there; 2 % of the right ones have less than 0.92. Of 282 sure sights in upright
photos 6 have less than 0.91, and no more less than 0.915."""
SPOT_THRESHOLD = 0.15
"""Score from which a place is looked at for a turned face though there is another one in the photo. Of 24 photos of LFW
View 1 turned every 15 degrees from 30 on, two sights of 528 have less."""
TURNS = (90, 180)
"""Clockwise degrees by which a photo is turned, one after the other, until a face is confirmed in it. Small faces are
hardly seen further from upright than 45 degrees; one of the three looks is as near as that."""
UPRIGHT_WITHIN = 6.0
"""Degrees by which a face may lean in its upright view."""
SURE_WITHIN = 10.0
"""Degrees by which a face that seemed sure may lean there, or it is looked at in eight directions: of 198 upright
photos of LFW View 1 none leans by more than 9, and of 500 none has less than 0.9 there. Sure sights with made-up
landmarks in photos turned by 135 and 150 degrees had 0.87 to 0.89, and leaned by 9 to 17: they were confirmed."""
DARK, LIT = 40.0, 110.0
"""Mean grey value under which a face is dark, and to which it is then brightened: what most photos' faces have. At a
twentieth of the light, the upright look at a face scores 0.94 so, and sees none without."""
VIEW_SIDE, VIEW_ZOOM = 256, 2.0
"""How large a face is shown to the detector to measure its landmarks again: twice the crop's scale, 70 pixels between
the eyes. Chosen on LFW View 1 (docs/explanation/accuracy.md)."""


@dataclass(frozen=True, slots=True)
class Found:
    """The faces of a photo, surest first: with confirmed landmarks, and those whose landmarks are made up."""

    faces: Sequence[Detection] = ()
    unalignable: Sequence[Detection] = ()


def find_faces(pixels: Pixels, sights: Sequence[Detection], detector: Detector, min_face: float) -> Found:
    """Return the faces of (H, W, 3) uint8 RGB ``pixels``, given what the detector sees in them.

    Until a face is surely confirmed, fainter places are looked at too, and the photo is searched again on its side and
    upside down, for faces from ``min_face`` pixels wide. Where a sure face lies on its side or upside down, other
    people may lie like it: the photo is searched once more, turned so that this face is upright.
    """
    found = _Faces(pixels, detector)
    found.confirm(sight for sight in sights if sight.score >= SPOT_THRESHOLD)
    if not found.sure:
        found.confirm(sight for sight in sights if sight.score < SPOT_THRESHOLD)
    height, width = pixels.shape[:2]
    searched = [0]
    while (degrees := found.next_turn(searched)) is not None:
        searched.append(degrees)
        seen = [
            turn_back(sight, degrees, width, height)
            for sight in detector.search(turn_pixels(pixels, degrees), min_face=min_face)
        ]
        found.confirm(seen, unalignable_from=SURE_SCORE)
    return found.all()


class _Faces:
    """The faces that were confirmed in a photo so far, and the sights that were not."""

    def __init__(self, pixels: Pixels, detector: Detector) -> None:
        self._pixels, self._detector = pixels, detector
        self._looks: list[_Look] = []
        self._others: list[Detection] = []

    @property
    def sure(self) -> bool:
        """Return whether a face was confirmed as made-up landmarks never are."""
        return any(look.sure for look in self._looks)

    def next_turn(self, searched: Collection[int]) -> int | None:
        """Return the clockwise degrees by which to turn the photo and search it next; None if enough is found."""
        turns = [quarter_of(look.face.landmarks) for look in self._looks if look.sure] or TURNS
        return next((degrees for degrees in turns if degrees not in searched), None)

    def all(self) -> Found:
        """Return the faces, and the sights beside them that may be faces."""
        faces = sorted((look.face for look in self._looks), key=lambda face: -face.score)
        return Found(faces, [sight for sight in self._others if not _is_near(sight, faces)])

    def confirm(self, sights: Iterable[Detection], *, unalignable_from: float = SCORE_THRESHOLD) -> None:
        """Look at the sights. Those that are not confirmed count as faces from that score on."""
        for sight in sorted(sights, key=lambda sight: -sight.score):
            check_deadline()
            look = _measured(self._pixels, sight, self._detector, sure=True) if sight.score >= SURE_SCORE else None
            if look is None:
                if _is_near(sight, (each.face for each in self._looks if each.sure)):
                    continue
                look = _read_turned(self._pixels, sight, self._detector)
            if look is not None:
                self._add(look)
            elif sight.score >= unalignable_from and not _is_near(sight, self._others):
                self._others.append(sight)

    def _add(self, look: _Look) -> None:
        """Keep the look, and of several at one face the surest."""
        near = [each for each in self._looks if _is_near(look.face, [each.face])]
        if not any(each.sure or each.score >= look.score for each in near):
            self._looks = [*(each for each in self._looks if each not in near), look]


def _read_turned(pixels: Pixels, sight: Detection, detector: Detector) -> _Look | None:
    """Return the surest look that confirms a face at a sight, however it is turned; None without one."""
    directions = DIRECTIONS if sight.score >= SCORE_THRESHOLD else detector.promising(pixels, sight.box)
    if not directions:
        return None
    seen = sorted([sight, *detector.turned(pixels, sight.box, directions)], key=lambda each: -each.score)
    surest: _Look | None = None
    for each in seen:
        look = _measured(pixels, each, detector) if each.score >= SCORE_THRESHOLD else None
        if look is not None and (surest is None or look.score > surest.score):
            surest = look
            if look.sure:
                break
    return surest


def _measured(pixels: Pixels, sight: Detection, detector: Detector, *, sure: bool = False) -> _Look | None:
    """Measure the face's landmarks again in a large, upright view; None unless that confirms it. With ``sure`` the face
    must be as sure there as its sight, and upright.

    The first look's landmarks say how the face is turned, but of a turned face they are too near to upright. Where the
    view shows that, it is taken once more.
    """
    least = SURE_LOOK if sure else CONFIRMED
    look = _look(pixels, sight, detector, least, sure=sure)
    if look is None or (sure and look.leans > SURE_WITHIN):
        return None
    if look.leans >= UPRIGHT_WITHIN:
        look = _look(pixels, look.face, detector, least)
        if look is None:
            return None
    return look._replace(sure=sure or look.score >= SURE_LOOK_TURNED)


class _Look(NamedTuple):
    """A face as an upright view of it shows it."""

    face: Detection
    """With the landmarks measured there."""
    score: float
    leans: float
    """Degrees by which the face leans there, 0-180."""
    sure: bool = False
    """No surer look needs to be searched for."""


def _look(pixels: Pixels, sight: Detection, detector: Detector, least: float, *, sure: bool = False) -> _Look | None:
    """Look at a face in an upright view and in its mirror image; None if either scores less than ``least``.

    YuNet's landmarks lean to one side, more so of a face that leans: the two looks' mean does not. What is ``sure`` and
    upright in the view itself needs no other look.
    """
    seen = view(pixels, sight.landmarks, side=VIEW_SIDE, zoom=VIEW_ZOOM)
    shown = _lit(seen.pixels)
    one = detector.landmarks(shown, seen.landmarks)
    if one is None or one[1] < least:
        return None
    landmarks, score = one
    leans = _leans(landmarks, seen.landmarks)
    if not (sure and score >= SURE_LOOK_TURNED and leans < UPRIGHT_WITHIN):
        other = detector.landmarks(np.asarray(cv2.flip(shown, 1), np.uint8), mirrored(seen.landmarks, VIEW_SIDE))
        if other is None or other[1] < least:
            return None
        landmarks, score = (landmarks + mirrored(other[0], VIEW_SIDE)) / 2, min(score, other[1])
        leans = _leans(landmarks, seen.landmarks)
    return _Look(replace(sight, landmarks=seen.to_photo(landmarks)), score, leans)


def _leans(landmarks: NDArray[np.float64], upright: NDArray[np.float64]) -> float:
    """Return by how many degrees a face with these (5, 2) landmarks leans, 0-180."""
    return abs(_degrees(similarity_transform(landmarks, upright)))


def _lit(seen: Pixels) -> Pixels:
    """Return a view of a face, brightened if the face is dark: YuNet then knows it again."""
    quarter = len(seen) // 4
    mean = float(seen[quarter:-quarter, quarter:-quarter].mean())
    return seen if mean >= DARK else np.asarray(cv2.convertScaleAbs(seen, alpha=LIT / max(mean, 1.0)), np.uint8)


def _degrees(matrix: NDArray[np.float64]) -> float:
    """Return by how much a (2, 3) similarity turns."""
    return math.degrees(math.atan2(matrix[1, 0], matrix[0, 0]))


def _is_near(sight: Detection, faces: Iterable[Detection]) -> bool:
    """Return whether the sight is of one of the faces: the centre of either lies in the other's box."""
    return any(sight.box.holds(*face.box.centre) or face.box.holds(*sight.box.centre) for face in faces)


def quarter_of(landmarks: Landmarks) -> int:
    """Return by how much a face has to be turned clockwise until it is upright, to the next of 0, 90, 180 and 270
    degrees.
    """
    x, y = landmarks[:2].mean(axis=0) - landmarks[3:].mean(axis=0)  # from mouth to eyes
    return -90 * round(math.degrees(math.atan2(x, -y)) / 90) % 360


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
