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

from app.concurrency.threads import check_deadline
from app.face.align import scale_of, similarity_transform, warp
from app.face.detect import DIRECTIONS, SCORE_THRESHOLD, SURE_SCORE, Detector
from app.types import CANONICAL_LANDMARKS, Box, Detection, Landmarks, Pixels

CONFIRMED = 0.85
"""Minimum score of the upright look at a face, as it is and mirrored: below it, the landmarks may be made up. Chosen on
LFW View 1, turned (docs/explanation/quality.md)."""
SURE_LOOK, SURE_LOOK_TURNED = 0.91, 0.92
"""Minimum scores of a sure look: of the upright look at a sight that seemed sure, so that the whole photo is not
searched again; and of any look, so that no surer one is searched for. In LFW View 1, turned in its plane, made-up
landmarks had at most 0.914 and 0.918 there; 2 % of the right ones have less than 0.92, as have 16 of 1,058 sure sights
in upright photos."""
SPOT_THRESHOLD, LIKE_SIZE = 0.15, 2.0
"""Score from which a place is always looked at for a turned face; and factor by which a fainter place may be smaller or
larger than a sure face of the photo to be looked at beside it. Of 24 photos of LFW View 1 turned every 15 degrees from
30 on, two sights of 528 have less than 0.15. Faces of 65 pixels in films, turned beside an upright one, have 0.03 to
0.15 in 25 of 77 photos, and seem 0.65 to 2.1 times as wide."""
TURNS = (90, 180, 270)
"""Clockwise degrees by which a photo is turned, one after the other, until a face is surely confirmed in it. Faces are
hardly seen further from upright than 45 degrees; in one of the four directions they are within that."""
SEEN_WITHIN, MOST_SEARCHES = 15.0, 5
"""If a sure face is turned by more than these degrees from every search so far, the photo is searched once more, turned
so that this face is upright: YuNet is sure of faces turned by up to 30, and people's heads lean by 15 either way. And
the maximum number of searches of a photo."""
UPRIGHT_WITHIN = 6.0
"""Degrees by which a face may lean in its upright view, else it is looked at once more."""
SAME_READING, SURE_READING = 0.16, 0.25
"""Maximum mean distances between the landmarks of a sight and of a look, in distances between the eyes: for both to be
the same reading of a face; and for the upright look at a sight that seemed sure to count, else the sight is looked at
in eight directions: one sight of two overlapping faces had 0.31. Of 411 in upright photos of LFW View 1 none has more
than 0.24; of 230 in photos turned by 15 to 30 degrees three have more."""
SURE_WITHIN = 10.0
"""Degrees by which a sight that seemed sure may lean in its upright look: of 198 upright photos of LFW View 1 none
leans by more than 9. Made-up landmarks of sure sights in photos turned by 135 and 150 degrees had 0.87 to 0.89, and
leaned by 9 to 17."""
QUARTERS: dict[float, int] = {90: cv2.ROTATE_90_CLOCKWISE, 180: cv2.ROTATE_180, 270: cv2.ROTATE_90_COUNTERCLOCKWISE}
"""Turns that need no interpolation, and a tenth of the time."""
DARK, LIT = 40.0, 110.0
"""Mean grey value under which a face is dark, and to which it is then brightened: what most photos' faces have. At a
twentieth of the light, the upright look at a face scores 0.94 with it, and finds no face without it."""
VIEW_SIDE, VIEW_ZOOM = 256, 2.0
"""How large a face is shown to the detector to measure its landmarks again: twice the crop's scale, 70 pixels between
the eyes. Chosen on LFW View 1 (docs/explanation/accuracy.md)."""
VIEW_LANDMARKS: NDArray[np.float64] = (CANONICAL_LANDMARKS - (56.0, 66.0)) * VIEW_ZOOM + (VIEW_SIDE - 1) / 2
"""(5, 2) landmarks of a frontal face in this view; its middle, between forehead and chin, is the view's middle."""
MIRROR = (1, 0, 2, 4, 3)
"""The landmarks' order in a mirror image."""
MIRRORED_LANDMARKS = VIEW_LANDMARKS[MIRROR, :] * (-1, 1) + (VIEW_SIDE - 1, 0)
"""VIEW_LANDMARKS in the view's mirror image."""
_SCORE = attrgetter("score")


@dataclass(frozen=True, slots=True)
class FoundFaces:
    """The faces of a photo, surest first: those with confirmed landmarks, and those without."""

    faces: Sequence[Detection]
    unalignable: Sequence[Detection]


def find_faces(pixels: Pixels, sights: Sequence[Detection], detector: Detector, min_face: float) -> FoundFaces:
    """Return the faces of (H, W, 3) uint8 RGB ``pixels``, given what the detector sees in them.

    Until a face is surely confirmed, fainter places are looked at too, and the photo is searched again in all four
    quarter turns, for faces from ``min_face`` pixels wide. Beside a sure face, fainter places are looked at if they are
    about as large as it. Where it is turned, others may be turned like it: the photo is searched once more, held so
    that this face is upright.
    """
    found = _Faces(pixels, detector)
    found.confirm([sight for sight in sights if sight.score >= SPOT_THRESHOLD])
    faint = [sight for sight in sights if sight.score < SPOT_THRESHOLD]
    if found.sure:
        sizes = [face.box.width for face in found.sure]
        faint = [spot for spot in faint if any(1 / LIKE_SIZE <= spot.box.width / size <= LIKE_SIZE for size in sizes)]
    found.confirm(faint)
    searched = [0.0]
    while len(searched) < MOST_SEARCHES:
        turns = [upright_at(face.landmarks) for face in found.sure] or TURNS
        new = [turn for turn in turns if all(abs((turn - past + 180) % 360 - 180) > SEEN_WITHIN for past in searched)]
        if not new:
            break
        searched.append(new[0])
        turned, back = turn_pixels(pixels, new[0])
        look = detector.detect if new[0] == TURNS[-1] else detector.search
        seen = look(turned, min_face=min_face / scale_of(back))
        found.confirm([mapped(sight, back) for sight in seen], unalignable_from=SURE_SCORE)
    faces = sorted((look.face for look in found.looks), key=_SCORE, reverse=True)
    return FoundFaces(faces, [sight for sight in found.others if not _is_near(sight, faces)])


class _Look(NamedTuple):
    """The result of looking at a face in an upright view."""

    face: Detection
    """The face with the landmarks measured in the view."""
    score: float
    leans: float
    """Degrees by which the face leans in the view, 0-180."""
    sure: bool = False
    """No surer look needs to be searched for."""


class _Faces:
    """The faces that have been confirmed in a photo, and the sights that have not."""

    def __init__(self, pixels: Pixels, detector: Detector) -> None:
        self._pixels, self._detector = pixels, detector
        self.looks: list[_Look] = []
        """The surest look at each face."""
        self.sure: list[Detection] = []
        """The faces that were confirmed so surely that their landmarks can't be made up."""
        self.others: list[Detection] = []
        """The sights that were not confirmed but score enough to be faces."""

    def confirm(self, sights: Sequence[Detection], *, unalignable_from: float = SCORE_THRESHOLD) -> None:
        """Look at the sights. Unconfirmed ones count as faces from the score ``unalignable_from`` on."""
        for sight in sorted(sights, key=_SCORE, reverse=True):
            check_deadline()
            if _is_near(sight, self.sure, sure=sight.score >= SURE_SCORE):
                continue
            look = self._confirmed(sight)
            if look is not None:
                near = [past for past in self.looks if _is_near(look.face, [past.face], sure=look.sure and past.sure)]
                if not any(past.sure or past.score >= look.score for past in near):
                    self.looks = [*(past for past in self.looks if past not in near), look]
                    self.sure = [kept.face for kept in self.looks if kept.sure]
            elif sight.score >= unalignable_from and not _is_near(sight, self.others):
                self.others.append(sight)

    def _confirmed(self, sight: Detection) -> _Look | None:
        """Return the surest look that confirms a face at a sight, or None.

        A sight that seems sure is first looked at as it is. If that look seems sure too, other directions are tried
        only to find a surer one, and the best of them is sure.
        """
        first = self._look(sight, one_way=True) if sight.score >= SURE_SCORE else None
        look = None
        if first is not None and first.score >= SURE_LOOK and first.leans <= SURE_WITHIN:
            look = self._upright(first) if _reads_alike(sight, first, SURE_READING) else None
        if look is None or look.score < SURE_LOOK:
            return self._read_turned(sight, first)
        if look.sure:
            return look
        return max(look, self._read_turned(sight, first) or look, key=_SCORE)._replace(sure=True)

    def _read_turned(self, sight: Detection, first: _Look | None) -> _Look | None:
        """Return the surest look that confirms a face at a sight, turned by any angle, or None. ``first`` is the look
        at the sight itself, if it seemed sure.

        A face that was already confirmed nearly surely was the surest of eight directions, so then only the sight
        itself is read.
        """
        seen = [sight]
        if not _is_near(sight, [look.face for look in self.looks if look.score >= SURE_LOOK]):
            directions: Sequence[int] = self._detector.promising(self._pixels, sight.box)
            if sight.score >= SCORE_THRESHOLD:  # also look closely at a sight that was seen upright
                directions = sorted({0, *directions}) if directions else DIRECTIONS
            elif not directions:
                return None
            seen += self._detector.turned(self._pixels, sight.box, directions)
        seen = [face for face in seen if face.score >= SCORE_THRESHOLD and not _is_near(face, self.sure)]
        looks: list[_Look] = []
        for face in sorted(seen, key=_SCORE, reverse=True):
            if self.sure and any(_reads_alike(face, look) for look in looks):
                continue  # a second try may be surer, which matters until a face is sure
            known = face is sight and sight.score >= SURE_SCORE
            look = first if known else self._look(face)
            look = look and self._upright(look)
            if look is not None:
                looks.append(look)
                if look.sure:
                    break
        return max(looks, key=_SCORE, default=None)

    def _upright(self, look: _Look) -> _Look | None:
        """Return the look, or a second one if the face leans in the first; None if that confirms no face.

        The first sight's landmarks show the face's angle, but those of a turned face are too close to upright.
        """
        second = self._look(look.face) if look.leans >= UPRIGHT_WITHIN else look
        return second and second._replace(sure=second.score >= SURE_LOOK_TURNED)

    def _look(self, sight: Detection, *, one_way: bool = False) -> _Look | None:
        """Measure a face's landmarks again in a large, upright view and in its mirror image; None if either scores less
        than CONFIRMED.

        YuNet's landmarks are biased to one side, more so if the face leans; the mean of the two readings is not. With
        ``one_way``, a face that is sure and upright in the view itself is not read in its mirror image.
        """
        to_view = similarity_transform(sight.landmarks, VIEW_LANDMARKS)
        shown = warp(self._pixels, to_view, VIEW_SIDE)
        middle = shown[VIEW_SIDE // 4 : -VIEW_SIDE // 4, VIEW_SIDE // 4 : -VIEW_SIDE // 4]
        grey = sum(cv2.mean(middle)[:3]) / 3
        if grey < DARK:
            shown = np.asarray(cv2.convertScaleAbs(shown, alpha=LIT / max(grey, 1.0)), np.uint8)
        readings, score = [], 1.0
        for mirror in (False, True):
            read = self._detector.landmarks(
                np.asarray(cv2.flip(shown, 1), np.uint8) if mirror else shown,
                MIRRORED_LANDMARKS if mirror else VIEW_LANDMARKS,
            )
            if read is None or read[1] < CONFIRMED:
                return None
            readings.append(read[0][MIRROR, :] * (-1, 1) + (VIEW_SIDE - 1, 0) if mirror else read[0])
            score, landmarks = min(score, read[1]), np.mean(readings, axis=0)
            turn = similarity_transform(landmarks, VIEW_LANDMARKS)
            leans = abs(math.degrees(math.atan2(turn[1, 0], turn[0, 0])))
            if one_way and score >= SURE_LOOK_TURNED and leans < UPRIGHT_WITHIN:
                break
        back = cv2.invertAffineTransform(to_view)
        found = np.asarray(landmarks @ back[:, :2].T + back[:, 2], np.float32)
        return _Look(replace(sight, landmarks=found), score, leans)


def _reads_alike(sight: Detection, look: _Look, within: float = SAME_READING) -> bool:
    """Return whether a sight has a face's landmarks where the look found them."""
    found = look.face.landmarks
    apart = np.linalg.norm(sight.landmarks - found, axis=1).mean()
    return bool(apart <= within * np.linalg.norm(found[1] - found[0]))


def _is_near(sight: Detection, faces: Iterable[Detection], *, sure: bool = False) -> bool:
    """Return whether the sight is of one of the faces: the centre of one is in the ellipse in the other's box.

    The box around a turned face is larger than the face, and a neighbour may be in its corners, or even in that
    ellipse. So where both are ``sure``, two whose middles lie further apart than the eyes of either are two faces.
    """
    x, y = sight.box.centre
    for face in faces:
        right, down = face.box.centre[0] - x, face.box.centre[1] - y
        near = any(math.hypot(right / box.width, down / box.height) <= 1 / 2 for box in (sight.box, face.box))
        if near and not (sure and _are_two(sight, face)):
            return True
    return False


def _are_two(*faces: Detection) -> bool:
    """Return whether two faces' middles lie further apart than the eyes of either."""
    middles, eyes = zip(*((face.landmarks.mean(axis=0), math.dist(*face.landmarks[:2])) for face in faces), strict=True)
    return bool(math.dist(*middles) > max(eyes))


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
