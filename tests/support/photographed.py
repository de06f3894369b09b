"""Templates of people who were photographed several times, from random numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.types import Vectors

DIMENSION = 48
NOISE = 1.0
"""Of a photo, as a multiple of what a person has: two photos of one then score 0.5."""


def photographed(people: int, photos: int, seed: int, noise: float = NOISE) -> tuple[Vectors, NDArray[np.int64]]:
    """Return unit vectors and who each shows, from 0."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(people), photos)
    vectors = rng.standard_normal((people, DIMENSION))[who] + noise * rng.standard_normal((len(who), DIMENSION))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), who
