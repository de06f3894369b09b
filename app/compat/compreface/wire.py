"""CompreFace's wire format: how its errors look, and which unknown paths are answered in it."""

from __future__ import annotations

import json

from starlette.responses import Response
from starlette.types import Scope

from app.api.wire import WireFormat
from app.compat.compreface.errors import answer_of
from app.errors import LikenessError

PREFIX = "/api/v1/"


class CompreFace(WireFormat):
    """Everything below `/api/v1/`. An unknown path there needs a key, and is then not found."""

    name = "CompreFace"
    security = ("api_key",)
    large_json = True  # many embeddings
    description = "CompreFace's REST interface, for clients written for it (docs/reference/drop-ins.md)."

    def speaks(self, scope: Scope) -> bool:
        path: str = scope["path"]
        return path.startswith(PREFIX)

    def error_response(self, error: LikenessError, request_id: str, path: str) -> Response:  # noqa: ARG002 (not in it)
        found = answer_of(error)
        content = json.dumps({"message": found.message, "code": found.number}, ensure_ascii=False)
        return Response(content, found.status, dict(found.headers), "application/json")


COMPREFACE = CompreFace()
