"""The REST operations on a gallery's own operating points."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import ClassVar

from pydantic import Field

from app.access.grants import Grant, Scope
from app.api import schemas
from app.api.components import Components, GalleryId
from app.api.feature import Feature, Part, PeriodicTask
from app.api.operation import GALLERY_PATH
from app.api.route import Router
from app.api.schemas.base import CALIBRATION_SOURCES, Example, Wire
from app.choices import CalibrationSource
from app.errors import OperatingPointUnavailable
from app.features.calibration.job import KIND, CalibrationState, Calibrator
from app.features.calibration.population import deciding
from app.features.calibration.store import Calibrations
from app.features.own_jobs import last_job
from app.jobs.store import JobStore
from app.package.thresholds import Thresholds

router = Router("galleries")

CALIBRATION = f"{GALLERY_PATH}/calibration"
LOOK_S = 60.0
"""Seconds between checks for stale calibrations."""


class GalleryPoint(Wire):
    """A threshold of the gallery; `_low`, `_high`: 95 % interval by bootstrap over subjects."""

    fmr: float
    threshold: float | None = Field(description="Measured in this gallery; null: its pairs don't support the rate.")
    threshold_low: float | None
    threshold_high: float | None
    decides: float | None = Field(
        description="The threshold that decides if the gallery's calibration is switched on: its own, raised to the "
        "floor, or the package's at a corrected rate; null: the rate is not supported."
    )
    package: float | None = Field(description="The package's threshold.")
    found: float | None = Field(description="The false match rate in this gallery at the package's threshold.")
    found_low: float | None
    found_high: float | None


class SuspiciousFace(Wire):
    subject: str
    name: str | None = Field(description="The subject's name.")
    face_id: str


class SuspiciousPair(Wire):
    """Two subjects who may be one person, with their most similar faces."""

    first: SuspiciousFace
    second: SuspiciousFace
    score: float


class GalleryMeasured(Wire):
    """A gallery's calibration as it was measured."""

    model: str = Field(description="The package whose templates were compared.")
    measured_at: datetime
    subjects: int = Field(description="Subjects that the gallery had then.")
    faces: int
    compared_subjects: int = Field(
        description="Subjects that were compared: all, or a random sample; at most 10 faces of each."
    )
    compared_faces: int
    comparisons: int = Field(description="Non-mated comparisons; 0 if too few subjects are enrolled.")
    mated: int
    changed: float = Field(
        description="Changes since the measurement, as a share of the faces; above 0.2 it is measured again."
    )
    suspicious: int = Field(description="Pairs of subjects left out, since each may be one person.")
    suspicious_expected: float | None = Field(
        description="Number of pairs of subjects expected to be this similar by chance, at the package's "
        "strictest operating point."
    )
    left_out: int = Field(description="Pairs of faces that were left out, since they are of such subjects.")
    missed: float = Field(
        description="By how much each stated rate is too low at most, which is the case if all pairs left out are"
        " of different people."
    )
    scores: schemas.Scores | None


class GalleryCalibration(Wire):
    """The operating points of a gallery's own subjects, beside the package's."""

    example: ClassVar[Example] = {"job": schemas.Job.example | {"kind": "calibrate"}}
    gallery: str
    calibration: CalibrationSource = Field(description=CALIBRATION_SOURCES)
    allow_laxer: bool
    decides: schemas.DecidedBy = Field(description="Which calibration decides now, at the highest rate.")
    measured: GalleryMeasured | None = Field(description="Null before the first measurement.")
    points: list[GalleryPoint] = Field(description="From the highest rate to the lowest.")
    pairs: list[SuspiciousPair] = Field(description="The suspicious pairs that still exist, at most 100.")
    job: schemas.Job | None = Field(description="The current job, or the last one.")


@router.operation("POST", CALIBRATION, scope=Scope.ADMIN, changes=True, status=202, codes=("package_unavailable",))
def calibrate_gallery(calibrator: Calibrator, jobs: JobStore, grant: Grant, gallery: GalleryId) -> GalleryCalibration:
    """Measure a gallery's own operating points.

    Starts a job that compares faces of different subjects, and finds the threshold at each false match rate that their
    pairs support. Subjects who may be one person are left out and listed. Decisions change only where the gallery's
    `calibration` is `gallery`.
    """
    return _answer(jobs, calibrator.begin(gallery, who=grant.key_id))


@router.operation("GET", CALIBRATION, scope=Scope.ADMIN, name="show_calibration", codes=("package_unavailable",))
def get_calibration(calibrator: Calibrator, jobs: JobStore, gallery: GalleryId) -> GalleryCalibration:
    """Show a gallery's own operating points.

    Answers the points with their intervals, the package's points, the false match rates found in the gallery at these,
    and subjects who may be one person.
    """
    return _answer(jobs, calibrator.find(gallery))


def _answer(jobs: JobStore, state: CalibrationState) -> GalleryCalibration:
    highest = state.thresholds.highest
    return GalleryCalibration.of(
        state.gallery,
        gallery=state.gallery.id,
        decides=state.thresholds.decided_by(1.0 if highest is None else highest),
        measured=_measured(state),
        points=_points(state),
        pairs=state.pairs,
        job=last_job(jobs, state.standing.job),
    )


def _measured(state: CalibrationState) -> GalleryMeasured | None:
    measured = state.standing.measured
    if measured is None:
        return None
    figures, calibration = measured.figures, measured.calibration
    return GalleryMeasured.of(
        figures,
        model=measured.package,
        measured_at=measured.measured_at,
        comparisons=calibration.comparisons if calibration else 0,
        mated=calibration.mated if calibration else 0,
        changed=round(max(0.0, state.standing.changed), 4),
        suspicious_expected=figures.expected,
        scores=calibration.scores if calibration else None,
    )


def _points(state: CalibrationState) -> list[GalleryPoint]:
    measured = state.standing.measured
    calibration = measured.calibration if measured else None
    gallery_points = {point.fmr: point for point in calibration.points} if calibration else {}
    package = {point.fmr: point.threshold for point in state.package.points}
    whole = calibration and deciding(state.package, calibration, allow_laxer=state.gallery.allow_laxer)
    differences = {rate.fmr: rate.found for rate in measured.figures.differences if rate.found} if measured else {}
    rows = []
    for fmr in sorted({*gallery_points, *package}, reverse=True):
        point, rate = gallery_points.get(fmr), differences.get(fmr)
        rows.append(
            GalleryPoint(
                fmr=fmr,
                threshold=point.threshold if point else None,
                threshold_low=point.threshold_low if point else None,
                threshold_high=point.threshold_high if point else None,
                decides=_threshold(whole, fmr) if whole else None,
                package=package.get(fmr),
                found=rate.value if rate else None,
                found_low=rate.low if rate else None,
                found_high=rate.high if rate else None,
            )
        )
    return rows


def _threshold(thresholds: Thresholds, fmr: float) -> float | None:
    """Return the threshold at ``fmr``; None outside the measured range."""
    try:
        return thresholds.threshold(fmr)
    except OperatingPointUnavailable:
        return None


def _start(core: Components) -> Part:
    recorded = partial(core.audit.recorded, "calibrate_gallery")
    calibrations = Calibrations(core.store)
    calibrator = Calibrator(core.galleries, core.embedders, core.jobs, calibrations, recorded=recorded)
    tasks = [PeriodicTask(LOOK_S, "calibrations", calibrator.begin_due)]
    return Part({"calibrator": calibrator}, {KIND: calibrator.work}, tasks, gallery_changed=[calibrator.keep])


FEATURE = Feature([router], _start, open_thresholds=lambda store: Calibrations(store).thresholds)
