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
    """Every package in the models folder: its licence, SHA-256 and measured operating points, and whether it runs."""
    return schemas.ModelList(models=list(await service.run(service.models)))
