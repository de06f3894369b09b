"""The model packages of this server."""

from __future__ import annotations

from fastapi import APIRouter

from app.api import openapi, schemas
from app.api.service import ServiceDep

router = APIRouter(prefix="/v1/models", tags=["server"])


@router.get(
    "",
    summary="List the model packages",
    responses=openapi.answer(schemas.ModelList) | openapi.call_errors(),
)
async def list_models(service: ServiceDep) -> schemas.ModelList:
    """List every package in the models folder with licence, SHA-256, operating points and whether it runs.

    Folders whose manifest can't be used are in `skipped`.
    """
    return schemas.ModelList(
        models=list(await service.run(service.models)), skipped=list(await service.run(service.skipped_models))
    )
