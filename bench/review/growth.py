"""Generated people whose faces resemble each other about as SFace's templates of real ones do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from app.types import Vectors

FACES_EACH = 5
COHERENCE = 0.8
"""Cosine of a face with its person's middle: two faces of a person then score about 0.64."""
MISPLACED, TWICE = 0.01, 0.01
"""Shares of the faces with the label of the person before, and of the people who are there under two ids."""
PEOPLE_AT_ONCE = 4_000


def people(count: int, dimension: int, seed: int = 1) -> Iterator[tuple[int, list[str], Vectors, NDArray[np.float32]]]:
    """Yield `count` faces, some thousand people at a time: the first one's number, and each one's subject, vector and
    quality."""
    rng = np.random.default_rng(seed)
    for first in range(0, count, PEOPLE_AT_ONCE * FACES_EACH):
        size = min(count - first, PEOPLE_AT_ONCE * FACES_EACH)
        who = (first + np.arange(size)) // FACES_EACH
        middles = _unit(rng.standard_normal((size // FACES_EACH + 1, dimension), dtype=np.float32))
        spread = _unit(rng.standard_normal((size, dimension), dtype=np.float32))
        vectors = _unit(COHERENCE * middles[who - who[0]] + np.sqrt(1 - COHERENCE**2, dtype=np.float32) * spread)
        label = np.where(rng.random(size) < MISPLACED, np.maximum(who - 1, 0), who)
        second = np.isin(who, np.flatnonzero(rng.random(int(who[-1]) + 1) < TWICE)) & (np.arange(size) % 2 == 0)
        subjects = [f"p{one}{'b' if twice else ''}" for one, twice in zip(label.tolist(), second.tolist(), strict=True)]
        yield first, subjects, vectors, rng.uniform(45, 100, size).astype(np.float32)


def _unit(vectors: Vectors) -> Vectors:
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors
