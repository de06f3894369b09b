"""What answers without a key: is it alive, is it ready, which version is it."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.api import openapi, schemas
from app.api.service import Service

router = APIRouter(tags=["server"])

NAME = "likeness"


@router.get(
    "/livez",
    summary="Is the process alive?",
    responses=openapi.answer(schemas.Health) | openapi.errors(*openapi.OPEN_CODES),
)
async def livez() -> schemas.Health:
    """Answers as long as the process can; restart it when it does not."""
    return schemas.Health(status="ok")


@router.get(
    "/readyz",
    summary="Does the server take requests?",
    responses=openapi.answer(schemas.Health)
    | openapi.errors(*openapi.OPEN_CODES)
    | {503: {"model": schemas.Health, "description": "Starting, draining, or without Milvus."}},
)
async def readyz(request: Request, response: Response) -> schemas.Health:
    """200 once models are warm and galleries can be searched; 503 before, and while the server stops.

    Where vectors are searched in Milvus, 503 too while that was not to be reached when last looked, 2 seconds ago.
    """
    service: Service | None = getattr(request.app.state, "service", None)
    health = schemas.Health(status=service.status if service else "starting")
    if service and health.status == "ok" and not service.galleries.available:
        health = schemas.Health(status="index_unavailable")
    if health.status != "ok":
        response.status_code = 503
    return health


@router.get(
    "/version",
    summary="Which version is this?",
    responses=openapi.answer(schemas.Version) | openapi.errors(*openapi.OPEN_CODES),
)
async def version(request: Request) -> schemas.Version:
    """The version of the server."""
    return schemas.Version(name=NAME, version=request.app.version)
