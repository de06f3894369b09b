"""Photos that the server's own process reads: as many at once as it has memory for, and no other."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app.concurrency.threads import Task
from app.errors import ImageTooLarge, UnsupportedImage
from app.face.align import Cut
from app.face.detect import Detector
from app.face.formats import BYTES_A_PIXEL, Limits
from app.pipeline import COSTLY_MEMORY, COSTLY_PIXELS, SMALL_PHOTO_MEMORY, UNBOUNDED_MEMORY, PhotoThreads, Pipeline
from app.types import Photo, Pixels
from tests.support.images import encoded, heic
from tests.support.tasks import working

SOON_S = 60


def opened(yunet: Path, memory: float, *, kept: list[int] | None = None) -> PhotoThreads:
    made = PhotoThreads(Detector(yunet), Limits(), 2, lambda size: None if kept is None else kept.append(size))
    made.start(memory)
    return made


def grey(pixels: int) -> bytes:
    return encoded(np.full((2000, -(-pixels // 2000), 3), 128, np.uint8), "PNG", compress_level=1)


def test_crops_count_for_their_request(yunet: Path, astronaut: Pixels) -> None:
    kept: list[int] = []
    with working(Task("key")):
        (face,) = opened(yunet, COSTLY_MEMORY, kept=kept).detect(encoded(astronaut)).faces
    assert face.crop is not None
    assert kept == [face.crop.nbytes]


def test_a_photo_for_which_there_is_never_enough_memory_is_too_large(yunet: Path) -> None:
    memory = 2 * SMALL_PHOTO_MEMORY + 5_000_000 * BYTES_A_PIXEL
    threads = opened(yunet, memory)
    assert threads.detect(grey(4_900_000)).faces == ()
    with pytest.raises(ImageTooLarge):
        threads.detect(grey(5_100_000))
    assert (threads.free, threads.waiting) == (2, 0)


def test_a_format_that_says_nothing_of_its_memory_is_read_where_there_is_enough(yunet: Path) -> None:
    photos = heic(Image.new("RGB", (64, 64))), encoded(Image.new("RGB", (64, 64)), "AVIF")
    for photo in photos:
        assert opened(yunet, 2 * SMALL_PHOTO_MEMORY + UNBOUNDED_MEMORY).detect(photo).faces == ()
        with pytest.raises(UnsupportedImage):
            opened(yunet, UNBOUNDED_MEMORY).detect(photo)


def test_a_small_photo_waits_for_no_costly_one(yunet: Path, astronaut: Pixels, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, begun, release = opened(yunet, 2 * COSTLY_MEMORY), threading.Event(), threading.Event()
    detect = Pipeline.detect

    def slow(self: Pipeline, image: bytes, cuts: Sequence[Cut] = ()) -> Photo:
        if self.limits.most_pixels > COSTLY_PIXELS:
            begun.set()
            assert release.wait(SOON_S)
        return detect(self, image, cuts)

    monkeypatch.setattr(Pipeline, "detect", slow)
    with ThreadPoolExecutor(1) as pool:
        costly = pool.submit(threads.detect, grey(COSTLY_PIXELS + 1))
        assert begun.wait(SOON_S)
        assert len(threads.detect(encoded(astronaut)).faces) == 1
        assert not costly.done()
        release.set()
        assert costly.result(SOON_S).faces == ()
