"""The REST operations that find what is probably wrong in a gallery."""

from __future__ import annotations

from typing import Annotated, TypeAlias, get_args

from fastapi import Query

from app.access.grants import Grant, Scope
from app.api.components import Components, GalleryId, path_id
from app.api.feature import Feature, Part
from app.api.operation import CURSOR, GALLERY_PATH, RATE_CODES
from app.api.route import Router
from app.api.routes.jobs import job_answer
from app.api.schemas import Job
from app.choices import FindingKind
from app.features.own_jobs import last_job
from app.features.review import schemas
from app.features.review.job import KIND, Reviewer
from app.features.review.records import ReviewState
from app.features.review.store import Reviews
from app.gallery.records import Gallery
from app.gallery.store import Store
from app.jobs.store import JobStore
from app.recognition.decisions import AnsweredScores
from app.recognition.operations import Operations

router = Router("galleries")

NO_FINDING = ("finding_not_found",)
FindingId: TypeAlias = Annotated[str, path_id("The finding's id.", "5f0f0c4c3a9a3e0c6d7b8a9f106f1f2d")]

REVIEW = f"{GALLERY_PATH}/review"
FINDING = f"{REVIEW}/{{finding}}"


@router.operation(
    "POST", REVIEW, scope=Scope.ADMIN, changes=True, status=202, codes=(*RATE_CODES, "package_unavailable")
)
def review(reviewer: Reviewer, grant: Grant, gallery: GalleryId) -> Job:
    """Review a gallery.

    Starts a job that compares every face with the whole gallery and lists what is probably wrong: people enrolled
    twice, faces of another person, poor faces. It also measures how well the gallery tells its people apart. If a
    review is running already, the answer is its job.
    """
    return job_answer(reviewer.begin(gallery, who=grant.key_id))


@router.operation(
    "GET",
    REVIEW,
    scope=Scope.READ,
    name="show_review",
    codes=("review_not_found", "package_unavailable", *RATE_CODES, *CURSOR),
)
def get_review(
    store: Store,
    reviewer: Reviewer,
    operations: Operations,
    jobs: JobStore,
    grant: Grant,
    gallery: GalleryId,
    query: Annotated[schemas.ReviewParams, Query()],
) -> schemas.Review:
    """List a review's findings.

    Lists the last finished review's findings that were not dismissed, strongest first, page by page. A finding
    disappears when one of its faces is moved or deleted.
    """
    home, reviews = store.gallery(gallery), reviewer.reviews
    reviewed = reviews.find(home)
    page = reviews.findings(home, query.cursor, query.limit, kind=query.kind, dismissed=query.dismissed)
    findings, done = list(page.items), reviewed.summary
    if findings and done and Scope.ADMIN not in grant.allowed:
        coarse = AnsweredScores.of(operations.thresholds(done.package), done.verify.threshold, done.identify.threshold)
        findings = [_coarsened(finding, coarse) for finding in findings]
    return schemas.Review(
        gallery=home.id,
        job=last_job(jobs, reviewed.job),
        summary=_summary(reviewed),
        findings=findings,
        next_cursor=page.next_cursor,
    )


@router.operation("POST", f"{FINDING}/dismiss", scope=Scope.ENROLL, changes=True, codes=NO_FINDING)
def dismiss_finding(reviewer: Reviewer, gallery: Gallery, finding: FindingId) -> None:
    """Mark a finding as right.

    The finding leaves the list, and later reviews don't list it again unless they find the same with other faces.
    """
    reviewer.reviews.dismiss(gallery, finding)


@router.operation("DELETE", f"{FINDING}/dismiss", scope=Scope.ENROLL, changes=True, codes=NO_FINDING)
def reopen_finding(reviewer: Reviewer, gallery: Gallery, finding: FindingId) -> None:
    """Reopen a finding.

    The finding is in the list again, and later reviews list it too.
    """
    reviewer.reviews.dismiss(gallery, finding, dismissed=False)


def _summary(reviewed: ReviewState) -> schemas.ReviewSummary | None:
    done = reviewed.summary
    if done is None:
        return None
    return schemas.ReviewSummary.of(
        done,
        model=done.package,
        counts={kind: reviewed.counts.get(kind, 0) for kind in get_args(FindingKind)},
        dismissed=reviewed.dismissed,
        fmr=done.verify.fmr,
        verify_threshold=done.verify.threshold,
        fpir_expected=done.identify.fpir,
        identify_threshold=done.identify.threshold,
    )


def _coarsened(finding: schemas.Finding, coarse: AnsweredScores) -> schemas.Finding:
    evidence = finding.evidence
    scores = {"score": evidence.score, "own_score": evidence.own_score}
    coarsened = {name: None if score is None else coarse.answered(score) for name, score in scores.items()}
    return finding.model_copy(
        update={
            "strength": round(finding.strength / coarse.step) * coarse.step,
            "evidence": evidence.model_copy(update=coarsened | {"fmr": None}),
        }
    )


def _start(core: Components) -> Part:
    reviews = Reviews(core.store.database)
    operations = core.operations
    reviewer = Reviewer(
        core.galleries,
        reviews,
        core.jobs,
        lambda gallery: operations.thresholds_in(gallery, gallery.embedder),
        defaults=operations.defaults,
    )
    return Part({"reviewer": reviewer}, {KIND: reviewer.work})


FEATURE = Feature([router], _start)
