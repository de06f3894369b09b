"""What is probably wrong in a gallery."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from app.access.grants import Scope
from app.api import endpoints, schemas
from app.api.dependencies import FindingId, GalleryId, GrantDep, ServiceDep
from app.api.router import Router
from app.api.routes import jobs
from app.recognition.decisions import CoarseScores
from app.review.records import Finding, Kind
from app.review.records import Review as Reviewed

router = Router("galleries")


@router.handles(endpoints.REVIEW_GALLERY)
def review(service: ServiceDep, grant: GrantDep, gallery: GalleryId) -> schemas.Job:
    """Review a gallery.

    Starts a job that compares every face with the whole gallery and lists what is probably wrong: people who are there
    twice, faces of somebody else, poor faces; and measures how well the gallery tells its people apart. If a review is
    under way already, its job is the answer.
    """
    return jobs.answer(service.reviewer.begin(gallery, who=grant.key_id))


@router.handles(endpoints.SHOW_REVIEW)
def get_review(
    service: ServiceDep, grant: GrantDep, gallery: GalleryId, query: Annotated[schemas.ReviewParams, Query()]
) -> schemas.Review:
    """List a review's findings.

    Those of the last finished review that were not called right, the strongest first, page by page. A finding
    disappears when a face of it is moved or deleted.
    """
    home, reviews = service.galleries.store.gallery(gallery), service.reviewer.reviews
    found = reviews.find(home)
    kind = None if query.kind is None else Kind(query.kind)
    page = reviews.findings(home, query.cursor, query.limit, kind=kind, dismissed=query.dismissed)
    coarse = None
    if page.items and found.summary and not grant.has(Scope.ADMIN):
        done = found.summary
        package = service.operations.thresholds(done.package)
        coarse = CoarseScores.of(package, done.verify.threshold, done.identify.threshold)
    return schemas.Review(
        gallery=home.id,
        job=jobs.last(service, found.job),
        summary=_summary(found),
        findings=[_finding(one, coarse) for one in page.items],
        next_cursor=page.next_cursor,
    )


@router.handles(endpoints.DISMISS_FINDING)
def dismiss_finding(service: ServiceDep, gallery: GalleryId, finding: FindingId) -> None:
    """Call a finding right.

    It leaves the list, and later reviews don't ask again unless other faces are its evidence.
    """
    service.reviewer.reviews.dismiss(service.galleries.store.gallery(gallery), finding)


@router.handles(endpoints.REOPEN_FINDING)
def reopen_finding(service: ServiceDep, gallery: GalleryId, finding: FindingId) -> None:
    """Take back that a finding is right."""
    service.reviewer.reviews.dismiss(service.galleries.store.gallery(gallery), finding, dismissed=False)


def _summary(found: Reviewed) -> schemas.ReviewSummary | None:
    done = found.summary
    if done is None:
        return None
    return schemas.ReviewSummary.of(
        done,
        model=done.package,
        counts={kind.value: found.counts.get(kind, 0) for kind in Kind},
        dismissed=found.dismissed,
        fmr=done.verify.fmr,
        verify_threshold=done.verify.threshold,
        fpir_expected=done.identify.fpir,
        identify_threshold=done.identify.threshold,
    )


def _finding(found: Finding, coarse: CoarseScores | None) -> schemas.Finding:
    """Return a finding, with scores as fine as they are if `coarse` is None."""
    evidence, strength = found.evidence, found.strength
    score, own_score = evidence.score, evidence.own_score
    if coarse is not None:
        score, own_score = (None if one is None else coarse.answered(one) for one in (score, own_score))
        strength = round(strength / coarse.step) * coarse.step
    fmr = evidence.fmr if coarse is None else None
    shown = schemas.FindingEvidence.of(evidence, score=score, own_score=own_score, fmr=fmr)
    return schemas.Finding.of(found, kind=found.kind.value, strength=strength, evidence=shown)
