"""The errors of the client, all of them ``ClientError``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx


class ClientError(Exception):
    """A call failed; ``code`` is for programs, ``message`` for people, ``details`` has the values."""

    code = "client_error"

    def __init__(self, message: str, *, code: str | None = None, details: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.code
        self.details = details or {}


class ApiError(ClientError):
    """The server answered with an error; ``request_id`` identifies it in the server's log."""

    def __init__(self, status: int, code: str, message: str, details: Mapping[str, object], request_id: str) -> None:
        super().__init__(message, code=code, details=details)
        self.status = status
        self.request_id = request_id


class Unreachable(ClientError):
    """No server answered, or the connection broke. A change may have been made or not."""

    code = "unreachable"


class UnreadableAnswer(ClientError):
    """The request succeeded, but this version of the client can't read the answer."""

    code = "unreadable_answer"


def api_error(response: httpx.Response) -> ApiError:
    """Return the error of an answer. The answer may also be another program's, such as a proxy's error page."""
    try:
        answer = json.loads(response.content)
        problem = answer["error"]
        code, message, request_id = str(problem["code"]), str(problem["message"]), str(answer.get("request_id", ""))
    except (ValueError, TypeError, KeyError, AttributeError):
        message = f"HTTP {response.status_code}: the answer is not from Likeness"
        return ApiError(response.status_code, "not_likeness", message, {}, "")
    return ApiError(response.status_code, code, message, problem.get("details") or {}, request_id)
