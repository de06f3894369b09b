"""Ways of getting from a photo to who is on it, without a server: at their best, one by one, and as OpenCV shows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import faiss
import numpy as np
import onnx

from app.bench.callers import Reel, for_a_while
from app.bench.embedding import as_shipped
from app.bench.machine import cores
from app.bench.stages import Stages
from app.runtime.graph import fold_constants, keep_data_inputs
from app.runtime.package import locate
from app.types import Vectors

SAMPLE_SCORE, SAMPLE_NMS, SAMPLE_TOP = 0.9, 0.3, 5000
"""What OpenCV's sample of face recognition takes."""
LIMIT = 5


def raw_limit(stages: Stages, batch: int, seconds: float) -> Callable[[], int]:
    """Decode, detect, align, grade, embed: exactly the service's stages on a thread a core for so long, each with the
    faces of so many photos in one batch; no request, no queue, no search, nothing kept."""
    reel, session = Reel(stages.photos), stages.session

    def some() -> int:
        photos = reel.some(batch)
        crops = [face.crop for photo in photos for face in stages.pipeline.detect(photo).faces]
        for start in range(0, len(crops), batch):
            session.run(np.stack(crops[start : start + batch]))
        return len(photos)

    return for_a_while(some, cores(), seconds)


def naive(stages: Stages, templates: Vectors) -> Callable[[], int]:
    """The same stages one photo, one face and one search at a time: the package's file as shipped with ONNX Runtime's
    defaults, FAISS's flat index with its own."""
    run, reel = as_shipped(stages, defaults=True), Reel(stages.photos)
    index = faiss.IndexFlatIP(templates.shape[1])
    index.add(templates)

    def one() -> int:
        for face in stages.pipeline.detect(reel.take()).faces:
            vector = run(face.crop)
            index.search(vector / np.linalg.norm(vector), LIMIT)
        return 1

    return one


def opencv_sample(stages: Stages, folder: Path) -> Callable[[], int]:
    """OpenCV's own sample, FaceDetectorYN and FaceRecognizerSF, with all of its threads: one look at the photo's own
    size, `alignCrop`, `feature`; it looks for no small faces, measures no landmarks again and searches nothing.

    Its `feature` does not run the block-quantised weights, so that it gets them dequantised, which is no slower.
    """
    model = onnx.load(str(locate(stages.package, stages.cache)))
    keep_data_inputs(model)
    fold_constants(model)
    path = folder / "sface-dequantised.onnx"
    onnx.save(model, str(path))
    detector = cv2.FaceDetectorYN.create(
        str(stages.detector_file), "", (320, 320), SAMPLE_SCORE, SAMPLE_NMS, SAMPLE_TOP
    )
    recognizer = cv2.FaceRecognizerSF.create(str(path), "")
    reel = Reel(stages.photos)

    def one() -> int:
        pixels = np.asarray(cv2.imdecode(np.frombuffer(reel.take(), np.uint8), cv2.IMREAD_COLOR), np.uint8)
        cv2.setNumThreads(cores())
        try:
            detector.setInputSize((pixels.shape[1], pixels.shape[0]))
            _, faces = detector.detect(pixels)
            for face in [] if faces is None else faces:
                recognizer.feature(recognizer.alignCrop(pixels, face))
        finally:
            cv2.setNumThreads(1)  # as the server has it
        return 1

    return one
