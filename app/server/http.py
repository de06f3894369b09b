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
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import httptools
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.access.keys import address_group
from app.api.middleware import ANSWER_POLICY, CSP, HEADERS, ID_HEADER
from app.api.wire import answer_problem
from app.concurrency.overload import Why
from app.errors import InvalidInput, LikenessError, Unusable
from app.logs import LOGGER

RESERVED = 256
"""File descriptors for everything but connections: database, models, uploads, logs."""
MAX_CONNECTIONS = 4096
"""Maximum connections: each takes some 20 kB, and up to 64 KiB more while a body arrives faster than it is read."""
ADDRESS_SHARE = 0.25
"""Share of all connections, and of all heads' bytes, that one address may take. A trusted proxy may take all."""
HEAD_BYTES = 32 * 1024**2
"""Maximum bytes of the heads of all requests together: 800 of the largest size, or 30,000 of the usual one."""


class Closable(Protocol):
    """A connection."""

    def close_idle(self) -> None:
        """Close it between two requests, or within a request's head."""


@dataclass(slots=True)
class _Crowd:
    """The connections of one address, or of all trusted proxies; ``share`` is the share of all that it may take."""

    address: str
    share: float
    count: int = 0
    idle: dict[Closable, None] = field(default_factory=dict)
    """The idle connections, in the order in which they became idle."""
    heads: dict[Closable, int] = field(default_factory=dict)
    """Bytes of the head that each connection has begun to send, in the order in which the heads began."""
    head_bytes: int = 0


class Connections:
    """The open connections of one event loop. One that has no request in progress is idle.

    ``descriptors`` is how many files the process may open, ``proxies`` the networks of trusted proxies, ``head_bytes``
    what the heads of all requests may take.
    """

    def __init__(self, descriptors: int, proxies: Sequence[str] = (), head_bytes: int = HEAD_BYTES) -> None:
        self._most = min(MAX_CONNECTIONS, max(1, descriptors - RESERVED))
        self._most_head_bytes = head_bytes
        self._proxies = [ipaddress.ip_network(proxy) for proxy in proxies]
        self._open: dict[Closable, _Crowd] = {}
        self._crowds: dict[str, _Crowd] = {}
        self.head_bytes = 0
        """Bytes that all heads take now."""

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Closable, host: str) -> bool:
        """Count a new connection, which is idle at first; return False if there are too many and none of them is idle.

        To make room, an idle one is closed: of this address if its share is used up, else of the address with the most.
        """
        address = "" if self._is_proxy(host) else address_group(host)
        crowd = self._crowds.get(address) or _Crowd(address, ADDRESS_SHARE if address else 1)
        if crowd.count >= max(1, int(self._most * crowd.share)):
            added = self._close(crowd.idle)
        elif len(self._open) >= self._most:
            crowds = sorted(self._crowds.values(), key=lambda other: other.count, reverse=True)
            added = any(self._close(other.idle) for other in crowds)
        else:
            added = True
        if added:
            self._crowds[address] = self._open[connection] = crowd
            crowd.count += 1
            crowd.idle[connection] = None
        return added

    def remove(self, connection: Closable) -> None:
        """Forget a connection that was closed, if it was counted."""
        crowd = self._open.pop(connection, None)
        if crowd is None:
            return
        crowd.idle.pop(connection, None)
        self._set_head(crowd, connection, 0)
        crowd.count -= 1
        if not crowd.count:
            del self._crowds[crowd.address]

    def begin(self, connection: Closable) -> None:
        """Note that a request on it begins."""
        if connection in self._open:
            self._open[connection].idle.pop(connection, None)

    def end(self, connection: Closable) -> None:
        """Note that it has no request any more."""
        if connection in self._open:
            self._open[connection].idle[connection] = None

    def reserve(self, connection: Closable, size: int) -> bool:
        """Note that the heads of its requests take ``size`` bytes; return False if there is no room for them.

        To make room, connections that wait for the rest of a head are closed, as in `add`.
        """
        crowd = self._open.get(connection)
        if crowd is None:  # it is being closed
            return True
        self._set_head(crowd, connection, size)
        while size and crowd.head_bytes > self._most_head_bytes * crowd.share:
            if not self._close(self._waiting(crowd, connection)):
                return False
        while size and self.head_bytes > self._most_head_bytes:
            crowds = sorted(self._crowds.values(), key=lambda other: other.head_bytes, reverse=True)
            if not any(self._close(self._waiting(other, connection)) for other in crowds):
                return False
        return True

    def _set_head(self, crowd: _Crowd, connection: Closable, size: int) -> None:
        added = size - crowd.heads.get(connection, 0)
        crowd.head_bytes += added
        self.head_bytes += added
        if size:
            crowd.heads[connection] = size
        else:
            crowd.heads.pop(connection, None)

    def _waiting(self, crowd: _Crowd, but: Closable) -> Iterator[Closable]:
        return (connection for connection in crowd.heads if connection in crowd.idle and connection is not but)

    def _close(self, connections: Iterable[Closable]) -> bool:
        """Close the first of the connections; return False if there are none."""
        first = next(iter(connections), None)
        if first is None:
            return False
        self.remove(first)
        first.close_idle()
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
MAX_URL_BYTES = 8 * 1024
"""Maximum bytes of a URL: an id of 255 Korean syllables takes 6,885 as macOS spells it."""
MAX_HEADERS = 100
"""Maximum headers of a request: AWS's clients send about 15, browsers 20."""
HEADER_OBJECTS = 256
"""Bytes that a header takes beside its text: a tuple and two byte strings (162), and the parser's own copy."""
URL_COPIES = 2
"""Number of copies kept beside the URL itself: path and query, and the path decoded."""
REQUEST_OBJECTS = 4096
"""Bytes that a request takes beside its head: scope, event, task (3.4 kB as tracemalloc counts)."""
MAX_CHUNKS, CHUNK_BYTES = 4096, 16
"""A body may have this many chunks of any length, and one more for every CHUNK_BYTES. Clients send each line of an
import as a chunk."""
NOT_HTTP = "The request is not HTTP."
LINGER_S = 0.5
"""Seconds between the answer to invalid HTTP and closing the connection."""
MAX_PIPELINED = 100
"""Requests that a client may send before it gets answers."""
FRAMING = frozenset({b"content-length", b"transfer-encoding"})
"""Headers that say where a body ends."""
_NO_SCOPE: Any = {}
_log = logging.getLogger(LOGGER)


@dataclass(frozen=True, slots=True)
class Waits:
    """How long the server waits for a client, in seconds."""

    head_s: float
    """The time for the whole head of a request."""
    idle_s: float
    """The time between two requests."""
    answer_s: float
    """The time for a client to go on reading its answer."""
    drain_s: float
    """The time for all requests in progress when the server stops."""


class _Parser(httptools.HttpRequestParser):
    """httptools' parser, which goes on with HTTP/1.1 where a request offers another protocol (RFC 9110, 7.8).

    It takes the body of such a request for the other protocol's, and drops it. Java's HttpClient offers `h2c` with
    every request over plain HTTP.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._connection = connection
        # Answers the first of pipelined requests, as uvicorn's own parser does.
        self.set_dangerous_leniencies(lenient_data_after_close=True)

    def feed_data(self, data: Any) -> None:
        """Parse what has come. Raises httptools.HttpParserError."""
        while data:
            try:
                super().feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                data = self._connection.decline() + data[offer.args[0] :]
            else:
                return


class _Answers(asyncio.Transport):
    """Sends answers over a connection, each head together with the first of its body: AWS's second SDK for Go ends the
    connection at the head if it is still sending."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._held = b""

    def write(self, data: bytes) -> None:  # type: ignore[override]  # uvicorn writes nothing else
        """Send data; a head is sent with what follows it in the same turn of the loop."""
        if data.startswith(b"HTTP/") and not self._held:
            self._held = data
            self._connection.loop.call_soon(self._flush)
        elif self._held and data:
            pieces, self._held = (self._held, data), b""
            self._connection.transport.writelines(pieces)
        else:
            self._flush()
            self._connection.transport.write(data)

    def _flush(self) -> None:
        if self._held and not self.is_closing():
            self._connection.transport.write(self._held)
        self._held = b""

    def is_closing(self) -> bool:
        return self._connection.transport.is_closing()

    def close(self) -> None:
        self._flush()
        if self._connection.cycle.more_body:
            self._connection.linger(self._connection.waits.head_s)
        else:
            self._connection.transport.close()


class Connection(HttpToolsProtocol):
    """uvicorn's connection with limits, and without upgrades.

    uvicorn waits for ever for a request's head, for the rest of a body that is already answered, and for a client that
    doesn't read, and accepts heads of any length. Bodies are limited where they are read.
    """

    waits: Waits
    crowd: Connections

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser = _Parser(self)
        self._answers = _Answers(self)
        self._declining = False  # while the head of `decline` is parsed
        self._head: asyncio.TimerHandle | None = None
        self._answer: asyncio.TimerHandle | None = None
        self._refused = False
        self._problem: LikenessError | None = None  # of the head that is being parsed
        self._in_head = False
        self._head_bytes = 0
        self._body_bytes = self._chunks = 0
        self._unheard = 0  # bytes since the parser last completed something: it keeps what is incomplete
        self._heads: deque[int] = deque()  # what the heads of the requests without an answer take, in order

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self.client, self.server = _plain(self.client), _plain(self.server)
        if self.crowd.add(self, self.client[0] if self.client else ""):
            self._watch_head()
        else:
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
        if not self._refused:
            if self._unheard > MAX_HEAD_BYTES:
                self._problem = _too_large() if self._in_head else _not_http()
            elif not self._reserve():
                self._problem = Why.CONNECTIONS.error()
            if self._problem is not None:
                self.send_400_response(NOT_HTTP)
        self._watch_head()

    def decline(self) -> bytes:
        """Return a head without an offer of another protocol, after which the parser reads the same request's body."""
        self._declining = True
        framing = b"".join(b"%s: %s\r\n" % header for header in self.headers if header[0] in FRAMING)
        return b"POST / HTTP/1.1\r\n" + (framing or b"content-length: 0\r\n") + b"\r\n"

    # Called by the parser; if one of these raises, `send_400_response` answers the request with `_problem`.

    def on_message_begin(self) -> None:
        if self._declining:
            return
        self._in_head, self._head_bytes, self._body_bytes, self._chunks = True, 0, 0, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._declining:
            return
        if self._head_bytes + len(url) > MAX_URL_BYTES:
            raise self._refusal(InvalidInput(f"The URL is longer than {MAX_URL_BYTES} bytes.", code="uri_too_long"))
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers after a body are ignored: proxies don't check them
            self._count(len(name) + len(value) + len(": \r\n"))
            if len(self.headers) == MAX_HEADERS:
                raise self._refusal(_too_large())
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._declining:
            self._declining = False
            return
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() == "1.1"):
            raise ValueError("a request needs exactly one Host (RFC 9112, 3.2)")
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many pipelined requests")
        self._heads.append(self._head_size())
        self._in_head, self._unheard = False, 0
        self.crowd.begin(self)
        if not self._reserve():
            raise self._refusal(Why.CONNECTIONS.error())
        super().on_headers_complete()
        self.cycle.transport = self._answers

    def on_chunk_header(self) -> None:
        self._chunks += 1
        if self._chunks > MAX_CHUNKS + self._body_bytes // CHUNK_BYTES:
            raise ValueError("the chunks are too short")

    def on_body(self, body: bytes) -> None:
        self._unheard = 0
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():  # else its body follows
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._forget_head()
        if self.transport.is_closing():
            self._watch_answer()
        elif not self._between_requests:  # the next one was there already
            self._stop_head()
        elif self._problem is not None:
            self._refuse(self._problem)
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
        self._problem = self._problem or _not_http(msg)
        if self._between_requests:
            self._refuse(self._problem)
        elif self.cycle.more_body:  # its body is being read
            if self.pipeline or self.cycle.response_started:
                self.transport.abort()
            else:
                self._refuse(self._problem)
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
        self.linger(LINGER_S)

    def linger(self, seconds: float) -> None:
        """Send no more, and drop what still comes, until the client closes or this many seconds have passed: closing at
        once could make it lose the answer (RFC 9112, 9.6)."""
        self._refused = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(seconds, self.transport.close)

    @property
    def _between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _refusal(self, problem: LikenessError) -> LikenessError:
        self._problem = problem
        return problem

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            raise self._refusal(_too_large())

    def _head_size(self) -> int:
        """Return the bytes of memory that the head being parsed takes at most, with its objects."""
        text = max(self._head_bytes, self._unheard) + URL_COPIES * len(self.url)
        return REQUEST_OBJECTS + text + HEADER_OBJECTS * len(self.headers)

    def _reserve(self) -> bool:
        return self.crowd.reserve(self, sum(self._heads) + (self._head_size() if self._in_head else 0))

    def _forget_head(self) -> None:
        """Free the head of the request that was answered: uvicorn keeps it until the next one."""
        if self._heads:
            self._heads.popleft()
        if self._between_requests:
            self.cycle.scope = _NO_SCOPE
            if not self._in_head:
                self.scope, self.headers, self.url = _NO_SCOPE, [], b""
        self._reserve()

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


def _plain(peer: tuple[str, Any] | None) -> tuple[str, Any] | None:
    """Return an IPv4 address as such, which a socket for IPv4 and IPv6 calls `::ffff:192.0.2.1`."""
    return (peer[0].removeprefix("::ffff:"), peer[1]) if peer and "." in peer[0] else peer


def _no_password() -> str:
    raise ValueError("the key has a password; store it without one")


def _not_http(message: str = NOT_HTTP) -> InvalidInput:
    return InvalidInput(message, code="invalid_http")


def _too_large() -> InvalidInput:
    message = f"The request's head is longer than {MAX_HEAD_BYTES} bytes, or has more than {MAX_HEADERS} headers."
    return InvalidInput(message, code="head_too_large")


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
