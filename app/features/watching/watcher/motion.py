"""Detect motion, since frames of an empty hall need no face detector."""

from __future__ import annotations

from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from app.types import Pixels

WIDTH: Final = 160
"""Width in pixels to which a frame is shrunk before it is compared."""
DIFFERENCE: Final = 15
"""Minimum difference of grey values, 0-255, that counts as a change: more than a camera's noise, which shrinking
averages."""
SHARE: Final = 0.002
"""Minimum share of pixels that must change: about what a face 24 pixels wide changes in 640 × 480 pixels when it moves
by a third of its width."""
STAYS_S: Final = 3.0
"""Seconds after the last motion during which frames still pass, since somebody may stand still."""
SLOW: Final = 0.05
"""Weight of each new frame in the background, so that changing daylight does not count as motion."""


class MotionGate:
    """Compares a camera's frames with a slowly updated background. Not safe to share between threads."""

    def __init__(self) -> None:
        self._background: NDArray[np.float32] | None = None
        self._until = 0.0

    def passes(self, frame: Pixels, at: float) -> bool:
        """Return whether to look for faces in the frame, (H, W, 3) uint8 RGB; ``at`` is its time in seconds."""
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
