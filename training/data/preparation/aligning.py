"""Turn raw photos into training crops by the service's own stages: decode, detect, choose the face, align.

Photos are aligned in worker processes. Existing crops are not made again, so a stopped run continues where it was;
failures are recorded with their reasons.
"""

from __future__ import annotations

import io
import json
import multiprocessing
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path

import cv2
from PIL import Image

from app.errors import InvalidInput, LikenessError, LowQuality, Unusable
from app.face.detect import Detector
from app.files import PUBLIC, replacing
from app.models.prepare import prepared
from app.models.stages import LIMITS
from app.photo_folders import walk
from app.pipeline import Pipeline, choose_face, crop_of
from app.types import Pixels
from training.packages import DETECTOR, find_package
from training.terminal import Advance

FAILED = "failed.jsonl"
"""The list of failures in the crops' folder: a JSON object per line."""
JPEG_QUALITY = 95
CHUNK = 8
"""Number of photos given to a process at a time."""


@dataclass(frozen=True, slots=True)
class Job:
    """A photo and where its crop goes, both relative to their folders."""

    photo: str
    crop: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a job; ``code`` is None if the crop was written, else the error's code."""

    photo: str
    code: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class AlignerSettings:
    """The settings from which every worker process builds its own pipeline."""

    source: Path
    target: Path
    detector: Path
    min_quality: float = 0.0


@dataclass(frozen=True, slots=True)
class AlignCounts:
    """Counts of photos: ``kept`` had a crop already, ``gave_up`` failed in an earlier run and were not tried again."""

    aligned: int
    failed: int
    kept: int
    gave_up: int


def detector_file(models: Path, cache: Path) -> Path:
    """Return the detector's prepared ONNX file. Raises Unusable if its package is missing."""
    return prepared(find_package(DETECTOR, models), cache, "cpu")


def list_jobs(source: Path) -> list[Job]:
    """List every photo below ``source``, by path. Crops keep the folders and have the extension ``.jpg``, appended to
    the whole name if two photos differ only in their extension. Raises InvalidInput ``dataset_not_found``."""
    if not source.is_dir():
        raise InvalidInput(f"{source} is not a folder.", code="dataset_not_found")
    photos = [path.relative_to(source) for path in walk(source)]
    stems = Counter(photo.with_suffix("") for photo in photos)
    return [
        Job(str(photo), str(photo.with_suffix(".jpg") if stems[photo.with_suffix("")] == 1 else f"{photo}.jpg"))
        for photo in photos
    ]


def align_folder(
    settings: AlignerSettings, workers: int, *, retry: bool = False, progress: Advance = lambda _more, _total=None: None
) -> AlignCounts:
    """Align every photo of ``settings.source`` that has no crop in ``settings.target`` yet; with ``retry``, also those
    that failed before.

    Raises Unusable ``worker_died`` if a process ended by itself; a second run continues after that photo.
    """
    jobs = list_jobs(settings.source)
    settings.target.mkdir(parents=True, exist_ok=True)
    failed = {} if retry else read_failed(settings.target)
    open_jobs = [job for job in jobs if not (settings.target / job.crop).is_file()]
    todo = [job for job in open_jobs if job.photo not in failed]
    aligned = 0
    with (settings.target / FAILED).open("w" if retry else "a", encoding="utf-8") as log:
        progress(len(jobs) - len(todo), len(jobs))
        for outcome in _outcomes(settings, todo, workers):
            if outcome.code is None:
                aligned += 1
            else:
                log.write(json.dumps(asdict(outcome), ensure_ascii=False) + "\n")
                log.flush()
            progress(1)
    return AlignCounts(aligned, len(todo) - aligned, len(jobs) - len(open_jobs), len(open_jobs) - len(todo))


def read_failed(target: Path) -> dict[str, Outcome]:
    """Return the failures of earlier runs, by photo. A last line truncated by a crash is skipped, so its photo is tried
    again."""
    file = target / FAILED
    if not file.is_file():
        return {}
    failed = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            outcome = Outcome(**json.loads(line))
        except (ValueError, TypeError):
            continue
        failed[outcome.photo] = outcome
    return failed


def _outcomes(settings: AlignerSettings, jobs: Sequence[Job], workers: int) -> Iterator[Outcome]:
    if workers <= 1:
        yield from map(Aligner(settings), jobs)
        return
    # spawned, not forked: OpenCV's threads do not survive a fork
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context) as pool:
        try:
            yield from pool.map(partial(_work, settings), jobs, chunksize=CHUNK)
        except BrokenProcessPool as error:
            message = "A process ended by itself (out of memory?). Run the same again: it goes on from here."
            raise Unusable(message, code="worker_died") from error


class Aligner:
    """One process's pipeline: writes a job's crop and returns the outcome."""

    def __init__(self, settings: AlignerSettings) -> None:
        self.settings = settings
        self.pipeline = Pipeline(Detector(settings.detector), LIMITS)

    def __call__(self, job: Job) -> Outcome:
        try:
            crop = self._crop((self.settings.source / job.photo).read_bytes())
            _write(self.settings.target / job.crop, crop)
        except LikenessError as error:
            return Outcome(job.photo, error.code, error.message)
        except OSError as error:
            return Outcome(job.photo, "file_error", str(error))
        return Outcome(job.photo)

    def _crop(self, data: bytes) -> Pixels:
        photo = self.pipeline.detect(data)
        face = photo.faces[choose_face(photo).index]
        crop = crop_of(face)
        if face.quality.score < self.settings.min_quality:
            reasons = ", ".join(face.quality.reasons) or "no single reason"
            raise LowQuality(f"Quality {face.quality.score:.0f} is below {self.settings.min_quality:.0f}: {reasons}.")
        return crop


def crop_jpeg(crop: Pixels) -> bytes:
    """Encode a crop, (S, S, 3) uint8 RGB, as JPEG at quality 95 with colour at full resolution."""
    file = io.BytesIO()
    Image.fromarray(crop).save(file, "JPEG", quality=JPEG_QUALITY, subsampling="4:4:4")
    return file.getvalue()


def _write(path: Path, crop: Pixels) -> None:
    """Write the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, PUBLIC, durable=False) as file:
        file.write(crop_jpeg(crop))


@cache
def _aligner(settings: AlignerSettings) -> Aligner:
    cv2.setNumThreads(1)  # each process uses one core
    return Aligner(settings)


def _work(settings: AlignerSettings, job: Job) -> Outcome:
    return _aligner(settings)(job)
