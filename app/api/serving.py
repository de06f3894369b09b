"""The HTTP server around the application: how long it waits for clients, TLS, and how it stops."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from app.api.door import ID_HEADER
from app.api.headers import ANSWER_POLICY, CSP, HEADERS
from app.api.logs import LOGGER
from app.api.problems import answer_problem
from app.errors import InvalidInput, Unusable

FLUSH_S = 5.0
"""What closing takes at most once the requests are done; then the process ends all the same."""
_log = logging.getLogger(LOGGER)


@dataclass(frozen=True, slots=True)
class Waits:
    """How long a client is waited for, in seconds."""

    head_s: float
    """For the whole head of a request."""
    idle_s: float
    """Between two requests."""
    answer_s: float
    """For room to write into, when it does not take its answer."""
    drain_s: float
    """For all of them, once the server is to stop."""


class Connection(H11Protocol):
    """uvicorn's connection, which waits forever for a request's head, for the rest of a body that is already answered,
    and for a client that does not read; this one does not. (Bodies are timed where they are read.)"""

    waits: Waits

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head: asyncio.TimerHandle | None = None
        self._answer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head()
        self._stop_answer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_answer()
        elif not self._between_requests:  # the next one was there already
            self._stop_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_answer()

    def resume_writing(self) -> None:
        self._stop_answer()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_answer()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP never gets to the application; it is answered in the one shape all the same."""
        request_id = secrets.token_hex(16)
        problem = answer_problem(InvalidInput(msg, code="invalid_http"), request_id)
        body = problem.body.model_dump_json().encode()
        headers = HEADERS | {CSP: ANSWER_POLICY, ID_HEADER: request_id, "content-type": "application/json"}
        headers |= {"content-length": str(len(body)), "connection": "close"}
        events: tuple[h11.Event, ...] = (
            h11.Response(
                status_code=problem.status, headers=[(name.encode(), value.encode()) for name, value in headers.items()]
            ),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()

    @property
    def _between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _watch_head(self) -> None:
        """The clock starts with the connection or the first byte after an answer; no further byte sets it back."""
        if not self._between_requests:
            self._stop_head()
        elif self._head is None:
            self._head = self.loop.call_later(self.waits.head_s, self.transport.abort)

    def _watch_answer(self) -> None:
        if self._answer is None:
            self._answer = self.loop.call_later(self.waits.answer_s, self.transport.abort)

    def _stop_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _stop_answer(self) -> None:
        if self._answer is not None:
            self._answer.cancel()
            self._answer = None


def server_config(
    app: FastAPI, waits: Waits, *, trusted_proxies: Sequence[str] = (), tls: ssl.SSLContext | None = None
) -> uvicorn.Config:
    """Heads of up to 16 KiB (h11's own limit), no WebSockets, and clients' addresses from ``trusted_proxies`` only."""

    class Limited(Connection):
        pass

    Limited.waits = waits
    factory: Callable[..., ssl.SSLContext] | None = None if tls is None else lambda *_: tls
    return uvicorn.Config(
        app,
        http=Limited,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=list(trusted_proxies),
        timeout_keep_alive=waits.idle_s,  # type: ignore[arg-type]  # whole seconds by its type, handed to call_later
        timeout_graceful_shutdown=waits.drain_s,  # type: ignore[arg-type]  # the same, to wait_for
        ssl_context_factory=factory,
    )


def tls_context(cert: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 and newer with this certificate. Raises Unusable (``tls_unusable``)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise Unusable(f"{cert} and {key} cannot serve TLS: {reason}", code="tls_unusable") from None
    return context


def _no_password() -> str:
    raise ValueError("the key has a password, and nobody is there to be asked for it")


class Server(uvicorn.Server):
    """Says that it is draining as soon as it is told to stop, and ends the process when that takes too long."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, drain_s: float, flush_s: float = FLUSH_S) -> None:
        super().__init__(config)
        self._app = app
        self._last_s = drain_s + flush_s

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            watchdog = threading.Timer(self._last_s, _end)
            watchdog.daemon = True
            watchdog.start()
        service = getattr(self._app.state, "service", None)
        if service is not None:
            service.status = "draining"
        super().handle_exit(sig, frame)


def _end() -> None:
    """Nothing acknowledged is lost by it: that is in the database already."""
    _log.error("what was begun did not end in time, and is given up")
    logging.shutdown()
    os._exit(0)


def ignore_signals() -> None:
    """uvicorn handles them while it serves; what it hands on afterwards must not end the process before it is done."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
