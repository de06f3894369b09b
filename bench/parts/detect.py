"""The cost of finding faces in photos of several sizes, stage by stage, compared with plain OpenCV."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np

from app.cli import sample_photos
from app.face.formats import Limits
from app.face.image import decode
from app.pipeline import Pipeline
from bench.contenders.recognising import SAMPLE_NMS, SAMPLE_SCORE, SAMPLE_TOP
from bench.figures import Curve, compared
from bench.run import Run

PART = "detect"
OURS, PLAIN = "ours", "OpenCV: imdecode, YuNet once at full size"
UNREFINED = "without measuring landmarks again"
DECODED, THEIR_DECODED = "decode at full size", "OpenCV's imdecode"


def measure(run: Run) -> None:
    source = (sample_photos.SAMPLES / "both.jpg").read_bytes()
    costs: dict[str, list[float]] = {OURS: [], PLAIN: []}
    sizes: list[float] = []
    for width in run.effort.widths:
        photo, pixels = resized(source, width)
        million = pixels / 1e6
        speeds = run.contest(_ways(run, photo))
        stages = _stages(run.stages.pipeline, photo)
        stages["refine"] = 1000 / speeds.of(OURS).median - 1000 / speeds.of(UNREFINED).median
        work = f"detect, {million:.2g} megapixels, one thread"
        per = {f"{name}_ms_a_megapixel": value / million for name, value in stages.items()}
        told = per | {"ms_a_photo": 1000 / speeds.of(OURS).median}
        run.add(
            compared(PART, work, speeds, OURS, PLAIN, unit="photos/s", details=told),
            compared(PART, f"decode, {million:.2g} megapixels", speeds, DECODED, THEIR_DECODED, unit="photos/s"),
        )
        sizes.append(million)
        for name, points in costs.items():
            points.append(1000 / speeds.of(name).median / million)
    for name, points in costs.items():
        run.draw(Curve("detection", name, sizes, points, "megapixels", "ms a megapixel"))


def resized(photo: bytes, width: int) -> tuple[bytes, int]:
    """Return the photo as a JPEG of this width in pixels, and its number of pixels."""
    pixels = np.asarray(cv2.imdecode(np.frombuffer(photo, np.uint8), cv2.IMREAD_COLOR), np.uint8)
    height = round(pixels.shape[0] * width / pixels.shape[1])
    scaled = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_CUBIC)
    return cv2.imencode(".jpg", scaled, [cv2.IMWRITE_JPEG_QUALITY, sample_photos.QUALITY])[1].tobytes(), width * height


def _ways(run: Run, photo: bytes) -> dict[str, Callable[[], int]]:
    file, limits = run.stages.detector_file, Limits()
    plain = Pipeline(run.stages.detector, limits, refine=False)
    detector = cv2.FaceDetectorYN.create(str(file), "", (320, 320), SAMPLE_SCORE, SAMPLE_NMS, SAMPLE_TOP)

    def opencv() -> int:
        pixels = np.asarray(cv2.imdecode(np.frombuffer(photo, np.uint8), cv2.IMREAD_COLOR), np.uint8)
        detector.setInputSize((pixels.shape[1], pixels.shape[0]))
        detector.detect(pixels)
        return 1

    def once(work: Callable[[], object]) -> Callable[[], int]:
        def run_once() -> int:
            work()
            return 1

        return run_once

    return {
        OURS: once(lambda: run.stages.pipeline.detect(photo)),
        UNREFINED: once(lambda: plain.detect(photo)),
        PLAIN: opencv,
        DECODED: once(lambda: decode(photo, limits)),
        THEIR_DECODED: once(lambda: cv2.imdecode(np.frombuffer(photo, np.uint8), cv2.IMREAD_COLOR)),
    }


def _stages(pipeline: Pipeline, photo: bytes) -> dict[str, float]:
    """Return the median milliseconds of each stage, as the pipeline measures them."""
    clocked = [pipeline.detect(photo).stages for _ in range(5)]
    return {name: float(np.median([each.get(name, 0.0) for each in clocked])) for name in clocked[0]}
