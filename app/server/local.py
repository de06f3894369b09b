"""Servers for this machine's own programs: in this process without a port, or in a process of their own."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
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
        """Send a body that is produced while it is sent; a thread reads it."""
        pieces = iter(cast(httpx.SyncByteStream, request.stream))

        async def body() -> AsyncIterator[bytes]:
            while (piece := await anyio.to_thread.run_sync(next, pieces, None)) is not None:
                yield piece

        return await self._handle(httpx.Request(request.method, request.url, headers=request.headers, content=body()))

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        response = await self._asgi.handle_async_request(request)
        content = b"".join([piece async for piece in response.aiter_raw()])  # packed as it came: the caller unpacks it
        return httpx.Response(response.status_code, headers=response.headers, content=content)

    def close(self) -> None:
        self._stack.close()


POLL_S = 0.02


@contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a free port of 127.0.0.1 for a server that is given its number.

    It is bound here without listening. Linux then gives it to no one who asks for any port, and still lets a process
    listen that names it and sets SO_REUSEADDR. On other systems it is only a port that was free a moment ago.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port = int(holder.getsockname()[1])
        if sys.platform != "linux":
            holder.close()
        yield port


def environment(**settings: object) -> dict[str, str]:
    """Return this process's environment with these settings, named as in `app.config` in capitals, and no others."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("LIKENESS_")}
    return plain | {f"LIKENESS_{name}": str(value) for name, value in settings.items()}


@contextmanager
def spawned(
    environ: dict[str, str], log: Path, *, stop_s: float, code: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `likeness serve` while the block lasts; its output is added to ``log``.

    It runs the `app` of the folder ``code``, by default this process's own.

    At the end it gets SIGTERM, and SIGKILL if it takes longer than ``stop_s`` seconds.
    """
    if code is not None:
        environ = environ | {"PYTHONSAFEPATH": "1", "PYTHONPATH": f"{code}{os.pathsep}{code / 'clients' / 'python'}"}
    with log.open("ab") as output:
        process = subprocess.Popen([sys.executable, "-m", "app", "serve"], env=environ, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(stop_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def becomes_ready(
    process: subprocess.Popen[bytes], url: str, *, patience_s: float, tls: ssl.SSLContext | None = None
) -> bool:
    """Wait until the server at ``url`` is ready; return False if it ends or ``patience_s`` seconds have passed."""
    end = time.monotonic() + patience_s
    # One client, because each reads all of certifi's certificates.
    with httpx.Client(verify=tls or True, trust_env=False) as client:
        while time.monotonic() < end and process.poll() is None:
            try:
                if client.get(f"{url}/readyz").is_success:
                    return True
            except httpx.TransportError:
                pass
            time.sleep(POLL_S)
    return False
