"""The REST operation that shows the server's public key."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from app.api.components import Components
from app.api.feature import Feature, Part
from app.api.route import Router
from app.api.schemas.base import Wire
from app.features import signatures
from app.features.signatures import Signer

router = Router("server")


class ServerKey(Wire):
    """The public part of the key that the server signs with."""

    key_id: str = Field(description="The first 8 bytes of the public key's SHA-256, hexadecimal.")
    algorithm: Literal["Ed25519"]
    public_key: str = Field(description="The public key's 32 bytes (RFC 8032), as base64.")
    pem: str = Field(description="The public key as PEM.")


@router.operation("GET", "/v1/server-key", scope=None)
async def show_server_key(signer: Signer) -> ServerKey:
    """Show the server's public key.

    Keep this key to check documents that the server has signed. All servers of a database have the same key.
    """
    return ServerKey(
        key_id=signer.key_id,
        algorithm=signatures.ALGORITHM,
        public_key=signatures.encode(signer.public_key),
        pem=signer.pem,
    )


def _start(core: Components) -> Part:
    return Part({"signer": Signer.of(core.secrets)})


FEATURE = Feature([router], _start)
