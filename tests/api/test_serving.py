"""The server as the network sees it: slow clients, too many bytes, other sites' pages, TLS, proxies, start and end."""

from __future__ import annotations

import asyncio
import errno
import json
import re
import socket
import sqlite3
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Request

from app.access.keys import NO_ADDRESS
from app.api.middleware import HEADERS
from app.api.wire import callers_of
from app.config import Settings, load_settings
from app.errors import Unusable
from app.serve import serve
from app.server.http import Waits, server_config
from app.server.run import listen
from tests.support.commands import run
from tests.support.connections import PATIENCE_S, bodies_held, opened
from tests.support.live import START_S, LiveServer, make_certificate, serving
from tests.support.logged import own_logging
from tests.support.ready import give_models
from tests.support.service import COLLINS, error_of, running, running_here
from tests.support.waiting import until

ORIGIN = "https://photos.example.org"
SETTINGS: dict[str, object] = {
    "HEADER_TIMEOUT": 1,
    "KEEP_ALIVE": 1,
    "DRAIN_SECONDS": 1,
    "REQUEST_TIMEOUT": 5,
    "MAX_REQUEST_BYTES": 200_000,
    "CORS_ORIGINS": f"{ORIGIN}, http://localhost:3000",
}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that waits for nobody for long."""
    with serving(tmp_path_factory.mktemp("strict") / "data", SETTINGS) as server:
        yield server


def head(server: LiveServer, length: int) -> bytes:
    lines = ("POST /v1/detect HTTP/1.1", "host: x", f"x-api-key: {server.key}", "content-type: image/jpeg")
    return "\r\n".join((*lines, f"content-length: {length}", "", "")).encode()


def trickled(connection: socket.socket, data: bytes, pause_s: float = 0.2) -> bytes:
    """Sends byte by byte until the server has something to say or closes; what it said."""
    connection.settimeout(pause_s)
    for number in range(len(data)):
        try:
            connection.sendall(data[number : number + 1])
            return _all_of(connection, connection.recv(65536))
        except TimeoutError:
            continue
        except OSError:  # it closed, and bytes were on their way
            return b""
    raise AssertionError("the server took it all")


def _all_of(connection: socket.socket, answer: bytes) -> bytes:
    """An answer whose beginning has come: head and body may come in pieces."""
    connection.settimeout(PATIENCE_S)
    while answer:
        head, _, body = answer.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if body and length is not None and len(body) >= int(length[1]):
            break
        more = connection.recv(65536)
        if not more:
            break
        answer += more
    return answer


def test_a_head_that_comes_byte_by_byte_is_not_waited_for(strict: LiveServer) -> None:
    with opened(strict) as connection:
        assert trickled(connection, b"GET /livez HTTP/1.1\r\nhost: x\r\nx-filler: " + b"x" * 200) == b""


def test_a_connection_that_says_nothing_is_closed(strict: LiveServer) -> None:
    with opened(strict) as connection:
        assert connection.recv(1) == b""


def test_a_body_that_comes_byte_by_byte_is_not_waited_for(strict: LiveServer) -> None:
    with opened(strict) as connection:
        connection.sendall(head(strict, 1000))
        answer = trickled(connection, COLLINS[:1000])
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"body_timeout" in answer
        assert trickled(connection, b"x" * 900) == b"", "nor is the rest of it, now that it is answered"


@pytest.mark.parametrize(("version", "close"), [("1.1", ""), ("1.1", "connection: close\r\n"), ("1.0", "")])
def test_a_client_that_sends_all_before_it_reads_gets_an_early_answer(
    strict: LiveServer, version: str, close: str
) -> None:
    with opened(strict) as connection:
        connection.sendall(head(strict, 300_000).replace(b"HTTP/1.1\r\n", f"HTTP/{version}\r\n{close}".encode()))
        assert connection.recv(1, socket.MSG_PEEK), "the answer is there"
        connection.sendall(b"x" * 300_000)
        with connection.makefile("rb") as file:
            answer = file.read()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.endswith(b"}")


def test_a_body_behind_an_early_answer_is_not_waited_for(strict: LiveServer) -> None:
    begin = time.monotonic()
    with opened(strict) as connection:
        connection.sendall(head(strict, 10**9).replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
        with suppress(ConnectionError):
            while time.monotonic() < begin + PATIENCE_S:
                connection.sendall(b"x")
                time.sleep(0.05)
    assert time.monotonic() < begin + PATIENCE_S, "the server took it all"


def test_an_answers_head_and_body_arrive_together(strict: LiveServer) -> None:
    """AWS's second SDK for Go loses an early answer whose body comes later."""
    with opened(strict) as connection:
        for _ in range(50):
            connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
            assert connection.recv(65536).endswith(b'{"status":"ok"}')


def test_an_idle_connection_is_closed(strict: LiveServer) -> None:
    with opened(strict) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        with connection.makefile("rb") as file:
            assert file.read().startswith(b"HTTP/1.1 200 "), "it ends there"


def test_an_answer_that_nobody_reads_is_given_up() -> None:
    """The connection itself: a client that sends and never reads, an answer larger than what the kernel takes."""
    app = FastAPI()

    @app.get("/")
    async def much() -> Any:
        return "x" * 30_000_000

    async def check() -> None:
        config = server_config(app, Waits(head_s=30, idle_s=30, answer_s=0.5, drain_s=1))
        config.load()
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            running = asyncio.create_task(server.serve(sockets=[listener]))
            reader, writer = await asyncio.open_connection(*listener.getsockname(), limit=1024)
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            async with asyncio.timeout(PATIENCE_S):
                while not server.server_state.connections:
                    await asyncio.sleep(0.01)
                while server.server_state.connections:
                    await asyncio.sleep(0.05)
            writer.close()
            del reader  # never read from
            server.should_exit = True
            await running

    asyncio.run(check())


GET, POST = b"GET /livez HTTP/1.1\r\nhost: x\r\n", b"POST /v1/detect HTTP/1.1\r\nhost: x\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n\r\n",
        GET + b"host: y\r\n\r\n",
        POST + b"content-length: 1\r\ncontent-length: 2\r\n\r\nxy",
        CHUNKED + b"content-length: 1\r\n\r\n0\r\n\r\n",
        CHUNKED + b"\r\nzz\r\n",
    ],
    ids=range(6),
)
def test_what_is_no_http_is_answered_as_every_error_is(strict: LiveServer, sent: bytes) -> None:
    _assert_refused(strict, sent, 400, "invalid_http")


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (GET + b"x: " + b"y" * 70_000, 431, "head_too_large"),
        (GET + b"x: " + b"y" * 17_000 + b"\r\n\r\n", 431, "head_too_large"),
        (GET + b"a:\r\n" * 4_100, 431, "head_too_large"),
        (GET + b"a:\r\n" * 100 + b"\r\n", 431, "head_too_large"),
        (b"GET /" + b"y" * 17_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", 414, "uri_too_long"),
        (b"GET /livez?" + b"y" * 8_190 + b" HTTP/1.1\r\nhost: x\r\n\r\n", 414, "uri_too_long"),
        (b"GET /livez?" + b"y&" * 100 + b" HTTP/1.1\r\nhost: x\r\n\r\n", 422, "invalid_request"),
    ],
    ids=["unending", "long", "many unending", "many", "path", "query", "parameters"],
)
def test_heads_have_limits_and_each_its_status(strict: LiveServer, sent: bytes, status: int, code: str) -> None:
    _assert_refused(strict, sent, status, code)


def test_the_largest_head_that_is_allowed_is_read(strict: LiveServer) -> None:
    with opened(strict) as connection:
        connection.sendall(GET + b"ab:\r\n" * 99 + b"\r\n")
        assert b" 200 " in _all_of(connection, connection.recv(65536))
        connection.sendall(GET + b"ab: " + b"y" * 15_000 + b"\r\n\r\n")
        assert b" 200 " in _all_of(connection, connection.recv(65536))


def _assert_refused(strict: LiveServer, sent: bytes, status: int, code: str) -> None:
    with opened(strict) as connection:
        connection.sendall(sent)
        line, _, rest = _all_of(connection, connection.recv(65536)).partition(b"\r\n")
    head, _, body = rest.partition(b"\r\n\r\n")
    assert b" %d " % status in line
    answer = json.loads(body)
    assert answer["error"]["code"] == code
    names = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
    assert {name: names[name] for name in HEADERS} == HEADERS
    assert names["x-request-id"] == answer["request_id"]


@pytest.mark.parametrize("begin", [b"1;", b"0\r\nx: "], ids=["extension", "trailer"])
def test_a_body_is_not_wrapped_in_endless_words(strict: LiveServer, begin: bytes) -> None:
    with opened(strict) as connection:
        connection.sendall(CHUNKED + b"x-api-key: " + strict.key.encode() + b"\r\n\r\n" + begin)
        with suppress(OSError):  # it may have answered and closed by then
            for _ in range(4):
                time.sleep(0.05)
                connection.sendall(b"y" * 9_000)
        assert b"invalid_http" in _all_of(connection, connection.recv(65536))


@pytest.mark.parametrize(("chunk", "status"), [(b"y", 400), (b"collins,Eileen Collins\n", 415)], ids=["bytes", "lines"])
def test_a_body_is_not_sent_byte_by_byte_in_chunks(strict: LiveServer, chunk: bytes, status: int) -> None:
    head = CHUNKED.replace(b"detect", b"embed") + b"x-api-key: " + strict.key.encode() + b"\r\n\r\n"
    with opened(strict) as connection:
        connection.sendall(head + (b"%x\r\n%b\r\n" % (len(chunk), chunk)) * 5_000 + b"0\r\n\r\n")
        assert b" %d " % status in _all_of(connection, connection.recv(65536))


def test_what_comes_behind_a_body_is_no_header(strict: LiveServer) -> None:
    with opened(strict) as connection:
        connection.sendall(CHUNKED + b"\r\n0\r\nx-api-key: " + strict.key.encode() + b"\r\n\r\n")
        assert b"missing_key" in _all_of(connection, connection.recv(65536))


def test_what_is_no_http_is_answered_in_its_turn(strict: LiveServer) -> None:
    with opened(strict) as connection:
        connection.sendall(GET + b"\r\n" + b"nonsense\r\n\r\n")
        with connection.makefile("rb") as file:
            got = file.read()
    assert got.index(b"HTTP/1.1 200 ") < got.index(b"HTTP/1.1 400 ")


def test_several_requests_follow_each_other_on_one_connection(strict: LiveServer) -> None:
    with strict.client() as client:
        for _ in range(3):
            assert client.post("/v1/detect", files={"image": COLLINS}).status_code == 200
        with opened(strict) as connection:  # and all at once
            connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n" * 3)
            got = b""
            while got.count(b"HTTP/1.1 200 ") < 3:
                part = connection.recv(65536)
                assert part
                got += part


@pytest.mark.anyio
async def test_bodies_of_all_requests_together_are_bounded(tmp_path: Path) -> None:
    enough = anyio.Event()

    async def slow_body() -> AsyncIterator[bytes]:
        yield b"x" * 150_000
        await enough.wait()

    async with running_here(tmp_path) as (app, client), anyio.create_task_group() as group:
        client.headers["content-type"] = "image/jpeg"
        admission = app.state.components.admission
        admission.byte_limit = 240_000
        group.start_soon(partial(client.post, "/v1/detect", content=slow_body()))
        with anyio.fail_after(PATIENCE_S):
            while admission.bytes < 150_000:
                await anyio.sleep(0.01)
        refused = await client.post("/v1/detect", content=b"x" * 100_000)
        error_of(refused, 429, "overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        assert admission.bytes == 150_000, "what was refused is forgotten"
        enough.set()
        with anyio.fail_after(PATIENCE_S):
            while admission.bytes:
                await anyio.sleep(0.01)
        assert (await client.post("/v1/detect", content=COLLINS)).status_code == 200


def test_a_server_without_memory_for_requests_does_not_start(tmp_path: Path) -> None:
    with (
        pytest.raises(Unusable, match=r"150 MiB of memory are too little"),
        running(tmp_path, memory_bytes=150 * 1024**2),
    ):
        pass


def test_pages_of_the_origins_named_may_call(strict: LiveServer) -> None:
    with strict.client(headers=None) as client:
        asking = {
            "origin": ORIGIN,
            "access-control-request-method": "POST",
            "access-control-request-headers": "x-api-key",
        }
        allowed = client.options("/v1/detect", headers=asking)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == ORIGIN
        assert "x-api-key" in allowed.headers["access-control-allow-headers"]
        assert "access-control-allow-credentials" not in allowed.headers
        assert allowed.headers["x-content-type-options"] == "nosniff"
        refused = client.get("/v1/models", headers={"origin": ORIGIN})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == ORIGIN, "so that the page can read the error"


AWS_HEADERS = (
    "amz-sdk-invocation-id,amz-sdk-request,authorization,content-type,x-amz-content-sha256,x-amz-date,x-amz-target,"
    "x-amz-user-agent"
)


@pytest.mark.parametrize(
    ("path", "method", "headers"),
    [
        ("/", "POST", AWS_HEADERS),
        ("/api/v1/recognition/subjects/eileen", "PUT", "content-type,x-api-key"),
    ],
    ids=["AWS's JavaScript SDK", "fetch of CompreFace's interface"],
)
def test_pages_may_send_what_clients_of_other_services_send(
    strict: LiveServer, path: str, method: str, headers: str
) -> None:
    lines = (f"OPTIONS {path} HTTP/1.1", "host: x", f"origin: {ORIGIN}", f"access-control-request-method: {method}")
    with opened(strict) as connection:
        connection.sendall("\r\n".join((*lines, f"access-control-request-headers: {headers}", "", "")).encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_head_is_answered_as_get_without_the_body(strict: LiveServer) -> None:
    with strict.client() as client:
        for path in ("/livez", "/readyz", "/v1/galleries", "/openapi.json", "/metrics", "/", "/v1/galleries/none"):
            head, get = client.head(path), client.get(path)
            assert (head.status_code, head.content) == (get.status_code, b""), path
            assert head.headers.get("content-type") == get.headers.get("content-type")
        assert client.head("/v1/detect").status_code == 405
    with opened(strict) as connection:
        connection.sendall(b"HEAD /livez HTTP/1.1\r\nhost: x\r\n\r\n" + GET + b"\r\n")
        got = b""
        while got.count(b"HTTP/1.1 200 ") < 2 or b'"ok"' not in got:
            got += connection.recv(65536)
        assert got.count(b'"ok"') == 1


def test_allow_names_every_method_of_a_path(strict: LiveServer) -> None:
    with strict.client() as client:
        for path, methods in (
            ("/v1/galleries", "GET, HEAD, POST"),
            ("/v1/galleries/staff", "DELETE, GET, HEAD, PATCH"),
            ("/v1/detect", "POST"),
        ):
            answer = client.put(path)
            assert (answer.status_code, answer.headers["allow"]) == (405, methods)


@pytest.mark.parametrize(
    "origin", ["https://example.org", "null", f"{ORIGIN}.evil.example", "http://photos.example.org", f"{ORIGIN}:444"]
)
def test_pages_of_other_origins_may_not_call(strict: LiveServer, origin: str) -> None:
    asking = {"origin": origin, "access-control-request-method": "POST"}
    with strict.client(headers=asking) as client:
        assert "access-control-allow-origin" not in client.options("/v1/detect").headers
        assert "access-control-allow-origin" not in client.get("/livez").headers


@pytest.mark.parametrize(
    "value", ["*", "null", "example.org", "https://*.example.org", "https://example.org/", "https://Example.org"]
)
def test_only_exact_origins_are_taken(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("LIKENESS_CORS_ORIGINS", f"https://good.example, {value}")
    with pytest.raises(Unusable, match=r"^LIKENESS_CORS_ORIGINS: .*exact origins"):
        load_settings()


def callers_seen(trusted: tuple[str, ...], *headers: list[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """The caller and the scheme that a server with these trusted proxies sees, for each request's headers."""
    app = FastAPI()

    @app.get("/")
    async def who(request: Request) -> list[str]:
        return [callers_of("", request.scope["client"][0])[1], request.url.scheme]

    config = server_config(app, Waits(1, 1, 1, 1), trusted_proxies=trusted)
    config.load()

    async def ask() -> list[tuple[str, str]]:
        transport = httpx.ASGITransport(app=config.loaded_app, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            answers = [await client.get("/", headers=sent) for sent in headers]
            return [tuple(answer.raise_for_status().json()) for answer in answers]

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("trusted", "seen"),
    [((), ("127.0.0.1", "http")), (("10.0.0.0/8",), ("127.0.0.1", "http")), (("127.0.0.0/8",), ("192.0.2.7", "https"))],
)
def test_only_trusted_proxies_say_who_calls(trusted: tuple[str, ...], seen: tuple[str, str]) -> None:
    found = callers_seen(trusted, [(b"x-forwarded-for", b"192.0.2.7"), (b"x-forwarded-proto", b"https")])
    assert found == [(f"@{seen[0]}", seen[1])]


@pytest.mark.parametrize("trusted", [("127.0.0.0/8",), ("127.0.0.0/8", "192.0.2.0/24")])
def test_garbage_in_place_of_an_address_counts_as_one_caller(trusted: tuple[str, ...]) -> None:
    garbage = (
        b"x" * 9000,
        b"a:1",
        b"b:2",
        b"[",
        b"[x]:y",
        b"1.2.3",
        b"\xff\xfe",
        b"unknown",
        b"192.0.2.7, q",
        b"1.2.3.4:x",
    )
    spellings = (b"198.51.100.7", b"198.51.100.7:80", b"::ffff:198.51.100.7", b"[::ffff:198.51.100.7]:80")
    for sent, caller in ((garbage, NO_ADDRESS), (spellings, "198.51.100.7")):
        found = callers_seen(trusted, *([(b"x-forwarded-for", value)] for value in sent))
        assert {who for who, _ in found} == {f"@{caller}"}


def has_ipv6() -> bool:
    """Return whether this machine, which may be a container without it, has an address of IPv6."""
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


IPV6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@pytest.mark.anyio
@pytest.mark.parametrize("host", [pytest.param("::", marks=IPV6), pytest.param("::1", marks=IPV6), "127.0.0.1"])
async def test_callers_and_addresses_are_named_as_settings_name_them(host: str) -> None:
    """Also on a socket for IPv4 and IPv6, to which the system names 127.0.0.1 `::ffff:127.0.0.1`."""
    app = FastAPI()

    @app.get("/")
    async def who(request: Request) -> list[str]:
        return [str(request.scope[part][0]) for part in ("client", "server")]

    config = server_config(app, Waits(1, 1, 1, 1))
    with listen(host, 0) as listener:
        serving_here = asyncio.create_task((server := uvicorn.Server(config)).serve([listener]))
        async with httpx.AsyncClient() as client:
            for address in {"::": ("127.0.0.1", "::1")}.get(host, (host,)):
                at = f"[{address}]" if ":" in address else address
                answer = await client.get(f"http://{at}:{listener.getsockname()[1]}/")
                assert answer.json() == [address, address]
        server.should_exit = True
        await serving_here


@pytest.mark.parametrize("host", ["::", "::1"])
def test_a_machine_without_ipv6_can_not_listen_on_it(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for a kernel that is started with ``ipv6.disable=1``, which this one is not."""
    made = socket.socket

    def without_ipv6(family: int = -1, *args: Any, **given: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return made(family, *args, **given)

    monkeypatch.setattr(socket, "socket", without_ipv6)
    with pytest.raises(Unusable, match=f"^Cannot listen on {host}:0: Address family not supported"):
        listen(host, 0)


def test_proxies_are_addresses_or_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIKENESS_TRUSTED_PROXIES", "10.0.0.0/8, ::1")
    assert load_settings().trusted_proxies == ("10.0.0.0/8", "::1/128")
    monkeypatch.setenv("LIKENESS_TRUSTED_PROXIES", "*")
    with pytest.raises(Unusable, match=r"^LIKENESS_TRUSTED_PROXIES: "):
        load_settings()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Self-signed, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    return make_certificate(folder, days=30)


@pytest.mark.long
def test_https_by_settings_alone(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    trusting = ssl.create_default_context(cafile=cert)
    with serving(tmp_path / "data", {"TLS_CERT": cert, "TLS_KEY": key}, trusting) as server:
        with server.client(verify=trusting) as client:
            found = client.post("/v1/detect", files={"image": COLLINS})
        assert len(found.raise_for_status().json()["faces"]) == 1
        assert server.url.startswith("https://")
        assert server.url in server.log.read_text()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/livez")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{server.url}/livez".replace("https", "http"))
        old = ssl.create_default_context(cafile=cert)
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/livez", verify=old)
        listed = run(server.data_dir, "models", "list", "--json", TLS_CERT=cert, TLS_KEY=key)
        assert "sface" in listed.stdout, "the command line finds it, and trusts its certificate"


def test_one_half_of_a_certificate_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    monkeypatch.setenv("LIKENESS_TLS_CERT", str(certificate[0]))
    with pytest.raises(Unusable, match="go together"):
        load_settings()
    give_models(tmp_path)
    for cert, key in ((certificate[0], tmp_path / "nowhere"), (certificate[0], certificate[0])):
        with own_logging(), pytest.raises(Unusable, match="cannot serve TLS") as caught:
            serve(Settings(data_dir=tmp_path, port=0, tls_cert=cert, tls_key=key))
        assert caught.value.code == "tls_unusable"


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/livez").is_success
    except httpx.TransportError:
        return False


@contextmanager
def starting(data: Path) -> Iterator[tuple[LiveServer, httpx.Client, sqlite3.Connection]]:
    """A server that answers and can't start, as somebody else holds its database; and who holds it."""
    data.mkdir()
    with closing(sqlite3.connect(data / "likeness.db", isolation_level=None)) as holder:
        holder.execute("PRAGMA journal_mode = WAL")
        holder.execute("BEGIN IMMEDIATE")
        with serving(data, {"DRAIN_SECONDS": 0.5}, wait=False) as server, server.client(headers=None) as client:
            until(lambda: answers(client), START_S)
            yield server, client, holder


@pytest.mark.long
def test_it_says_that_it_is_starting_until_it_is_ready(tmp_path: Path) -> None:
    with starting(tmp_path / "data") as (server, client, holder):
        assert client.get("/livez").status_code == 200
        assert client.get("/readyz").json() == {"status": "starting"}
        assert client.get("/readyz").status_code == 503
        error_of(client.get("/v1/models", headers={"x-api-key": server.key}), 503, "not_ready")
        assert server.url not in server.log.read_text()
        holder.execute("ROLLBACK")
        until(lambda: client.get("/readyz").is_success, START_S)
        assert client.get("/v1/models", headers={"x-api-key": server.key}).status_code == 200


@pytest.mark.long
def test_a_stop_while_starting_ends_with_0(tmp_path: Path) -> None:
    with starting(tmp_path / "data") as (server, _, _):
        server.process.terminate()
        assert server.process.wait(PATIENCE_S) == 0


@pytest.mark.long
def test_work_that_does_not_end_does_not_keep_the_process() -> None:
    script = """
import os, signal, time
from fastapi import FastAPI
from app.server import http
app = FastAPI()
waits = http.Waits(1, 1, 1, 0.1)
server = http.Server(http.server_config(app, waits), app, 0.1, flush_s=0.1)
signal.signal(signal.SIGTERM, server.handle_exit)
os.kill(os.getpid(), signal.SIGTERM)
print(app.state.status, flush=True)
time.sleep(600)
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=60, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout == "draining\n"
    assert "did not end in time" in done.stderr


def test_a_request_that_does_not_end_is_given_up_at_the_end(strict: LiveServer) -> None:
    """The last test of this server."""
    with opened(strict) as connection:
        connection.sendall(head(strict, 1000) + b"x")
        until(lambda: bodies_held(strict) == 1)
        strict.process.terminate()
        assert strict.process.wait(PATIENCE_S) == 0
        assert b"200" not in connection.recv(65536)
    levels = {json.loads(line)["level"] for line in strict.log.read_text().splitlines() if line.startswith("{")}
    assert "debug" not in levels
