"""Measure the cost of finding faces in photos of several sizes, stage by stage, compared with plain OpenCV."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np

from app.models.commands import sample_photos
from app.pipeline import Pipeline
from bench.contenders.recognising import SAMPLE_NMS, SAMPLE_SCORE, SAMPLE_TOP
from bench.figures import compared
from bench.run import Run

PART = "detect"
OURS, PLAIN = "ours", "OpenCV: imdecode, YuNet once at full size"


def measure(run: Run) -> None:
    source = (sample_photos.SAMPLES / "both.jpg").read_bytes()
    for width in run.effort.widths:
        photo, pixels = resized(source, width)
        million = pixels / 1e6
        speeds = run.contest(_ways(run, photo))
        stages = _stages(run.stages.pipeline, photo)
        work = f"detect, {million:.2g} megapixels, one thread"
        per = {f"{name}_ms_a_megapixel": value / million for name, value in stages.items()}
        told = per | {"ms_a_photo": 1000 / speeds.of(OURS).median}
        run.add(compared(PART, work, speeds, OURS, PLAIN, unit="photos/s", details=told))


def resized(photo: bytes, width: int) -> tuple[bytes, int]:
    """Return the photo as a JPEG of this width in pixels, and its number of pixels."""
    pixels = np.asarray(cv2.imdecode(np.frombuffer(photo, np.uint8), cv2.IMREAD_COLOR), np.uint8)
    height = round(pixels.shape[0] * width / pixels.shape[1])
    scaled = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_CUBIC)
    return cv2.imencode(".jpg", scaled, [cv2.IMWRITE_JPEG_QUALITY, sample_photos.QUALITY])[1].tobytes(), width * height


def _ways(run: Run, photo: bytes) -> dict[str, Callable[[], int]]:
    file = str(run.stages.detector_file)
    detector = cv2.FaceDetectorYN.create(file, "", (320, 320), SAMPLE_SCORE, SAMPLE_NMS, SAMPLE_TOP)

    def ours() -> int:
        run.stages.pipeline.detect(photo)
        return 1

    def opencv() -> int:
        pixels = np.asarray(cv2.imdecode(np.frombuffer(photo, np.uint8), cv2.IMREAD_COLOR), np.uint8)
        detector.setInputSize((pixels.shape[1], pixels.shape[0]))
        detector.detect(pixels)
        return 1

    return {OURS: ours, PLAIN: opencv}


def _stages(pipeline: Pipeline, photo: bytes) -> dict[str, float]:
    """Return the median milliseconds of each stage, as the pipeline measures them."""
    clocked = [pipeline.detect(photo).stages for _ in range(5)]
    return {name: float(np.median([stages.get(name, 0.0) for stages in clocked])) for name in clocked[0]}
