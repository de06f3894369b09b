"""The HTTP server around the application: how long it waits for clients, TLS, and how it stops."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import secrets
import signal
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.access.grants import address_group
from app.api.middleware import ANSWER_POLICY, CSP, HEADERS, ID_HEADER
from app.api.wire import answer_problem
from app.concurrency.admission import Why
from app.errors import InvalidInput, LikenessError, Unusable
from app.logs import LOGGER

RESERVED = 256
"""File descriptors for everything but connections: database, models, uploads, logs."""
MOST = 4096
"""Connections at most: each takes some 20 kB, and up to 64 KiB more while a body arrives faster than it is read."""
ADDRESS_SHARE = 0.25
"""Of all connections, for one address. A proxy that is trusted may have all of them."""


class Closable(Protocol):
    """A connection."""

    def close_idle(self) -> None:
        """Close it between two requests, or within a request's head."""


class Connections:
    """The open connections of one event loop. One that has no request in progress is idle.

    ``descriptors`` is how many files the process may open, ``proxies`` the networks of trusted proxies.
    """

    def __init__(self, descriptors: int, proxies: Sequence[str] = ()) -> None:
        self._most = min(MOST, max(1, descriptors - RESERVED))
        self._share = max(1, int(self._most * ADDRESS_SHARE))
        self._proxies = [ipaddress.ip_network(proxy) for proxy in proxies]
        self._open: dict[Closable, str] = {}
        self._by_address: Counter[str] = Counter()
        self._idle: dict[Closable, None] = {}
        """In the order in which they became idle."""

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Closable, host: str) -> bool:
        """Count a new connection, idle as yet; return False if there are too many and none of them is idle.

        An idle one is closed for it: of this address if that has its share, else of the address that has the most.
        """
        address = "" if self._is_proxy(host) else address_group(host)
        if address and self._by_address[address] >= self._share:
            added = self._close_one(address)
        elif len(self._open) >= self._most:
            added = any(self._close_one(crowd) for crowd, _ in self._by_address.most_common())
        else:
            added = True
        if added:
            self._open[connection] = address
            self._by_address[address] += 1
            self._idle[connection] = None
        return added

    def remove(self, connection: Closable) -> None:
        """Forget a connection that was closed, if it was counted."""
        address = self._open.pop(connection, None)
        if address is None:
            return
        self._idle.pop(connection, None)
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def begin(self, connection: Closable) -> None:
        """Note that a request on it begins."""
        self._idle.pop(connection, None)

    def end(self, connection: Closable) -> None:
        """Note that it has no request any more."""
        if connection in self._open:
            self._idle[connection] = None

    def _close_one(self, address: str) -> bool:
        longest = next((connection for connection in self._idle if self._open[connection] == address), None)
        if longest is None:
            return False
        self.remove(longest)
        longest.close_idle()
        return True

    def _is_proxy(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:  # a socket of this machine
            return True
        return any(address in network for network in self._proxies)


FLUSH_S = 5.0
"""Seconds that closing may take once the requests are done; then the process ends."""
MAX_HEAD_BYTES = 16 * 1024
NOT_HTTP = "The request is not HTTP, or its head is too long."
LINGER_S = 0.5
"""Seconds between the answer to invalid HTTP and closing the connection."""
MAX_PIPELINED = 100
"""Requests that a client may send before it gets answers."""
_log = logging.getLogger(LOGGER)


@dataclass(frozen=True, slots=True)
class Waits:
    """How long the server waits for a client, in seconds."""

    head_s: float
    """For the whole head of a request."""
    idle_s: float
    """Between two requests."""
    answer_s: float
    """For a client that does not read its answer."""
    drain_s: float
    """For all requests in progress when the server stops."""


class Connection(HttpToolsProtocol):
    """uvicorn's connection with limits.

    uvicorn waits for ever for a request's head, for the rest of a body that is already answered, and for a client that
    doesn't read, and accepts heads of any length. Bodies are limited where they are read.
    """

    waits: Waits
    crowd: Connections

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head: asyncio.TimerHandle | None = None
        self._answer: asyncio.TimerHandle | None = None
        self._refused = False
        self._in_head = False
        self._head_bytes = 0
        self._unheard = 0  # bytes since the parser last completed something: it keeps what is incomplete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        if self.crowd.add(self, self.client[0] if self.client else ""):
            self._watch_head()
        else:
            self._refused = True
            self._refuse(Why.CONNECTIONS.error())

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head()
        self._stop_answer()
        self.crowd.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._unheard += len(data)
        super().data_received(data)
        if self._unheard > MAX_HEAD_BYTES and not self._refused:
            self.send_400_response(NOT_HTTP)
        self._watch_head()

    # Called by the parser; if one of these raises, `send_400_response` answers the request.

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers after a body are ignored: proxies don't check them
            self._count(name + value)
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() == "1.1"):
            raise ValueError("a request needs exactly one Host (RFC 9112, 3.2)")
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many pipelined requests")
        self._in_head, self._unheard = False, 0
        self.crowd.begin(self)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unheard = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_answer()
        elif not self._between_requests:  # the next one was there already
            self._stop_head()
        elif self._refused:
            self._refuse(_not_http())
        else:
            self.crowd.end(self)

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
        """Answer invalid HTTP, which never reaches the application, in the common shape and in order."""
        self._refused = True
        if self._between_requests:
            self._refuse(_not_http(msg))
        elif self.cycle.more_body:  # of the body that is being read
            if self.pipeline or self.cycle.response_started:
                self.transport.abort()
            else:
                self._refuse(_not_http(msg))
                self.cycle.disconnected = True
                self.cycle.message_event.set()

    def close_idle(self) -> None:
        """Close the connection, which has no request in progress."""
        self.transport.close()

    def _refuse(self, error: LikenessError) -> None:
        request_id = secrets.token_hex(16)
        problem = answer_problem(error, request_id)
        body = problem.body.model_dump_json().encode()
        headers = HEADERS | problem.headers | {CSP: ANSWER_POLICY, ID_HEADER: request_id, "connection": "close"}
        headers |= {"content-type": "application/json", "content-length": str(len(body))}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(STATUS_LINE[problem.status] + lines.encode() + b"\r\n" + body)
        # Read what is still on its way: closing at once could make the client lose the answer (RFC 9112, 9.6).
        self.loop.call_later(LINGER_S, self.transport.close)

    @property
    def _between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _count(self, part: bytes) -> None:
        self._head_bytes += len(part)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("the head is too long")

    def _watch_head(self) -> None:
        """Start the timer with the connection or the first byte after an answer; further bytes don't restart it."""
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
    app: FastAPI,
    waits: Waits,
    *,
    trusted_proxies: Sequence[str] = (),
    tls: ssl.SSLContext | None = None,
    descriptors: int = 1024,
) -> uvicorn.Config:
    """Configure uvicorn: heads up to 16 KiB, no WebSockets, client addresses from ``trusted_proxies`` only, and
    at most as many connections as ``descriptors`` allow."""

    class Limited(Connection):
        pass

    Limited.waits = waits
    Limited.crowd = Connections(descriptors, trusted_proxies)
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
    """Return a context for TLS 1.2 and newer with this certificate. Raises Unusable (``tls_unusable``)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise Unusable(f"{cert} and {key} cannot serve TLS: {reason}", code="tls_unusable") from None
    return context


def _no_password() -> str:
    raise ValueError("the key has a password; store it without one")


def _not_http(message: str = NOT_HTTP) -> InvalidInput:
    return InvalidInput(message, code="invalid_http")


class Server(uvicorn.Server):
    """Reports `draining` as soon as it must stop, and ends the process if stopping takes too long."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, drain_s: float, flush_s: float = FLUSH_S) -> None:
        super().__init__(config)
        self._app = app
        self._last_s = drain_s + flush_s

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            watchdog = threading.Timer(self._last_s, _end)
            watchdog.daemon = True
            watchdog.start()
        self._app.state.status = "draining"
        super().handle_exit(sig, frame)


def _end() -> None:
    """End the process. Nothing acknowledged is lost: it is in the database."""
    _log.error("Requests in progress did not end in time; the process ends")
    logging.shutdown()
    os._exit(0)


def ignore_signals() -> None:
    """Ignore signals outside uvicorn, which handles them while it serves: a later one must not interrupt closing."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
