"""Which requests are CompreFace's, and how their errors look."""

from __future__ import annotations

import json

from starlette.responses import Response
from starlette.types import Scope

from app.api.protocols import Dialect
from app.api.rules import Visit, match_rule
from app.compat.compreface import faces, recognition, subjects
from app.compat.compreface.errors import answer_of
from app.compat.compreface.rules import PREFIX, RULES
from app.errors import LikenessError

ROUTERS = (subjects.router, recognition.router, faces.router)


class CompreFace(Dialect):
    """Everything below `/api/v1/`."""

    def speaks(self, scope: Scope) -> bool:
        path: str = scope["path"]
        return path.startswith(PREFIX)

    def visit(self, scope: Scope) -> Visit | None:
        """What CompreFace does not know needs a key, and is then not found."""
        return match_rule(RULES, scope["method"], scope["path"])

    def answer(self, error: LikenessError, request_id: str, path: str) -> Response:  # noqa: ARG002 (CompreFace has neither)
        found = answer_of(error)
        content = json.dumps({"message": found.message, "code": found.number}, ensure_ascii=False)
        return Response(content, found.status, dict(found.headers), "application/json")
