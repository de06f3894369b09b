"""Faces of an index, for tests: random vectors, and blocks of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.search.types import FaceBlock
from app.types import Vector, Vectors

DIMENSION = 8
Face = tuple[int, int, float, Vector]
"""Key, subject, quality, (D,) vector."""


def random_units(count: int, dimension: int = DIMENSION, seed: int = 0) -> Vectors:
    vectors = np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


def block(faces: Sequence[Face], dimension: int = DIMENSION) -> FaceBlock:
    return FaceBlock(
        np.array([key for key, *_ in faces], np.int64),
        np.array([subject for _, subject, *_ in faces], np.int64),
        np.array([quality for *_, quality, _ in faces], np.float32),
        np.array([vector for *_, vector in faces], np.float32).reshape(-1, dimension),
    )
