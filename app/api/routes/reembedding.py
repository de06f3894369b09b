"""Moving a gallery to another model package."""

from __future__ import annotations

from collections.abc import Callable

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
    return await _answer(
        service,
        lambda: service.reembedder.begin(
            gallery, asked.embedder, without_crop=asked.without_crop, keep_days=asked.keep_days, who=grant.key_id
        ),
    )


@router.handles(endpoints.SHOW_REEMBEDDING)
async def get_reembedding(service: ServiceDep, gallery: GalleryId) -> schemas.Reembedding:
    """Show the gallery's move.

    From which package to which, how far it is, and until when a rollback is possible.
    """
    return await _answer(service, lambda: service.reembedder.find(gallery))


@router.handles(endpoints.CANCEL_REEMBEDDING)
async def cancel_reembedding(service: ServiceDep, grant: GrantDep, gallery: GalleryId) -> schemas.Reembedding:
    """Cancel the gallery's move.

    Possible before the switch, or after a rollback: the gallery stays with the source package, and the target's
    templates are deleted.
    """
    return await _answer(service, lambda: service.reembedder.cancel(gallery, who=grant.key_id))


@router.handles(endpoints.ROLL_BACK_REEMBEDDING)
async def roll_back_reembedding(service: ServiceDep, gallery: GalleryId) -> schemas.Reembedding:
    """Go back to the previous model package.

    The source package answers again at once, also for faces enrolled since the switch.
    """
    return await _answer(service, lambda: service.reembedder.rollback(gallery))


@router.handles(endpoints.FINISH_REEMBEDDING)
async def finish_reembedding(service: ServiceDep, grant: GrantDep, gallery: GalleryId) -> schemas.Reembedding:
    """Finish the gallery's move.

    Deletes the source package's templates, and the faces that have no others: from then on there is no rollback. The
    server does this by itself after `keep_until`.
    """
    return await _answer(service, lambda: service.reembedder.finish(gallery, who=grant.key_id))


async def _answer(service: Service, act: Callable[[], Reembedding]) -> schemas.Reembedding:
    def answer() -> schemas.Reembedding:
        found = act()
        return schemas.Reembedding.of(found, job=jobs.last(service, found.job))

    return await service.run(answer)
