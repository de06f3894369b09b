"""What the sessions of a GPU see in an hour of mixed photos: one shape each. The CPU stands in for the GPU."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app.face.detect import Detector
from app.face.formats import Limits
from app.face.yunet import CANVASES
from app.inference import session
from app.inference.embedders import Embedder
from app.inference.session import EmbedderSession, Session
from app.models.opening import open_detector
from app.package.folders import find_packages, select
from app.pipeline import Pipeline
from app.types import Face, Photo
from tests.conftest import PROJECT
from tests.support import packages

PHOTOS = sorted((PROJECT / "docs" / "samples").glob("*.jpg"))
SIZES = (120, 250, 333, 480, 640, 777, 1_024, 1_280, 1_600, 2_000, 3_000, 4_000)
"""Of the longer side, from an avatar to a telephone's photo."""
SURE = 0.8


def sure(photo: Photo) -> list[Face]:
    """What is hardly a face is one or none, by what lies beside it in the input."""
    return [face for face in photo.faces if face.score >= SURE]


def photos() -> Iterator[bytes]:
    """Photos of many sizes and forms, some turned on their side."""
    generator = np.random.default_rng(1)
    for place, size in enumerate(SIZES):
        with Image.open(PHOTOS[place % len(PHOTOS)]) as opened:
            photo = opened.convert("RGB")
        photo = photo.rotate(90, expand=True) if place % 5 == 4 else photo
        shape = size, max(32, round(size * float(generator.uniform(0.5, 1.0))))
        whole = photo.resize(shape, Image.Resampling.BILINEAR)
        whole.save(content := io.BytesIO(), "JPEG")
        yield content.getvalue()


@pytest.fixture
def detectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Detector, Detector]]:
    """One of the CPU, as it is, and one that is run as a GPU's."""
    package = select(find_packages(PROJECT / "models"), "yunet")
    plain = open_detector(package, tmp_path / "cache")
    monkeypatch.setitem(session.FIXED_BATCH, "cpu", 8)
    fixed = open_detector(package, tmp_path / "cache")
    yield plain, fixed
    fixed.close()


@pytest.mark.long
def test_every_session_sees_one_shape_and_finds_the_same_faces(
    detectors: tuple[Detector, Detector], tmp_path: Path
) -> None:
    plain, fixed = detectors
    package = packages.package(tmp_path)
    embedding = Session(package.folder / "model.onnx", "cpu", shape=(8, 112, 112, 3))
    limits = Limits(max_bytes=64 * 1024 * 1024)
    pipeline, usual = Pipeline(fixed, limits), Pipeline(plain, limits)
    faces = 0
    with Embedder(EmbedderSession(package, embedding)) as embedder:
        for photo in photos():
            found = pipeline.detect(photo)
            faces += len(found.faces)
            expected = usual.detect(photo)
            for face, other in zip(sure(found), sure(expected), strict=True):
                assert face.landmarks is not None
                assert other.landmarks is not None
                off = np.abs(face.landmarks - other.landmarks).max()
                # Black beside a photo changes the first look, and with it whether a leaning face is measured once more,
                # and which of two readings of a turned one is sure.
                assert off < 0.05 * other.box.width
            embedder.embed([face.crop for face in found.faces if face.crop is not None])
    assert faces >= len(SIZES) // 2
    assert set(embedding.shapes) == {(8, 112, 112, 3)}
    assert set(fixed.sessions) == set(CANVASES)
    for canvas, fitted in fixed.sessions.items():
        assert set(fitted.shapes) == {(*canvas, 3)}
        assert fitted.shapes[*canvas, 3] > 1, "warmed and used"
