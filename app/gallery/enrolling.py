"""Faces and subjects as enrollments and imports write them, many in a change, all or none; and as exports read them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.db.engine import select_in
from app.db.schema import CROPS, FACE_ORIGINS, FACES, SECOND_TEMPLATES, SUBJECTS
from app.db.sealed_columns import Blobs
from app.errors import InvalidInput
from app.gallery.change import ADD, Change
from app.gallery.records import (
    NO_TERMS,
    Consent,
    Counts,
    Gallery,
    Metadata,
    NewFace,
    StoredFace,
    Terms,
    fit_face,
    from_bytes,
    is_unit,
    package_mismatch,
    to_bytes,
    two_packages,
)
from app.gallery.rows import (
    brief_subjects,
    encode_crop,
    face_query,
    is_current,
    join_templates,
    template_column,
    to_consent,
    to_face,
)
from app.gallery.subjects import (
    check_unexpired,
    from_consent,
    make_subjects,
    subject_values,
    terms_columns,
    touch_subjects,
    update_subject,
)
from app.gallery.text import check_visible, clean_id, clean_name, encode_metadata, fold


@dataclass(frozen=True, slots=True)
class SubjectFaces:
    """Faces, with a JPEG or None for each, for a subject, which is made if missing. `terms` replace its own; `also`
    writes in the transaction."""

    subject: str
    faces: Sequence[NewFace]
    crops: Sequence[bytes | None]
    terms: Terms = NO_TERMS
    also: Callable[[Connection], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Enrolled:
    """The result of an enrollment: the subject's id, and the new faces with theirs."""

    subject: str
    faces: tuple[StoredFace, ...]
    created: bool


def enroll(change: Change, wanted: Sequence[SubjectFaces]) -> list[Enrolled]:
    """Carry out several enrollments.

    Raises InvalidInput ``invalid_id``, ``invalid_expiry``, ``invalid_consent``, ``invalid_template`` (not a unit vector
    of the gallery's dimension); Conflict ``subject_expired``, ``package_mismatch`` if a face lacks a template that the
    gallery takes.
    """
    subjects: list[tuple[str, dict[str, object]]] = []
    faces: list[tuple[StoredFace, ...]] = []
    for enrollment in wanted:
        name = clean_id(enrollment.subject, "subject")
        subjects.append((name, terms_columns(enrollment.terms)))
        fitted = [fit_face(face, change.gallery.written) for face in enrollment.faces]
        faces.append(tuple(face.stored(name, crop) for face, crop in zip(fitted, enrollment.crops, strict=True)))
    keys, made = write_subjects(change, subjects, unexpired=True)
    for name in made:
        check_visible(name, "subject id")
    touch_subjects(change, [key for name, key in keys.items() if name not in made])
    write_faces(change, change.gallery.embedder, keys, list(chain(*faces)))
    enrolled = []
    for (name, _), some in zip(subjects, faces, strict=True):
        enrolled.append(Enrolled(name, some, created=name in made))
        made.discard(name)  # a second enrollment of the same subject did not create it
    for enrollment in wanted:
        enrollment.also(change.connection)
    return enrolled


def crop_to_keep(gallery: Gallery, face: NewFace) -> bytes | None:
    return encode_crop(face.crop) if gallery.store == "crop" and face.crop is not None else None


EXPORT_ROWS = 1_000
_INSERTS = tuple(sa.insert(table) for table in (FACES, CROPS, SECOND_TEMPLATES, FACE_ORIGINS))
_LAST_KEY = sa.text("SELECT seq FROM sqlite_sequence WHERE name = 'faces'")
_NEXT_KEYS = sa.text("SELECT nextval(pg_get_serial_sequence('faces', 'key')) FROM generate_series(1, :count)")


@dataclass(frozen=True, slots=True)
class BulkSubject:
    """A subject to write: fields that are given replace those of an existing subject, but for ``created_at`` and
    ``updated_at``, which only a new one takes."""

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
    """A consistent view of a gallery; subjects and faces come in the order of their keys.

    ``counts`` and ``faces`` cover the faces that have a template of the gallery's package; ``left_out`` have none.
    """

    gallery: Gallery
    counts: Counts
    left_out: int
    subjects: Iterator[BulkSubject]
    faces: Iterator[StoredFace]


def subject_columns(subject: BulkSubject, max_metadata_bytes: int) -> tuple[str, dict[str, Any]]:
    """Return the normalised id of a subject to write, and the values of the columns that are given.

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
    """Return the faces with exactly the templates that the gallery takes; `package` is that of ``template``.

    Raises InvalidInput ``invalid_template``; Conflict ``package_mismatch``, ``two_packages``.
    """
    own, *others = gallery.packages
    if package != own:
        raise package_mismatch(gallery.index_spec, package)
    whole = all(len(face.template) == gallery.dimension * 4 for face in faces)
    numbers = from_bytes(b"".join(face.template for face in faces))
    if not whole or not is_unit(numbers.reshape(len(faces), gallery.dimension)).all():
        message = f"Templates are vectors of {gallery.dimension} numbers and of length 1."
        raise InvalidInput(message, code="invalid_template")
    if not others:
        return [face if face.second is None else replace(face, second=None) for face in faces]
    if any(face.second is None or face.second.package != others[0] for face in faces):
        raise two_packages(gallery.id)
    return faces


def write_many(change: Change, package: str, subjects: Sequence[BulkSubject], faces: Sequence[StoredFace]) -> Written:
    """Write subjects and faces, whose templates are of `package`.

    Subjects that only `faces` name are made if missing. Faces that the gallery has already are skipped (`place_ids`).
    Raises InvalidInput ``invalid_id``, ``invalid_name``, ``invalid_metadata``, ``invalid_template``; Conflict
    ``package_mismatch``; ``two_packages`` if a face lacks a template that the gallery takes by now.
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
        touch_subjects(change, {keys[face.subject] for face in new})
    return Written(len(made), len(new), taken)


def write_subjects(
    change: Change, subjects: Iterable[tuple[str, Mapping[str, Any]]], *, unexpired: bool = False
) -> tuple[dict[str, int], set[str]]:
    """Add missing subjects and update the others, given by their ids and columns; return the keys by id, and the new
    ids. Where two are one subject, the later one's columns count.

    With `unexpired`, raises Conflict ``subject_expired`` for a subject that has expired.
    """
    wanted: dict[str, dict[str, Any]] = {}
    for subject_id, columns in subjects:
        wanted.setdefault(subject_id, {}).update(columns)
    known = brief_subjects(change.connection, change.gallery, wanted.keys())
    if unexpired:
        check_unexpired(change, known.values())
    keys = {name: row.key for name, row in known.items()}
    missing = sorted(wanted.keys() - keys.keys())
    made = make_subjects(change, [subject_values(change, subject_id, **wanted[subject_id]) for subject_id in missing])
    for subject_id, key in sorted(keys.items()):
        changes = {
            name: value for name, value in wanted[subject_id].items() if name not in {"created_at", "updated_at"}
        }
        if "name" in changes:
            changes["folded"] = fold(subject_id, changes["name"])
        if changes:
            update_subject(change, key, changes)
    return keys | made, set(made)


def place_ids(change: Change, faces: Sequence[StoredFace]) -> tuple[list[StoredFace], tuple[int, ...]]:
    """Return the faces to write, and the positions of those to skip, whose ids the gallery or an earlier face has.

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


def id_here(gallery: Gallery, foreign: str) -> str:
    """Return the id of something whose own id another gallery has, perhaps a copy: the same at each import."""
    return hashlib.sha256(f"{gallery.key}/{foreign}".encode()).hexdigest()[:32]


def write_faces(change: Change, package: str, subject_keys: Mapping[str, int], faces: Sequence[StoredFace]) -> None:
    """Insert the faces, whose templates are of `package`; `subject_keys` are given by the subjects' ids."""
    connection, blobs = change.connection, change.blobs
    keys = _take_keys(connection, len(faces))
    rows, crops, seconds, origins = [], [], [], []
    blobs.mark(connection)
    for key, face in zip(keys, faces, strict=True):
        face_id = face.face_id
        rows.append(
            {
                "key": key,
                "gallery_key": change.gallery.key,
                "subject_key": subject_keys[face.subject],
                "face_id": face_id,
                "package": package,
                "template": blobs.pack("template", face_id, face.template),
                "quality": face.quality.score,
                "reasons": json.dumps(face.quality.reasons) if face.quality.reasons else "[]",
                "x": face.box.x,
                "y": face.box.y,
                "width": face.box.width,
                "height": face.box.height,
                "created_at": face.created_at or change.now,
            }
        )
        if face.crop is not None:
            crops.append({"face_key": key, "jpeg": blobs.pack("crop", face_id, face.crop)})
        if face.second is not None:
            template = blobs.pack("second", face_id, to_bytes(face.second))
            seconds.append({"face_key": key, "package": face.second.package, "template": template})
        if face.origin is not None:
            origins.append({"face_key": key, "gallery_key": change.gallery.key, **asdict(face.origin)})
    for insert, values in zip(_INSERTS, (rows, crops, seconds, origins), strict=True):
        if values:
            connection.execute(insert, values)
    change.log(ADD, [(subject_keys[face.subject], key) for key, face in zip(keys, faces, strict=True)])


def read_subjects(connection: Connection, gallery: Gallery) -> Iterator[BulkSubject]:
    mine = (SUBJECTS.c.gallery_key == gallery.key) & is_current()
    query = sa.select(SUBJECTS).where(mine).order_by(SUBJECTS.c.key)
    for row in connection.execution_options(yield_per=EXPORT_ROWS).execute(query):
        times = (row.created_at, row.updated_at, row.expires_at)
        yield BulkSubject(row.id, row.name, json.loads(row.metadata), *times, to_consent(row.consent), row.cover)


def count_faces(connection: Connection, gallery: Gallery) -> tuple[int, int]:
    """Count the faces that `read_faces` reads, and those that lack a template of the gallery's package."""
    source = join_templates(FACES.join(SUBJECTS), gallery.embedder)
    whole = sa.func.count(template_column(gallery.embedder))
    query = sa.select(whole, sa.func.count() - whole).select_from(source)
    row = connection.execute(query.where(FACES.c.gallery_key == gallery.key, is_current())).one()
    return row[0], row[1]


def read_faces(connection: Connection, gallery: Gallery, blobs: Blobs, *, crops: bool) -> Iterator[StoredFace]:
    """Read the faces that have a template of the gallery's package, in the order of their keys."""
    query = face_query(gallery.embedder).where(_is_whole(gallery)).order_by(FACES.c.key)
    if crops:
        query = query.add_columns(CROPS.c.jpeg).outerjoin(CROPS, CROPS.c.face_key == FACES.c.key)
    for row in connection.execution_options(yield_per=EXPORT_ROWS).execute(query):
        yield to_face(row, blobs, row.jpeg if crops else None)


def _is_whole(gallery: Gallery) -> sa.ColumnElement[bool]:
    return (FACES.c.gallery_key == gallery.key) & template_column(gallery.embedder).is_not(None)


def _take_keys(connection: Connection, count: int) -> list[int]:
    """Reserve keys for new faces: inserting rows with keys is several times as fast as asking for each new key."""
    if connection.dialect.name == "sqlite":  # the caller holds the database's one write lock
        last = connection.execute(_LAST_KEY).scalar() or 0
        return list(range(last + 1, last + count + 1))
    return sorted(connection.execute(_NEXT_KEYS, {"count": count}).scalars())
