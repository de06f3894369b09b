"""Requests of CompreFace's clients, byte by byte as each of them sends them, and what they do with the answers."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.connections import opened
from tests.support.live import LiveServer
from tests.support.service import COLLINS, HOPPER

RECOGNITION = "/api/v1/recognition"
CRLF = "\r\n"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a form: its headers as the client writes them, and its content."""

    headers: tuple[str, ...]
    content: bytes


@dataclass(frozen=True, slots=True)
class Service:
    """A server, and the key of a collection."""

    server: LiveServer
    key: str

    def send(self, line: str, *headers: str, body: bytes = b"") -> tuple[int, Any]:
        """Send the request, and return its answer's status and content."""
        lines = (f"{line} HTTP/1.1", "Host: likeness", f"x-api-key: {self.key}", "Connection: close", *headers)
        length = (f"Content-Length: {len(body)}",) if body else ()
        with opened(self.server) as connection, connection.makefile("rb") as file:
            connection.sendall(CRLF.join((*lines, *length, "", "")).encode() + body)
            head, _, content = file.read().partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(content) if content else None

    def form(self, line: str, boundary: str, *parts: Part, agent: str) -> tuple[int, Any]:
        body = b"".join(
            CRLF.join((f"--{boundary}", *part.headers, "", "")).encode() + part.content + b"\r\n" for part in parts
        )
        media_type = f"Content-Type: multipart/form-data; boundary={boundary}"
        return self.send(line, f"User-Agent: {agent}", media_type, body=body + f"--{boundary}--{CRLF}".encode())


@pytest.fixture
def service(shared_server: LiveServer) -> Iterator[Service]:
    with collection(shared_server) as made:
        yield made


@contextmanager
def collection(server: LiveServer) -> Iterator[Service]:
    gallery = f"clients-{uuid.uuid4().hex}"
    with server.client() as api:
        api.post("/v1/galleries", json={"id": gallery}).raise_for_status()
        scopes = ["read", "recognize", "enroll", "delete"]
        made = api.post("/v1/keys", json={"scopes": scopes, "galleries": [gallery]}).raise_for_status().json()
        yield Service(server, made["secret"])
        api.delete(f"/v1/galleries/{gallery}").raise_for_status()
        api.delete(f"/v1/keys/{made['id']}").raise_for_status()


def guzzle(name: str, content: bytes, filename: str = "") -> Part:
    file = f'; filename="{filename}"' if filename else ""
    return Part((f'Content-Disposition: form-data; name="{name}"{file}', f"Content-Length: {len(content)}"), content)


def go(name: str, content: bytes, filename: str = "") -> Part:
    if not filename:
        return Part((f'Content-Disposition: form-data; name="{name}"',), content)
    file = f'Content-Disposition: form-data; name="{name}"; filename="{filename}"'
    return Part((file, "Content-Type: application/octet-stream"), content)


def dotnet(name: str, content: bytes, filename: str = "") -> Part:
    if filename:
        return Part((f"Content-Disposition: form-data; name={name}; filename={filename}; filename*=utf-8''x",), content)
    return Part(("Content-Type: text/plain; charset=utf-8", f"Content-Disposition: form-data; name={name}"), content)


@pytest.mark.parametrize(
    ("part", "boundary", "agent"),
    [
        (go, "8f3e9a5f8e4f4d0d", "Go-http-client/1.1"),
        (guzzle, "f2c0b1a4e1", "GuzzleHttp/7"),
        (dotnet, '"4e2b0a9c-11aa"', "RestSharp/110"),
    ],
    ids=["Go (Double Take's successor)", "PHP (Guzzle)", "C# (HttpClient)"],
)
@pytest.mark.parametrize("path", ["/faces", "/faces/"])
def test_the_subject_is_a_field_of_the_form_and_unknown_ones_are_ignored(
    service: Service, part: Any, boundary: str, agent: str, path: str
) -> None:
    fields = part("subject", b"eileen"), part("det_prob_threshold", b"0.8"), part("timestamp", b"1")
    bare = boundary.strip('"')
    status, body = service.form(f"POST {RECOGNITION}{path}", bare, part("file", COLLINS, "a.jpg"), *fields, agent=agent)
    assert (status, body["subject"]) == (201, "eileen")
    assert service.send(f"GET {RECOGNITION}/subjects/") == (200, {"subjects": ["eileen"]})


def test_paths_of_the_documentation_end_with_a_slash(service: Service) -> None:
    """CompreFace's own snippets do: `curl -X POST .../faces/?subject=x`, and its JavaScript SDK."""
    part = go("file", COLLINS, "a.jpg")
    added, body = service.form(f"POST {RECOGNITION}/faces/?subject=eileen", "curl", part, agent="curl/8.5.0")
    assert added == 201
    for line, status in (
        (f"GET {RECOGNITION}/faces/?page=0&size=", 200),
        (f"GET {RECOGNITION}/subjects/", 200),
        (f"GET {RECOGNITION}/faces/{body['image_id']}/img/", 200),
        (f"DELETE {RECOGNITION}/faces/{body['image_id']}/", 200),
        (f"DELETE {RECOGNITION}/faces/?subject=eileen", 200),
        (f"DELETE {RECOGNITION}/subjects/", 200),
        (f"GET {RECOGNITION}/nothing/", 404),
    ):
        with opened(service.server) as connection, connection.makefile("rb") as file:
            head = (f"{line} HTTP/1.1", "Host: x", f"x-api-key: {service.key}", "Connection: close", "", "")
            connection.sendall(CRLF.join(head).encode())
            assert int(file.readline().split()[1]) == status, line
    part = go("file", COLLINS, "a.jpg")
    detected, _ = service.form("POST /api/v1/detection/detect/", "curl", part, agent="curl/8.5.0")
    assert detected == 200


def test_what_reads_the_first_subject_finds_one(service: Service) -> None:
    """Viseron: `subject = face["subjects"][0]`; the webcam demo and Double Take do the same."""

    def recognize(photo: bytes, query: str = "") -> Any:
        line = f"POST {RECOGNITION}/recognize{query}"
        status, body = service.form(line, "viseron", go("file", photo, "a.jpg"), agent="python-requests/2.32")
        assert status == 200
        return body["result"][0]

    assert recognize(COLLINS)["subjects"] == [], "nobody is enrolled"
    part = go("file", COLLINS, "a.jpg")
    service.form(f"POST {RECOGNITION}/faces?subject=eileen", "x", part, agent="python-requests/2.32")
    assert recognize(COLLINS)["subjects"][0]["subject"] == "eileen"
    for query in ("", "?prediction_count=3&limit=&det_prob_threshold=&status="):
        assert recognize(HOPPER, query)["subjects"] == [{"subject": "unknown", "similarity": 0.0}]


def test_a_clear_face_passes_the_thresholds_that_users_write(service: Service) -> None:
    """Double Take's `min_area` and `box.probability`, Home Assistant's `minimum: 0.95`."""
    detect = "POST /api/v1/detection/detect?det_prob_threshold=0.99"
    for photo in (COLLINS, HOPPER):
        status, body = service.form(detect, "x", go("file", photo, "a.jpg"), agent="axios/1.7")
        assert status == 200
        assert all(0.99 < face["box"]["probability"] <= 1 for face in body["result"])


def k6(name: str, content: bytes, filename: str = "") -> Part:
    """k6's `formdata.js`: every part has a content type."""
    file = f'; filename="{filename}"' if filename else ""
    kind = "image/jpeg" if filename else "text/plain"
    return Part((f'Content-Disposition: form-data; name="{name}"{file}', f"Content-Type: {kind}"), content)


def test_the_load_tests_of_compreface(service: Service) -> None:
    """Its four k6 scripts, and what they look for: status 200, and a word in the body."""

    def asked(path: str, *parts: Part) -> str:
        boundary = "------RWWorkerFormDataBoundary0.8zq1x4"
        status, body = service.form(f"POST {path}", boundary, *parts, agent="k6/0.38.3 (https://k6.io/)")
        assert status == 200, body
        return json.dumps(body)

    added, body = service.form(
        f"POST {RECOGNITION}/faces?subject=eileen", "x", k6("file", COLLINS, "a.jpg"), agent="k6"
    )
    assert added == 201
    file, fields = k6("file", COLLINS, "file.jpg"), (k6("limit", b"0"), k6("prediction_count", b"1"))
    assert "probability" in asked("/api/v1/detection/detect", file, *fields)
    assert "probability" in asked(f"{RECOGNITION}/recognize", file, *fields)
    pair = k6("source_image", COLLINS, "source_image.jpg"), k6("target_image", COLLINS, "target_image.jpg")
    assert "similarity" in asked("/api/v1/verification/verify", *pair)
    assert "similarity" in asked(f"{RECOGNITION}/faces/{body['image_id']}/verify", file)
