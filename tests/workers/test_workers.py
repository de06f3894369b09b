"""Photos in processes of their own: the same answers, and no worker's end ends more than its photo."""

from __future__ import annotations

import logging
import math
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image

from app.concurrency.threads import Task
from app.errors import ImageTooLarge, InvalidImage, InvalidInput, LikenessError
from app.face.align import Cut
from app.face.detect import Detector
from app.face.formats import Limits
from app.package.manifest import LivenessCut
from app.pipeline import Pipeline
from app.types import Photo, Pixels
from app.workers.parent import PipelineSettings
from app.workers.queue import PhotoWorkers
from app.workers.start import Parent
from app.workers.worker import WorkerLimits
from tests.conftest import PROJECT
from tests.face.test_image import avif_bomb
from tests.support.images import encoded, every_kind
from tests.support.tasks import working
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="photo workers are limited and ended by Linux")
LIMITS, MEMORY = Limits(max_bytes=1 << 30), 2**31
COSTLY = (1100, 1000)
CUTS = (Cut(80, LivenessCut(scale=2.7)),)
PHOTOS = every_kind(512)
BOTH = (PROJECT / "docs" / "samples" / "both.jpg").read_bytes()


@pytest.fixture(scope="module")
def parent(yunet: Path) -> Iterator[Parent]:
    opened = Parent(PipelineSettings(yunet, 20, LIMITS))
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _photos_soon_count_as_costly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.workers.queue.COSTLY_PIXELS", 1_000_000)


@contextmanager
def opened(parent: Parent, count: int = 1, *, memory: float = MEMORY, seconds: float = 60) -> Iterator[PhotoWorkers]:
    made = PhotoWorkers(parent, count, seconds, count_bytes=lambda _size: None)
    made.start(memory)
    yield made
    made.close()
    assert not made._small.running | made._costly.running


@pytest.fixture(scope="module")
def workers(parent: Parent) -> Iterator[PhotoWorkers]:
    with opened(parent) as made:  # before anything counts as costly
        yield made


@pytest.fixture(scope="module")
def pipeline(yunet: Path) -> Pipeline:
    return Pipeline(Detector(yunet), LIMITS)


def noise(width: int, height: int) -> bytes:
    """A photo that takes long to search: of many hints, and no face. At 6400² it takes several times what a worker with
    a limit of one second may use (the limit is in whole seconds: up to two)."""
    pixels = np.random.default_rng(0).integers(0, 256, (height // 8, width // 8, 3), np.uint8)
    return encoded(Image.fromarray(pixels).resize((width, height)), "BMP")


def equal(found: Photo, expected: Photo) -> bool:
    arrays = [
        [array for face in photo.faces for array in (face.landmarks, face.crop, *face.cuts)]
        for photo in (found, expected)
    ]
    boxes = [[(face.box, face.score, face.quality) for face in photo.faces] for photo in (found, expected)]
    same = len(arrays[0]) == len(arrays[1]) and all(map(np.array_equal, *arrays))
    return same and boxes[0] == boxes[1] and (found.width, found.rotated) == (expected.width, expected.rotated)


def test_a_worker_finds_what_the_pipeline_finds(workers: PhotoWorkers, pipeline: Pipeline, astronaut: Pixels) -> None:
    on_its_side = encoded(np.rot90(astronaut), "PNG")
    for image in (BOTH, on_its_side, encoded(np.zeros((40, 40, 3), np.uint8), "PNG")):
        assert equal(workers.detect(image, CUTS), pipeline.detect(image, CUTS))


@pytest.mark.parametrize("name", PHOTOS)
def test_a_worker_reads_every_format_without_a_file(name: str, workers: PhotoWorkers, pipeline: Pipeline) -> None:
    image = PHOTOS[name]()
    assert equal(workers.detect(image), pipeline.detect(image))


@pytest.mark.parametrize(
    "image", [b"", b"no photo", b"\xff\xd8\xff cut", encoded(np.zeros((3, 3, 3), np.uint8), "PNG"), BOTH[:5000]]
)
def test_a_worker_refuses_what_the_pipeline_refuses(image: bytes, workers: PhotoWorkers, pipeline: Pipeline) -> None:
    with pytest.raises(InvalidInput) as expected:
        pipeline.detect(image)
    with pytest.raises(type(expected.value)) as refused:
        workers.detect(image)
    assert (refused.value.code, refused.value.message, refused.value.details) == (
        expected.value.code,
        expected.value.message,
        expected.value.details,
    )


def small_ones(workers: PhotoWorkers) -> list[int]:
    return [worker.process for worker in workers._small.running]


def costly_ones(workers: PhotoWorkers) -> list[int]:
    return [worker.process for worker in workers._costly.running]


def gone(process: int) -> bool:
    return not Path(f"/proc/{process}").exists()


def test_workers_give_way_to_the_server_and_those_with_costly_photos_to_all(parent: Parent) -> None:
    with opened(parent) as workers:
        workers.detect(encoded(np.zeros((*COSTLY, 3), np.uint8), "BMP"))
        (process,) = costly_ones(workers)
        server, (other,) = os.getpriority(os.PRIO_PROCESS, 0), small_ones(workers)
        low, lowest = os.getpriority(os.PRIO_PROCESS, other), os.getpriority(os.PRIO_PROCESS, process)
        assert server < low or server == 19
        assert low < lowest or low == 19


def test_a_small_photo_waits_for_no_costly_one(parent: Parent) -> None:
    with opened(parent) as workers:
        workers.detect(encoded(np.zeros((*COSTLY, 3), np.uint8), "BMP"))
        (process,) = costly_ones(workers)
        os.kill(process, signal.SIGSTOP)  # it works for as long as we like
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(workers.detect, encoded(np.zeros((*COSTLY, 3), np.uint8), "BMP"))
            until(lambda: not workers._costly.turns.free)
            assert len(workers.detect(BOTH).faces) == 2
            assert not asked.done()
            os.kill(process, signal.SIGCONT)
            assert not asked.result().faces


def ended_at_work(
    workers: PhotoWorkers, processes: Callable[[PhotoWorkers], list[int]], image: bytes, by: int = signal.SIGKILL
) -> Photo:
    """Stop the worker, wait until the photo is its, end it, and return what the photo is answered with."""
    (process,) = processes(workers)
    os.kill(process, signal.SIGSTOP)
    crew = workers._small if processes is small_ones else workers._costly
    given = threading.Event()  # an idle worker that has ended is replaced before it is given a photo
    checking = crew._checking

    def give() -> Callable[[], None]:
        given.set()
        return checking()

    with ThreadPoolExecutor(1) as pool, patch.object(crew, "_checking", give):
        asked = pool.submit(workers.detect, image)
        assert given.wait(PATIENCE_S)
        os.kill(process, by)
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)
        return asked.result()


def test_a_photo_whose_worker_is_killed_is_tried_once_more_by_another_of_its_kind(
    parent: Parent, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(parent) as workers:
        before = small_ones(workers)
        with caplog.at_level(logging.WARNING):
            assert len(ended_at_work(workers, small_ones, BOTH).faces) == 2
        assert len(small_ones(workers)) == 1
        assert small_ones(workers) != before
        assert all(map(gone, before))
        assert not costly_ones(workers)
        (record,) = (entry for entry in caplog.records if entry.message == "a photo worker ended")
        fields = record.__dict__["fields"]
        assert fields == {"reason": "SIGKILL", "photo": sha256(BOTH).hexdigest(), "again": True}


def test_a_photo_that_crashes_its_worker_is_tried_once_more_by_one_with_more_memory(parent: Parent) -> None:
    with opened(parent) as workers:
        assert len(ended_at_work(workers, small_ones, BOTH, signal.SIGABRT).faces) == 2
        assert costly_ones(workers)
        assert workers.ended == {"SIGABRT": 1}


def test_a_costly_photo_whose_worker_is_killed_is_tried_once_more(parent: Parent) -> None:
    with opened(parent) as workers:
        image = encoded(np.zeros((*COSTLY, 3), np.uint8), "BMP")
        workers.detect(image)
        assert not ended_at_work(workers, costly_ones, image).faces


def test_a_photo_that_ends_two_workers_is_refused(parent: Parent) -> None:
    with opened(parent) as workers, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(workers.detect, noise(6400, 6400))
        until(lambda: costly_ones(workers))
        (first,) = costly_ones(workers)
        os.kill(first, signal.SIGKILL)
        until(lambda: set(costly_ones(workers)) - {first})
        os.kill((set(costly_ones(workers)) - {first}).pop(), signal.SIGKILL)
        with pytest.raises(InvalidImage):
            asked.result()
        assert workers.ended == {"SIGKILL": 2}
        assert len(workers.detect(BOTH).faces) == 2


def test_a_photo_that_takes_too_long_is_refused_and_not_tried_again(parent: Parent) -> None:
    with opened(parent, seconds=1) as workers:
        with pytest.raises(InvalidImage):
            workers.detect(noise(6400, 6400))
        assert workers.ended == {"SIGXCPU": 1}
        assert len(workers.detect(BOTH).faces) == 2


def test_the_requests_deadline_ends_the_work(parent: Parent) -> None:
    with opened(parent) as workers:
        before, task, checking = small_ones(workers), Task("key"), workers._small._checking

        def end() -> Callable[[], None]:
            task.until = time.monotonic()
            return checking()

        os.kill(before[0], signal.SIGSTOP)
        with working(task), patch.object(workers._small, "_checking", end), pytest.raises(LikenessError) as late:
            workers.detect(BOTH)
        assert late.value.code == "request_timeout"
        assert all(map(gone, before))
        assert len(workers.detect(BOTH).faces) == 2


def test_a_photo_that_takes_more_memory_than_a_worker_has_goes_to_one_with_more(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.workers.queue.COSTLY_PIXELS", 2_000_000)
    image = every_kind(2100)["heic 10 bit"]()
    with opened(parent, memory=400 * 2**20) as workers:
        workers.detect(image)
        assert not workers.ended
        workers._small.limits = WorkerLimits(8 * 2**20, 60, 0, math.inf)
        os.kill(small_ones(workers)[0], signal.SIGKILL)
        until(lambda: not workers._small._idle[0][0].is_alive())
        workers.detect(image)
        assert sum(workers.ended.values()) == 1


@pytest.mark.parametrize("kind", ["PNG", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("WEBP", "AVIF"))])
def test_a_photo_that_takes_more_memory_than_any_worker_has_is_too_large(kind: str, parent: Parent) -> None:
    options = {"speed": 10} if kind == "AVIF" else {}
    with opened(parent, memory=100 * 2**20) as workers:
        with pytest.raises(ImageTooLarge):
            workers.detect(encoded(np.zeros((7000, 7000, 3), np.uint8), kind, **options))
        assert len(workers.detect(BOTH).faces) == 2


@pytest.mark.long
def test_a_stream_larger_than_its_file_says_takes_no_more_memory_than_a_worker_has(parent: Parent) -> None:
    with opened(parent, memory=100 * 2**20) as workers:
        with pytest.raises((ImageTooLarge, InvalidImage)):
            workers.detect(avif_bomb())
        assert len(workers.detect(BOTH).faces) == 2


def test_an_idle_worker_that_ends_is_replaced_before_anybody_needs_it(parent: Parent) -> None:
    with opened(parent) as workers:
        (before,) = small_ones(workers)
        os.kill(before, signal.SIGKILL)
        until(lambda: not workers._small._idle[0][0].is_alive())
        workers.maintain()
        (now,) = small_ones(workers)
        assert now != before
        assert len(workers.detect(BOTH).faces) == 2
        assert not workers.ended


def test_a_worker_for_costly_photos_ends_when_it_is_not_needed(parent: Parent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.workers.queue.IDLE_S", 0.0)
    with opened(parent) as workers:
        workers.detect(encoded(np.zeros((*COSTLY, 3), np.uint8), "BMP"))
        (process,) = costly_ones(workers)
        workers.maintain()
        assert gone(process)
        assert not costly_ones(workers)
        assert small_ones(workers)


def test_the_parent_has_one_thread_and_none_of_the_servers_secrets(
    yunet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIKENESS_ENCRYPTION_KEY", "secret")
    parent = Parent(PipelineSettings(yunet, 20, LIMITS))
    try:
        assert parent.threads == 1
        assert b"secret" not in Path(f"/proc/{parent.process}/environ").read_bytes()
        process = parent.process
        with opened(parent) as workers:
            os.kill(process, signal.SIGKILL)  # and with it its workers
            until(lambda: all(map(gone, small_ones(workers))))
            assert len(workers.detect(BOTH).faces) == 2
            assert parent.process != process
    finally:
        parent.close()


SERVER = """
import os, sys, time
from pathlib import Path
from app.face.formats import Limits
from app.workers.parent import PipelineSettings
from app.workers.queue import PhotoWorkers
from app.workers.start import Parent
from app.workers.worker import WorkerLimits
parent = Parent(PipelineSettings(Path(sys.argv[1]), 20, Limits()))
workers = PhotoWorkers(parent, 2, 60, count_bytes=lambda size: None)
workers.start(2**30)
print(parent.process, *(worker.process for worker in workers._small.running), flush=True)
time.sleep(600)
"""


@pytest.mark.long
def test_nothing_is_left_of_a_server_that_is_killed(yunet: Path) -> None:
    command = [sys.executable, "-c", SERVER, str(yunet)]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        processes = [int(word) for word in server.stdout.readline().split()]
        assert len(processes) == 3
        os.kill(processes[1], signal.SIGSTOP)  # one that hangs ends, too
        for process in processes:
            if process != processes[1]:
                os.kill(process, signal.SIGTERM)  # as a supervisor sends it to all: the server decides when they end
        assert not any(map(gone, processes))
        server.kill()
    until(lambda: all(map(gone, processes)))


@pytest.mark.parametrize("is_answered", [False, True])
def test_the_parent_of_a_server_that_is_killed_while_it_loads_ends_without_an_error(
    yunet: Path, is_answered: bool
) -> None:
    server, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "app.workers", str(theirs.fileno())]
        parent = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE)
    server.send(pickle.dumps(PipelineSettings(yunet, 20, LIMITS)))
    if is_answered:  # but nobody reads it
        assert select.select([server], [], [], PATIENCE_S)[0]
    server.close()
    assert parent.communicate(timeout=PATIENCE_S)[1] == b""


@pytest.mark.long
def test_many_callers_get_their_own_photos_while_workers_are_killed(
    parent: Parent, pipeline: Pipeline, astronaut: Pixels
) -> None:
    with opened(parent, 2) as workers:
        images = [BOTH, encoded(astronaut, "PNG"), encoded(np.zeros((50, 50, 3), np.uint8), "PNG")]
        expected = [pipeline.detect(image) for image in images]
        with ThreadPoolExecutor(6) as pool:
            answers = [pool.submit(workers.detect, images[number % 3]) for number in range(60)]
            for number in range(10):
                answers[number * 5].result()
                if running := small_ones(workers):
                    os.kill(running[number % len(running)], signal.SIGKILL)
                wait([answer for answer in answers if answer.running()])  # so that no photo ends two workers
            for number, answer in enumerate(answers):
                assert equal(answer.result(), expected[number % 3])
        assert len(small_ones(workers)) == 2
        assert (workers.free, workers.waiting) == (2, 0)
