"""The errors of the client, both of them ``LikenessError``."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
from pydantic import ValidationError

from app.api.schemas import ErrorAnswer
from app.errors import LikenessError


class ApiError(LikenessError):
    """The server answered with an error; ``request_id`` identifies it in the server's log."""

    def __init__(self, status: int, code: str, message: str, details: Mapping[str, object], request_id: str) -> None:
        super().__init__(message, code=code)
        self.details = details
        self.status = status
        self.request_id = request_id


class Unreachable(LikenessError):
    """No server answered, or the connection broke. A change may have been made or not."""

    code = "unreachable"


def api_error(response: httpx.Response) -> ApiError:
    """Return the error of an answer, also of one that isn't Likeness's, such as a proxy's error page."""
    try:
        answer = ErrorAnswer.model_validate_json(response.content)
    except ValidationError:
        return ApiError(
            response.status_code,
            "not_likeness",
            f"HTTP {response.status_code}: the answer is not from Likeness",
            {},
            "",
        )
    problem = answer.error
    return ApiError(response.status_code, problem.code, problem.message, problem.details, answer.request_id)
