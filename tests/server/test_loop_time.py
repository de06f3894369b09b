"""What the event loop does for one request before it is admitted: little, and never more than in proportion to it.

Each part of a request is sent at its largest allowed size and at half of it; the loop's own processor time is compared.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property

import pytest
import uvicorn

from app.api.middleware import MAX_QUERY
from app.server.data_folder import load_key
from app.server.http import MAX_CHUNKS, MAX_HEAD_BYTES, MAX_HEADERS, MAX_URL_BYTES, Waits, server_config
from tests.support.connections import PATIENCE_S
from tests.support.service import made

ROUNDS, REQUESTS = 7, 4
TRIES = 4
"""A busy machine may be slow once; what takes too long by itself takes too long each time."""
GROWTH = 3.0
"""Twice the size takes twice the time; what grows with the square takes four times as long."""
LARGEST = 20.0
"""How much longer the largest request may take the loop than the smallest does."""
OWN = 700
"""Bytes left for the other headers."""


@dataclass(frozen=True)
class Loop:
    """A server in a thread of this process."""

    address: tuple[str, int]
    key: str
    clock: int

    @cached_property
    def smallest(self) -> float:
        return self.seconds(request("GET /v1/galleries", "x-api-key: wrong"))

    def seconds(self, request: bytes) -> float:
        """Return the processor time that the request takes the loop: the least of several rounds."""
        return min(self._round(request) for _ in range(ROUNDS)) / REQUESTS

    def _round(self, request: bytes) -> float:
        with ExitStack() as stack:
            began = time.clock_gettime(self.clock)
            for _ in range(REQUESTS):
                connection = stack.enter_context(socket.create_connection(self.address, timeout=PATIENCE_S))
                connection.sendall(request)
                with connection.makefile("rb") as file:
                    assert re.match(rb"HTTP/1.1 [1-4]\d\d ", file.read()), "answered, and not with an error of ours"
            return time.clock_gettime(self.clock) - began


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    data_dir = tmp_path_factory.mktemp("loop") / "data"
    app = made(
        data_dir, compreface="on", rekognition="on", failed_keys="1000/s", cors_origins=("https://photos.example.org",)
    )
    waits = Waits(head_s=60, idle_s=60, answer_s=60, drain_s=5)
    server = uvicorn.Server(server_config(app, waits, trusted_proxies=["127.0.0.0/8"], descriptors=2000))
    clocks: list[int] = []
    ready = threading.Event()

    async def serve(listener: socket.socket) -> None:
        clocks.append(time.pthread_getcpuclockid(threading.get_ident()))
        async with app.router.lifespan_context(app):
            ready.set()
            await server.serve(sockets=[listener])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(serve(listener)))
        thread.start()
        assert ready.wait(PATIENCE_S * 4)
        yield Loop(listener.getsockname()[:2], load_key(data_dir)[0], clocks[0])
        server.should_exit = True
        thread.join()


def request(line: str, *headers: str, body: bytes = b"") -> bytes:
    lines = (f"{line} HTTP/1.1", "host: x", "connection: close", *headers)
    return "\r\n".join((*lines, "", "")).encode() + body


def filled(text: str, size: int) -> str:
    return (text * (size // len(text) + 1))[:size]


Made = Callable[[float, str], bytes]
"""Makes a request whose part has ``share`` of its largest size, with a key."""
VALUE, URL = MAX_HEAD_BYTES - OWN, MAX_URL_BYTES - 100
AWS = "AWS4-HMAC-SHA256 Credential={}/20260101/eu-central-1/rekognition/aws4_request, SignedHeaders={}, Signature={}"
MARKS = "%CC%81%CC%96"


def header(name: str, text: str, line: str = "GET /v1/galleries") -> Made:
    return lambda share, _: request(line, f"{name}: {filled(text, int(VALUE * share))}")


def path(prefix: str, text: str, *, key: bool = False) -> Made:
    def make(share: float, value: str) -> bytes:
        whole = filled(text, int(URL * share) // len(text) * len(text))
        return request(f"GET {prefix}{whole}", *([f"x-api-key: {value}"] if key else ["x-api-key: wrong"]))

    return make


def query(text: str, most: int) -> Made:
    return lambda share, key: request(f"GET /v1/key?{text * int(most * share)}", f"x-api-key: {key}")


PARTS: dict[str, Made] = {
    "headers": lambda share, _: request("GET /livez", *["ab:"] * int((MAX_HEADERS - 3) * share)),
    "headers of one name to sign": lambda share, _: request("POST /", *["a:"] * int((MAX_HEADERS - 3) * share)),
    "amz headers": lambda share, _: request(
        "POST /",
        "authorization: " + AWS.format("x", "host", "0" * 64),
        "x-amz-date: 20260101T000000Z",
        *(f"x-amz-{number}: {'y' * 100}" for number in range(int((MAX_HEADERS - 5) * share))),
    ),
    "key": header("x-api-key", "k"),
    "bearer": header("authorization", "Bearer k "),
    "basic": lambda share, _: request("GET /docs", f"authorization: Basic {filled('eA==', int(VALUE * share))}"),
    "authorization's fields": header("authorization", "AWS4-HMAC-SHA256 a=b,", "POST /"),
    "signed headers": lambda share, _: request(
        "POST /",
        "x-amz-date: 20260101T000000Z",
        "authorization: " + AWS.format("x", filled("a;b;c;", int(VALUE * share)), "0" * 64),
    ),
    "credential": lambda share, _: request(
        "POST /", "authorization: " + AWS.format(filled("a/", int(VALUE * share)), "host", "0" * 64)
    ),
    "target": header("x-amz-target", "RekognitionService.", "POST /"),
    "query to sign": lambda share, _: request("POST /?" + "a&" * int((MAX_QUERY - 1) * share)),
    "host": lambda share, _: (
        f"GET /livez HTTP/1.1\r\nconnection: close\r\nhost: {filled(':1', int(VALUE * share))}\r\n\r\n".encode()
    ),
    "origin": header("origin", "https://a."),
    "preflight": lambda share, _: request(
        "OPTIONS /v1/galleries",
        "origin: https://photos.example.org",
        "access-control-request-method: GET",
        f"access-control-request-headers: {filled('a,', int(VALUE * share))}",
    ),
    "forwarded for": header("x-forwarded-for", "127.0.0.1, "),
    "forwarded proto": header("x-forwarded-proto", "https,"),
    "request id": header("x-request-id", "a"),
    "connection": header("connection", "close, "),
    "content type": header("content-type", "multipart/form-data; a=b;", "POST /v1/detect"),
    "cookies": header("cookie", "a=b; "),
    "accept": header("accept-encoding", "gzip;q=0.1, "),
    "path of marks": path("/v1/galleries/", MARKS),
    "path of marks, with a key": path("/v1/galleries/", MARKS, key=True),
    "path in CompreFace's interface": path("/api/v1/recognition/subjects/", MARKS),
    "path of Hangul": path("/v1/galleries/", "%E1%84%80%E1%85%A1%E1%86%A8", key=True),
    "path of segments": path("/v1", "/a"),
    "path of dots": path("/", "../"),
    "path of escapes": path("/static/", "%2e%2f"),
    "names in the query": query("ab&", MAX_QUERY - 1),
    "different names": lambda share, key: request(
        "GET /v1/key?" + "&".join(map(str, range(int((MAX_QUERY - 1) * share)))), f"x-api-key: {key}"
    ),
    "long query": query("%CC%81", URL // 6),
    "chunks": lambda share, key: request(
        "POST /v1/detect",
        f"x-api-key: {key}",
        "transfer-encoding: chunked",
        body=b"1\r\nx\r\n" * int((MAX_CHUNKS - 1) * share) + b"0\r\n\r\n",
    ),
}


FIRST = {"headers", "key", "target", "path of marks, with a key", "long query", "chunks"}
"""The parts of the first stage: one of each kind."""


@pytest.mark.parametrize(
    "part", [part if part in FIRST else pytest.param(part, marks=pytest.mark.long) for part in PARTS]
)
def test_no_part_of_a_request_takes_the_loop_more_than_in_proportion(loop: Loop, part: str) -> None:
    smallest = loop.smallest
    tries: list[str] = []
    while len(tries) < TRIES:
        half, whole = (loop.seconds(PARTS[part](share, loop.key)) for share in (0.5, 1.0))
        if whole - smallest < GROWTH * max(half - smallest, smallest) and whole < LARGEST * smallest:
            return
        tries.append(f"{half * 1e3:.2f} ms, {whole * 1e3:.2f} ms for twice the size")
    pytest.fail(f"{'; '.join(tries)}; {smallest * 1e3:.2f} ms for the smallest")
