"""Enrollments: what is asked for, what is written, and what is answered."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from app.gallery.bulk import BulkFace, bulk_face
from app.gallery.records import NO_TERMS, FaceRow, Metadata, NewFace, Terms, fit_face
from app.gallery.templates import TemplatePlan


@dataclass(frozen=True, slots=True)
class Enrolling:
    """Faces to add to a subject, each with a JPEG or None; the subject is created if it is missing.

    `name`, `metadata` and `terms` replace the subject's where given.
    """

    subject: str
    faces: Sequence[NewFace]
    crops: Sequence[bytes | None]
    name: str | None = None
    metadata: Metadata | None = None
    terms: Terms = NO_TERMS


def placed(one: Enrolling, subject: str, plan: TemplatePlan) -> list[BulkFace]:
    """Return the faces to write for the subject, given by its clean id, each with a new id.

    Raises Conflict ``package_mismatch`` if one lacks a template that `plan` writes.
    """
    return [
        bulk_face(subject, fit_face(face, plan), crop, face_id=uuid.uuid4().hex)
        for face, crop in zip(one.faces, one.crops, strict=True)
    ]


def face_rows(one: Enrolling, written: Sequence[tuple[BulkFace, int]], package: str, now: str) -> tuple[FaceRow, ...]:
    """Return the faces as a read would, given those written and their keys."""
    return tuple(
        FaceRow(
            key=key,
            face_id=str(face.face_id),
            subject=face.subject,
            quality=new.quality,
            box=new.box,
            package=package,
            template=face.template,
            crop=face.crop,
            created_at=now,
        )
        for new, (face, key) in zip(one.faces, written, strict=True)
    )
