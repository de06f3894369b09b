"""The REST operations that move a gallery to another model package."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from pydantic import Field

from app.access.grants import Grant, Scope
from app.api.components import Components, GalleryId
from app.api.feature import Feature, Part, PeriodicTask
from app.api.operation import GALLERY_PACKAGE, GALLERY_PATH
from app.api.route import Router
from app.api.routes.galleries import ACCEPT_NON_COMMERCIAL, FORCE
from app.api.schemas.base import MAX_ID_LENGTH, MODEL, Example, Params, Wire
from app.api.schemas.server import Job
from app.choices import WithoutCrop
from app.features.own_jobs import last_job
from app.features.reembedding import steps
from app.features.reembedding.job import KIND, Reembedder
from app.jobs.store import JobStore

router = Router("galleries")

NO_MOVE = ("reembedding_not_found",)
NOT_SWITCHED = (*NO_MOVE, "reembedding_not_switched")

REEMBED = f"{GALLERY_PATH}/reembed"
LOOK_S = 60.0
"""Seconds between checks for moves that can no longer be rolled back."""


class ReembedStart(Params):
    example: ClassVar[Example] = {"embedder": "mine"}
    embedder: str = Field(
        min_length=1,
        max_length=MAX_ID_LENGTH,
        description="The model package to move to, as `name` or `name@version`.",
    )
    without_crop: WithoutCrop = Field(
        default="refuse",
        description="What to do with faces without a stored crop. `refuse`: do not start. `drop`: leave them out; a "
        "rollback restores them until `finish` deletes them.",
    )
    keep_days: float = Field(
        default=7,
        ge=0,
        le=3650,
        allow_inf_nan=False,
        description="Days after the switch during which a rollback is possible; then the server finishes by itself.",
    )
    force: bool = Field(default=False, description=FORCE)
    accept_non_commercial: bool = Field(default=False, description=ACCEPT_NON_COMMERCIAL)


class Reembedding(Wire):
    """A gallery's move from one model package to another."""

    example: ClassVar[Example] = {"job": Job.example | {"kind": "reembed"}}
    gallery: str
    source: str = Field(examples=[MODEL], description="The package before the move.")
    target: str = Field(examples=["mine@1"], description="The package after the move.")
    state: steps.State = Field(
        description="`embedding`: faces get templates of the target, the source answers. `ready`: all faces have both "
        "(also after a rollback), the source answers. `switched`: the target answers. `ending`: templates that are no "
        "longer needed are being deleted."
    )
    without_crop: WithoutCrop
    missing: int = Field(ge=0, description="Faces without a template of the target, since they have no stored crop.")
    keep_days: float
    started_at: datetime
    switched_at: datetime | None
    keep_until: datetime | None = Field(description="Until when a rollback is possible.")
    job: Job | None = Field(description="The current job, or the last one.")


@router.operation(
    "POST",
    REEMBED,
    scope=Scope.ADMIN,
    changes=True,
    status=202,
    codes=(*GALLERY_PACKAGE, "package_unchanged", "crops_missing", "reembedding_exists"),
)
def reembed(
    reembedder: Reembedder,
    jobs: JobStore,
    grant: Grant,
    gallery: GalleryId,
    asked: ReembedStart,
) -> Reembedding:
    """Move the gallery to another model package.

    Starts a job that embeds every face's stored crop with the other package and then switches the gallery to it in one
    step. The gallery answers requests throughout. Call it again for the same package to resume a stopped move, or to
    switch again after a rollback.
    """
    return _answer(jobs, reembedder.begin(gallery, **asked.model_dump(), who=grant.key_id))


@router.operation("GET", REEMBED, scope=Scope.READ, name="show_reembedding", codes=NO_MOVE)
def get_reembedding(reembedder: Reembedder, jobs: JobStore, gallery: GalleryId) -> Reembedding:
    """Show the gallery's move.

    Answers from which package to which the gallery moves, the progress, and until when a rollback is possible.
    """
    return _answer(jobs, reembedder.find(gallery))


@router.operation(
    "DELETE", REEMBED, scope=Scope.ADMIN, changes=True, status=202, codes=(*NO_MOVE, "reembedding_switched")
)
def cancel_reembedding(reembedder: Reembedder, jobs: JobStore, grant: Grant, gallery: GalleryId) -> Reembedding:
    """Cancel the gallery's move.

    Possible before the switch, or after a rollback: the gallery stays with the source package, and the target's
    templates are deleted.
    """
    return _answer(jobs, reembedder.cancel(gallery, who=grant.key_id))


@router.operation(
    "POST", f"{REEMBED}/rollback", scope=Scope.ADMIN, changes=True, codes=(*NOT_SWITCHED, "package_unavailable")
)
def roll_back_reembedding(reembedder: Reembedder, jobs: JobStore, gallery: GalleryId) -> Reembedding:
    """Go back to the previous model package.

    The source package answers again at once, also for faces enrolled since the switch.
    """
    return _answer(jobs, reembedder.rollback(gallery))


@router.operation("POST", f"{REEMBED}/finish", scope=Scope.ADMIN, changes=True, status=202, codes=NOT_SWITCHED)
def finish_reembedding(reembedder: Reembedder, jobs: JobStore, grant: Grant, gallery: GalleryId) -> Reembedding:
    """Finish the gallery's move.

    Deletes the source package's templates, and the faces that have no others. After this, no rollback is possible. The
    server does this by itself after `keep_until`.
    """
    return _answer(jobs, reembedder.finish(gallery, who=grant.key_id))


def _answer(jobs: JobStore, move: steps.Reembedding) -> Reembedding:
    return Reembedding.of(move, job=last_job(jobs, move.job))


def _start(core: Components) -> Part:
    store = steps.Reembeddings(core.store)
    reembedder = Reembedder(core.galleries, store, core.embedders, core.jobs)
    return Part(
        {"reembedder": reembedder},
        {KIND: reembedder.work},
        [PeriodicTask(LOOK_S, "reembeddings", reembedder.finish_due)],
    )


FEATURE = Feature([router], _start)
