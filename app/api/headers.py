"""Headers that every answer has, and which pages of other sites may call."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CSP = "content-security-policy"
ANSWER_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox"
"""What a browser may do with an answer: show it, and nothing else. Pages have a policy of their own."""
HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
CORS_METHODS = ("GET", "POST", "PATCH", "DELETE")
CORS_HEADERS = ("authorization", "x-api-key", "content-type", "x-request-id")
CORS_EXPOSED = ("x-request-id", "retry-after")
PREFLIGHT_S = 600
"""How long a browser may remember what it was allowed."""
_RAW = tuple((name.encode(), value.encode()) for name, value in (HEADERS | {CSP: ANSWER_POLICY}).items())


class SafeHeaders:
    """ASGI middleware around everything else. What an answer says for itself stands: pages have needs of their own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                said = message.get("headers", ())
                names = {name.lower() for name, _ in said}
                message["headers"] = [*said, *(one for one in _RAW if one[0] not in names)]
            await send(message)

        await self._app(scope, receive, add)


def install(app: FastAPI, origins: Sequence[str]) -> None:
    """Goes around what ``app`` has already. ``origins`` are exact; where there are none, other sites' pages can't read
    an answer, nor send anything that a browser asks permission for. Cookies and stored passwords are never allowed."""
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=CORS_METHODS,
            allow_headers=CORS_HEADERS,
            expose_headers=CORS_EXPOSED,
            max_age=PREFLIGHT_S,
        )
    app.add_middleware(SafeHeaders)
