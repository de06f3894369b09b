"""Connections that do nothing leave room for others."""

from __future__ import annotations

import asyncio
import gc
import resource
import socket
import tracemalloc
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Response
from starlette.types import Receive, Scope, Send

from app.machine import raise_descriptors
from app.server.http import ADDRESS_SHARE, MAX_CONNECTIONS, RESERVED, Connections, Waits, server_config
from tests.support.connections import opened
from tests.support.live import ANSWER_S, LiveServer, serving
from tests.support.service import COLLINS

PLACES = 40
MIB = 1024**2


class Line:
    def __init__(self) -> None:
        self.closed = False

    def close_idle(self) -> None:
        self.closed = True


def test_the_longest_idle_connection_of_the_greediest_address_gives_way() -> None:
    connections = Connections(RESERVED + PLACES)
    lines = {f"10.0.{host}.1": [Line() for _ in range(PLACES // 5)] for host in range(5)}
    greedy, *others = lines
    for host in [greedy, *others]:
        for line in lines[host]:
            assert connections.add(line, host)
    late = [Line() for _ in range(PLACES)]
    for number, line in enumerate(late):
        assert connections.add(line, f"192.168.{number}.1")
    assert len(connections) == PLACES
    assert lines[greedy][0].closed


def test_an_address_takes_its_own_idle_connections_places_and_no_others() -> None:
    connections = Connections(RESERVED + PLACES)
    share = int(PLACES * ADDRESS_SHARE)
    other, mine = Line(), [Line() for _ in range(share)]
    assert connections.add(other, "10.0.0.2")
    for line in mine:
        assert connections.add(line, "10.0.0.1")
        connections.begin(line)
    assert not connections.add(Line(), "10.0.0.1"), "all of its requests are in progress"
    connections.end(mine[3])
    assert connections.add(Line(), "10.0.0.1")
    assert [line.closed for line in mine].index(True) == 3
    assert not other.closed
    for line in [*mine, other]:
        connections.remove(line)
    assert len(connections) == 1


def test_a_trusted_proxy_may_have_all_connections() -> None:
    connections = Connections(RESERVED + PLACES, ["10.0.0.0/8"])
    lines = [Line() for _ in range(PLACES)]
    for line in lines:
        assert connections.add(line, "10.1.2.3")
        connections.begin(line)
    assert not connections.add(Line(), "192.168.0.1")
    connections.end(lines[0])
    assert connections.add(Line(), "192.168.0.1")


def test_heads_of_an_address_take_the_room_of_its_own_unfinished_ones() -> None:
    connections = Connections(RESERVED + PLACES, head_bytes=4000)
    other, busy, *unfinished = [Line() for _ in range(6)]
    assert connections.add(other, "10.0.0.2")
    assert connections.reserve(other, 500)
    for line in (busy, *unfinished):
        assert connections.add(line, "10.0.0.1")
        assert connections.reserve(line, 200)
    connections.begin(busy)
    assert connections.reserve(unfinished[-1], 700)
    assert [line.closed for line in (other, busy, *unfinished)] == [False, False, True, True, True, False]
    assert not connections.reserve(busy, 1001), "more than its share, and the unfinished ones are gone"
    connections.remove(busy)
    assert unfinished[-1].closed
    assert connections.head_bytes == 500


def test_heads_of_all_addresses_have_a_limit() -> None:
    connections = Connections(RESERVED + PLACES, head_bytes=4000)
    lines = {f"10.0.{host}.1": Line() for host in range(6)}
    for host, line in lines.items():
        assert connections.add(line, host)
        assert connections.reserve(line, 900)
    assert connections.head_bytes <= 4000
    assert [line.closed for line in lines.values()].count(True) == 2
    assert not lines["10.0.5.1"].closed


def test_an_idle_connection_holds_nothing_of_the_head_that_it_sent() -> None:
    """Measured with tracemalloc, after the answer and before a head's end."""
    large = HEAD + (b"ab: " + b"y" * 150 + b"\r\n") * 98 + b"\r\n"
    held = asyncio.run(_measured([large, large[:-2]]))
    assert held[large].bytes < ITSELF
    assert held[large].counted == 0
    assert held[large[:-2]].bytes < ITSELF + held[large[:-2]].counted


HEAD = b"GET / HTTP/1.1\r\nhost: x\r\n"
EACH = 40
ITSELF = 20_000
"""Bytes of a connection without any head."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a connection takes, and what of it was counted as its head's."""

    bytes: float
    counted: float


async def _measured(heads: Sequence[bytes]) -> dict[bytes, Held]:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response()(scope, receive, send)

    config = server_config(cast(FastAPI, app), Waits(head_s=60, idle_s=60, answer_s=60, drain_s=1), descriptors=2000)
    config.load()
    crowd: Connections = config.http_protocol_class.crowd  # type: ignore[attr-defined]
    server = uvicorn.Server(config)
    held = {}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = asyncio.create_task(server.serve(sockets=[listener]))
        tracemalloc.start()
        try:
            for head in [heads[0], *heads]:  # the first one pays for what is made once
                gc.collect()
                before = tracemalloc.get_traced_memory()[0]
                with ExitStack() as stack:
                    for _ in range(EACH):
                        connection = stack.enter_context(socket.create_connection(listener.getsockname()))
                        connection.setblocking(False)
                        connection.send(head)
                        whole = head.endswith(b"\r\n\r\n")
                        async with asyncio.timeout(30):
                            while whole and b"200" not in await asyncio.get_running_loop().sock_recv(connection, 999):
                                pass
                            while not whole and not crowd.head_bytes:
                                await asyncio.sleep(0.01)
                    await asyncio.sleep(0.2)
                    gc.collect()
                    taken = tracemalloc.get_traced_memory()[0] - before
                    held[head] = Held(taken / EACH, crowd.head_bytes / EACH)
                async with asyncio.timeout(30):
                    while len(crowd):
                        await asyncio.sleep(0.01)
        finally:
            tracemalloc.stop()
        server.should_exit = True
        await running
    return held


def test_idle_connections_shut_nobody_out(shared_server: LiveServer) -> None:
    share = int(MAX_CONNECTIONS * ADDRESS_SHARE)
    if raise_descriptors() < MAX_CONNECTIONS + RESERVED:
        pytest.skip("the system allows too few open files")
    with ExitStack() as stack:
        idle = [stack.enter_context(opened(shared_server)) for _ in range(share)]
        idle[-1].sendall(b"GET /v1/galleries HTTP/1.1\r\nx-slow: ")
        key = {"x-api-key": shared_server.key}
        answer = httpx.get(f"{shared_server.url}/v1/galleries", headers=key, timeout=ANSWER_S)
        assert answer.status_code == 200
        assert _is_closed(idle[0])
        assert not _is_closed(idle[-2])


def _is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0.2)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False


OFFERS = {
    "h2c": "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAA\r\n",
    "websocket": "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n",
    "nothing": "",
}


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("offer", OFFERS)
def test_a_request_that_offers_another_protocol_keeps_its_body(
    shared_server: LiveServer, offer: str, chunked: bool, pieces: int
) -> None:
    """As Java's HttpClient sends every request over plain HTTP; the connection goes on, with HTTP/1.1."""
    address = httpx.URL(shared_server.url)
    photo = COLLINS
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(photo)}"
    head = f"POST /v1/detect HTTP/1.1\r\nHost: {address.netloc.decode()}\r\nContent-Type: image/jpeg\r\n"
    head += f"x-api-key: {shared_server.key}\r\n{OFFERS[offer]}{framing}\r\n\r\n"
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(photo), photo) if chunked else photo
    plain = f"GET /livez HTTP/1.1\r\nHost: {address.netloc.decode()}\r\n"
    sent = head.encode() + body + f"{plain}{OFFERS[offer]}\r\n{plain}Connection: close\r\n\r\n".encode()
    size = -(-len(sent) // pieces)
    with socket.create_connection((address.host, address.port)) as line:
        line.settimeout(120)
        for start in range(0, len(sent), size):
            line.sendall(sent[start : start + size])
        answers = b"".join(iter(lambda: line.recv(65536), b""))
    assert answers.count(b"HTTP/1.1 200 OK") == 3, answers[:2000]
    assert answers.count(b'"landmarks"') == 1
    assert b"101 " not in answers


def test_descriptors_are_raised_to_what_the_system_allows() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
        assert raise_descriptors() == resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 512
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.long
def test_a_body_of_more_than_256_mib_is_taken_where_settings_and_memory_allow_it(tmp_path: Path) -> None:
    """Photos with what some editors leave behind the picture."""
    settings = {"MAX_REQUEST_BYTES": 400 * MIB, "MEMORY_BYTES": 4096 * MIB, "REQUEST_TIMEOUT": 300}
    photos = [("images", COLLINS + bytes(9 * MIB))] * 34
    with serving(tmp_path / "data", settings) as server, server.client(timeout=300) as client:
        client.post("/v1/galleries", json={"id": "crew", "on_conflict": "allow"}).raise_for_status()
        answer = client.post("/v1/galleries/crew/subjects/eileen/faces", files=photos)
        assert int(answer.request.headers["content-length"]) > 300 * MIB
        assert (answer.status_code, len(answer.json()["enrolled"])) == (201, len(photos))
