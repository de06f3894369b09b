"""Faces of photos enrolled: several requests' enrollments in one change, all or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from app.gallery.bulk import BulkFace, bulk_face, write_faces, write_subjects
from app.gallery.change import Change
from app.gallery.face_rows import encode_crop
from app.gallery.fit import fit_face
from app.gallery.records import NO_TERMS, Gallery, NewFace, Subject, Terms
from app.gallery.subject_rows import find_unexpired, terms_columns, touch_subjects
from app.gallery.templates import TemplatePlan
from app.gallery.text import check_visible, clean_id


@dataclass(frozen=True, slots=True)
class Enrollment:
    """Faces, with a JPEG or None for each, for a subject, which is made if missing. `terms` replace its own."""

    subject: str
    faces: Sequence[NewFace]
    crops: Sequence[bytes | None]
    terms: Terms = NO_TERMS

    def bulk_faces(self, subject: str, plan: TemplatePlan) -> list[BulkFace]:
        """Return the faces as they are written, for the subject of this normalised id, each with a new id.

        Raises Conflict ``package_mismatch`` if a face lacks a template that `plan` writes.
        """
        return [
            bulk_face(subject, fit_face(face, plan), crop) for face, crop in zip(self.faces, self.crops, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Enrolled:
    """The result of an enrollment: the subject as it is now, and the new faces with their ids."""

    subject: Subject
    faces: tuple[BulkFace, ...]
    created: bool


def enroll(change: Change, wanted: Sequence[Enrollment]) -> list[Enrolled]:
    """Carry out several enrollments.

    Raises InvalidInput ``invalid_id``, ``invalid_expiry``, ``invalid_consent``; Conflict ``subject_expired``,
    ``package_mismatch`` if a face lacks a template that the gallery takes.
    """
    names = [clean_id(one.subject, "subject") for one in wanted]
    subjects = [(name, terms_columns(one.terms)) for name, one in zip(names, wanted, strict=True)]
    plan = change.gallery.templates
    faces = [one.bulk_faces(name, plan) for name, one in zip(names, wanted, strict=True)]
    keys, made = write_subjects(change, subjects)
    for name in made:
        check_visible(name, "subject id")
    touch_subjects(change, [key for name, key in keys.items() if name not in made])
    write_faces(change, change.gallery.embedder, keys, list(chain(*faces)))
    current = find_unexpired(change, list(keys.values()))
    return [
        Enrolled(current[keys[name]], tuple(some), created=name in made and name not in names[:place])
        for place, (name, some) in enumerate(zip(names, faces, strict=True))
    ]


def crop_to_keep(gallery: Gallery, face: NewFace) -> bytes | None:
    """Return the face's crop as JPEG if the gallery keeps crops."""
    return encode_crop(face.crop) if gallery.store == "crop" and face.crop is not None else None
