"""What the server signs, and the key to check it by."""

from __future__ import annotations

from fastapi import APIRouter

from app.api import docs, schemas
from app.api.service import ServiceDep
from app.vault import signing

router = APIRouter(prefix="/v1", tags=["server"])


@router.get(
    "/server-key",
    summary="Show the key that the server signs with",
    responses=docs.answer(schemas.ServerKey) | docs.call_errors(),
)
async def show_server_key(service: ServiceDep) -> schemas.ServerKey:
    """The public half: keep it, and what this server signs can be checked anywhere. All servers of one database have
    the same."""
    signer = service.signer
    return schemas.ServerKey(
        key_id=signer.key_id,
        algorithm=signing.ALGORITHM,
        public_key=signing.encode(signer.public_key),
        pem=signer.pem,
    )
