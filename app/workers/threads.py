"""Read photos in the server's own process, if there are no photo workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from app.concurrency.threads import Lanes
from app.errors import ImageTooLarge
from app.face.align import Cut
from app.face.detect import Detector
from app.face.formats import BYTES_A_PIXEL, READABLE, UNBOUNDED, Limits, format_of
from app.pipeline import Pipeline, TooCostly, keep_crops
from app.types import Photo
from app.workers.queue import COSTLY_MEMORY, COSTLY_PIXELS

SMALL_MEMORY = BYTES_A_PIXEL * COSTLY_PIXELS
UNBOUNDED_MEMORY = 1024**3
"""With this much memory for one costly photo, formats are read whose decoders may take twice as much, since such a
server has the same amount reserved for bodies, small photos and everything else."""
SMALL_SHARE = 2 / 3
"""Share of the memory for photos that small ones get, but at most one photo per core."""


class PhotoThreads:
    """Finds faces as `Pipeline` does, in as many photos at a time as there are cores and memory. Safe to share between
    threads.

    The system doesn't limit a photo's memory here. It counts as BYTES_A_PIXEL, and is too large if that exceeds all
    memory; a photo of a format for which this is no upper bound counts as costly, and is not read with less than
    UNBOUNDED_MEMORY.
    """

    def __init__(self, detector: Detector, limits: Limits, count: int, keep: Callable[[int], None]) -> None:
        """Until `start`, allow ``count`` small photos at a time. ``keep`` is as in `PhotoWorkers`."""
        self._detector, self._limits, self._count, self._keep = detector, limits, count, keep
        self._small = self._large = Pipeline(detector, limits, most_pixels=COSTLY_PIXELS)
        self.ended: Counter[str] = Counter()
        """Photos that were given up, as in `PhotoWorkers.ended`; here there are none."""
        self._lanes = Lanes(count, 1)

    def start(self, memory: float) -> None:
        """Let photos take ``memory`` bytes together."""
        small = max(1, min(self._count, round(memory * SMALL_SHARE / SMALL_MEMORY)))
        rest = memory - small * SMALL_MEMORY
        costly = max(1, min(self._count // 2, int(rest / COSTLY_MEMORY)))
        each = rest / costly
        limits = (
            self._limits if each >= UNBOUNDED_MEMORY else replace(self._limits, formats=frozenset(READABLE) - UNBOUNDED)
        )
        self._large = Pipeline(self._detector, limits, most_pixels=max(each / BYTES_A_PIXEL, COSTLY_PIXELS))
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
        keep_crops(photo, self._keep)
        return photo
