"""Faces in pixels: YuNet (W. Wu et al., "YuNet: A Tiny Millisecond-level Face Detector", Machine Intelligence Research
20, 2023) at as few scales as find every face there is.

YuNet by itself is sure of faces between about 24 and 400 pixels of its input, hints at those from 10, and sees
nothing below (measured; the constants say it). So the photo is looked at

1. at the finest scale, in which the smallest face asked for is 10 pixels wide,
2. at coarser ones, until a face as large as the whole photo is well within its range,
3. and closer, wherever the finest one hints at a face too small for it: those spots are enlarged and looked at
   together.

What all of them found is merged in one non-maximum suppression, in which the better-scaled sight of a face wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from app.errors import ModelNotLoadable, Unusable
from app.face.tiling import KEPT_WIDTH, LARGEST_WIDTH, SEAM, SURE_WIDTH, Level, Piece, levels
from app.face.yunet import CANVASES, Canvas, YuNet
from app.inference.package import Package
from app.inference.prepare import prepared
from app.inference.session import FIXED_BATCH, Device, Session, resolve_device, target_of
from app.types import Box, Detection, Landmarks, Pixels

MIN_FACE: Final = 20
"""Width of the smallest face looked for, in pixels of the photo."""
SCORE_THRESHOLD: Final = 0.7
"""YuNet's score for a face, 0-1. All 4,992 photos of LFW View 1 show one of 0.85 or more, and 19 of 20 faces of any
size from 20 pixels on have 0.88; cups and gravel reach 0.67. OpenCV's sample takes 0.9 and loses what is dim or
turned."""
TOO_SMALL: Final = 0.75
"""Share of that width under which a face was not asked for; a box of 20 pixels is off by 3 either way."""
HINT_THRESHOLD: Final = 0.03
"""Score from which something small is worth a closer look: 95 % of faces 10 pixels wide have it, 99 % from 12 on."""
NMS_THRESHOLD: Final = 0.3
"""Intersection over union from which two sights are the same face (OpenCV's sample and the YuNet paper)."""
INSIDE_THRESHOLD: Final = 0.8
"""Share of a sight's area within a larger face from which it is a part of that one: an eye, a nostril."""
HALF_THRESHOLD: Final = 0.5
"""The same for an unsure sight in a larger, sure face: half of the face. In 15 of
1,132 photos of LFW it was taken for a second face; no real pair of faces in them is so close."""
SURE_SCORE: Final = 0.9
"""From this score on, a face is upright and whole. YuNet sees upright faces in turned ones too, with made-up landmarks:
of 300 photos of LFW View 1 in all four turns, the best score is below 0.9 in 1 % when upright (52 of all 4,992), and in
99 % when turned."""
MAX_HINTS: Final = 512
"""More are not looked at closer (0.7 ms each); the highest scores go first."""

HUGE_WIDTH: Final = 360
"""Width in the network's input beyond which parts of a face begin to look like faces."""
TILE: Final = 128
"""Side of the square in which one hint is looked at closer."""
TILE_FACE: Final = 52
"""Width of the hinted face in it: enlarged to 48-64 pixels, faces of 10 score above 0.8 (120 of 120)."""
TILES_PER_ROW: Final = 8
INPUT_BYTES: Final = 66
"""What the network takes for each pixel of its input (measured: 61 to 63, at 800 × 800 to 1536 × 1536)."""

MIRROR: Final = (1, 0, 2, 4, 3)
"""The landmarks' order in a mirror image."""
LIKE: Final = 0.4
"""Mean distance from the expected landmarks, in distances between the eyes, up to which it is the same face: a head
turned fully aside is 0.3 off, a neighbour's face over 1."""

_Sights = NDArray[np.float64]
"""(N, 16): box x, y, width, height; five landmarks x, y; YuNet's score; the face's width in the network's input."""
_SCORE, _SEEN_WIDTH = 14, 15


class Detector:
    """Find faces. Safe to share between threads."""

    def __init__(
        self,
        model: Path,
        *,
        device: Device = "cpu",
        threads: int = 1,
        min_face: int = MIN_FACE,
        gpu_memory_mib: int | None = None,
    ) -> None:
        """``model`` is YuNet's prepared file (`open_detector` makes it); ``threads`` work on one photo.

        Raises Unusable: detector_unreadable where it is none, and device_unavailable.
        """
        self.min_face = min_face
        session = _open(model, device, threads, None, gpu_memory_mib)
        canvases = CANVASES if session.device in FIXED_BATCH else ()
        self.sessions = {each: _open(model, session.device, threads, each, gpu_memory_mib) for each in canvases}
        self.device = session.device
        self._network = YuNet(session, self.sessions, score_threshold=HINT_THRESHOLD, nms_threshold=NMS_THRESHOLD)

    def close(self) -> None:
        """Stop the threads that belong to this detector."""
        self._network.close()

    def finest_scale(self, width: int, height: int) -> float:
        """Return the largest scale, at most 1, at which a photo of this size is searched: decode it no larger."""
        return levels(width, height, self.min_face)[0].scale

    def search_bytes(self, width: int, height: int, min_face: float) -> int:
        """Return the most memory that `detect` takes beside the pixels of such a photo."""
        finest = levels(width, height, min_face)[0]
        resized = 3 * finest.width * finest.height if finest.scale < 1 else 0
        inputs = [(right - left) * (bottom - top) for left, top, right, bottom in finest.pieces()]
        return resized + INPUT_BYTES * max(*inputs, (TILE * TILES_PER_ROW) ** 2)

    def detect(self, pixels: Pixels, *, min_face: float | None = None) -> list[Detection]:
        """Return all faces of (H, W, 3) uint8 RGB ``pixels``, highest score first, in these pixels' coordinates.

        ``min_face`` is the width in these pixels of the smallest face to find; by default the detector's own.
        """
        smallest = min_face or self.min_face
        finest, *coarser = levels(pixels.shape[1], pixels.shape[0], smallest)
        sights = self._look(pixels, finest)
        small = sights[:, _SEEN_WIDTH] < SURE_WIDTH
        # What is small in a coarser level was seen better in the one before.
        large = [sights[~small], *(_wide(self._look(pixels, level)) for level in coarser)]
        # And what is huge in a finer one is seen better in the next.
        large[:-1] = [seen[seen[:, _SEEN_WIDTH] <= HUGE_WIDTH] for seen in large[:-1]]
        clear = self._clear(np.concatenate(large))
        small &= sights[:, 2] >= smallest * TOO_SMALL
        hints = suppress(sights[small & ~_same_as_any(sights, clear)])[:MAX_HINTS]
        faces = merge(np.concatenate([clear, self._clear(self._look_closer(pixels, hints))]))
        faces = faces[faces[:, 2] >= smallest * TOO_SMALL]
        return [_detection(face) for face in faces[np.argsort(-faces[:, _SCORE], kind="stable")]]

    def _clear(self, sights: _Sights) -> _Sights:
        return np.asarray(sights[sights[:, _SCORE] >= SCORE_THRESHOLD])

    def landmarks(self, view: Pixels, expected: NDArray[np.float64]) -> Landmarks | None:
        """Measure a face's landmarks again, in a (H, W, 3) uint8 RGB ``view`` of it, upright and large.

        YuNet's landmarks vary by some 2 % of the face's width with its place on the network's grid, and lean to one
        side: the result is the mean over the view and its mirror image. ``expected`` (5, 2) is about where they should
        be. Returns None if either look finds no such face.
        """
        width = view.shape[1]
        both = np.asarray(cv2.hconcat([view, cv2.flip(view, 1)]), np.uint8)  # ten times as fast as NumPy
        sights = self._run(both)
        seen = sights[:, 4:14].reshape(-1, 5, 2)
        mirrored = seen[:, MIRROR] * (-1, 1) + (2 * width - 1, 0)
        looks = [_like(seen, sights[:, _SCORE], expected), _like(mirrored, sights[:, _SCORE], expected)]
        if looks[0] is None or looks[1] is None:
            return None
        return np.asarray((looks[0] + looks[1]) / 2, np.float32)

    def _look(self, pixels: Pixels, level: Level) -> _Sights:
        """Return everything that YuNet detects or hints at in one level, in photo coordinates."""
        image = _resized(pixels, level)
        found = []
        for left, top, right, bottom in level.pieces():
            sights = _moved(self._run(image[top:bottom, left:right]), 1.0, left, top)
            inner = (left > 0, top > 0, right < level.width, bottom < level.height)
            found.append(sights[~_cut(sights, (left, top, right, bottom), inner)])
        return _to_photo(np.concatenate(found), pixels.shape[1] / level.width, pixels.shape[0] / level.height)

    def _look_closer(self, pixels: Pixels, hints: _Sights) -> _Sights:
        """Return the faces behind the hints, one each at most: each spot is enlarged into a tile, many tiles a run."""
        found = [np.empty((0, 16))]
        for start in range(0, len(hints), TILES_PER_ROW**2):
            found.extend(self._look_at_tiles(pixels, hints[start : start + TILES_PER_ROW**2]))
        return np.concatenate(found)

    def _look_at_tiles(self, pixels: Pixels, hints: _Sights) -> Iterator[_Sights]:
        columns = min(len(hints), TILES_PER_ROW)
        rows = -(-len(hints) // columns)
        sheet = np.zeros((rows * TILE, columns * TILE, 3), np.uint8)
        spots = [_spot(hint) for hint in hints]
        for index, (centre_x, centre_y, scale) in enumerate(spots):
            y, x = (index // columns) * TILE, (index % columns) * TILE
            sheet[y : y + TILE, x : x + TILE] = _tile(pixels, centre_x, centre_y, scale)
        sights = self._run(sheet)
        for index, (centre_x, centre_y, scale) in enumerate(spots):
            middle = ((index % columns) * TILE + TILE / 2 - 0.5, (index // columns) * TILE + TILE / 2 - 0.5)
            best = _nearest(sights, *middle)
            moved = _moved(best, 1.0, -middle[0], -middle[1])
            yield _moved(_moved(moved, 1 / scale, 0, 0), 1.0, centre_x, centre_y)

    def _run(self, pixels: Pixels) -> _Sights:
        """Run YuNet on one input and return its detections in the input's coordinates."""
        rows = self._network.look(pixels).astype(np.float64)
        sights = np.column_stack([rows, rows[:, 2]])
        finite = np.isfinite(sights).all(axis=1) & (sights[:, 2:4] > 0).all(axis=1)
        apart = np.ptp(sights[:, 4:14].reshape(-1, 5, 2), axis=1).max(axis=1) > 0
        return np.asarray(sights[finite & apart])


def _like(
    seen: NDArray[np.float64], score: NDArray[np.float64], expected: NDArray[np.float64]
) -> NDArray[np.float64] | None:
    """Return the (5, 2) landmarks with the highest score that lie near the expected ones, out of (N, 5, 2)."""
    near = np.linalg.norm(seen - expected, axis=2).mean(axis=1) <= LIKE * np.linalg.norm(expected[1] - expected[0])
    if not near.any():
        return None
    best: NDArray[np.float64] = seen[np.flatnonzero(near)[np.argmax(score[near])]]
    return best


def merge(sights: _Sights) -> _Sights:
    """Keep one detection for each face; one mostly within another, larger face is a part of it and is dropped."""
    return _without_parts(suppress(sights))


def suppress(sights: _Sights) -> _Sights:
    """Keep the best of overlapping detections by score and width (greedy non-maximum suppression)."""
    kept: list[int] = []
    remaining = np.argsort(-_rank(sights), kind="stable")
    while len(remaining):
        first, remaining = remaining[0], remaining[1:]
        kept.append(int(first))
        overlap = _intersections(sights[first : first + 1], sights[remaining])[0]
        union = _areas(sights[first : first + 1]) + _areas(sights[remaining]) - overlap
        remaining = remaining[overlap <= NMS_THRESHOLD * union]
    return np.asarray(sights[kept])


def _without_parts(sights: _Sights) -> _Sights:
    areas = _areas(sights)
    inside = _intersections(sights, sights) / areas[:, None]
    larger = areas[None, :] > areas[:, None]
    sure = sights[:, _SCORE] >= SURE_SCORE
    most = np.where(sure[None, :] & ~sure[:, None], HALF_THRESHOLD, INSIDE_THRESHOLD)
    return np.asarray(sights[~((inside > most) & larger).any(axis=1)])


def _rank(sights: _Sights) -> NDArray[np.float64]:
    """Return the score, lowered where the face was smaller or larger in the network's input than it judges best."""
    width = sights[:, _SEEN_WIDTH]
    fit = np.minimum(1.0, np.minimum(width / SURE_WIDTH, LARGEST_WIDTH / width))
    return np.asarray(sights[:, _SCORE] * fit)


def _same_as_any(sights: _Sights, faces: _Sights) -> NDArray[np.bool_]:
    """Return which detections overlap one of the faces as the same face would, or lie within it."""
    overlap = _intersections(sights, faces)
    areas = _areas(sights)[:, None]
    union = areas + _areas(faces)[None, :] - overlap
    return np.asarray(((overlap > NMS_THRESHOLD * union) | (overlap > INSIDE_THRESHOLD * areas)).any(axis=1))


def _wide(sights: _Sights) -> _Sights:
    return np.asarray(sights[sights[:, _SEEN_WIDTH] >= KEPT_WIDTH])


def _cut(sights: _Sights, piece: Piece, inner: tuple[bool, bool, bool, bool]) -> NDArray[np.bool_]:
    """Return which detections reach an inner edge of their piece: a neighbour or the next level has them whole."""
    edges = np.column_stack([sights[:, :2], -(sights[:, :2] + sights[:, 2:4])])
    limits = np.array([piece[0], piece[1], -piece[2], -piece[3]])
    return np.asarray(((edges <= limits + SEAM) & inner).any(axis=1))


def _areas(sights: _Sights) -> NDArray[np.float64]:
    return np.asarray(sights[:, 2] * sights[:, 3])


def _intersections(a: _Sights, b: _Sights) -> NDArray[np.float64]:
    """Return the (len(a), len(b)) areas that the boxes share."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, :2] + a[:, None, 2:4], b[None, :, :2] + b[None, :, 2:4])
    return np.asarray(np.clip(high - low, 0, None).prod(axis=2))


def _nearest(sights: _Sights, x: float, y: float) -> _Sights:
    """Return the best detection whose box holds the point and has about the width of the hint: one or none."""
    left, top, width, height = sights[:, 0], sights[:, 1], sights[:, 2], sights[:, 3]
    holds = (left <= x) & (x <= left + width) & (top <= y) & (y <= top + height)
    alike = (width > TILE_FACE / 3) & (width < TILE_FACE * 2)
    fitting = sights[holds & alike]
    return fitting[np.argsort(-fitting[:, _SCORE], kind="stable")][:1]


def _spot(hint: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the centre of a hinted face in the photo, and tile pixels per photo pixel."""
    return hint[0] + hint[2] / 2, hint[1] + hint[3] / 2, TILE_FACE / max(hint[2], 1.0)


def _tile(pixels: Pixels, centre_x: float, centre_y: float, scale: float) -> Pixels:
    """Return (TILE, TILE, 3) of the photo around a point, black outside of it."""
    middle = TILE / 2 - 0.5
    matrix = np.array([[scale, 0, middle - scale * centre_x], [0, scale, middle - scale * centre_y]])
    return np.asarray(cv2.warpAffine(pixels, matrix, (TILE, TILE), flags=cv2.INTER_LINEAR), np.uint8)


def _resized(pixels: Pixels, level: Level) -> Pixels:
    """Return the photo at a level's size, averaged over areas."""
    if (level.width, level.height) == (pixels.shape[1], pixels.shape[0]):
        return pixels
    return np.asarray(cv2.resize(pixels, (level.width, level.height), interpolation=cv2.INTER_AREA), np.uint8)


def _moved(sights: _Sights, scale: float, x: float, y: float) -> _Sights:
    """Scale boxes and landmarks about the origin, then shift them by x, y."""
    moved = sights.copy()
    moved[:, :14] *= scale
    moved[:, [0, 4, 6, 8, 10, 12]] += x
    moved[:, [1, 5, 7, 9, 11, 13]] += y
    return moved


def _to_photo(sights: _Sights, ratio_x: float, ratio_y: float) -> _Sights:
    """Map a level's pixels to the photo's, ``ratio`` photo pixels each; pixel centres lie at whole numbers."""
    moved = sights.copy()
    moved[:, 2] *= ratio_x
    moved[:, 3] *= ratio_y
    for columns, ratio in (([0, 4, 6, 8, 10, 12], ratio_x), ([1, 5, 7, 9, 11, 13], ratio_y)):
        moved[:, columns] = (moved[:, columns] + 0.5) * ratio - 0.5
    return moved


def _detection(sight: Sequence[float] | NDArray[np.float64]) -> Detection:
    x, y, width, height = (float(value) for value in sight[:4])
    landmarks = np.asarray(sight[4:14], np.float32).reshape(5, 2)
    return Detection(Box(x, y, width, height), landmarks, min(1.0, float(sight[_SCORE])))


def open_detector(
    package: Package,
    cache_dir: Path,
    device: Device = "cpu",
    *,
    threads: int = 1,
    min_face: int = MIN_FACE,
    gpu_memory_mib: int | None = None,
) -> Detector:
    """Locate, prepare (the first time) and load the detector's package.

    Raises Unusable with the codes of `prepared`, and as `Detector` does.
    """
    model = prepared(package, cache_dir, target_of(resolve_device(device)))
    return Detector(model, device=device, threads=threads, min_face=min_face, gpu_memory_mib=gpu_memory_mib)


def _open(model: Path, device: Device, threads: int, canvas: Canvas | None, gpu_memory_mib: int | None) -> Session:
    unreadable = Unusable(f"{model} cannot be read as a YuNet detector.", code="detector_unreadable")
    try:
        shape = (*canvas, 3) if canvas else None
        session = Session(model, device, threads, sizes_vary=canvas is None, shape=shape, gpu_memory_mib=gpu_memory_mib)
    except ModelNotLoadable as error:
        raise unreadable from error
    if [len(each.shape) for each in (*session.inputs, *session.outputs)] != [4, 3]:
        raise unreadable
    return session
