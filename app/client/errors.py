"""What a client may have to catch: ``LikenessError`` covers both."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
from pydantic import ValidationError

from app.api.schemas import ErrorAnswer
from app.errors import LikenessError


class ApiError(LikenessError):
    """The server said no; ``code`` says why, ``request_id`` finds it in the server's log."""

    def __init__(self, status: int, code: str, message: str, details: Mapping[str, object], request_id: str) -> None:
        super().__init__(message, code=code)
        self.details = details
        self.status = status
        self.request_id = request_id


class Unreachable(LikenessError):
    """No server answered, or the connection broke; whether a change was made is not known."""

    code = "unreachable"


def api_error(response: httpx.Response) -> ApiError:
    """Also for answers that are not ours, such as a proxy's error page."""
    try:
        answer = ErrorAnswer.model_validate_json(response.content)
    except ValidationError:
        return ApiError(
            response.status_code, "not_likeness", f"HTTP {response.status_code}: not an answer of Likeness", {}, ""
        )
    problem = answer.error
    return ApiError(response.status_code, problem.code, problem.message, problem.details, answer.request_id)
