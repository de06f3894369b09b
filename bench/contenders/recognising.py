"""Ways to get from a photo to a candidate without a server: at full speed, one by one, and OpenCV's sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import cv2
import faiss
import numpy as np
import onnx

from app.machine import cores
from app.models.graph import optimised
from app.models.packages import locate
from app.models.reference import keep_data_inputs
from app.pipeline import choose_face, crop_of
from app.types import Face, Photo, Pixels, Vectors
from bench.callers import Reel, for_a_while
from bench.contenders.embedding import as_shipped
from bench.stages import Stages

SAMPLE_SCORE, SAMPLE_NMS, SAMPLE_TOP = 0.9, 0.3, 5000
"""The parameters of OpenCV's sample of face recognition."""
LIMIT = 5


def every_face(photo: Photo) -> Sequence[Face]:
    return [face for face in photo.faces if face.crop is not None]


def main_face(photo: Photo) -> Sequence[Face]:
    """Return the photo's main face, as verification chooses it."""
    return [photo.faces[choose_face(photo).index]]


def raw_limit(
    stages: Stages, batch: int, seconds: float, *, wanted: Callable[[Photo], Sequence[Face]] = every_face
) -> Callable[[], int]:
    """Decode, detect, align, grade and embed for `seconds`: the service's stages on one thread per core, the ``wanted``
    faces of several photos in one batch. No requests, no queue, no search, nothing stored.
    """
    reel, session = Reel(stages.photos), stages.session

    def turn() -> int:
        photos = reel.several(batch)
        crops = [crop_of(face) for photo in photos for face in wanted(stages.pipeline.detect(photo))]
        for start in range(0, len(crops), batch):
            session.run(np.stack(crops[start : start + batch]))
        return len(photos)

    return for_a_while(turn, cores(), seconds)


def naive(stages: Stages, templates: Vectors) -> Callable[[], int]:
    """Run the same stages one photo, one face and one search at a time, with the file as shipped, ONNX Runtime's
    defaults and FAISS's flat index.
    """
    run, reel = as_shipped(stages, defaults=True), Reel(stages.photos)
    index = faiss.IndexFlatIP(templates.shape[1])
    index.add(templates)

    def turn() -> int:
        for face in every_face(stages.pipeline.detect(reel.take())):
            vector = run(crop_of(face))
            index.search(vector / np.linalg.norm(vector), LIMIT)
        return 1

    return turn


def opencv_sample(stages: Stages, folder: Path) -> Callable[[], int]:
    """Run OpenCV's own sample (FaceDetectorYN, FaceRecognizerSF) with all of its threads: detection at the photo's
    size, `alignCrop`, `feature`. It doesn't look for small faces or refine landmarks, and searches nothing.

    Its `feature` can't run block-quantised weights, so it gets them dequantised, which is not slower.
    """
    detector = cv2.FaceDetectorYN.create(
        str(stages.detector_file), "", (320, 320), SAMPLE_SCORE, SAMPLE_NMS, SAMPLE_TOP
    )
    recognizer = cv2.FaceRecognizerSF.create(str(_dequantised(stages, folder / "sface.onnx")), "")
    reel = Reel(stages.photos)

    def turn() -> int:
        with _all_threads():
            pixels = _read(reel.take())
            detector.setInputSize((pixels.shape[1], pixels.shape[0]))
            _, faces = detector.detect(pixels)
            for face in [] if faces is None else faces:
                recognizer.feature(recognizer.alignCrop(pixels, face))
        return 1

    return turn


def _dequantised(stages: Stages, path: Path) -> Path:
    """Return the package's file with its weights dequantised."""
    model = onnx.load(str(locate(stages.package, stages.cache)))
    keep_data_inputs(model)

    onnx.save(optimised(model), str(path))
    return path


def _read(photo: bytes) -> Pixels:
    """Return the photo as (H, W, 3) uint8 BGR, as OpenCV reads it."""
    return np.asarray(cv2.imdecode(np.frombuffer(photo, np.uint8), cv2.IMREAD_COLOR), np.uint8)


@contextmanager
def _all_threads() -> Iterator[None]:
    """Let OpenCV use all cores, its default; the service limits it to one."""
    cv2.setNumThreads(cores())
    try:
        yield
    finally:
        cv2.setNumThreads(1)
