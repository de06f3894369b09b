"""A gallery's own operating points."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from pydantic import Field

from app.api.schemas.base import CALIBRATION_SOURCES, Example, Wire
from app.api.schemas.server import Job, Scores
from app.choices import CalibrationSource, Fallback


class DecidedBy(Wire):
    """The calibration that a threshold is from."""

    source: CalibrationSource
    name: str | None = Field(
        examples=["lfw-view1"], description="Its name; null if the package has no operating points."
    )
    fallback: Fallback | None = Field(
        default=None,
        description="Why the package's calibration decides where the gallery's own is switched on: it was not measured "
        "yet, has too few subjects, was measured with another model, or does not support this rate.",
    )


class GalleryPoint(Wire):
    """A threshold of the gallery; `_low`, `_high`: 95 % interval by bootstrap over subjects."""

    fmr: float
    threshold: float | None = Field(description="Measured in this gallery; null: its pairs don't support the rate.")
    threshold_low: float | None
    threshold_high: float | None
    decides: float | None = Field(
        description="The threshold with the gallery's calibration switched on: raised to the floor, or the package's."
    )
    package: float | None = Field(description="The package's threshold.")
    found: float | None = Field(description="The false match rate in this gallery at the package's threshold.")
    found_low: float | None
    found_high: float | None


class SuspiciousFace(Wire):
    subject: str
    face_id: str


class SuspiciousPair(Wire):
    """Two subjects who may be one person, by their most alike faces."""

    first: SuspiciousFace
    second: SuspiciousFace
    score: float


class GalleryMeasured(Wire):
    """A gallery's calibration as it was measured."""

    model: str = Field(description="The package whose templates were compared.")
    measured_at: datetime
    subjects: int = Field(description="Subjects of the gallery then.")
    faces: int
    compared_subjects: int = Field(description="Those compared: all, or a random sample; at most 10 faces of each.")
    compared_faces: int
    comparisons: int = Field(description="Non-mated comparisons; 0 if too few subjects are enrolled.")
    mated: int
    changed: float = Field(description="Changes since, as a share of the faces; measured again above 0.2.")
    suspicious: int = Field(description="Pairs of subjects left out, since each may be one person.")
    suspicious_expected: float | None = Field(
        description="So many would be as alike by chance, by the package's strictest operating point."
    )
    left_out: int = Field(description="Pairs of faces left out with them.")
    missed: float = Field(
        description="Each stated rate is too low by this at most, if all pairs left out were two people."
    )
    scores: Scores | None


class GalleryCalibration(Wire):
    """The operating points of a gallery's own subjects, beside the package's."""

    example: ClassVar[Example] = {"job": Job.example | {"kind": "calibrate"}}
    gallery: str
    calibration: CalibrationSource = Field(description=CALIBRATION_SOURCES)
    allow_laxer: bool
    decides: DecidedBy = Field(description="Which one decides now, at the highest rate.")
    measured: GalleryMeasured | None = Field(description="Null before the first measurement.")
    points: list[GalleryPoint] = Field(description="From the highest rate to the lowest.")
    pairs: list[SuspiciousPair] = Field(description="The suspicious pairs that still exist, at most 100.")
    job: Job | None = Field(description="The current job, or the last one.")
