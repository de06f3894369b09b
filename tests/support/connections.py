"""Raw connections to a server, and certificates for it."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable

import httpx

from tests.support.live import LiveServer

PATIENCE_S = 30.0


def opened(server: LiveServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", httpx.URL(server.url).port or 0), timeout=PATIENCE_S)


def until(true: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.05)


def bodies_held(server: LiveServer) -> int:
    with opened(server) as connection, connection.makefile("rb") as file:
        lines = ("GET /metrics HTTP/1.1", "host: x", f"x-api-key: {server.key}", "connection: close")
        connection.sendall("\r\n".join((*lines, "", "")).encode())
        found = re.search(rb"^likeness_bodies_bytes (\S+)\r?$", file.read(), re.MULTILINE)
    assert found is not None
    return int(float(found[1]))
