"""The records of the gallery: frozen values, and what is checked of their templates."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from app.choices import CalibrationSource, CropPolicy, IndexKind, LivenessMode, OnConflict
from app.errors import Conflict, InvalidInput, PackageMismatch, TwoPackages, Unusable
from app.search.types import FaceBlock, IndexSpec
from app.types import UNIT_TOLERANCE, Box, Pixels, Quality, Template, Vector, Vectors

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
    """A gallery. Of each package whose templates its faces have there is one set of templates, and one index of it."""

    key: int
    """Internal; never reused for another gallery."""
    id: str
    index_specs: tuple[IndexSpec, ...]
    """The sets that answer searches, its own first: those that cover all faces (except those without a crop)."""
    written: tuple[IndexSpec, ...]
    """The sets that every new face is written to, its own first: two while it is being re-embedded."""
    store: CropPolicy
    """`crop` unless it was created otherwise."""
    metadata: Metadata
    created_at: str
    """UTC, ISO 8601, as all times here."""
    search: IndexKind = "fp32"
    """How its vectors are searched."""
    calibration: CalibrationSource = "package"
    """Whose operating points are to decide: the package's, or the gallery's own (`app.models.calibration`)."""
    allow_laxer: bool = False
    """Whether its own may be laxer than the package's by more than the floor (`app.features.calibration`)."""
    on_conflict: OnConflict = "warn"
    corrected: bool = False
    """Whether it has corrections (`app.recognition.corrections`)."""
    population: tuple[str, ...] = ()
    """The groups of a bias card that its people and probes belong to; empty where none were declared."""
    liveness: LivenessMode = "off"
    """What is asked of liveness unless a request asks for something else; `require` always holds."""

    @property
    def index_spec(self) -> IndexSpec:
        """The index of its own templates."""
        return self.index_specs[0]

    @property
    def embedder(self) -> str:
        """Id of the package whose templates are the gallery's own."""
        return self.index_specs[0].key.package

    @property
    def dimension(self) -> int:
        """Numbers in each of its own templates."""
        return self.index_specs[0].dimension

    @property
    def packages(self) -> tuple[str, ...]:
        """Ids of the packages of which each new face needs a template, the gallery's own first."""
        return tuple(spec.key.package for spec in self.written)

    def view(self, package: str) -> Gallery:
        """Return the gallery with this package's templates alone. Raises Conflict ``package_mismatch``."""
        both = {spec.key.package: spec for spec in (*self.written, *self.index_specs)}
        if package not in both:
            raise package_mismatch(self.index_spec, package)
        return replace(self, index_specs=(both[package],), written=(both[package],))


@dataclass(frozen=True, slots=True)
class Consent:
    """A note on the consent that was given, and when (UTC, ISO 8601)."""

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
    """``updated_at`` changes with the name, the metadata and the faces."""

    key: int
    id: str
    name: str | None
    metadata: Metadata
    face_count: int
    created_at: str
    updated_at: str
    expires_at: str | None = None
    """From then on the subject is in no answer; it is erased soon after."""
    consent: Consent | None = None
    cover: str | None = None
    """The id of the face that shows the subject, if one was chosen and is still the subject's."""


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
    """A face as it is stored, or as it is to be; ``subject`` is the subject's id, ``template`` float32 little endian
    bytes of ``package``'s, empty where it was not read."""

    subject: str
    template: bytes
    quality: Quality
    box: Box = NOWHERE
    crop: bytes | None = None
    """JPEG of the aligned 112x112 crop; None if the gallery keeps none, and in lists."""
    face_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """32 hexadecimal digits, unique everywhere."""
    created_at: str | None = None
    """None of a face that is to be stored now."""
    origin: Origin | None = None
    second: Template | None = None
    """Of the gallery's other package, while it is being re-embedded; of a face that is to be stored."""
    package: str = ""
    """Set when it is read, as its key."""
    key: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """A request to give a face from one subject, by id, to another."""

    face_id: str
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class NewFace:
    """A face to enroll; ``crop``, (112, 112, 3) uint8 RGB, is kept if the gallery keeps crops."""

    templates: tuple[Template, ...]
    """One of each package that it was embedded with: two while its gallery is being re-embedded."""
    quality: Quality
    box: Box
    crop: Pixels | None = None
    origin: Origin | None = None

    def stored(self, subject: str, crop: bytes | None) -> StoredFace:
        """Return it as it is to be stored, of the subject of this id; `crop` is its JPEG."""
        own, *others = self.templates
        second = others[0] if others else None
        return StoredFace(subject, to_bytes(own), self.quality, self.box, crop, origin=self.origin, second=second)


@dataclass(frozen=True, slots=True)
class Counts:
    """How much a gallery holds or has lost; subjects without faces count too."""

    subjects: int
    faces: int


@dataclass(frozen=True, slots=True)
class Totals:
    """How much all galleries hold together."""

    galleries: int
    subjects: int
    faces: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A row of an identification answer: the score of the subject's best face, and of its mean template.

    The mean is over all the subject's ``faces``; its ``length`` was this before it was scaled to 1. Scores are cosines,
    -1 to 1. Where subjects are fused (`app.recognition.decisions.fused`), ``score`` is made of the mean's.
    """

    subject: str
    name: str | None
    face_id: str
    score: float
    template_score: float
    faces: int = 1
    length: float = 1.0


@dataclass(frozen=True, slots=True)
class CheckReport:
    """A bit by bit comparison of a gallery's index with SQL.

    The index holds ``indexed`` faces. ``missing`` of the ``faces`` in SQL are not in it, ``different`` ones have other
    values there, and ``extra`` ones are not in SQL. ``examples`` are ids of missing or different faces.
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


def package_mismatch(wanted: IndexSpec, given: str) -> Conflict:
    message = f"Gallery {wanted.gallery_id!r} takes templates of {wanted.key.package}, not of {given}."
    return PackageMismatch(message, expected=wanted.key.package, given=given)


def two_packages(gallery_id: str) -> Conflict:
    """Return the error for faces with templates of one package where two are needed."""
    message = f"Gallery {gallery_id!r} is being re-embedded to another model package: wait, or finish or cancel that."
    return TwoPackages(message, gallery=gallery_id)


def to_bytes(template: Template) -> bytes:
    """Return the template as SQL keeps it, before encryption: float32, little endian."""
    return template.vector.astype("<f4").tobytes()


def from_bytes(template: bytes) -> Vector:
    """Return the vector of a template as SQL keeps it, (D,) float32; of several in a row, one after the other."""
    return np.frombuffer(template, "<f4")


def stored_template(row: StoredFace) -> Template:
    return Template(from_bytes(row.template), row.package)


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


def fit_face(face: NewFace, written: Sequence[IndexSpec]) -> NewFace:
    """Return the face with a template for each of these sets, in their order. Raises Conflict ``package_mismatch`` if
    it lacks one, and what `check_templates` raises."""
    made = {template.package: template for template in face.templates}
    packages = [spec.key.package for spec in written]
    if not made.keys() >= set(packages):
        message = f"The gallery takes templates of {' and of '.join(packages)} now."
        raise PackageMismatch(message, expected=packages, given=face.templates[0].package)
    for spec in written:
        check_templates(spec, [made[spec.key.package]])
    return replace(face, templates=tuple(made[package] for package in packages))


def check_templates(wanted: IndexSpec, templates: Sequence[Template]) -> None:
    """Check that the templates are of the wanted package and of length 1.

    Raises Conflict ``package_mismatch``; InvalidInput ``invalid_template``.
    """
    for template in templates:
        if template.package != wanted.key.package:
            raise package_mismatch(wanted, template.package)
        if template.vector.shape != (wanted.dimension,):
            message = f"A template of {wanted.key.package} has {wanted.dimension} numbers."
            raise InvalidInput(message, code="invalid_template")
        if not abs(float(np.linalg.norm(template.vector)) - 1) <= UNIT_TOLERANCE:  # NaN is rejected too
            raise InvalidInput("A template must be a vector of length 1.", code="invalid_template")


def is_unit(vectors: Vectors) -> NDArray[np.bool_]:
    """Return which rows have length 1, (N,). Rows with NaN have not."""
    return np.asarray(np.abs(np.linalg.norm(vectors, axis=1) - 1) <= UNIT_TOLERANCE)
