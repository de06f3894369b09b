"""The Python client: the same words sync and async, errors that say what happened, patience with a busy server."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import ssl
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TypeAlias
from unittest.mock import patch

import generate
import pytest
from likeness_client import ApiError, AsyncClient, Client, ClientError, Unreachable, UnreadableAnswer

from tests.conftest import PROJECT
from tests.support.live import LiveServer

SAMPLES = PROJECT / "docs" / "samples"
COLLINS, HOPPER = SAMPLES / "collins.jpg", SAMPLES / "hopper.jpg"

Answered: TypeAlias = tuple[int, dict[str, str], bytes]
"""Status, headers, body."""


@contextmanager
def answering(*answers: Answered) -> Iterator[tuple[str, list[str]]]:
    """A server that gives these answers in turn, the last one for ever; its URL, and the paths asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = answers[min(len(asked), len(answers) - 1)]
            asked.append(self.path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's own name)
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


BUSY: Answered = (429, {"retry-after": "0"}, b"")
VERSION: Answered = (200, {}, b'{"name": "Likeness", "version": "9"}')


def test_a_client_says_what_its_calls_take_and_do() -> None:
    with Client("http://localhost") as client:
        assert list(inspect.signature(client.detect).parameters) == ["image", "explain"]
        assert (client.detect.__doc__ or "").startswith("Find the faces in a photo.")
        assert client.detect.__doc__ == Client.detect.__doc__
        assert "every page" in (client.all_subjects.__doc__ or "")
        with pytest.raises(TypeError, match="unexpected keyword argument 'modl'"):
            client.embed(b"", modl="sface")  # type: ignore[call-arg] # the type checker says so too


def test_a_busy_server_is_asked_again() -> None:
    with answering(BUSY, BUSY, VERSION) as (url, asked), Client(url) as client:
        assert client.version().version == "9"
        assert len(asked) == 3


def test_patience_ends_with_the_servers_own_error() -> None:
    with answering(BUSY) as (url, asked), Client(url, retries=2) as client:
        with pytest.raises(ApiError) as busy:
            client.version()
        assert (busy.value.status, len(asked)) == (429, 3)


def test_an_answer_that_is_not_likeness_is_said_to_be_so() -> None:
    with answering((502, {}, b"<html>Bad Gateway</html>")) as (url, _), Client(url) as client:
        with pytest.raises(ApiError) as refused:
            client.version()
        assert (refused.value.status, refused.value.code) == (502, "not_likeness")


def test_fields_of_a_newer_server_are_ignored() -> None:
    newer: Answered = (200, {}, b'{"name": "Likeness", "version": "9", "edition": {"of": "next year"}}')
    with answering(newer) as (url, _), Client(url) as client:
        assert client.version().model_dump() == {"name": "Likeness", "version": "9"}


def test_members_of_a_closed_set_that_a_newer_server_adds_are_read() -> None:
    body = {"status": "hibernating", "warnings": ["it_is_winter"]}
    with answering((200, {}, json.dumps(body).encode())) as (url, _), Client(url) as client:
        assert client.ready().status == "hibernating"


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b'{"name": 1, "version": []}'])
def test_an_answer_that_cannot_be_read_is_an_error_of_its_own(body: bytes) -> None:
    with answering((200, {}, body)) as (url, _), Client(url) as client, pytest.raises(UnreadableAnswer) as unread:
        client.version()
    assert unread.value.code == "unreadable_answer"


def test_the_calls_are_those_that_the_server_declares() -> None:
    """Change the declarations, then run `python clients/python/generate.py`."""
    for name, text in generate.write(generate.document()).items():
        assert generate.FILES[name].read_text(encoding="utf-8") == generate.formatted(text), name


@pytest.mark.long
def test_the_client_is_a_distribution_of_its_own(tmp_path: Path) -> None:
    """It runs where nothing of the service can be imported."""
    program = (
        "import sys; sys.modules.update({name: None for name in ('app', 'fastapi', 'numpy', 'cv2')})\n"
        "from likeness_client import AsyncClient, Client\n"
        "print(Client('http://127.0.0.1:1').version.__name__)"
    )
    place = {**os.environ, "PYTHONPATH": str(PROJECT / "clients" / "python")}
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=place, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "version"


def test_no_server_is_an_error_of_its_own(port: int) -> None:
    with Client(f"http://127.0.0.1:{port}") as client, pytest.raises(Unreachable) as caught:
        client.version()
    assert isinstance(caught.value, ClientError)


def test_certificates_are_read_for_https_alone() -> None:
    """Reading them takes longer than most calls."""
    with patch.object(ssl, "create_default_context", wraps=ssl.create_default_context) as read:
        Client("http://127.0.0.1:9").close()
        asyncio.run(AsyncClient("http://127.0.0.1:9").close())
        read.assert_not_called()
        Client("https://127.0.0.1:9").close()
        read.assert_called()


def test_an_id_that_no_path_can_hold_or_an_address_without_its_scheme_is_refused_before_anything_is_sent() -> None:
    """The path without an id is that of something else: of all people in place of one. With `..` in place of a subject
    it is the gallery's."""
    with answering((200, {}, b"{}")) as (url, asked), Client(url) as client:
        for refused in (
            lambda: client.delete_subject("crew", ""),
            lambda: client.delete_gallery(""),
            lambda: client.enroll("crew", "", [COLLINS]),
        ):
            with pytest.raises(ClientError, match="the id is empty") as caught:
                refused()
            assert caught.value.code == "invalid_id"
        for gone in (".", ".."):
            with pytest.raises(ClientError, match="no URL can hold it") as caught:
                client.delete_subject("crew", gone)
            assert caught.value.code == "invalid_id"
        assert asked == []
    with pytest.raises(Unreachable, match="begin with http:// or https://"):
        Client("127.0.0.1:8000")


def test_ids_of_any_script_travel_in_paths() -> None:
    with answering((404, {}, b"")) as (url, asked), Client(url) as client:
        with pytest.raises(ApiError):
            client.face("a/b c", "Grâce ⚓?#", "%2F")
        assert asked == ["/v1/galleries/a%2Fb%20c/subjects/Gr%C3%A2ce%20%E2%9A%93%3F%23/faces/%252F"]


def test_every_call_on_a_real_server(shared_server: LiveServer) -> None:
    with Client(shared_server.url, shared_server.key) as client:
        assert client.ready().status == "ok"
        assert client.version().name == "likeness"
        assert {model.task for model in client.models().models} >= {"detect", "embed"}

        assert client.create_gallery("crew/1", store="crop").id == "crew/1"
        made = client.create_subject("crew/1", "eileen", name="Eileen", metadata={"flights": [1, 2]})
        assert made.metadata == {"flights": [1, 2]}
        assert client.update_subject("crew/1", "eileen", {"name": "Eileen Collins"}).metadata == {"flights": [1, 2]}
        (face,) = client.enroll("crew/1", "eileen", [COLLINS], quality="low", explain=True).enrolled
        client.enroll("crew/1", "grace", [HOPPER.read_bytes()])
        assert client.gallery("crew/1").faces == 2
        assert client.face("crew/1", "eileen", face.face_id).has_crop
        assert client.face_crop("crew/1", "eileen", face.face_id)[:2] == b"\xff\xd8"
        assert [row.face_id for row in client.faces("crew/1", "eileen").faces] == [face.face_id]
        assert client.subjects("crew/1", search="collins").subjects[0].id == "eileen"
        assert [subject.id for subject in client.all_subjects("crew/1")] == ["eileen", "grace"]
        assert client.subject("crew/1", "grace").face_count == 1

        assert len(client.detect(COLLINS).faces) == 1
        assert len(client.embed(COLLINS).faces[0].embedding or ()) == 128
        assert not client.verify(COLLINS, HOPPER, fmr=1e-3).match
        assert client.verify_subject("crew/1", "eileen", COLLINS).match
        (found,) = client.identify("crew/1", HOPPER, limit=1, fpir=0.01, explain=True).faces
        assert (found.decision, found.candidates[0].subject) == ("known", "grace")

        client.delete_face("crew/1", "eileen", face.face_id)
        client.delete_subject("crew/1", "grace")
        assert client.check_gallery("crew/1").ok
        client.delete_gallery("crew/1")
        with pytest.raises(ApiError) as gone:
            client.gallery("crew/1")
        assert (gone.value.status, gone.value.code) == (404, "gallery_not_found")
        assert gone.value.request_id


def test_the_async_client_pages_through_everything(shared_server: LiveServer) -> None:
    async def work() -> list[str]:
        async with AsyncClient(shared_server.url, shared_server.key) as client:
            await client.create_gallery("paged")
            await asyncio.gather(*(client.create_subject("paged", f"{number:03}") for number in range(120)))
            found = sorted([subject.id async for subject in client.all_subjects("paged")])
            assert "paged" in [gallery.id async for gallery in client.all_galleries()]
            await client.delete_gallery("paged")
            return found

    assert asyncio.run(work()) == [f"{number:03}" for number in range(120)]


def test_server_and_client_have_one_version() -> None:
    files = (PROJECT / "pyproject.toml", PROJECT / "clients" / "python" / "pyproject.toml")
    assert len({tomllib.loads(file.read_text())["project"]["version"] for file in files}) == 1
