"""Moving a gallery to another model package."""

from __future__ import annotations

from fastapi import APIRouter, Request

from app.api import openapi, schemas
from app.api.paths import GalleryId
from app.api.routes import jobs
from app.api.service import GrantDep, ServiceDep
from app.reembedding.job import Progress

router = APIRouter(prefix="/v1/galleries/{gallery}/reembed", tags=["galleries"])

GALLERY_CODES = ("gallery_not_found", "invalid_id")
CODES = (*GALLERY_CODES, "reembedding_not_found")


@router.post(
    "",
    status_code=202,
    summary="Move the gallery to another model package",
    responses=openapi.answer(schemas.Reembedding, 202)
    | openapi.call_errors(
        *openapi.JSON_CODES,
        *GALLERY_CODES,
        "package_unknown",
        "package_ambiguous",
        "package_unavailable",
        "package_unchanged",
        "crops_missing",
        "reembedding_exists",
    ),
    openapi_extra=openapi.request_body(schemas.ReembedStart),
)
async def reembed(request: Request, service: ServiceDep, grant: GrantDep, gallery: GalleryId) -> schemas.Reembedding:
    """Begins a job that embeds every face's stored crop with the other package and, when all are done, switches the
    gallery to it at one stroke; requests are answered all the while. Asked again for the same package, it goes on with
    what has stopped, or switches again after a rollback."""
    asked = await service.read_json(request, schemas.ReembedStart)
    return _answer(
        await service.run(
            lambda: service.reembedder.begin(
                gallery,
                asked.embedder,
                without_crop=asked.without_crop,
                keep_days=asked.keep_days,
                who=grant.key_id,
            )
        )
    )


@router.get(
    "",
    summary="Show how far the gallery's move is",
    responses=openapi.answer(schemas.Reembedding) | openapi.call_errors(*CODES),
)
async def get_reembedding(service: ServiceDep, gallery: GalleryId) -> schemas.Reembedding:
    """From which package to which, how far, and until when there is a way back."""
    return _answer(await service.run(lambda: service.reembedder.find(gallery)))


@router.delete(
    "",
    status_code=202,
    summary="Give the gallery's move up",
    responses=openapi.answer(schemas.Reembedding, 202) | openapi.call_errors(*CODES, "reembedding_switched"),
)
async def cancel_reembedding(service: ServiceDep, grant: GrantDep, gallery: GalleryId) -> schemas.Reembedding:
    """Before the switch, or after a rollback: the gallery stays with the source, and the target's templates go."""
    return _answer(await service.run(lambda: service.reembedder.cancel(gallery, who=grant.key_id)))


@router.post(
    "/rollback",
    summary="Go back to the model package before",
    responses=openapi.answer(schemas.Reembedding) | openapi.call_errors(*CODES, "reembedding_not_switched"),
)
async def roll_back_reembedding(service: ServiceDep, gallery: GalleryId) -> schemas.Reembedding:
    """The source answers again at once, for faces enrolled since the switch too."""
    return _answer(await service.run(lambda: service.reembedder.rollback(gallery)))


@router.post(
    "/finish",
    status_code=202,
    summary="Close the way back",
    responses=openapi.answer(schemas.Reembedding, 202) | openapi.call_errors(*CODES, "reembedding_not_switched"),
)
async def finish_reembedding(service: ServiceDep, grant: GrantDep, gallery: GalleryId) -> schemas.Reembedding:
    """Removes the source's templates, and the faces that have no others. Comes by itself after `keep_until`."""
    return _answer(await service.run(lambda: service.reembedder.finish(gallery, who=grant.key_id)))


def _answer(found: Progress) -> schemas.Reembedding:
    state = found.reembedding
    return schemas.Reembedding.model_validate(
        {
            "gallery": state.gallery,
            "source": state.source,
            "target": state.target,
            "state": state.state,
            "without_crop": state.without_crop,
            "missing": state.missing,
            "keep_days": state.keep_days,
            "started_at": state.started_at,
            "switched_at": state.switched_at,
            "keep_until": state.keep_until,
            "job": None if found.job is None else jobs.answer(found.job),
        }
    )
