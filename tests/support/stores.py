"""Write faces directly into a store, and make large galleries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from app.gallery.records import Gallery, StoredFace
from app.gallery.service import Enrolled, SubjectFaces
from app.gallery.service import enroll as enroll_faces
from app.gallery.store import Store
from app.gallery.subjects import edit_subject
from app.package.folders import find_packages, select
from app.types import Box, Quality, Reason, Template
from tests.conftest import PROJECT
from tests.support.changing import written

DIMENSION = 4


PACKAGE = "tiny@1"
AT_ONCE = 10_000


def face(seed: int = 0, quality: float = 80.0) -> StoredFace:
    vector = np.random.default_rng(seed).standard_normal(DIMENSION).astype(np.float32)
    return StoredFace(
        "",
        Template(vector / np.linalg.norm(vector), PACKAGE),
        Quality(quality, (Reason.SMALL_FACE,)),
        Box(1, 2.5, -3, 4),
    )


def enroll(
    store: Store,
    gallery: Gallery,
    subject: str,
    faces: list[StoredFace],
    crops: Sequence[bytes | None] | None = None,
    **changes: Any,
) -> Enrolled:
    """Enroll faces, with one crop for each or without crops; `changes` are those of `edit_subject`."""
    kept = [replace(face, crop=crop) for face, crop in zip(faces, crops or [None] * len(faces), strict=True)]
    wanted = SubjectFaces(subject, kept)
    made = written(store, gallery, enroll_faces, [wanted])[0]
    if changes:
        written(store, gallery, edit_subject, made.subject, **changes)
    return made


def fill(url: str, count: int) -> None:
    """Fill a gallery with `count` subjects with one random unit vector each, in the way of an import."""
    from app.features.bulk.rows import write_many  # noqa: PLC0415 - a feature, which may have been taken out

    store = Store(url)
    package = select(find_packages(PROJECT / "models"), "sface").id
    gallery = store.create_gallery("many", package, 128, store="none")
    generator = np.random.default_rng(1)
    for start in range(1, count, AT_ONCE):
        vectors = generator.standard_normal((AT_ONCE, 128), dtype=np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        written(
            store,
            gallery,
            write_many,
            gallery.embedder,
            [],
            [StoredFace(f"s{start + n}", Template(vectors[n], PACKAGE), Quality(50.0, ())) for n in range(AT_ONCE)],
        )
    store.close()
