"""Compare a gallery's index with the database."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from app.db.schema import FACES
from app.gallery.records import Gallery
from app.gallery.service import Galleries

CHECK_EXAMPLES = 20


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of comparing a gallery's index with the database, bit by bit.

    The database has ``faces`` faces, the index ``indexed``. ``missing`` is the number of faces that the index lacks,
    ``different`` of those that have other values there, ``extra`` of those that the database lacks. ``examples`` are
    ids of missing or different faces.
    """

    gallery: str
    subjects: int
    faces: int
    indexed: int
    missing: int
    different: int
    extra: int
    examples: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        differences = (
            ("faces in the database that the index lacks", self.missing),
            ("faces that differ between the database and the index", self.different),
            ("faces in the index that the database lacks", self.extra),
        )
        return tuple(f"{what}: {count}" for what, count in differences if count)


def check_index(galleries: Galleries, gallery: Gallery) -> CheckReport:
    """Compare every face in the database with the index. This process's changes to the gallery wait meanwhile; searches
    don't."""
    with galleries.indexes.inspecting(gallery.index_specs) as index:
        difference, indexed = index.compare()
    counts = galleries.store.counts(gallery, expired=True)
    examples = FACES.c.key.in_([*difference.missing, *difference.different][:CHECK_EXAMPLES])
    return CheckReport(
        gallery=gallery.id,
        subjects=counts.subjects,
        faces=counts.faces,
        indexed=indexed,
        missing=len(difference.missing),
        different=len(difference.different),
        extra=difference.extra,
        examples=tuple(galleries.store.database.column(sa.select(FACES.c.face_id).where(examples))),
    )
