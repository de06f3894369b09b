"""Write many subjects and faces of an import in one transaction; read them for an export."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.db.engine import select_in
from app.db.schema import CROPS, FACES, SUBJECTS
from app.db.sealed_columns import Blobs
from app.errors import Conflict, InvalidInput, TwoPackages
from app.features.corrected import id_here
from app.features.stored import is_unit
from app.gallery.records import (
    Consent,
    Counts,
    Gallery,
    Metadata,
    StoredFace,
    face_query,
    join_templates,
    not_expired,
    package_mismatch,
    reread,
    template_column,
    to_face,
)
from app.gallery.store import Change, Store
from app.gallery.subjects import from_consent, touch_subjects, write_faces, write_subjects
from app.gallery.text import clean_id, clean_name, encode_metadata

EXPORT_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class BulkSubject:
    """A subject to write. Fields that are not None replace those of an existing subject, except ``created_at`` and
    ``updated_at``, which are used for a new subject only."""

    id: str
    name: str | None = None
    metadata: Metadata | None = None
    created_at: str | None = None
    updated_at: str | None = None
    expires_at: str | None = None
    consent: Consent | None = None
    cover: str | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """How many subjects and faces were added; ``taken`` are the positions of faces that the gallery already had."""

    subjects: int
    faces: int
    taken: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Everything:
    """A consistent view of a gallery; subjects and faces are in the order of their keys.

    ``counts`` and ``faces`` cover the faces that have a template of the gallery's package; ``left_out`` have none.
    """

    gallery: Gallery
    counts: Counts
    left_out: int
    subjects: Iterator[BulkSubject]
    faces: Iterator[StoredFace]


def subject_columns(subject: BulkSubject, max_metadata_bytes: int) -> tuple[str, dict[str, Any]]:
    """Return the normalised id of a subject to write, and the columns to set.

    Raises InvalidInput ``invalid_id``, ``invalid_name``, ``invalid_metadata``, ``invalid_consent``.
    """
    columns = {
        "name": None if subject.name is None else clean_name(subject.name),
        "metadata": None if subject.metadata is None else encode_metadata(subject.metadata, max_metadata_bytes),
        "created_at": subject.created_at,
        "updated_at": subject.updated_at,
        "expires_at": subject.expires_at,
        "consent": from_consent(subject.consent),
        "cover": subject.cover,
    }
    return clean_id(subject.id, "subject"), {name: value for name, value in columns.items() if value is not None}


def fit_bulk(gallery: Gallery, package: str, faces: Sequence[StoredFace]) -> Sequence[StoredFace]:
    """Return the faces with exactly the templates that the gallery needs now; `package` made each face's ``template``.

    Raises InvalidInput ``invalid_template``; Conflict ``package_mismatch``, ``two_packages``.
    """
    current, *others = gallery.packages
    if package != current:
        raise package_mismatch(gallery.index_spec, package)
    vectors = [face.template.vector for face in faces]
    whole = all(vector.shape == (gallery.dimension,) for vector in vectors)
    if not whole or not is_unit(np.array(vectors, np.float32).reshape(len(faces), gallery.dimension)).all():
        message = f"Templates are vectors of {gallery.dimension} numbers and of length 1."
        raise InvalidInput(message, code="invalid_template")
    if not others:
        return [face if face.second is None else replace(face, second=None) for face in faces]
    if any(face.second is None or face.second.package != others[0] for face in faces):
        raise two_packages(gallery.id)
    return faces


def write_many(change: Change, package: str, subjects: Sequence[BulkSubject], faces: Sequence[StoredFace]) -> Written:
    """Write subjects and faces, whose templates are of `package`.

    Missing subjects of `faces` are created. Faces that the gallery already has are skipped (`place_ids`).
    Raises InvalidInput ``invalid_id``, ``invalid_name``, ``invalid_metadata``, ``invalid_template``; Conflict
    ``package_mismatch``; ``two_packages`` if a face lacks a template that the gallery needs now.
    """
    faces = fit_bulk(change.gallery, package, faces)
    given = {subject.id for subject in subjects}
    others = dict.fromkeys(face.subject for face in faces if face.subject not in given)
    wanted = [*subjects, *(BulkSubject(subject_id) for subject_id in others)]
    checked = [subject_columns(subject, change.max_metadata_bytes) for subject in wanted]
    known, made = write_subjects(change, checked)
    keys = {raw.id: known[clean] for raw, (clean, _) in zip(wanted, checked, strict=True)}
    new, taken = place_ids(change, faces)
    if new:
        write_faces(change, package, keys, new)
        touch_subjects(change, {keys[face.subject] for face in new} - {known[subject_id] for subject_id in made})
    return Written(len(made), len(new), taken)


def place_ids(change: Change, faces: Sequence[StoredFace]) -> tuple[list[StoredFace], tuple[int, ...]]:
    """Return the faces to write, and the positions of those to skip, because a face of the gallery or an earlier one
    has the id.

    A face whose id exists in another gallery (perhaps a copy of this one) gets the id `id_here`.
    """
    here = {face.face_id: id_here(change.gallery, face.face_id) for face in faces}
    query = sa.select(FACES.c.face_id, FACES.c.gallery_key)
    rows = select_in(change.connection, query, FACES.c.face_id, {*here, *here.values()})
    homes = {row.face_id: row.gallery_key for row in rows}
    new: dict[str, StoredFace] = {}
    taken: list[int] = []
    for place, face in enumerate(faces):
        known = {face.face_id, here[face.face_id]}
        if any(homes.get(face_id) == change.gallery.key or face_id in new for face_id in known):
            taken.append(place)
            continue
        face_id = here[face.face_id] if face.face_id in homes else face.face_id
        new[face_id] = replace(face, face_id=face_id)
    return list(new.values()), tuple(taken)


@contextmanager
def everything(store: Store, gallery: Gallery, *, crops: bool) -> Iterator[Everything]:
    """Open a consistent view of the gallery; read its subjects before its faces.

    Raises NotFound ``gallery_not_found``.
    """
    with store.database.read(one_moment=True) as connection:
        now = reread(connection, gallery)
        subjects = read_subjects(connection, now)
        faces = read_faces(connection, now, store.blobs, crops=crops)
        query = sa.select(sa.func.count()).where(SUBJECTS.c.gallery_key == now.key, not_expired())
        people = connection.execute(query).scalar_one()
        there, without = count_faces(connection, now)
        yield Everything(now, Counts(people, there), without, subjects, faces)


def read_subjects(connection: Connection, gallery: Gallery) -> Iterator[BulkSubject]:
    mine = (SUBJECTS.c.gallery_key == gallery.key) & not_expired()
    query = sa.select(SUBJECTS).where(mine).order_by(SUBJECTS.c.key)
    for row in connection.execution_options(yield_per=EXPORT_ROWS).execute(query):
        times = (row.created_at, row.updated_at, row.expires_at)
        consent = None if row.consent is None else Consent(**json.loads(row.consent))
        yield BulkSubject(row.id, row.name, json.loads(row.metadata), *times, consent, row.cover)


def count_faces(connection: Connection, gallery: Gallery) -> tuple[int, int]:
    """Return the number of faces that `read_faces` yields, and of those without a template of the gallery's package."""
    source = join_templates(FACES.join(SUBJECTS), gallery.embedder)
    whole = sa.func.count(template_column(gallery.embedder))
    query = sa.select(whole, sa.func.count() - whole).select_from(source)
    row = connection.execute(query.where(FACES.c.gallery_key == gallery.key, not_expired())).one()
    return row[0], row[1]


def read_faces(connection: Connection, gallery: Gallery, blobs: Blobs, *, crops: bool) -> Iterator[StoredFace]:
    """Yield the faces that have a template of the gallery's package, in the order of their keys; with `crops`, with
    theirs."""
    query = face_query(gallery.embedder).where(_is_whole(gallery)).order_by(FACES.c.key)
    if crops:
        query = query.add_columns(CROPS.c.jpeg).outerjoin(CROPS, CROPS.c.face_key == FACES.c.key)
    for row in connection.execution_options(yield_per=EXPORT_ROWS).execute(query):
        yield to_face(row, blobs, row.jpeg if crops else None)


def _is_whole(gallery: Gallery) -> sa.ColumnElement[bool]:
    return (FACES.c.gallery_key == gallery.key) & template_column(gallery.embedder).is_not(None)


def two_packages(gallery_id: str) -> Conflict:
    """Return the error for faces that have templates of one package only, but need two."""
    message = f"Gallery {gallery_id!r} is being re-embedded to another model package: wait, or finish or cancel that."
    return TwoPackages(message, gallery=gallery_id)
