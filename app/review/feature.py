"""Reviews as a feature of the service."""

from __future__ import annotations

from app.api.components import Components
from app.api.feature import Feature, Part
from app.review.job import KIND, Reviewer
from app.review.routes import router
from app.review.store import Reviews


def _start(core: Components) -> Part:
    reviews = Reviews(core.galleries.store.database)
    operations = core.operations
    reviewer = Reviewer(
        core.galleries,
        reviews,
        core.corrections,
        core.jobs,
        lambda gallery: operations.thresholds_in(gallery, gallery.embedder),
        fmr=operations.fmr,
        fpir=operations.fpir,
    )
    return Part(reviewer, {KIND: reviewer.work})


FEATURE = Feature([router], _start)
