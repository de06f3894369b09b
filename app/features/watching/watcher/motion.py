"""Detect motion, since frames of an empty hall need no face detector."""

from __future__ import annotations

from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from app.types import Pixels

WIDTH: Final = 160
"""Pixels to which a frame is shrunk before it is compared."""
DIFFERENCE: Final = 15
"""Minimum difference of grey values, 0-255, that counts: above a camera's noise, averaged over a block of pixels."""
SHARE: Final = 0.002
"""Share of all pixels that must differ: as by a face 24 pixels wide in 640 × 480 that moves by a third of its width."""
STAYS_S: Final = 3.0
"""Seconds after the last motion during which frames are still looked at, since somebody may stand still."""
SLOW: Final = 0.05
"""Weight of each new frame in the background, so that changing daylight does not count as motion."""


class MotionGate:
    """Compares a camera's frames with the background before. Not safe to share between threads."""

    def __init__(self) -> None:
        self._background: NDArray[np.float32] | None = None
        self._until = 0.0

    def passes(self, frame: Pixels, at: float) -> bool:
        """Return whether the (H, W, 3) frame at this time, in seconds, should be looked at."""
        height, width = frame.shape[:2]
        size = (WIDTH, max(1, round(WIDTH * height / width)))
        small = cv2.cvtColor(cv2.resize(frame, size, interpolation=cv2.INTER_AREA), cv2.COLOR_RGB2GRAY)
        grey = np.asarray(small, np.float32)
        if self._background is None or self._background.shape != grey.shape:
            self._background, self._until = grey, at + STAYS_S
            return True
        if float((np.abs(grey - self._background) > DIFFERENCE).mean()) >= SHARE:
            self._until = at + STAYS_S
        self._background += SLOW * (grey - self._background)
        return at <= self._until
