"""Moving a gallery to another model package."""

from __future__ import annotations

from fastapi import Request

from app.api import endpoints, schemas
from app.api.dependencies import GalleryId, GrantDep, Service, ServiceDep
from app.api.router import Router
from app.api.routes import jobs
from app.reembedding.steps import Reembedding

router = Router("galleries")


@router.handles(endpoints.REEMBED_GALLERY)
async def reembed(request: Request, service: ServiceDep, grant: GrantDep, gallery: GalleryId) -> schemas.Reembedding:
    """Move the gallery to another model package.

    Starts a job that embeds every face's stored crop with the other package and then switches the gallery to it in one
    step. The gallery answers requests throughout. Calling it again for the same package resumes a stopped move, or
    switches again after a rollback.
    """
    asked = await service.read_json(request, schemas.ReembedStart)

    def begin() -> schemas.Reembedding:
        found = service.reembedder.begin(gallery, **asked.model_dump(), who=grant.key_id)
        return _answer(service, found)

    return await service.run(begin)


@router.handles(endpoints.SHOW_REEMBEDDING)
def get_reembedding(service: ServiceDep, gallery: GalleryId) -> schemas.Reembedding:
    """Show the gallery's move.

    From which package to which, how far it is, and until when a rollback is possible.
    """
    return _answer(service, service.reembedder.find(gallery))


@router.handles(endpoints.CANCEL_REEMBEDDING)
def cancel_reembedding(service: ServiceDep, grant: GrantDep, gallery: GalleryId) -> schemas.Reembedding:
    """Cancel the gallery's move.

    Possible before the switch, or after a rollback: the gallery stays with the source package, and the target's
    templates are deleted.
    """
    return _answer(service, service.reembedder.cancel(gallery, who=grant.key_id))


@router.handles(endpoints.ROLL_BACK_REEMBEDDING)
def roll_back_reembedding(service: ServiceDep, gallery: GalleryId) -> schemas.Reembedding:
    """Go back to the previous model package.

    The source package answers again at once, also for faces enrolled since the switch.
    """
    return _answer(service, service.reembedder.rollback(gallery))


@router.handles(endpoints.FINISH_REEMBEDDING)
def finish_reembedding(service: ServiceDep, grant: GrantDep, gallery: GalleryId) -> schemas.Reembedding:
    """Finish the gallery's move.

    Deletes the source package's templates, and the faces that have no others: from then on there is no rollback. The
    server does this by itself after `keep_until`.
    """
    return _answer(service, service.reembedder.finish(gallery, who=grant.key_id))


def _answer(service: Service, found: Reembedding) -> schemas.Reembedding:
    return schemas.Reembedding.of(found, job=jobs.last(service, found.job))
