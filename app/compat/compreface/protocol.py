"""Recognises CompreFace's requests and writes errors in its form."""

from __future__ import annotations

import json

from starlette.responses import Response
from starlette.types import Scope

from app.api.protocols import WireProtocol
from app.compat.compreface import faces, recognition, subjects
from app.compat.compreface.endpoints import PREFIX
from app.compat.compreface.errors import answer_of
from app.errors import LikenessError

ROUTERS = (subjects.router, recognition.router, faces.router)


class CompreFace(WireProtocol):
    """Everything below `/api/v1/`. An unknown path there needs a key, and is then not found."""

    def speaks(self, scope: Scope) -> bool:
        path: str = scope["path"]
        return path.startswith(PREFIX)

    def error_response(self, error: LikenessError, request_id: str, path: str) -> Response:  # noqa: ARG002 (not in it)
        found = answer_of(error)
        content = json.dumps({"message": found.message, "code": found.number}, ensure_ascii=False)
        return Response(content, found.status, dict(found.headers), "application/json")
