"""Ways of running the models, measured in turns on this machine: how many callers, threads and faces at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import cv2

from app.concurrency.fair_semaphore import FairSemaphore
from app.face.detect import open_detector
from app.face.formats import Limits
from app.inference.embedder import Embedder
from app.inference.package import Package
from app.inference.prepare import Target
from app.inference.session import EmbedderSession, open_embedder
from app.pipeline import Pipeline
from app.tuning.callers import Reel
from app.tuning.contest import SHORTEST_S, Speeds, contest
from app.tuning.tuned import Choice
from app.types import Pixels

CPU_BATCHES = (1, 2, 4, 8, 16)
GPU_BATCHES = (16, 32, 64, 128, 256)
GPU_WORKERS = (1, 2)
WAITING = 2
"""Batches that wait for each worker, so that none ever idles."""
ALIKE = 0.97
"""What reaches this share of the fastest is as fast: repeated runs differ by as much."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, order=True)
class EmbedWay:
    """One way to embed, ordered by preference among equally fast ones.

    Small batches answer soonest, and calls with few threads share the cores best.
    """

    max_batch: int
    threads: int
    workers: int

    def __str__(self) -> str:
        return f"{self.workers} × batches of {self.max_batch}, {_threads(self.threads)} each"


@dataclass(frozen=True, slots=True, order=True)
class PhotoWay:
    """One way to process photos, ordered by preference as well."""

    detect_threads: int
    requests: int

    def __str__(self) -> str:
        return f"{self.requests} photos at once, {_threads(self.detect_threads)} each"


@dataclass(frozen=True, slots=True)
class Tried:
    """The speed of every way (faces or photos a second), and the best ones."""

    faces: Speeds
    embedding: EmbedWay
    photos: Speeds
    photo: PhotoWay

    @property
    def choice(self) -> Choice:
        """Return the settings of the best ways."""
        return Choice(
            threads=self.photo.requests,
            detect_threads=self.photo.detect_threads,
            embed_workers=self.embedding.workers,
            embed_threads=self.embedding.threads,
            max_batch=self.embedding.max_batch,
        )


@dataclass(frozen=True, slots=True)
class Setting:
    """The subject of tuning: two packages on a device, and the number of cores."""

    embedder: Package
    detector: Package
    cache: Path
    device: Target
    cores: int


Way = TypeVar("Way", EmbedWay, PhotoWay)


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def embed_ways(device: Target, cores: int) -> list[EmbedWay]:
    """Return the ways to embed: on a CPU every division of its cores into workers and threads; on a GPU few workers and
    large batches.
    """
    if device == "cuda":
        return [EmbedWay(batch, 1, workers) for workers in GPU_WORKERS for batch in GPU_BATCHES]
    return [EmbedWay(batch, threads, cores // threads) for threads in _divisions(cores) for batch in CPU_BATCHES]


def photo_ways(device: Target, cores: int) -> list[PhotoWay]:
    """Return the ways to process photos: as many at once as cores (by their threads), up to eight times as many."""
    counts = [1] if device == "cuda" else _divisions(cores)
    return [PhotoWay(each, max(1, cores // each) * more) for each in counts for more in (1, 2, 4, 8)]


def _divisions(cores: int) -> list[int]:
    """Return 1, 2, 4 … and all of the cores."""
    return sorted({1 << power for power in range(cores.bit_length()) if 1 << power <= cores} | {cores})


def best(speeds: Speeds, ways: Sequence[Way]) -> Way:
    """Return the most preferred of the ways that are about as fast as the fastest."""
    fastest = speeds.best(str(way) for way in ways)
    return min(way for way in ways if speeds.ratio(str(way), fastest).median >= ALIKE)


def tune(
    setting: Setting,
    photos: Sequence[bytes],
    rounds: int,
    *,
    shortest_s: float = SHORTEST_S,
    say: Say = lambda _what: None,
) -> Tried:
    """Measure how to embed, then, with the best way of that, how to process whole photos.

    ``shortest_s`` and ``say`` as in `contest`. Raises Unusable as loading packages does, and ValueError if no photo
    shows a face.
    """
    cv2.setNumThreads(1)  # as the server does
    crops = _crops(setting, photos)
    semaphore = FairSemaphore(setting.cores)  # as the server has it
    with ExitStack() as stack:
        embedding = embed_ways(setting.device, setting.cores)
        sessions = {
            threads: open_embedder(setting.embedder, setting.cache, setting.device, threads)
            for threads in {way.threads for way in embedding}
        }
        embed = {str(way): stack.enter_context(_embedding(sessions[way.threads], way, crops)) for way in embedding}
        faces = contest(embed, rounds, shortest_s=shortest_s, say=say)
        chosen = best(faces, embedding)
        embedder = stack.enter_context(
            Embedder(sessions[chosen.threads], max_batch=chosen.max_batch, workers=chosen.workers)
        )
        photo = photo_ways(setting.device, setting.cores)
        pipelines = {
            threads: stack.enter_context(_pipeline(setting, threads, semaphore))
            for threads in {way.detect_threads for way in photo}
        }
        work = {
            str(way): stack.enter_context(_working(pipelines[way.detect_threads], embedder, photos, way.requests))
            for way in photo
        }
        whole = contest(work, rounds, shortest_s=shortest_s, say=say)
    return Tried(faces, chosen, whole, best(whole, photo))


def _crops(setting: Setting, photos: Sequence[bytes]) -> list[Pixels]:
    with _pipeline(setting, 1) as pipeline:
        crops = [face.crop for photo in photos for face in pipeline.detect(photo).faces]
    if not crops:
        raise ValueError("the photos show no faces")
    return crops


@contextmanager
def _pipeline(setting: Setting, threads: int, cores: FairSemaphore | None = None) -> Iterator[Pipeline]:
    detector = open_detector(setting.detector, setting.cache, setting.device, threads=threads)
    try:
        yield Pipeline(detector, Limits(), cores=cores)
    finally:
        detector.close()


@contextmanager
def _embedding(session: EmbedderSession, way: EmbedWay, crops: Sequence[Pixels]) -> Iterator[Callable[[], int]]:
    """Embed full batches with all workers, with more batches waiting."""
    count = way.workers * way.max_batch * WAITING
    asked = [crops[place % len(crops)] for place in range(count)]
    with Embedder(session, max_batch=way.max_batch, workers=way.workers, queue_limit=count) as embedder:

        def run() -> int:
            embedder.embed(asked)
            return count

        yield run


@contextmanager
def _working(
    pipeline: Pipeline, embedder: Embedder, photos: Sequence[bytes], callers: int
) -> Iterator[Callable[[], int]]:
    """Process photos: each caller takes the next one when it is done with one, as requests do."""
    reel = Reel(photos)

    def work(_caller: int) -> int:
        pipeline.embed(reel.take(), embedder)
        return 1

    with ThreadPoolExecutor(callers) as pool:
        yield lambda: sum(pool.map(work, range(2 * callers)))
