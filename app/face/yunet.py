"""Run YuNet in ONNX Runtime on one input; its sights of faces are rows of numbers.

Rows are decoded and cleared of doubles as in OpenCV's FaceDetectorYN, and equal its results (tests/face/test_yunet.py);
ONNX Runtime takes half its time, and one session serves any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from app.concurrency.batcher import Batcher
from app.inference.session import Session
from app.types import Pixels

MULTIPLE: Final = 32
"""An input's sides are filled up with black to whole multiples of the coarsest stride."""
STRIDES: Final = (8, 16, 32)
"""Pixels between neighbouring anchors of the three levels, in both directions."""
MAX_COMPARED: Final = 5000
"""Maximum rows that are compared to remove doubles, highest scores first (OpenCV's default)."""
WAIT_S: Final = 0.002
"""Seconds that an input waits on a GPU for other callers' inputs. Not measured yet."""
QUEUE_LIMIT: Final = 4096
"""Maximum inputs that wait. Every caller waits for its own, so there are never more than callers."""

YunetRows = NDArray[np.float32]
"""(N, 15): box x, y, width, height; five landmarks x, y; score. In the input's pixels."""
Sights = NDArray[np.float64]
"""(N, 16): as `YunetRows`, then the face's width in the input, which mapping the rest to a photo doesn't change."""
SCORE, SEEN_WIDTH = 14, 15
"""Columns of a row."""


class Canvas(NamedTuple):
    """The only shape of a session's inputs on a GPU: their number in a run, and their maximum height and width."""

    items: int
    height: int
    width: int


CANVASES: Final = (
    Canvas(16, 256, 256),
    Canvas(16, 256, 512),
    Canvas(8, 512, 512),
    Canvas(8, 640, 640),
    Canvas(4, 1024, 1024),
    Canvas(1, 1536, 1536),
)
"""Smallest first: for small photos and views of faces; for enlarged hints, few and many; for the rest, up to
`app.face.detect.MAX_INPUT`. An H200 makes 13,000 to 20,000 looks a second at 256², 8,600 at 256 × 512, 2,600 at 640²
and 1,100 at 1024², copies included."""


class YuNet:
    """Run YuNet on inputs of any size. Safe to share between threads.

    On a CPU one session runs each input as it is. On a GPU there is a session for each of CANVASES, which all have run
    once when this is made; inputs of concurrent callers share a run.
    """

    def __init__(
        self,
        session: Session,
        by_canvas: Mapping[Canvas, Session] | None = None,
        *,
        score_threshold: float,
        nms_threshold: float,
    ) -> None:
        self._session = session
        self._by_size = {(canvas.height, canvas.width): fixed for canvas, fixed in (by_canvas or {}).items()}
        self._score_threshold, self._nms_threshold = score_threshold, nms_threshold
        self._batcher: Batcher[Pixels, YunetRows] | None = None
        if by_canvas:
            for canvas, fixed in by_canvas.items():
                fixed.run(np.zeros((*canvas, 3), np.uint8))
            most = max(canvas.items for canvas in by_canvas)
            self._batcher = Batcher(
                self._run_all, max_batch=most, max_wait_s=WAIT_S, queue_limit=QUEUE_LIMIT, name="detect"
            )

    def detect(self, pixels: Pixels, *, least: float = 0.0) -> Sights:
        """Return the sights of faces in (H, W, 3) uint8 RGB ``pixels`` that score the threshold and ``least`` or more,
        one a face."""
        rows = self.places(pixels, least=least)
        if len(rows) > 1:
            # OpenCV compares boxes in whole pixels.
            boxes, scores = rows[:, :4].astype(np.int32).tolist(), rows[:, SCORE].tolist()
            kept = cv2.dnn.NMSBoxes(boxes, scores, self._score_threshold, self._nms_threshold, top_k=MAX_COMPARED)
            rows = rows[np.asarray(kept, np.int64).reshape(-1)]
        sights = np.column_stack([rows, rows[:, 2]]).astype(np.float64)
        # A face's landmarks are not all in one point.
        apart = (sights[:, 4:14] != sights[:, [4, 5] * 5]).any(axis=1)
        return np.asarray(sights[np.isfinite(sights).all(axis=1) & (sights[:, 2:4] > 0).all(axis=1) & apart])

    def places(self, pixels: Pixels, *, least: float = 0.0) -> YunetRows:
        """Return the detections at every place of the grid in (H, W, 3) uint8 RGB ``pixels`` that score the threshold
        and ``least`` or more: several rows per face.

        The input is filled up with black to the smallest canvas that it fits on; on a CPU, to whole strides.
        """
        height, width = pixels.shape[:2]
        canvases = (size for size in self._by_size if size[0] >= height and size[1] >= width)
        down, across = next(canvases, (height + -height % MULTIPLE, width + -width % MULTIPLE))
        whole = pixels
        if (down, across) != (height, width):
            edges = 0, down - height, 0, across - width
            whole = np.asarray(cv2.copyMakeBorder(pixels, *edges, cv2.BORDER_CONSTANT, value=(0, 0, 0)), np.uint8)
        if self._batcher is None:
            anchors = np.asarray(self._session.run(whole[None])[0][0], np.float32)
        else:
            anchors = self._batcher.run([whole])[0]
        return _decoded(anchors, down, across, max(least, self._score_threshold))

    def close(self) -> None:
        """Stop the thread that joins inputs, if there is one."""
        if self._batcher is not None:
            self._batcher.close()

    def _run_all(self, inputs: Sequence[Pixels]) -> list[YunetRows]:
        """Return each input's anchors (K, 15); inputs of one canvas share a run."""
        anchors: dict[int, YunetRows] = {}
        for shape in dict.fromkeys(pixels.shape for pixels in inputs):
            places = [place for place, pixels in enumerate(inputs) if pixels.shape == shape]
            session = self._by_size.get((shape[0], shape[1]), self._session)
            rows = session.run(np.stack([inputs[place] for place in places]))[0]
            anchors.update(zip(places, rows.astype(np.float32, copy=False), strict=True))
        return [anchors[place] for place in range(len(inputs))]


def _decoded(anchors: YunetRows, height: int, width: int, score_threshold: float) -> YunetRows:
    """Decode the anchors (K, 15) that score enough, in pixels of a ``height`` × ``width`` input."""
    chosen = (anchors[:, SCORE] >= score_threshold).nonzero()[0]
    rows, grid = anchors[chosen], _grid(height, width)[chosen]
    sizes = np.exp(rows[:, 2:4]) * grid[:, 2:]
    rows[:, :14] *= grid[:, 2:]
    points = rows[:, :14].reshape(-1, 7, 2)  # a view: the box's centre, its size, landmarks
    points += grid[:, None, :2]
    points[:, 0], points[:, 1] = points[:, 0] - sizes / 2, sizes
    return rows


@lru_cache(maxsize=16)
def _grid(height: int, width: int) -> YunetRows:
    """Return each anchor's x, y and stride, (K, 3), in the input's pixels."""
    shapes = [(height // stride, width // stride) for stride in STRIDES]
    places = np.concatenate([np.indices(shape).reshape(2, -1)[::-1].T for shape in shapes])
    strides = np.repeat(STRIDES, [math.prod(shape) for shape in shapes])[:, None]
    return np.hstack([places * strides, strides]).astype(np.float32)
