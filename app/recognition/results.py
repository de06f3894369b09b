"""What the operations return."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.errors import InvalidInput
from app.gallery.enrolling import BulkFace
from app.gallery.records import Candidate, NewFace, Origin
from app.pipeline import Choice
from app.recognition.corrections import RuledOut
from app.recognition.decisions import (
    AnsweredCandidate,
    AnsweredScores,
    Decision,
    IdentifyPoint,
    PopulationWarning,
    VerifyPoint,
    decide,
)
from app.recognition.duplicate_check import NOTHING, Findings
from app.types import Face, Liveness, Photo, Template


@dataclass(frozen=True, slots=True)
class Chosen:
    """The face of a photo that an operation uses, and why that one."""

    photo: Photo
    choice: Choice

    @property
    def face(self) -> Face:
        return self.photo.faces[self.choice.index]

    @property
    def template(self) -> Template:
        return template_of(self.face)


@dataclass(frozen=True, slots=True)
class Verified:
    """A 1:1 comparison; ``model`` is the id of the package whose templates were compared (here and below).

    ``warnings`` is None where no population was declared (here and below).
    """

    match: bool
    score: float
    point: VerifyPoint
    first: Chosen
    second: Chosen
    model: str
    warnings: Sequence[PopulationWarning] | None = None


@dataclass(frozen=True, slots=True)
class SubjectVerified:
    match: bool
    candidate: AnsweredCandidate
    point: VerifyPoint
    chosen: Chosen
    nearest_other: AnsweredCandidate | None
    stages: Mapping[str, float]
    model: str
    warnings: Sequence[PopulationWarning] | None = None
    ruled_out: RuledOut | None = None


@dataclass(frozen=True, slots=True)
class Identified:
    """One face of a probe; ``nearest_other`` is the best candidate that is not the answer."""

    face: Face
    decision: Decision
    candidates: tuple[AnsweredCandidate, ...]
    margin: float | None
    nearest_other: AnsweredCandidate | None
    ruled_out: tuple[RuledOut, ...] = ()


@dataclass(frozen=True, slots=True)
class Identification:
    photo: Photo
    faces: tuple[Identified, ...]
    point: IdentifyPoint
    subjects: int
    stages: Mapping[str, float]
    model: str
    warnings: Sequence[PopulationWarning] | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """An image of an enrollment that was rejected."""

    index: int
    error: InvalidInput
    findings: Findings = NOTHING


@dataclass(frozen=True, slots=True)
class Enrollment:
    """``enrolled`` pairs the index of each accepted image with the face it became and what that resembles."""

    subject: str
    created: bool
    enrolled: tuple[tuple[int, BulkFace, Findings], ...]
    rejected: tuple[Rejected, ...]
    chosen: tuple[Chosen, ...]
    stages: Mapping[str, float]
    model: str
    liveness: Mapping[int, Liveness | None] = field(default_factory=dict)
    """The verdict on each image's face, by index."""


def template_of(face: Face) -> Template:
    if face.template is None:
        raise ValueError("the face was not embedded")
    return face.template


def new_face(chosen: Chosen, origin: Origin | None = None) -> NewFace:
    face, photo = chosen.face, chosen.photo
    origin = origin or Origin(uuid.uuid4().hex, photo.width, photo.height, face.detection.score)
    return NewFace(chosen.template, face.quality, face.detection.box, face.crop, origin)


def reasons_of(error: InvalidInput) -> list[str]:
    """Return the reasons that a rejected photo has beside its code."""
    found = error.details.get("reasons", [])
    return [str(reason) for reason in found] if isinstance(found, (list, tuple)) else []


def all_rejected(rejected: Sequence[Rejected]) -> InvalidInput:
    codes = {one.error.code for one in rejected}
    listed = [
        {"index": one.index, "code": one.error.code, "reasons": reasons_of(one.error), "message": one.error.message}
        | one.findings.as_details()
        for one in rejected
    ]
    if len(codes) > 1:
        return InvalidInput("no image could be taken", code="nothing_enrolled", rejected=listed)
    first = rejected[0].error
    return type(first)(first.message, code=first.code, **{**first.details, "rejected": listed})


def identified(
    face: Face, ranking: Sequence[Candidate], point: IdentifyPoint, scores: AnsweredScores, limit: int
) -> Identified:
    """Return what a face's ranking means at an operating point; at most ``limit`` candidates are answered."""
    decision = decide(ranking[0].score if ranking else None, point)
    found = scores.candidates(ranking)
    first, second = ([one.score for one in found] + [None, None])[:2]
    margin = None if first is None or second is None else first - second
    others = found if decision == "unknown" else found[1:]
    return Identified(face, decision, tuple(found[:limit]), margin, others[0] if others else None)
