"""Every error of the REST interface: one table of codes, one shape.

``{"error": {"code", "message", "details"}, "request_id"}``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.api.schemas import ErrorAnswer, Problem
from app.error_codes import BY_CODE, KINDS
from app.errors import LikenessError, Overloaded, Unusable

RETRY_AFTER_S = 1.0
"""The `Retry-After` of an error that has none."""


@dataclass(frozen=True, slots=True)
class ProblemAnswer:
    """An error as HTTP: status, extra headers and JSON body."""

    status: int
    headers: dict[str, str]
    body: ErrorAnswer


def answer_problem(error: LikenessError, request_id: str) -> ProblemAnswer:
    """Return the HTTP answer to an error; a code that is not in the table is an internal error (500)."""
    kind = BY_CODE.get(error.code) or BY_CODE["unusable" if isinstance(error, Unusable) else "internal_error"]
    headers = {}
    if isinstance(error, Overloaded) or kind.status == 429:
        headers["retry-after"] = str(math.ceil(_seconds(error.details.get("retry_after"))))
    if kind.status == 401:
        headers["www-authenticate"] = 'Bearer realm="Likeness"'
    known = kind.code == error.code
    problem = Problem(
        code=kind.code,
        message=error.message if known else kind.meaning,
        details=plain(dict(error.details)) if known else {},
    )
    return ProblemAnswer(kind.status, headers, ErrorAnswer(error=problem, request_id=request_id))


def plain(value: Any) -> Any:
    """Return ``value`` in JSON's types; NaN becomes null, and bytes their number."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{len(value)} bytes"
    return str(value)


def problems_table() -> str:
    """Return every code as a Markdown table: status, code, meaning."""
    lines = ["| status | code | meaning |", "|---|---|---|"]
    lines += [f"| {kind.status} | `{kind.code}` | {kind.meaning} |" for kind in KINDS]
    return "\n".join(lines)


def _seconds(value: object) -> float:
    return max(RETRY_AFTER_S, value) if isinstance(value, (int, float)) and math.isfinite(value) else RETRY_AFTER_S
