"""Find faces in pixels by YuNet (W. Wu et al., "YuNet: A Tiny Millisecond-level Face Detector", Machine Intelligence
Research 20, 2023), at as few scales as are needed to find every face.

YuNet by itself is sure of faces between about 24 and 400 pixels of its input, gives hints of faces from 10 pixels on,
and sees nothing smaller (measured; see the constants). So the photo is looked at

1. at the finest scale, in which the smallest face asked for is 10 pixels wide,
2. at coarser ones, until a face as large as the whole photo is well within its range,
3. and closer, wherever the finest one hints at a face too small for it: those spots are enlarged and looked at
   together.

All results are merged in one non-maximum suppression, in which the better-scaled sight of a face wins.

YuNet was trained on upright faces. It also sees many turned ones, but with the landmarks of an upright face, which are
wrong, and a score that says little. So a sight is only a place to look at: `landmarks` measures the face in an upright
view, and `turned` looks for a face at one place in eight directions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from app.choices import Device
from app.errors import ModelNotLoadable, Unusable
from app.face.yunet import CANVASES, SCORE, SEEN_WIDTH, Canvas, Sights, YuNet
from app.inference.session import FIXED_BATCH, OnGpu, Session
from app.types import Box, Detection, Pixels

MIN_FACE: Final = 20
"""Width of the smallest face looked for, in pixels of the photo."""
SCORE_THRESHOLD: Final = 0.7
"""Minimum score of YuNet for a face, 0-1. All 4,992 photos of LFW View 1 have a face of 0.85 or more, and 19 of 20
faces of any size from 20 pixels on have 0.88; cups and gravel reach 0.67. OpenCV's sample uses 0.9 and misses dim and
turned faces."""
TOO_SMALL: Final = 0.75
"""Share of the smallest face's width below which a sight is dropped; a box of 20 pixels may be off by 3 either way."""
HINT_THRESHOLD: Final = 0.03
"""Score from which on a sight of HINT_WIDTH is worth a closer look: 95 % of faces have it, 99 % from 12 pixels on."""
NMS_THRESHOLD: Final = 0.3
"""Intersection over union from which on two sights are the same face (OpenCV's sample and the YuNet paper)."""
INSIDE_THRESHOLD: Final = 0.8
"""Share of a sight's area within a larger face from which on it is a part of that face, as an eye or a nostril."""
HALF_THRESHOLD: Final = 0.5
"""The same for an unsure sight in a larger, sure face: it shows half of that face. In 15 of 1,132 photos of LFW it was
taken for a second face; no two real faces in them are so close."""
SURE_SCORE: Final = 0.9
"""From this score on, a face is upright and whole. YuNet sees upright faces in turned ones too, with made-up landmarks:
of 300 photos of LFW View 1 in all four turns, the best score is below 0.9 in 1 % when upright (52 of all 4,992), and in
99 % when turned."""
SPOT_WIDTH: Final = 24
"""Width in the network's input from which a place is worth a look for a turned face. Faces of 50 to 69 pixels in films
of 640 × 480, turned by 135 degrees and seen at half their size, look 27 to 69 wide, with scores of 0.03 to 0.78."""
MAX_SPOTS: Final = 8
"""Maximum spots to look at, highest scores first. In those films the turned face is the seventh at worst."""
SHARED: Final = 3
"""Multiple of MAX_SPOTS that is checked for doubles, so that thousands of weak spots cost nothing."""
ROUGH_SCORE: Final = 0.5
"""Score of a spot in one of the DIRECTIONS, in a ROUGH tile, from which it may be a face: faces in those films, turned
by 45 to 270 degrees, have 0.76 in the median; one in eight other places has as much as this."""
DIRECTIONS: Final = tuple(range(0, 360, 45))
"""Clockwise degrees by which a place is turned; YuNet is sure of faces that are turned by up to 30."""
MAX_HINTS: Final = 512
"""Maximum hints to look at closer (0.7 ms each), highest scores first."""

HINT_WIDTH: Final = 10
"""Minimum width of a face, in pixels of the network's input, to give a hint."""
HINT_SCORES: Final = ((HINT_WIDTH, 20), (HINT_THRESHOLD, 0.15))
"""Widths in the network's input, and the minimum scores of hints of these widths, linear between. Of faces of LFW View
1 made small, blurred or saved as JPEG, 99 % reach 0.24 at 12 pixels, 0.61 at 15 and 0.85 at 20. With the lower score
for all widths, three of five upright photos had something to look at closer; with these one of six."""
SURE_WIDTH: Final = 40
"""From this width on, score and landmarks are as good as they get (landmarks' error falls from 4.4 % of the width at 20
pixels to 2.7 % at 40)."""
LARGEST_WIDTH: Final = 280
"""Score and landmarks stay good up to this width; at 400 scores start to fall, at 512 5 % of the faces are missed."""
COARSEST_SIDE: Final = 192
"""Longer side of the coarsest level: a face that fills the photo, or is cut by its edge, is found at 96 to 320."""
COARSER: Final = 8
"""Maximum factor between two levels: a face 280 pixels wide in one is 35 in the next."""
KEPT_WIDTH: Final = LARGEST_WIDTH / COARSER
"""Narrower sights in a coarser level were seen better in the previous one."""
SAFE_WIDTH: Final = KEPT_WIDTH / 0.9
"""Width of a face from which its sight is kept: 99 % of 300 faces of LFW View 1 seem at most a tenth narrower."""
CHEAP_AREA: Final = 320 * 320
"""Pixels up to which the photo is looked at in full, which costs no more than a few closer looks."""

MAX_INPUT: Final = 1536
"""Maximum side of a network input; larger levels are cut into overlapping pieces to limit memory."""
TALLEST: Final = 1.58
"""Height of a face over its width: 1.3 in the middle, at most 1.58 in 99 of 100 faces of LFW View 1 at any size."""
SEAM: Final = 2
"""Pixels from a piece's inner edge within which a sight counts as cut by it."""

HUGE_WIDTH: Final = 360
"""Width in the network's input beyond which parts of a face begin to look like faces."""


class Tile(NamedTuple):
    """A square in which one place is looked at."""

    side: int
    face: int
    """Width in the tile of the expected face."""


CLOSE: Final = Tile(128, 52)
"""For a close look: enlarged to 48-64 pixels, faces of 10 pixels score above 0.8 (120 of 120)."""
ROUGH: Final = Tile(48, 26)
"""A seventh of the cost, and enough to see that no face is there: tiles of 64 pixels tell no more (there 220 places of
faces in those films pass, and 14 % of 1,593 others; here 221 and 12 %)."""
TILES_PER_ROW: Final = 4
"""Tiles in a row, and rows in a sheet: an input of 512 × 512, 17 MB. With 8, a small photo found no memory beside a
large one in 1 GiB."""
TILES: Final = TILES_PER_ROW**2

OF_BEST: Final = 0.5
"""Share of the best place's score from which on a place's landmarks count."""
OFFSET: Final = np.array([[-0.001, -0.013], [0.022, -0.012], [0.032, 0.006], [-0.001, 0.008], [0.027, 0.002]])
"""(5, 2) x, y in distances between the eyes, added to the places' mean: YuNet's landmarks lean to one side, and the
mean lies elsewhere than the best place's. With it, landmarks lie on average where the best places of a view and its
mirror image put them, so templates made from those stay comparable (828 faces of LFW View 1, ± 0.001)."""
LIKE: Final = 0.4
"""Mean distance from the expected landmarks, in distances between the eyes, up to which a detection is of the expected
face: a head turned fully aside is 0.3 off, a neighbour's face over 1."""

Piece: TypeAlias = tuple[int, int, int, int]
"""Left, top, right and bottom (exclusive) in a level's pixels."""


@dataclass(frozen=True, slots=True)
class Level:
    """One scale at which the photo is searched: input pixels per photo pixel, and the size of that input."""

    scale: float
    width: int
    height: int
    overlap: int
    """Pixels by which its pieces overlap, if it has several."""

    def pieces(self) -> list[Piece]:
        """Return overlapping rectangles, no side longer than MAX_INPUT, that cover the level."""
        spans = []
        for length in (self.height, self.width):
            count = max(1, math.ceil((length - self.overlap) / (MAX_INPUT - self.overlap)))
            size = math.ceil((length + (count - 1) * self.overlap) / count)
            starts = [round(place * (length - size) / max(1, count - 1)) for place in range(count)]
            spans.append([(start, min(length, start + size)) for start in starts])
        down, across = spans
        return [(left, top, right, bottom) for top, bottom in down for left, right in across]


class Detector:
    """Find faces. Safe to share between threads."""

    def __init__(
        self,
        model: Path,
        *,
        device: Device = "cpu",
        threads: int = 1,
        min_face: int = MIN_FACE,
        gpu: OnGpu = OnGpu(),  # noqa: B008 - never changed
    ) -> None:
        """``model`` is YuNet's prepared file (`open_detector` makes it); ``threads`` work on one photo.

        Raises Unusable: detector_unreadable if it isn't one, and device_unavailable.
        """
        self.min_face = min_face
        session = _open(model, device, threads, None, gpu)
        canvases = CANVASES if session.device in FIXED_BATCH else ()
        self.sessions = {canvas: _open(model, session.device, threads, canvas, gpu) for canvas in canvases}
        self.device = session.device
        self._network = YuNet(session, self.sessions, score_threshold=HINT_THRESHOLD, nms_threshold=NMS_THRESHOLD)

    def close(self) -> None:
        """Stop the threads that belong to this detector."""
        self._network.close()

    def detect(self, pixels: Pixels, *, min_face: float | None = None) -> list[Detection]:
        """Return the sights of faces in (H, W, 3) uint8 RGB ``pixels``, highest score first, in these pixels'
        coordinates; the landmarks of turned faces are made up.

        ``min_face`` is the width in these pixels of the smallest face to find; by default the detector's own.
        """
        return [sight for sight in self.search(pixels, min_face=min_face) if sight.score >= SCORE_THRESHOLD]

    def search(self, pixels: Pixels, *, min_face: float | None = None) -> list[Detection]:
        """Return the results of `detect`, then up to MAX_SPOTS places of lower scores that may show turned faces."""
        smallest = min_face or self.min_face
        least = smallest * TOO_SMALL
        searched = levels(pixels.shape[1], pixels.shape[0], smallest)
        finest, *coarser = [self._search_level(pixels, level) for level in searched]
        # A small face is seen better in the previous, finer level, a huge one in the next, coarser one.
        small = finest[finest[:, SEEN_WIDTH] < SURE_WIDTH]
        large = [finest[finest[:, SEEN_WIDTH] >= SURE_WIDTH]]
        large += [sights[sights[:, SEEN_WIDTH] >= KEPT_WIDTH] for sights in coarser]
        large[:-1] = [sights[sights[:, SEEN_WIDTH] <= HUGE_WIDTH] for sights in large[:-1]]
        faces = np.concatenate(large)
        # A sight with a low score may be a turned face, or one too small for the finest level.
        spots = np.concatenate([faces, small[small[:, SEEN_WIDTH] >= SPOT_WIDTH]])
        spots = spots[(spots[:, SCORE] < SCORE_THRESHOLD) & (spots[:, 2] >= least)]
        faces = faces[faces[:, SCORE] >= SCORE_THRESHOLD]
        hints = small[(small[:, SCORE] >= np.interp(small[:, SEEN_WIDTH], *HINT_SCORES)) & (small[:, 2] >= least)]
        shared, union = _overlaps(hints, faces)  # a hint that is a known face, or lies in one, needs no closer look
        known = (shared > NMS_THRESHOLD * union) | (shared > INSIDE_THRESHOLD * (hints[:, 2] * hints[:, 3])[:, None])
        hints = suppress(hints[~known.any(axis=1)])[:MAX_HINTS]
        for start in range(0, len(hints), TILES):
            batch = hints[start : start + TILES]
            looks = np.column_stack([_centres(batch), batch[:, 2], np.zeros(len(batch))])
            faces = np.concatenate([faces, self._look_closer(pixels, looks)])
        faces = merge(faces)
        faces = faces[faces[:, 2] >= least]
        return [*_detections(faces), *_detections(_spots(spots, faces))[:MAX_SPOTS]]

    def promising(self, pixels: Pixels, box: Box) -> list[int]:
        """Return the DIRECTIONS in which the place at ``box`` is similar enough to a face for `turned` to look."""
        place = _Place.at(box, pixels, ROUGH, DIRECTIONS)
        sights = self._network.detect(_sheet(place.part, place.looks, ROUGH).pixels, least=ROUGH_SCORE)
        fitting = (sights[:, 2] > ROUGH.face / 3) & (sights[:, 2] < ROUGH.face * 2)
        columns, rows = (_centres(sights[fitting]) // ROUGH.side).astype(int).T
        tiles = set((rows * TILES_PER_ROW + columns).tolist())
        return [degrees for tile, degrees in enumerate(DIRECTIONS) if tile in tiles]

    def turned(self, pixels: Pixels, box: Box, directions: Sequence[int] = DIRECTIONS) -> list[Detection]:
        """Return the faces that are seen at ``box`` when that place is turned in these directions, highest score first,
        in the coordinates of ``pixels``: up to one for each direction, usually of one face.
        """
        place = _Place.at(box, pixels, CLOSE, directions)
        sights = self._look_closer(place.part, place.looks)
        _map(sights, place.ratio, ((place.ratio - 1) / 2 + place.left, (place.ratio - 1) / 2 + place.top))
        return _detections(sights)

    def landmarks(self, view: Pixels, expected: NDArray[np.float64]) -> tuple[NDArray[np.float64], float] | None:
        """Measure a face's landmarks again, in a (H, W, 3) uint8 RGB ``view`` of it, upright and large.

        ``expected`` (5, 2) are approximate positions. YuNet detects a face at several places of its grid: the result
        (5, 2) is their mean, weighted by score, which depends less on the face's place on the grid than the best one's.
        Returns the mean and the best score; None if no such face is seen with a score from SCORE_THRESHOLD on.
        """
        rows = self._network.places(view, least=OF_BEST * SCORE_THRESHOLD)
        apart = math.dist(expected[0], expected[1])
        seen = rows[:, 4:14].astype(np.float64).reshape(-1, 5, 2)
        near = np.hypot(*np.moveaxis(seen - expected, 2, 0)).sum(axis=1) <= 5 * LIKE * apart
        seen, scores = seen[near], rows[near, SCORE].astype(np.float64)
        if not len(scores):
            return None
        best = float(scores.max())
        if best < SCORE_THRESHOLD:
            return None
        weights = np.where(scores >= OF_BEST * best, scores, 0.0)
        return (weights / weights.sum() @ seen.reshape(-1, 10)).reshape(5, 2) + OFFSET * apart, min(1.0, best)

    def _search_level(self, pixels: Pixels, level: Level) -> Sights:
        """Return everything that YuNet detects or hints at in one level, in photo coordinates."""
        height, width = pixels.shape[:2]
        image = pixels
        if (level.width, level.height) != (width, height):
            image = np.asarray(cv2.resize(pixels, (level.width, level.height), interpolation=cv2.INTER_AREA), np.uint8)
        sights_of = []
        for left, top, right, bottom in level.pieces():
            sights = self._network.detect(image[top:bottom, left:right])
            _map(sights, 1.0, (left, top))
            # A face at an inner edge of its piece is whole in a neighbouring piece or in the next level.
            low, high = sights[:, :2], sights[:, :2] + sights[:, 2:4]
            cut = (low <= (left + SEAM, top + SEAM)) & (left > 0, top > 0)
            cut |= (high >= (right - SEAM, bottom - SEAM)) & (right < level.width, bottom < level.height)
            sights_of.append(sights[~cut.any(axis=1)])
        together = np.concatenate(sights_of)
        ratio = np.array([width / level.width, height / level.height])
        _map(together, ratio, (ratio - 1) / 2)  # pixel centres are at integers
        return together

    def _look_closer(self, pixels: Pixels, looks: NDArray[np.float64]) -> Sights:
        """Return the faces at up to TILES places, one each at most; ``pixels`` and ``looks`` as for `_sheet`."""
        sheet = _sheet(pixels, looks, CLOSE)
        sights = self._network.detect(sheet.pixels, least=SCORE_THRESHOLD)
        sights = sights[(sights[:, 2] > CLOSE.face / 3) & (sights[:, 2] < CLOSE.face * 2)]
        sights = sights[np.argsort(-sights[:, SCORE], kind="stable")]
        faces = []
        for middle, centre, scale, turn in zip(sheet.middles, looks[:, :2], sheet.scales, sheet.turns, strict=True):
            holding = (sights[:, :2] <= middle) & (middle <= sights[:, :2] + sights[:, 2:4])
            face = sights[holding.all(axis=1)][:1]
            _map(face, 1 / scale, -middle / scale)
            # Turned back, a box becomes the one around the turned ellipse in it: a face doesn't fill its corners.
            centres, halves = _centres(face) @ turn, np.sqrt((face[:, 2:4] / 2) ** 2 @ turn**2)
            face[:, :2], face[:, 2:4] = centres - halves, 2 * halves
            face[:, 4:14] = (face[:, 4:14].reshape(-1, 5, 2) @ turn).reshape(-1, 10)
            _map(face, 1.0, centre)
            faces.append(face)
        return np.concatenate(faces)


class _Place(NamedTuple):
    """The part of a photo around a box, as small as a tile needs it."""

    part: Pixels
    """(H, W, 4): four channels take OpenCV 5 half the time of three to warp, and give the same pixels."""
    looks: NDArray[np.float64]
    """(N, 4) the box's centre x, y and its width in the part, and the degrees of each look."""
    ratio: float
    """Photo pixels per pixel of the part."""
    left: int
    top: int

    @staticmethod
    def at(box: Box, pixels: Pixels, tile: Tile, directions: Sequence[int]) -> _Place:
        """Cut the place out. A large face is shrunk by averaging over areas, so that fine detail turns grey and not
        into moiré."""
        x, y = box.centre
        ratio, reach = max(1.0, box.width / tile.face), tile.side / tile.face * box.width
        left, top = (
            min(max(0, math.floor(at - reach)), side - 1) for at, side in ((x, pixels.shape[1]), (y, pixels.shape[0]))
        )
        part = pixels[top : math.ceil(y + reach) + 1, left : math.ceil(x + reach) + 1]
        if ratio > 1:
            size = (max(1, round(part.shape[1] / ratio)), max(1, round(part.shape[0] / ratio)))
            part = np.asarray(cv2.resize(part, size, interpolation=cv2.INTER_AREA), np.uint8)
        four = np.asarray(cv2.cvtColor(part, cv2.COLOR_RGB2RGBA), np.uint8)
        centre = (x - left + 0.5) / ratio - 0.5, (y - top + 0.5) / ratio - 0.5
        looks = np.array([(*centre, box.width / ratio, degrees) for degrees in directions], np.float64)
        return _Place(four, looks, ratio, left, top)


class _Sheet(NamedTuple):
    """Places of a photo side by side, as one input."""

    pixels: Pixels
    middles: NDArray[np.float64]
    """(N, 2) x, y of the tiles' middles."""
    scales: NDArray[np.float64]
    """(N,) pixels of the tile per pixel of the photo."""
    turns: NDArray[np.float64]
    """(N, 2, 2) rotations from the photo to the tile."""


def _sheet(pixels: Pixels, looks: NDArray[np.float64], tile: Tile) -> _Sheet:
    """Return up to TILES places, each enlarged into a tile and turned, black outside of the photo.

    ``pixels`` is the photo, RGB, or a part of it, RGBA. ``looks`` (N, 4): each place's centre x, y, the width of the
    expected face, both in pixels, and the clockwise degrees by which the place is turned.
    """
    centres, widths, angles = looks[:, :2], looks[:, 2], np.radians(looks[:, 3])
    columns, side = min(len(centres), TILES_PER_ROW), tile.side
    sheet = np.zeros((-(-len(centres) // columns) * side, columns * side, pixels.shape[2]), np.uint8)
    middles = np.array([divmod(place, columns)[::-1] for place in range(len(centres))]) * side + side / 2 - 0.5
    scales = tile.face / np.maximum(widths, 1.0)
    turns = np.moveaxis(np.array([[np.cos(angles), -np.sin(angles)], [np.sin(angles), np.cos(angles)]]), 2, 0)
    matrices = np.empty((len(centres), 2, 3))
    matrices[:, :, :2] = turns * scales[:, None, None]
    matrices[:, :, 2] = side / 2 - 0.5 - (matrices[:, :, :2] @ centres[:, :, None])[:, :, 0]
    for place, matrix in enumerate(matrices):
        y, x = (side * index for index in divmod(place, columns))
        tile_pixels = sheet[y : y + side, x : x + side]
        cv2.warpAffine(pixels, matrix, (side, side), tile_pixels, flags=cv2.INTER_LINEAR)
    if pixels.shape[2] == 4:
        sheet = np.asarray(cv2.cvtColor(sheet, cv2.COLOR_RGBA2RGB), np.uint8)
    return _Sheet(sheet, middles, scales, turns)


def levels(width: int, height: int, min_face: float) -> list[Level]:
    """Return the scales at which a photo is searched for faces from ``min_face`` pixels wide, finest first: any face
    lies whole in a piece of one of them, at a width that the detector judges well.

    Let two neighbouring levels differ by a factor r. Of what is seen in the coarser one, sights from KEPT_WIDTH on are
    kept; so a face may be lost there if it is less than SAFE_WIDTH wide, as sights are up to a tenth narrower than the
    face. It is then less than r × SAFE_WIDTH wide in the finer level, and at most TALLEST times that high. If the finer
    level's pieces overlap by that height and two seams, such a face lies whole in one of them: the interval
    between two neighbouring pieces' middles belongs to one of the two, with everything that reaches no further than the
    overlap around it. A face that is wider than that is kept in the coarser level, or in one coarser still, and the
    coarsest is one piece. With r at most COARSER = 8 the overlap is at most 8 × 39 × 1.58 + 5 = 497 pixels.
    """
    cheap = math.sqrt(CHEAP_AREA / (width * height))
    finest = min(1.0, max(HINT_WIDTH / min_face, cheap))
    longest = max(width, height) * finest
    steps = math.ceil(math.log(longest / COARSEST_SIDE, COARSER) - 1e-9) if longest > LARGEST_WIDTH else 0
    ratio = (longest / COARSEST_SIDE) ** (1 / steps) if steps else 1.0
    overlap = math.ceil(TALLEST * SAFE_WIDTH * ratio) + 2 * SEAM + 1
    scales = [finest / ratio**step for step in range(steps + 1)]
    return [Level(s, max(1, round(width * s)), max(1, round(height * s)), overlap) for s in scales]


def merge(sights: Sights) -> Sights:
    """Keep one detection for each face; drop one that is mostly within a larger face, since it is a part of it."""
    sights = suppress(sights)
    if len(sights) < 2:
        return sights
    areas = sights[:, 2] * sights[:, 3]
    inside = _overlaps(sights, sights)[0] / areas[:, None]
    larger = areas[None, :] > areas[:, None]
    sure = sights[:, SCORE] >= SURE_SCORE
    most = np.where(sure[None, :] & ~sure[:, None], HALF_THRESHOLD, INSIDE_THRESHOLD)
    return np.asarray(sights[~((inside > most) & larger).any(axis=1)])


def suppress(sights: Sights) -> Sights:
    """Keep the best of overlapping detections by their scores, lowered where a face was smaller or larger in the
    network's input than it judges best (greedy non-maximum suppression).
    """
    if len(sights) < 2:  # as in most photos
        return sights
    width = sights[:, SEEN_WIDTH]
    rank = sights[:, SCORE] * np.minimum(1.0, np.minimum(width / SURE_WIDTH, LARGEST_WIDTH / width))
    kept, remaining = [], np.argsort(-rank, kind="stable")
    while len(remaining):
        first, remaining = remaining[0], remaining[1:]
        kept.append(int(first))
        shared, union = _overlaps(sights[first : first + 1], sights[remaining])
        remaining = remaining[shared[0] <= NMS_THRESHOLD * union[0]]
    return np.asarray(sights[kept])


def _detections(sights: Sights) -> list[Detection]:
    """Return the detections, highest score first."""
    return [
        Detection(Box(*sight[:4].tolist()), sight[4:14].astype(np.float32).reshape(5, 2), min(1.0, float(sight[SCORE])))
        for sight in sights[np.argsort(-sights[:, SCORE], kind="stable")]
    ]


def _centres(sights: Sights) -> NDArray[np.float64]:
    """Return the middles of the boxes, (N, 2) x, y."""
    return np.asarray(sights[:, :2] + sights[:, 2:4] / 2)


def _spots(sights: Sights, faces: Sights) -> Sights:
    """Return the best of the sights that have no face's centre in their box, nor their own centre in a face's."""
    from_faces = _centres(sights)[:, None] - faces[None, :, :2]
    from_sights = _centres(faces)[None] - sights[:, None, :2]
    in_face = np.all((from_faces >= 0) & (from_faces <= faces[None, :, 2:4]), axis=2)
    in_sight = np.all((from_sights >= 0) & (from_sights <= sights[:, None, 2:4]), axis=2)
    alone = sights[~np.any(in_face | in_sight, axis=1)]
    return suppress(alone[np.argsort(-alone[:, SCORE], kind="stable")][: SHARED * MAX_SPOTS])


def _overlaps(a: Sights, b: Sights) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the (len(a), len(b)) areas that two boxes share, and the areas that they cover together."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, :2] + a[:, None, 2:4], b[None, :, :2] + b[None, :, 2:4])
    sides = np.maximum(high - low, 0)
    shared = np.asarray(sides[:, :, 0] * sides[:, :, 1])
    return shared, (a[:, 2] * a[:, 3])[:, None] + b[:, 2] * b[:, 3] - shared


def _map(sights: Sights, scale: float | NDArray[np.float64], shift: tuple[float, float] | NDArray[np.float64]) -> None:
    """Scale boxes and landmarks about the origin, then shift them, in place; both along x and y."""
    pairs = sights[:, :14].reshape(-1, 7, 2)  # a view: corner, size, landmarks
    pairs *= scale
    pairs[:, 0] += shift
    pairs[:, 2:] += shift


def _open(model: Path, device: Device, threads: int, canvas: Canvas | None, gpu: OnGpu) -> Session:
    unreadable = Unusable(f"{model} cannot be read as a YuNet detector.", code="detector_unreadable")
    try:
        shape = (*canvas, 3) if canvas else None
        session = Session(model, device, threads, sizes_vary=canvas is None, shape=shape, gpu=gpu)
    except ModelNotLoadable as error:
        raise unreadable from error
    if [len(tensor.shape) for tensor in (*session.inputs, *session.outputs)] != [4, 3]:
        raise unreadable
    return session
