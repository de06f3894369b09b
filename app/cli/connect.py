"""From a command to a server: the one named, the one running on this data folder, or one started in this process."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio.from_thread
import anyio.to_thread
import httpx

from app.client import Client
from app.server import data_folder

if TYPE_CHECKING:
    from fastapi import FastAPI

IN_PROCESS_URL = "http://in-process"
TIMEOUT_S = 300.0


class InProcess(httpx.BaseTransport):
    """Hands requests to the app itself, with its lifespan, on an event loop in a thread of its own."""

    def __init__(self, app: FastAPI) -> None:
        self._stack = ExitStack()
        self._portal = self._stack.enter_context(anyio.from_thread.start_blocking_portal())
        lifespan: AbstractContextManager[Mapping[str, Any] | None] = self._portal.wrap_async_context_manager(
            app.router.lifespan_context(app)
        )
        try:
            given: Mapping[str, Any] | None = self._stack.enter_context(lifespan)
        except BaseException:
            self._stack.close()
            raise

        async def with_state(scope: Any, receive: Any, send: Any) -> None:
            await app(scope | {"state": dict(given or {})}, receive, send)

        self._asgi = httpx.ASGITransport(app=with_state)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if not isinstance(request.stream, httpx.AsyncByteStream):
            return self._portal.call(self._handle_upload, request)
        return self._portal.call(self._handle, request)

    async def _handle_upload(self, request: httpx.Request) -> httpx.Response:
        """A body that is still being made, in a thread."""
        pieces = iter(cast(httpx.SyncByteStream, request.stream))

        async def body() -> AsyncIterator[bytes]:
            while (piece := await anyio.to_thread.run_sync(next, pieces, None)) is not None:
                yield piece

        return await self._handle(httpx.Request(request.method, request.url, headers=request.headers, content=body()))

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        response = await self._asgi.handle_async_request(request)
        return httpx.Response(response.status_code, headers=response.headers, content=await response.aread())

    def close(self) -> None:
        self._stack.close()


@contextmanager
def connect(server: str | None, key: str | None) -> Iterator[Client]:
    """A client for ``server``; without one, for a server running on the data folder, and else for this very process.

    Raises Unusable where settings, models or the data folder are.
    """
    if server:
        with Client(server, key, timeout_s=TIMEOUT_S) as client:
            yield client
        return
    from app import main  # noqa: PLC0415 (a command that speaks to a server needs none of what it imports)
    from app.config import load_settings  # noqa: PLC0415 (the same)

    settings = load_settings()
    if url := data_folder.running_at(settings.data_dir):
        transport = own_certificate(settings.tls_cert) if settings.tls_cert else None
        with Client(url, key or main.admin_key(settings.data_dir), timeout_s=TIMEOUT_S, transport=transport) as client:
            yield client
        return
    here = InProcess(main.create_app(settings))
    with Client(IN_PROCESS_URL, main.admin_key(settings.data_dir), timeout_s=TIMEOUT_S, transport=here) as client:
        yield client


def own_certificate(path: Path) -> httpx.HTTPTransport:
    """For a server on this machine, which is called by its address: its certificate counts, whatever names it has."""
    context = ssl.create_default_context(cafile=path)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return httpx.HTTPTransport(verify=context)
