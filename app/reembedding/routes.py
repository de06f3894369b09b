"""Moving a gallery to another model package."""

from __future__ import annotations

from app.access.grants import Grant, Scope
from app.api.components import GalleryId
from app.api.operation import GALLERY, GALLERY_PACKAGE, NO_MOVE, NOT_SWITCHED
from app.api.route import Router
from app.api.routes.jobs import last_job
from app.jobs.store import JobStore
from app.reembedding import schemas
from app.reembedding.job import Reembedder
from app.reembedding.steps import Reembedding

router = Router("galleries")

REEMBED = f"{GALLERY}/reembed"


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
    asked: schemas.ReembedStart,
) -> schemas.Reembedding:
    """Move the gallery to another model package.

    Starts a job that embeds every face's stored crop with the other package and then switches the gallery to it in one
    step. The gallery answers requests throughout. Calling it again for the same package resumes a stopped move, or
    switches again after a rollback.
    """
    return _answer(jobs, reembedder.begin(gallery, **asked.model_dump(), who=grant.key_id))


@router.operation("GET", REEMBED, scope=Scope.READ, name="show_reembedding", codes=NO_MOVE)
def get_reembedding(reembedder: Reembedder, jobs: JobStore, gallery: GalleryId) -> schemas.Reembedding:
    """Show the gallery's move.

    From which package to which, how far it is, and until when a rollback is possible.
    """
    return _answer(jobs, reembedder.find(gallery))


@router.operation(
    "DELETE", REEMBED, scope=Scope.ADMIN, changes=True, status=202, codes=(*NO_MOVE, "reembedding_switched")
)
def cancel_reembedding(reembedder: Reembedder, jobs: JobStore, grant: Grant, gallery: GalleryId) -> schemas.Reembedding:
    """Cancel the gallery's move.

    Possible before the switch, or after a rollback: the gallery stays with the source package, and the target's
    templates are deleted.
    """
    return _answer(jobs, reembedder.cancel(gallery, who=grant.key_id))


@router.operation("POST", f"{REEMBED}/rollback", scope=Scope.ADMIN, changes=True, codes=NOT_SWITCHED)
def roll_back_reembedding(reembedder: Reembedder, jobs: JobStore, gallery: GalleryId) -> schemas.Reembedding:
    """Go back to the previous model package.

    The source package answers again at once, also for faces enrolled since the switch.
    """
    return _answer(jobs, reembedder.rollback(gallery))


@router.operation("POST", f"{REEMBED}/finish", scope=Scope.ADMIN, changes=True, status=202, codes=NOT_SWITCHED)
def finish_reembedding(reembedder: Reembedder, jobs: JobStore, grant: Grant, gallery: GalleryId) -> schemas.Reembedding:
    """Finish the gallery's move.

    Deletes the source package's templates, and the faces that have no others: from then on there is no rollback. The
    server does this by itself after `keep_until`.
    """
    return _answer(jobs, reembedder.finish(gallery, who=grant.key_id))


def _answer(jobs: JobStore, move: Reembedding) -> schemas.Reembedding:
    return schemas.Reembedding.of(move, job=last_job(jobs, move.job))
