"""The service's stages, the raw limit and the plain ways of doing the same, on photos and crops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from app.bench.machine import cores
from app.face.detect import open_detector
from app.face.embed import CPU_MAX_BATCH, Embedder
from app.face.image import Limits
from app.pipeline import Pipeline
from app.runtime.graph import keep_data_inputs
from app.runtime.package import Package, find_packages, locate, select
from app.runtime.prepare import prepared
from app.runtime.session import EmbedderSession, Session, open_embedder
from app.types import Pixels

DETECTOR, EMBEDDER = "yunet", "sface"
ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".webp"})


@dataclass(frozen=True, slots=True)
class Stages:
    """What is measured, opened once. ``photos`` are image files, ``crops`` (N, 112, 112, 3) of the faces in them."""

    detector_file: Path
    package: Package
    session: EmbedderSession
    embedder: Embedder
    pipeline: Pipeline
    photos: tuple[bytes, ...]
    crops: Pixels
    cache: Path


@contextmanager
def open_stages(models: Path, cache: Path, photos: Path, *, embedder: str = EMBEDDER) -> Iterator[Stages]:
    """Raises Unusable as loading packages does, and ValueError where the folder shows no faces."""
    packages = find_packages(models)
    detector = select(packages, DETECTOR)
    detector_file = locate(detector, cache)  # as it came, for OpenCV
    package = select(packages, embedder)
    session = open_embedder(package, cache, "cpu", 1)
    cv2.setNumThreads(1)  # as the server does
    pipeline = Pipeline(open_detector(detector, cache), Limits())
    found = tuple(path.read_bytes() for path in sorted(photos.rglob("*")) if path.suffix.lower() in ENDINGS)
    crops = [face.crop for photo in found for face in pipeline.detect(photo).faces]
    if not crops:
        raise ValueError(f"{photos} holds no photos with faces")
    with Embedder(session) as embedding:
        yield Stages(detector_file, package, session, embedding, pipeline, found, np.stack(crops), cache)


def many(crops: Pixels, count: int) -> Pixels:
    """`count` crops, the given ones over and over."""
    return np.ascontiguousarray(crops[np.arange(count) % len(crops)])


def side_by_side(run: Callable[[int], int], callers: int) -> Callable[[], int]:
    """`run(caller)` in as many threads at once; answers the sum."""
    pool = ThreadPoolExecutor(callers)

    def together() -> int:
        return sum(pool.map(run, range(callers)))

    return together


# --- Embedding -------------------------------------------------------------------------------------------------------


def embedder_batched(stages: Stages, count: int) -> Callable[[], int]:
    """Ours: twice as many callers as cores, one face each at a time, joined by the batcher."""
    crops = many(stages.crops, count)

    def embed(caller: int) -> int:
        stages.embedder.embed([crops[caller % count]])
        return 1

    return side_by_side(embed, 2 * cores())


def runtime_alone(stages: Stages, batch: int) -> Callable[[], int]:
    """The raw limit: the prepared graph in ONNX Runtime and nothing else, one caller a core."""
    session = Session(prepared(stages.package, stages.cache, "cpu"), "cpu", 1)
    crops = many(stages.crops, batch)

    def run(_caller: int) -> int:
        session.run(crops)
        return batch

    return side_by_side(run, cores())


def graph_as_shipped(stages: Stages) -> Callable[[], int]:
    """The file as it came, one face a call, one caller a core (its batch size is fixed at 1)."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = _as_shipped(stages, options)
    crop = _floats(stages.crops[0])

    def run(_caller: int) -> int:
        session.run(None, {session.get_inputs()[0].name: crop})
        return 1

    return side_by_side(run, cores())


def graph_as_shipped_alone(stages: Stages) -> Callable[[], int]:
    """What one gets who loads the file and runs it: ONNX Runtime's defaults, one face at a time."""
    session = _as_shipped(stages, ort.SessionOptions())
    crop = _floats(stages.crops[0])

    def run() -> int:
        session.run(None, {session.get_inputs()[0].name: crop})
        return 1

    return run


def _as_shipped(stages: Stages, options: ort.SessionOptions) -> Any:
    """The package's own file; only its weights are taken off the list of inputs, else ONNX Runtime asks for them."""
    model = onnx.load(str(locate(stages.package, stages.cache)))
    keep_data_inputs(model)
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _floats(crop: Pixels) -> NDArray[np.float32]:
    """SFace's own input: (1, 3, 112, 112) float32 RGB, 0-255."""
    return np.ascontiguousarray(crop.transpose(2, 0, 1)[None].astype(np.float32))


# --- From a photo to templates ----------------------------------------------------------------------------------------


def raw_limit(stages: Stages, photos: Sequence[bytes]) -> Callable[[], int]:
    """Decode, detect, align, embed: the stages themselves, a thread a core, faces embedded in the best batch."""
    session, batch = stages.session, CPU_MAX_BATCH

    def run(caller: int) -> int:
        mine = photos[caller :: cores()]
        crops = [face.crop for photo in mine for face in stages.pipeline.detect(photo).faces]
        for start in range(0, len(crops), batch):
            session.run(np.stack(crops[start : start + batch]))
        return len(mine)

    return side_by_side(run, cores())


def naive(stages: Stages, photos: Sequence[bytes]) -> Callable[[], int]:
    """One photo, one face at a time: the same stages, the file as shipped with ONNX Runtime's defaults."""
    session = _as_shipped(stages, ort.SessionOptions())
    name = session.get_inputs()[0].name

    def run() -> int:
        for photo in photos:
            for face in stages.pipeline.detect(photo).faces:
                session.run(None, {name: _floats(face.crop)})
        return len(photos)

    return run


def opencv_sample(stages: Stages, photos: Sequence[bytes]) -> Callable[[], int]:
    """OpenCV's own sample: FaceDetectorYN once at the photo's size, alignCrop, feature, one at a time.

    OpenCV cannot run the block-quantised SFace itself, so that ONNX Runtime runs the file as shipped.
    """
    session = _as_shipped(stages, ort.SessionOptions())
    name = session.get_inputs()[0].name
    detector = cv2.FaceDetectorYN.create(str(stages.detector_file), "", (320, 320), 0.9, 0.3, 5000)
    target = np.array(stages.package.manifest.canonical_landmarks, np.float32)

    def run() -> int:
        for photo in photos:
            pixels = np.asarray(cv2.imdecode(np.frombuffer(photo, np.uint8), cv2.IMREAD_COLOR), np.uint8)
            detector.setInputSize((pixels.shape[1], pixels.shape[0]))
            _, faces = detector.detect(pixels)
            for face in [] if faces is None else faces:
                matrix, _ = cv2.estimateAffinePartial2D(face[4:14].reshape(5, 2), target)
                crop = np.asarray(cv2.warpAffine(pixels, matrix, (112, 112)), np.uint8)
                session.run(None, {name: _floats(crop[:, :, ::-1])})
        return len(photos)

    return run
