"""The results of a review's job, as frozen values."""

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
    """The score of the two faces; for a misplaced or poor face with the other subject's, for a corrected one with the
    probe."""
    own_score: float | None = None
    """The face's best score with its subject's other faces."""
    matching: float | None = None
    """For two subjects: the share of a subject's faces that match the other's, the smaller of the two shares."""
    threshold: float | None = None
    """The operating point that decided."""
    fmr: float | None = None
    """The rate at which two strangers score `score` or more; None outside the measured range."""
    group: tuple[str, ...] | None = None
    """For two people in one subject: the ids of the faces of one of them, including ``other``."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A finding before it is stored; faces are given by their keys. `strength` is how far its score exceeds the rule's
    threshold."""

    kind: FindingKind
    strength: float
    face: int
    other_face: int | None
    evidence: Evidence
    group: tuple[int, ...] = ()
    """The keys of the faces of `Evidence.group`, which has the ids once the finding is stored."""


@dataclass(frozen=True, slots=True)
class ReviewSummary:
    """The extent of a finished review, and how well the gallery tells people apart; rates are None if there are too
    few subjects."""

    package: str
    subjects: int
    faces: int
    finished_at: str
    verify: VerifyPoint
    """The operating point at which FNMR was counted."""
    identify: IdentifyPoint
    """The operating point at which FPIR was counted; its ``fpir`` is the rate that the package states."""
    fnmr: MeasuredRate | None
    fpir: MeasuredRate | None


@dataclass(frozen=True, slots=True)
class ReviewState:
    """A gallery's reviews: the job of the last one, and the summary of the one whose findings are shown."""

    job: str
    published: str | None
    summary: ReviewSummary | None
    counts: Mapping[FindingKind, int]
    """The findings to look at, by kind."""
    dismissed: int
