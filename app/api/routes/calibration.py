"""A gallery's own operating points."""

from __future__ import annotations

from app.access.grants import Grant, Scope
from app.api import schemas
from app.api.components import GalleryId
from app.api.operation import GALLERY
from app.api.route import Router
from app.api.routes.jobs import last_job
from app.calibration.job import Calibrator, State
from app.calibration.population import deciding
from app.jobs.store import JobStore

router = Router("galleries")

CALIBRATION = f"{GALLERY}/calibration"


@router.operation("POST", CALIBRATION, scope=Scope.ADMIN, changes=True, status=202, codes=("package_unavailable",))
def calibrate_gallery(
    calibrator: Calibrator, jobs: JobStore, grant: Grant, gallery: GalleryId
) -> schemas.GalleryCalibration:
    """Measure a gallery's own operating points.

    Starts a job that compares faces of different subjects: the threshold at each false match rate that their pairs
    support, beside the package's. Subjects who may be one person are left out and listed. Decisions change only where
    the gallery's `calibration` is `gallery`.
    """
    return _answer(jobs, calibrator.begin(gallery, who=grant.key_id))


@router.operation("GET", CALIBRATION, scope=Scope.ADMIN, name="show_calibration", codes=("package_unavailable",))
def get_calibration(calibrator: Calibrator, jobs: JobStore, gallery: GalleryId) -> schemas.GalleryCalibration:
    """Show a gallery's own operating points.

    With their intervals, beside the package's, how far the gallery differs, and subjects who may be one person.
    """
    return _answer(jobs, calibrator.find(gallery))


def _answer(jobs: JobStore, state: State) -> schemas.GalleryCalibration:
    highest = state.thresholds.highest
    return schemas.GalleryCalibration.of(
        state.gallery,
        gallery=state.gallery.id,
        decides=state.thresholds.decided_by(1.0 if highest is None else highest),
        measured=_measured(state),
        points=_points(state),
        pairs=state.pairs,
        job=last_job(jobs, state.standing.job),
    )


def _measured(state: State) -> schemas.GalleryMeasured | None:
    measured = state.standing.measured
    if measured is None:
        return None
    figures, calibration = measured.figures, measured.calibration
    return schemas.GalleryMeasured.of(
        measured,
        figures,
        model=measured.package,
        comparisons=calibration.comparisons if calibration else 0,
        mated=calibration.mated if calibration else 0,
        changed=round(max(0.0, state.standing.changed), 4),
        suspicious_expected=figures.expected,
        scores=calibration.scores if calibration else None,
    )


def _points(state: State) -> list[schemas.GalleryPoint]:
    measured = state.standing.measured
    calibration = measured.calibration if measured else None
    own = {point.fmr: point for point in calibration.points} if calibration else {}
    package = {point.fmr: point.threshold for point in state.package.points}
    decides: dict[float, float] = {}
    if calibration is not None:
        whole = deciding(state.package, calibration, allow_laxer=state.gallery.allow_laxer)
        decides = {point.fmr: point.threshold for point in whole.points}
    differences = {each.fmr: each.found for each in measured.figures.differences if each.found} if measured else {}
    rows = []
    for fmr in sorted({*own, *package}, reverse=True):
        point, rate = own.get(fmr), differences.get(fmr)
        rows.append(
            schemas.GalleryPoint(
                fmr=fmr,
                threshold=point.threshold if point else None,
                threshold_low=point.threshold_low if point else None,
                threshold_high=point.threshold_high if point else None,
                decides=decides.get(fmr),
                package=package.get(fmr),
                found=rate.value if rate else None,
                found_low=rate.low if rate else None,
                found_high=rate.high if rate else None,
            )
        )
    return rows
