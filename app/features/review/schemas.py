"""Requests and answers about reviews of galleries."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

from pydantic import Field

from app.api.schemas.base import Example, NextCursor, PageParams, Wire
from app.api.schemas.server import Job
from app.choices import FindingKind

KINDS = (
    "`same_person`: two subjects that may be one person. `two_people`: a subject whose faces fall into groups that "
    "look like different people. `misplaced_face`: a face that looks like another subject and "
    "not like its own. `corrected_face`: a face that looks like a probe recorded as not showing its subject. "
    "`outlier`: a face that looks like none of its subject's others. `poor_face`: a poor face that could be confused "
    "with another subject, and that its own subject doesn't need. `no_good_face`: a subject that has only poor faces."
)
OTHER_FACE_ID = "0b1c2d3e4f5a6b7c8d9e0f1a2b3c4d5e"


class ReviewParams(PageParams):
    kind: FindingKind | None = Field(default=None, description=f"Only findings of this kind. {KINDS}")
    dismissed: bool = Field(
        default=False, description="Only findings that were marked as right, instead of the others."
    )


class FindingFace(Wire):
    face_id: str
    subject: str = Field(description="The id of its subject.")
    name: str | None = Field(description="The subject's name.")
    faces: int = Field(description="How many faces the subject has.")
    quality: float = Field(ge=0, le=100)
    has_crop: bool


class FindingEvidence(Wire):
    """The numbers behind a finding, null if they don't apply. Keys without `admin` get coarse scores, and null below
    every operating point."""

    score: float | None = Field(
        description="The score of the two faces; for a `corrected_face`, with the wrong probe; null for an `outlier`."
    )
    own_score: float | None = Field(description="The face's best score with its own subject's other faces.")
    matching: float | None = Field(
        description="`same_person`: the smaller of the two shares of a subject's faces that match the other subject."
    )
    threshold: float | None = Field(description="The operating point that decided.")
    fmr: float | None = Field(
        description="How often faces of two different people reach this score; null outside the measured range."
    )


class FindingAction(Wire):
    """A way to correct a finding: merge `subject` into the subject `to`, split its `faces` off into a new subject `to`,
    move its face to `to`, delete the face, or enroll a better photo of the subject."""

    do: Literal["merge", "part", "move", "delete", "enroll"]
    subject: str
    face_id: str | None
    to: str | None
    faces: list[str] = Field(default=[], description="For `part`: the faces of one of the two people.")


class Finding(Wire):
    """Something that is probably wrong in a gallery."""

    example: ClassVar[Example] = {
        "kind": "misplaced_face",
        "other": FindingFace.example | {"face_id": OTHER_FACE_ID, "subject": "hopper", "name": "Grace Hopper"},
        "evidence": FindingEvidence.example | {"own_score": 0.214},
        "actions": [
            FindingAction.example | {"do": "move", "to": "hopper"},
            FindingAction.example | {"do": "delete"},
        ],
    }
    id: str
    kind: FindingKind = Field(description=KINDS)
    strength: float = Field(description="By how much the score exceeds the rule's threshold: the higher, the surer.")
    face: FindingFace
    other: FindingFace | None = Field(
        description="The face it was compared with: the other subject's most similar face; for an `outlier`, its "
        "own subject's most similar face; null for `corrected_face` and `no_good_face`."
    )
    evidence: FindingEvidence
    actions: list[FindingAction] = Field(description="What can be done, the likeliest first.")
    dismissed: bool = Field(description="Whether it was marked as right.")


class ErrorRate(Wire):
    """An error rate measured on the gallery itself, with its 95 % interval, resampled by subject."""

    value: float
    low: float
    high: float
    faces: int = Field(description="How many faces it was measured on.")
    subjects: int


class ReviewSummary(Wire):
    """What the last finished review compared, and how well the gallery tells its people apart."""

    model: str = Field(description="The model package whose templates were compared.")
    subjects: int
    faces: int
    finished_at: datetime
    counts: dict[FindingKind, int] = Field(description="The number of findings that were not dismissed, by kind.")
    dismissed: int = Field(description="The number of findings that were marked as right.")
    fmr: float = Field(description="The operating point at which FNMR was counted.")
    verify_threshold: float
    fnmr: ErrorRate | None = Field(
        description="The share of faces that don't match their subject's other faces; null: too few subjects to say."
    )
    fpir_expected: float = Field(description="The rate that the calibration states for the identify threshold.")
    identify_threshold: float
    fpir: ErrorRate | None = Field(
        description="The share of faces that another subject would be taken for if their own were not enrolled; null: "
        "too few subjects to say."
    )


class Review(Wire):
    """A page of the findings of a gallery's last finished review."""

    example: ClassVar[Example] = {"job": Job.example | {"kind": "review"}}
    gallery: str
    job: Job | None = Field(description="The last review's job, which may still run; null once it was cleaned up.")
    summary: ReviewSummary | None = Field(description="Null until the first review has finished.")
    findings: list[Finding] = Field(description="The strongest first.")
    next_cursor: NextCursor
