"""Faces written straight into a store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from app.gallery import enrolling
from app.gallery.enrolling import Enrolled, Enrollment
from app.gallery.records import Gallery, NewFace
from app.gallery.store import Store
from app.gallery.subjects import edit_subject
from app.types import Box, Quality, Reason, Template
from tests.support.changing import written

DIMENSION = 4


PACKAGE = "tiny@1"


def face(seed: int = 0, quality: float = 80.0) -> NewFace:
    vector = np.random.default_rng(seed).standard_normal(DIMENSION).astype(np.float32)
    return NewFace(
        Template(vector / np.linalg.norm(vector), PACKAGE), Quality(quality, (Reason.SMALL_FACE,)), Box(1, 2.5, -3, 4)
    )


def enroll(
    store: Store, gallery: Gallery, subject: str, faces: list[NewFace], crops: list[bytes | None], **changes: Any
) -> Enrolled:
    """Enroll faces; `changes` are `edit_subject`'s."""
    made = written(store, gallery, enrolling.enroll, [Enrollment(subject, faces, crops)])[0]
    if not changes:
        return made
    return replace(made, subject=written(store, gallery, edit_subject, made.subject.id, **changes))
