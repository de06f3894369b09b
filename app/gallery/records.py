"""The records of a gallery, the checks of their templates, and the queries that read their rows.

Records are frozen values. A gallery's row is read with the state of a re-embedding, and every writer locks it. The
faces of a gallery have templates of one package. While the gallery is being re-embedded they have two: a face's row
holds one of them, and the table of second templates the other. It depends on the time of enrollment which one is in the
row, and doesn't matter.
"""

from __future__ import annotations

import io
import json
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeAlias, TypedDict

import numpy as np
import sqlalchemy as sa
from PIL import Image
from sqlalchemy.engine import Connection, Row

from app.choices import CalibrationSource, CropPolicy, IndexKind, LivenessMode, OnConflict
from app.db.engine import in_parts
from app.db.schema import CORRECTIONS, CROPS, FACE_ORIGINS, FACES, GALLERIES, REEMBEDDINGS, SECOND_TEMPLATES, SUBJECTS
from app.db.sealed_columns import Blobs
from app.errors import Conflict, FaceNotFound, GalleryNotFound, PackageMismatch, SubjectNotFound, Unusable
from app.gallery.text import UNNAMED_LENGTH, UNNAMED_SIGN, clean_id
from app.search.types import FaceBlock, IndexKey, IndexSpec
from app.types import Box, Pixels, Quality, Reason, Template, Vector, utc_now

Metadata: TypeAlias = Mapping[str, object]
"""A JSON object."""


class GallerySettings(TypedDict, total=False):
    """The settings that a gallery is created with; `Gallery` explains them and has their defaults."""

    store: CropPolicy
    metadata: Metadata
    search: IndexKind
    on_conflict: OnConflict
    population: Sequence[str]
    liveness: LivenessMode


class GalleryChanges(TypedDict, total=False):
    """The settings of a gallery that can be changed."""

    search: IndexKind
    on_conflict: OnConflict
    population: Sequence[str]
    liveness: LivenessMode
    calibration: CalibrationSource
    allow_laxer: bool


class Unset(Enum):
    """The type of UNSET, the default of arguments for which None has a meaning."""

    UNSET = "unset"


UNSET = Unset.UNSET


@dataclass(frozen=True, slots=True)
class Gallery:
    """A gallery. For each package of its faces' templates, it has a set of templates and an index of them."""

    key: int
    """Internal key; never reused for another gallery."""
    id: str
    embedder: str
    """The id of the package whose templates are the gallery's own."""
    packages: tuple[str, ...]
    """The ids of the packages of `written`; each new face needs a template of each of them."""
    index_specs: tuple[IndexSpec, ...]
    """The template sets that answer searches, first its own. They cover all faces, except those without a crop."""
    written: tuple[IndexSpec, ...]
    """The template sets to which every new face is written, first its own; two while it is being re-embedded."""
    store: CropPolicy
    """Whether it keeps the crops of its faces."""
    metadata: Metadata
    created_at: str
    """UTC, ISO 8601, as all times here."""
    search: IndexKind = "fp32"
    """How its vectors are searched."""
    calibration: CalibrationSource = "package"
    """Which operating points decide: the package's, or the gallery's own (`app.features.calibration`)."""
    allow_laxer: bool = False
    """Whether its own points may be laxer than the package's by more than the floor (`app.features.calibration`)."""
    on_conflict: OnConflict = "warn"
    corrected: bool = False
    """Whether it has corrections (`app.gallery.corrections`)."""
    population: tuple[str, ...] = ()
    """The groups of a bias card that its people and probes belong to; empty if none were declared."""
    liveness: LivenessMode = "off"
    """The default liveness of requests; `require` always holds."""

    @property
    def index_spec(self) -> IndexSpec:
        """Return the specification of its own templates' index."""
        return self.index_specs[0]

    @property
    def dimension(self) -> int:
        """Return the length of its own templates."""
        return self.index_specs[0].dimension

    def view(self, package: str) -> Gallery:
        """Return the gallery with only this package's templates. Raises Conflict ``package_mismatch``."""
        both = {spec.key.package: spec for spec in (*self.written, *self.index_specs)}
        if package not in both:
            raise package_mismatch(self.index_spec, package)
        only = (both[package],)
        return replace(self, embedder=package, packages=(package,), index_specs=only, written=only)


@dataclass(frozen=True, slots=True)
class Consent:
    """A note on the given consent, and its time (UTC, ISO 8601)."""

    note: str
    given_at: str


@dataclass(frozen=True, slots=True)
class Terms:
    """A subject's expiry (UTC, ISO 8601) and consent. UNSET leaves one as it is, None removes it."""

    expires_at: str | Unset | None = UNSET
    consent: Consent | Unset | None = UNSET


NO_TERMS = Terms()


@dataclass(frozen=True, slots=True)
class Subject:
    """A subject. ``updated_at`` changes with the name, the metadata and the faces."""

    key: int
    id: str
    name: str | None
    metadata: Metadata
    face_count: int
    created_at: str
    updated_at: str
    expires_at: str | None = None
    """The time from which on the subject is in no answer; it is erased soon after."""
    consent: Consent | None = None
    cover: str | None = None
    """The id of the face that shows the subject, if one was chosen and is still the subject's."""
    portrait: str | None = None
    """The id of the face whose crop shows the subject: its cover, or the first one with a crop."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The photo of a face: its id (32 hexadecimal digits), the caller's name for it, and its size in pixels.

    ``score`` is the detector's for the face, 0-1.
    """

    image_id: str
    width: int
    height: int
    score: float
    external_id: str | None = None


NOWHERE = Box(0.0, 0.0, 0.0, 0.0)
"""The box of a face that was imported without its photo."""


@dataclass(frozen=True, slots=True)
class StoredFace:
    """A face as a gallery keeps it. One that is not stored yet has no ``created_at`` and no ``key``."""

    subject: str
    """The subject's id."""
    template: Template
    """Its vector is empty if it was not read."""
    quality: Quality
    box: Box = NOWHERE
    crop: bytes | None = None
    """JPEG of the aligned 112x112 crop; None if the gallery keeps none, and in lists."""
    face_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """32 hexadecimal digits, unique everywhere."""
    created_at: str | None = None
    origin: Origin | None = None
    second: Template | None = None
    """The template by the gallery's other package while it is being re-embedded; only of a face to be stored."""
    key: int = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of subjects and faces that a gallery holds or has lost; subjects without faces are counted, too."""

    subjects: int
    faces: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A row of an identification answer: the score of the subject's best face, and of its mean template.

    The mean is over all the subject's ``faces``; ``length`` is its length before it was scaled to 1. Scores are
    cosines, -1 to 1. `app.recognition.decisions.by_fused_score` replaces ``score`` by one made from the mean's.
    """

    subject: str
    name: str | None
    face_id: str
    score: float
    template_score: float
    faces: int = 1
    length: float = 1.0


def package_mismatch(wanted: IndexSpec, given: str) -> Conflict:
    message = f"Gallery {wanted.gallery_id!r} takes templates of {wanted.key.package}, not of {given}."
    return PackageMismatch(message, expected=wanted.key.package, given=given)


def to_bytes(template: Template) -> bytes:
    """Return the template in the form stored in SQL, before encryption: float32, little endian."""
    return template.vector.astype("<f4").tobytes()


def from_bytes(template: bytes) -> Vector:
    """Return the vector of a template stored in SQL, (D,) float32; several templates in a row give one long vector."""
    return np.frombuffer(template, "<f4")


def to_block(rows: Sequence[Sequence[Any]], dimension: int) -> FaceBlock:
    """Convert rows of a face's key, subject's key, quality and decrypted template. Raises Unusable
    ``template_damaged``."""
    faces, subjects, qualities, templates = zip(*rows, strict=True)
    if any(len(template) != dimension * 4 for template in templates):
        message = f"A stored template is not {dimension} numbers long: the database is damaged."
        raise Unusable(message, code="template_damaged")
    vectors = np.frombuffer(b"".join(templates), dtype="<f4").reshape(len(rows), dimension)
    return FaceBlock(
        np.array(faces, dtype=np.int64), np.array(subjects, dtype=np.int64), np.array(qualities, np.float32), vectors
    )


# Galleries

GALLERY_ROWS = sa.select(
    GALLERIES,
    REEMBEDDINGS.c.source,
    REEMBEDDINGS.c.source_dimension,
    REEMBEDDINGS.c.source_generation,
    REEMBEDDINGS.c.target,
    REEMBEDDINGS.c.target_dimension,
    REEMBEDDINGS.c.target_generation,
    REEMBEDDINGS.c.state,
    sa.exists().where(CORRECTIONS.c.gallery_key == GALLERIES.c.key).label("corrected"),
).select_from(GALLERIES.outerjoin(REEMBEDDINGS))
# Built once, since that takes longer than running them on SQLite.
_GALLERY_BY_ID = GALLERY_ROWS.where(GALLERIES.c.id == sa.bindparam("wanted"))
_GALLERY_BY_KEY = GALLERY_ROWS.where(GALLERIES.c.key == sa.bindparam("wanted"))
# With FOR UPDATE, writes of rows elsewhere that refer to the gallery would wait, too.
_LOCK_GALLERY = (
    sa.select(GALLERIES.c.key).where(GALLERIES.c.key == sa.bindparam("wanted")).with_for_update(key_share=True)
)


def to_gallery(row: Row[Any]) -> Gallery:
    answering, written = template_sets(row)
    return Gallery(
        key=row.key,
        id=row.id,
        embedder=row.embedder,
        packages=tuple(spec.key.package for spec in written),
        index_specs=answering,
        written=written,
        store=row.store,
        metadata=json.loads(row.metadata),
        created_at=row.created_at,
        search=row.search,
        calibration=row.calibration,
        allow_laxer=bool(row.allow_laxer),
        on_conflict=row.on_conflict,
        corrected=bool(row.corrected),
        population=() if row.population is None else tuple(json.loads(row.population)),
        liveness=row.liveness,
    )


def population_column(population: Sequence[str]) -> str | None:
    """Return the value of the column `population`: a JSON list, NULL if none was declared."""
    return json.dumps(list(population)) if population else None


def template_sets(row: Row[Any]) -> tuple[tuple[IndexSpec, ...], tuple[IndexSpec, ...]]:
    """Return `Gallery.index_specs` and `Gallery.written`, by the state of a re-embedding in a row of GALLERY_ROWS."""
    own_spec = IndexSpec(IndexKey(row.key, row.embedder, row.generation), row.id, row.dimension, row.search)
    if row.state in {None, "ending"}:
        return (own_spec,), (own_spec,)
    if row.embedder == row.source:
        key, dimension = IndexKey(row.key, row.target, row.target_generation), row.target_dimension
    else:
        key, dimension = IndexKey(row.key, row.source, row.source_generation), row.source_dimension
    both = (own_spec, IndexSpec(key, row.id, dimension, row.search))
    return (own_spec,) if row.state == "embedding" else both, both


def find_gallery(connection: Connection, gallery_id: str) -> Gallery:
    """Return the gallery with this id. Raises InvalidInput ``invalid_id``; NotFound ``gallery_not_found``."""
    cleaned = clean_id(gallery_id, "gallery")
    row = connection.execute(_GALLERY_BY_ID, {"wanted": cleaned}).one_or_none()
    if row is None:
        raise GalleryNotFound.of(cleaned)
    return to_gallery(row)


def reread(connection: Connection, gallery: Gallery) -> Gallery:
    """Return the gallery as this transaction sees it. Raises NotFound ``gallery_not_found``."""
    row = connection.execute(_GALLERY_BY_KEY, {"wanted": gallery.key}).one_or_none()
    if row is None:
        raise GalleryNotFound.of(gallery.id)
    return to_gallery(row)


def lock_gallery(connection: Connection, gallery: Gallery) -> Gallery:
    """Lock the gallery until the transaction ends; return its state under the lock.

    Every writer does this first, so writers never wait for each other in a circle. Raises NotFound
    ``gallery_not_found``.
    """
    if connection.dialect.name != "sqlite":  # SQLite's write transactions never overlap
        # A separate statement, since one that waits for the row sees other tables as they were before the wait.
        connection.execute(_LOCK_GALLERY, {"wanted": gallery.key})
    return reread(connection, gallery)


# Subjects

_OWN_CROPS = (
    sa.select(FACES.c.face_id).join(CROPS).where(FACES.c.subject_key == SUBJECTS.c.key).order_by(FACES.c.key).limit(1)
)
SUBJECT_ROWS = sa.select(
    SUBJECTS,
    sa.select(sa.func.count())
    .select_from(FACES)
    .where(FACES.c.subject_key == SUBJECTS.c.key)
    .scalar_subquery()
    .label("face_count"),
    sa.select(FACES.c.face_id)
    .where((FACES.c.face_id == SUBJECTS.c.cover) & (FACES.c.subject_key == SUBJECTS.c.key))
    .scalar_subquery()
    .label("cover_face"),
    sa.func.coalesce(
        _OWN_CROPS.where(FACES.c.face_id == SUBJECTS.c.cover).scalar_subquery(), _OWN_CROPS.scalar_subquery()
    ).label("portrait"),
)
_SUBJECT_BY_ID = SUBJECT_ROWS.where(
    (SUBJECTS.c.gallery_key == sa.bindparam("gallery")) & (SUBJECTS.c.id == sa.bindparam("wanted"))
)
_BRIEF_SUBJECTS = sa.select(SUBJECTS.c.id, SUBJECTS.c.key, SUBJECTS.c.name, SUBJECTS.c.expires_at).where(
    (SUBJECTS.c.gallery_key == sa.bindparam("gallery")) & SUBJECTS.c.id.in_(sa.bindparam("ids", expanding=True))
)


def to_subject(row: Row[Any]) -> Subject:
    return Subject(
        key=row.key,
        id=row.id,
        name=row.name,
        metadata=json.loads(row.metadata),
        face_count=row.face_count,
        created_at=row.created_at,
        updated_at=row.updated_at,
        expires_at=row.expires_at,
        consent=None if row.consent is None else Consent(**json.loads(row.consent)),
        cover=row.cover_face,
        portrait=row.portrait,
    )


def not_expired(subjects: sa.FromClause = SUBJECTS) -> sa.ColumnElement[bool]:
    """Return SQL for subjects that have not expired; expired ones are in no answer, even before they are erased."""
    now: sa.BindParameter[str] = sa.bindparam(None, callable_=utc_now)  # evaluated whenever the statement runs
    return subjects.c.expires_at.is_(None) | (subjects.c.expires_at > now)


def find_subject(connection: Connection, gallery: Gallery, subject_id: str, *, expired: bool = False) -> Subject:
    """Return the subject of this id; one that has expired only if ``expired``.

    Raises InvalidInput ``invalid_id``; NotFound ``subject_not_found``.
    """
    cleaned = clean_id(subject_id, "subject")
    row = connection.execute(_SUBJECT_BY_ID, {"gallery": gallery.key, "wanted": cleaned}).one_or_none()
    if row is None or (not expired and row.expires_at is not None and row.expires_at <= utc_now()):
        raise subject_not_found(gallery, cleaned)
    return to_subject(row)


def brief_subjects(connection: Connection, gallery: Gallery, ids: Collection[str]) -> dict[str, Row[Any]]:
    """Return the id, key, name and expiry of these subjects, as far as they exist, by id."""
    subjects: dict[str, Row[Any]] = {}
    for part in in_parts(sorted(ids)):
        subjects |= {row.id: row for row in connection.execute(_BRIEF_SUBJECTS, {"gallery": gallery.key, "ids": part})}
    return subjects


def subject_not_found(gallery: Gallery, subject_id: str) -> SubjectNotFound:
    message = f"Gallery {gallery.id!r} has no subject {subject_id!r}."
    return SubjectNotFound(message, gallery=gallery.id, subject=subject_id)


def is_unnamed_row() -> sa.ColumnElement[bool]:
    """Return `app.gallery.text.is_unnamed` as SQL."""
    return (sa.func.substr(SUBJECTS.c.id, 1, 1) == UNNAMED_SIGN) & (sa.func.length(SUBJECTS.c.id) == UNNAMED_LENGTH)


# Faces

JPEG_QUALITY = 95
FULL_CHROMA = 0
"""Pillow's code for 4:4:4: halved chroma would cost accuracy of embedding and save little."""
_FACE_ID = re.compile("[0-9a-f]{32}")

PackageId: TypeAlias = str | sa.BindParameter[str]
"""A package's id, or the statement's parameter that takes it."""


def join_templates(faces: sa.FromClause, package: PackageId) -> sa.FromClause:
    """Return `faces`, which includes FACES, joined with the second templates of this package."""
    second = SECOND_TEMPLATES.c
    return faces.outerjoin(SECOND_TEMPLATES, (second.face_key == FACES.c.key) & (second.package == package))


def template_column(package: PackageId) -> sa.ColumnElement[bytes | None]:
    """Return the face's template of this package, or NULL; for queries over `join_templates`."""
    return sa.case((FACES.c.package == package, FACES.c.template), else_=SECOND_TEMPLATES.c.template)


def face_columns(package: str) -> Sequence[sa.ColumnElement[Any]]:
    """Return FACES' columns with the template of this package, or the row's own template if there is none."""
    template = template_column(package)
    chosen: Mapping[str, sa.ColumnElement[Any]] = {
        "package": sa.case((template.is_not(None), sa.literal(package)), else_=FACES.c.package).label("package"),
        "template": sa.func.coalesce(template, FACES.c.template).label("template"),
    }
    return [chosen.get(column.name, column) for column in FACES.c]


def face_query(package: str) -> sa.Select[Any]:
    """Return the query for faces with their templates of `package`, subjects' ids and origins; see `to_face`.

    Faces of subjects that have expired are left out.
    """
    faces = join_templates(FACES.join(SUBJECTS), package)
    faces = faces.outerjoin(FACE_ORIGINS, FACE_ORIGINS.c.face_key == FACES.c.key)
    origin = (column.label(f"photo_{column.name}") for column in FACE_ORIGINS.c)
    query = sa.select(*face_columns(package), SUBJECTS.c.id.label("subject"), *origin).select_from(faces)
    return query.where(not_expired())


def to_face(row: Row[Any], blobs: Blobs | None, crop: bytes | None = None) -> StoredFace:
    """Convert a row of `face_query`, with its stored `crop`. Without `blobs`, template and crop are left out.

    Raises Unusable ``sealed_unreadable``.
    """
    origin = None
    if row.photo_image_id is not None:
        size = (row.photo_width, row.photo_height)
        origin = Origin(row.photo_image_id, *size, row.photo_score, row.photo_external_id)
    template = blobs.unpack("template", row.face_id, bytes(row.template)) if blobs else b""
    return StoredFace(
        subject=row.subject,
        template=Template(from_bytes(template), row.package),
        quality=Quality(row.quality, tuple(Reason(reason) for reason in json.loads(row.reasons))),
        box=Box(row.x, row.y, row.width, row.height),
        crop=blobs.unpack("crop", row.face_id, bytes(crop)) if blobs and crop is not None else None,
        face_id=row.face_id,
        created_at=row.created_at,
        origin=origin,
        key=row.key,
    )


def find_face(connection: Connection, gallery: Gallery, face_id: str, subject: Subject | None = None) -> Row[Any]:
    """Return the face's row of `face_query`, of this subject's if one is given. Raises NotFound ``face_not_found``."""
    row = None
    if _FACE_ID.fullmatch(face_id):
        query = face_query(gallery.embedder).where(FACES.c.face_id == face_id, FACES.c.gallery_key == gallery.key)
        if subject is not None:
            query = query.where(FACES.c.subject_key == subject.key)
        row = connection.execute(query).one_or_none()
    if row is not None:
        return row
    if subject is not None:
        raise face_not_found(subject.id, face_id)
    raise FaceNotFound(f"Gallery {gallery.id!r} has no face {face_id!r}.", gallery=gallery.id, face_id=face_id)


def face_not_found(subject_id: str, face_id: str) -> FaceNotFound:
    return FaceNotFound(f"Subject {subject_id!r} has no face {face_id!r}.", subject=subject_id, face_id=face_id)


def read_crop(connection: Connection, face_key: int) -> bytes | None:
    crop: bytes | None = connection.execute(sa.select(CROPS.c.jpeg).where(CROPS.c.face_key == face_key)).scalar()
    return crop


def encode_crop(crop: Pixels) -> bytes:
    """Encode a crop, (H, W, 3) uint8 RGB, as JPEG."""
    buffer = io.BytesIO()
    Image.fromarray(crop).save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=FULL_CHROMA)
    return buffer.getvalue()
