"""A server inside this process, without a port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, cast

import anyio.from_thread
import anyio.to_thread
import httpx

if TYPE_CHECKING:
    from fastapi import FastAPI


class InProcess(httpx.BaseTransport):
    """Passes requests to ``app``, whose lifespan runs on an event loop in a thread of its own."""

    def __init__(self, app: FastAPI) -> None:
        self._stack = ExitStack()
        self._portal = self._stack.enter_context(anyio.from_thread.start_blocking_portal())
        lifespan: AbstractContextManager[Mapping[str, Any] | None] = self._portal.wrap_async_context_manager(
            app.router.lifespan_context(app)
        )
        try:
            state: Mapping[str, Any] | None = self._stack.enter_context(lifespan)
        except BaseException:
            self._stack.close()
            raise

        async def with_state(scope: Any, receive: Any, send: Any) -> None:
            await app(scope | {"state": dict(state or {})}, receive, send)

        self._asgi = httpx.ASGITransport(app=with_state)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if not isinstance(request.stream, httpx.AsyncByteStream):
            return self._portal.call(self._handle_upload, request)
        return self._portal.call(self._handle, request)

    async def _handle_upload(self, request: httpx.Request) -> httpx.Response:
        """Send a body that is produced while it is sent; a thread produces it."""
        pieces = iter(cast(httpx.SyncByteStream, request.stream))

        async def body() -> AsyncIterator[bytes]:
            while (piece := await anyio.to_thread.run_sync(next, pieces, None)) is not None:
                yield piece

        return await self._handle(httpx.Request(request.method, request.url, headers=request.headers, content=body()))

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        response = await self._asgi.handle_async_request(request)
        content = b"".join([piece async for piece in response.aiter_raw()])  # still packed: the caller unpacks it
        return httpx.Response(response.status_code, headers=response.headers, content=content)

    def close(self) -> None:
        self._stack.close()
