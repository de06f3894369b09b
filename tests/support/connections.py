"""Raw connections to a server, and certificates for it."""

from __future__ import annotations

import re
import socket
import time

import httpx

from tests.support.live import LiveServer

PATIENCE_S = 30.0


def opened(server: LiveServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", httpx.URL(server.url).port or 0), timeout=PATIENCE_S)


def bodies_held(server: LiveServer) -> int:
    with opened(server) as connection, connection.makefile("rb") as file:
        lines = ("GET /metrics HTTP/1.1", "host: x", f"x-api-key: {server.key}", "connection: close")
        connection.sendall("\r\n".join((*lines, "", "")).encode())
        found = re.search(rb"^likeness_bodies_bytes (\S+)\r?$", file.read(), re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def begun(server: LiveServer, lines: tuple[str, ...]) -> socket.socket:
    """Return a request whose body of 5,000 bytes stops after the first."""
    connection = opened(server)
    head = (*lines, "host: x", "content-length: 5000", "", "")
    connection.sendall("\r\n".join(head).encode() + b"{")
    return connection


def unsigned(access_key: str) -> tuple[str, ...]:
    """Return the head of a request to Rekognition's interface with an existing access key and an invented signature."""
    day = time.strftime("%Y%m%d", time.gmtime())
    return (
        "POST / HTTP/1.1",
        "content-type: application/x-amz-json-1.1",
        "x-amz-target: RekognitionService.DetectFaces",
        f"x-amz-date: {time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}",
        (
            f"authorization: AWS4-HMAC-SHA256 Credential={access_key}/{day}/eu-central-1/rekognition/aws4_request, "
            f"SignedHeaders=host;x-amz-date;x-amz-target, Signature={'0' * 64}"
        ),
    )
