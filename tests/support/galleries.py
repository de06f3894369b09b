"""Make small galleries of random templates."""

from __future__ import annotations

import numpy as np

from app.gallery.records import Gallery, StoredFace, encode_crop
from app.gallery.service import Enrolled, Galleries
from app.types import Box, Pixels, Quality, Template

DIMENSION = 16


PACKAGE = "tiny@1"


def template(seed: int, package: str = PACKAGE, dimension: int = DIMENSION) -> Template:
    vector = np.random.default_rng(seed).standard_normal(dimension).astype(np.float32)
    return Template(vector / np.linalg.norm(vector), package)


def at(degrees: float) -> Template:
    """Return a template in a plane: two templates score the cosine of the angle between them."""
    angle = np.deg2rad(degrees)
    return Template(np.array([np.cos(angle), np.sin(angle)], np.float32), PACKAGE)


def face(seed: int, quality: float = 50.0, crop: Pixels | None = None) -> StoredFace:
    return StoredFace(
        "", template(seed), Quality(quality, ()), Box(0, 0, 1, 1), None if crop is None else encode_crop(crop)
    )


def staff(galleries: Galleries) -> Gallery:
    """Return the gallery `staff` as it is now."""
    return galleries.store.gallery("staff")


def enroll(galleries: Galleries, subject: str, *seeds: int, gallery: str = "staff") -> Enrolled:
    return galleries.enroll(galleries.store.gallery(gallery), subject, [face(seed) for seed in seeds])


def found(galleries: Galleries, seed: int, limit: int = 3) -> list[str]:
    return [
        candidate.subject
        for candidate in galleries.open_search(galleries.store.gallery("staff")).search([template(seed)], limit)[0]
    ]
