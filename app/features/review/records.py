"""The results of a review, as frozen records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.choices import FindingKind
from app.features.review.separation import MeasuredRate
from app.recognition.decisions import IdentifyPoint, VerifyPoint


@dataclass(frozen=True, slots=True)
class Evidence:
    """The numbers behind a finding; scores are cosines, None if they don't apply."""

    score: float | None = None
    """The score of the finding's two faces; for a misplaced or poor face, with the other subject's face; for a
    corrected face, with the wrong probe."""
    own_score: float | None = None
    """The face's best score with its subject's other faces."""
    matching: float | None = None
    """For two subjects: the smaller of the two shares of a subject's faces that match the other subject."""
    threshold: float | None = None
    """The operating point that decided."""
    fmr: float | None = None
    """The rate at which faces of two different people reach `score`; None outside the measured range."""
    group: tuple[str, ...] | None = None
    """For two people in one subject: the ids of the faces of the second person, including the finding's other face."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A finding before it is stored. Faces are given by their keys; `strength` says by how much the rule's threshold is
    exceeded."""

    kind: FindingKind
    strength: float
    face: int
    other_face: int | None
    evidence: Evidence
    group: tuple[int, ...] = ()
    """The keys of the faces whose ids are in `Evidence.group` once the finding is stored."""


@dataclass(frozen=True, slots=True)
class ReviewSummary:
    """The outcome of a finished review: what it compared, and how well the gallery tells people apart. Rates are None
    if there are too few subjects."""

    package: str
    subjects: int
    faces: int
    finished_at: str
    verify: VerifyPoint
    """The operating point at which FNMR was counted."""
    identify: IdentifyPoint
    """The operating point at which FPIR was counted; its ``fpir`` is the rate that the calibration states."""
    fnmr: MeasuredRate | None
    fpir: MeasuredRate | None


@dataclass(frozen=True, slots=True)
class ReviewState:
    """A gallery's reviews: the job of the last one, and the job and summary of the published one, whose findings are
    shown."""

    job: str
    published: str | None
    summary: ReviewSummary | None
    counts: Mapping[FindingKind, int]
    """The number of findings that were not dismissed, by kind."""
    dismissed: int
