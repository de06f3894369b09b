"""Connections that do nothing leave room for others."""

from __future__ import annotations

import resource
import socket
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from app.machine import raise_descriptors
from app.server.http import ADDRESS_SHARE, MOST, RESERVED, Connections
from tests.support.connections import opened
from tests.support.live import LiveServer, serving
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


def test_idle_connections_shut_nobody_out(shared_server: LiveServer) -> None:
    share = int(MOST * ADDRESS_SHARE)
    if raise_descriptors() < MOST + RESERVED:
        pytest.skip("the system allows too few open files")
    with ExitStack() as stack:
        idle = [stack.enter_context(opened(shared_server)) for _ in range(share)]
        idle[-1].sendall(b"GET /v1/galleries HTTP/1.1\r\nx-slow: ")
        answer = httpx.get(f"{shared_server.url}/v1/galleries", headers={"x-api-key": shared_server.key})
        assert answer.status_code == 200
        assert _is_closed(idle[0])
        assert not _is_closed(idle[-2])


def _is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0.2)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False


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
