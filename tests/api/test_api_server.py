"""The server itself: keys, health, limits on how much it takes on, request ids, logs, its start and its end."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import logging
import re
import socket
import sqlite3
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from starlette.requests import Request
from starlette.types import Message

from app.access.keys import FOLLOW_S, AdminKey, digest_of
from app.api import schemas
from app.api.body import read_body
from app.api.middleware import CSP, HEADERS
from app.cli.output import Exit
from app.concurrency.admission import Admission, WorkerPool
from app.config import Settings
from app.db.encryption import ADMIN_KEY_FILE
from app.errors import InvalidInput, LikenessError, Overloaded, Unusable
from app.features.keys.command import replace_key
from app.logs import JsonFormatter
from app.serve import serve
from app.server.data_folder import load_key
from app.server.run import listen
from tests.support.commands import run
from tests.support.live import LiveServer
from tests.support.logged import own_logging
from tests.support.ready import give_models
from tests.support.refusals import refused
from tests.support.service import COLLINS, error_of, made, running, scope_of
from tests.support.waiting import PATIENCE_S

OPEN = ["/livez", "/readyz", "/version"]


@pytest.mark.parametrize("path", OPEN)
def test_health_and_version_need_no_key(api: httpx.Client, path: str) -> None:
    assert api.get(path, headers={"x-api-key": ""}).status_code == 200


def test_who_has_no_key_is_told_how_to_give_one(api: httpx.Client) -> None:
    """(That every operation needs one is in tests/access/test_access.py.)"""
    missing = api.get("/v1/models", headers={"x-api-key": ""})
    error_of(missing, 401, "missing_key")
    assert missing.headers["www-authenticate"].startswith("Bearer")
    for path in ("/docs", "/openapi.json", "/docs/assets/swagger-ui.css"):
        error_of(api.get(path, headers={"x-api-key": ""}), 401, "missing_key")


def test_the_key_may_come_as_bearer(api: httpx.Client) -> None:
    key = api.headers["x-api-key"]
    for header, status in ((f"Bearer {key}", 200), (f"bearer {key}", 200), ("Bearer x", 401), ("Bearer", 401)):
        response = api.get("/v1/models", headers={"x-api-key": "", "authorization": header})
        assert response.status_code == status


def test_a_browser_opens_the_documentation_with_the_key_as_password(api: httpx.Client) -> None:
    """And the page authorizes itself with that key."""
    key = api.headers["x-api-key"]
    basic = {"x-api-key": "", "authorization": "Basic " + base64.b64encode(f"me:{key}".encode()).decode()}
    asked = api.get("/docs", headers={"x-api-key": ""})
    assert asked.headers["www-authenticate"].startswith("Basic")
    page = api.get("/docs", headers=basic)
    assert page.status_code == 200
    assert "http" not in page.text.replace("https://fastapi.tiangolo.com", ""), "nothing comes from elsewhere"
    assert f'<body data-key="{key}">' in page.text
    (script,) = re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL)
    assert 'ui.preauthorizeApiKey("api_key", key)' in script
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in page.headers[CSP]
    assert page.headers["cache-control"] == "no-store"
    assert api.get("/docs/assets/swagger-ui-bundle.js", headers=basic).status_code == 200
    assert api.get("/openapi.json", headers=basic).status_code == 200
    error_of(api.get("/v1/models", headers=basic), 401, "missing_key")
    for broken in ("Basic", "Basic !", "Basic " + base64.b64encode(b"\xff\xfe").decode()):
        error_of(api.get("/docs", headers={"x-api-key": "", "authorization": broken}), 401, "missing_key")


def test_processes_that_start_together_make_one_key_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / ADMIN_KEY_FILE
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda _: load_key(tmp_path), range(8)))
    ((key, _), *_) = keys
    assert sorted(keys) == [*[(key, False)] * 7, (key, True)]
    assert key.startswith("lk_")
    assert len(key) > 40
    assert path.read_text() == key + "\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == [ADMIN_KEY_FILE]
    path.chmod(0o644)
    assert load_key(tmp_path) == (key, False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, "closed to others who could read it"


@pytest.mark.parametrize("content", ["", "short", "two keys of enough characters\nin one file, as one should not"])
def test_a_file_that_is_no_key_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / ADMIN_KEY_FILE).write_text(content)
    with refused("key_unusable", Unusable):
        load_key(tmp_path)


def test_the_admin_key_follows_its_file_and_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    now = [0.0]
    old, _ = load_key(tmp_path)
    key = AdminKey(old, tmp_path / ADMIN_KEY_FILE, lambda: now[0])
    assert key.matches(digest_of(old))
    new = replace_key(tmp_path)
    now[0] += FOLLOW_S
    assert (key.matches(digest_of(new)), key.matches(digest_of(old))) == (True, False)
    for spoil in (lambda: (tmp_path / ADMIN_KEY_FILE).write_text("short"), (tmp_path / ADMIN_KEY_FILE).unlink):
        spoil()
        now[0] += FOLLOW_S
        assert [key.matches(digest_of(given)) for given in (new, "", "short")] == [True, False, False]


def test_models_are_listed_with_licence_hash_and_operating_points(api: httpx.Client) -> None:
    models = {model.name: model for model in schemas.ModelList.model_validate(api.get("/v1/models").json()).models}
    assert models["sface"].loaded
    assert models["sface"].dimension == 128
    assert models["sface"].licence.name == "Apache-2.0"
    assert models["sface"].sha256 == "fb143eea07838aa532d1c95df5f69899974ea0140e1fba05e94204be13ed74ee"
    assert any(calibration.default for calibration in models["sface"].calibrations)
    assert models["yunet"].loaded
    assert models["yunet"].dimension is None


def test_a_path_that_is_no_utf8_is_refused(api: httpx.Client) -> None:
    error_of(api.get("/v1/galleries/%FF%FE"), 400, "invalid_path")


def test_request_ids_are_taken_over_where_they_are_sane(api: httpx.Client) -> None:
    assert api.get("/livez", headers={"x-request-id": "abc-1.2_3"}).headers["x-request-id"] == "abc-1.2_3"
    for odd in ("a b", "x" * 65, "a;b", "{}", ""):
        assert api.get("/livez", headers={"x-request-id": odd}).headers["x-request-id"] not in {odd, ""}


@pytest.mark.parametrize("path", ["/livez", "/v1/models", "/docs", "/docs/assets/swagger-ui.css", "/nowhere"])
@pytest.mark.parametrize("key", [True, False])
def test_every_answer_has_the_headers_that_keep_browsers_from_harm(api: httpx.Client, path: str, key: bool) -> None:
    answer = api.get(path, headers={} if key else {"x-api-key": ""})
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    assert "frame-ancestors 'none'" in answer.headers[CSP]
    assert "default-src 'none'" in answer.headers[CSP]


def test_pages_of_other_sites_may_not_call(api: httpx.Client) -> None:
    asking = {"origin": "https://example.org", "access-control-request-method": "GET"}
    for answer in (api.options("/v1/models", headers=asking), api.get("/v1/models", headers=asking)):
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_the_log_has_a_line_for_each_request_and_nothing_personal(
    api: httpx.Client, gallery: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "likeness"):
        api.post(
            f"{gallery}/subjects/very-secret-person/faces", files={"images": COLLINS}, headers={"x-request-id": "r1"}
        )
        api.get(f"{gallery}/subjects/very-secret-person?limit=very-secret-number")
        error_of(api.get("/v1/models", headers={"x-api-key": "very-secret-key"}), 401, "wrong_key")
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records if record.name == "likeness"]
    assert lines[0]["route"] == "/v1/galleries/{gallery}/subjects/{subject}/faces"
    assert (lines[0]["method"], lines[0]["status"], lines[0]["request_id"]) == ("POST", 201, "r1")
    assert lines[0]["ms"] > 0
    assert len(lines) == 3
    text = json.dumps(lines)
    assert "very-secret" not in text
    assert gallery.rsplit("/", 1)[1] not in text
    assert api.headers["x-api-key"] not in text


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Path]]:
    """A service with room for one request, and its data folder."""
    folder = tmp_path_factory.mktemp("narrow")
    with running(folder, queue_limit=1, threads=1) as client:
        yield client, folder


def test_what_goes_wrong_inside_is_answered_without_its_insides(
    narrow: tuple[httpx.Client, Path], caplog: pytest.LogCaptureFixture
) -> None:
    client, folder = narrow
    client.post("/v1/galleries", json={"id": "people"})
    with closing(sqlite3.connect(folder / "likeness.db")) as database, database:
        database.execute("update galleries set metadata = 'very-secret garbage'")
    with caplog.at_level(logging.ERROR):
        response = client.get("/v1/galleries/people")
    assert error_of(response, 500, "internal_error") == {}
    assert client.get("/livez").status_code == 200
    logged = "\n".join(JsonFormatter().format(record) for record in caplog.records)
    assert response.json()["request_id"] in logged
    assert "very-secret" not in response.text + logged
    with closing(sqlite3.connect(folder / "likeness.db")) as database, database:
        database.execute("update galleries set metadata = '{}'")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(MemoryError(), 429, "overloaded"), (OSError(errno.EMFILE, ""), 503, "too_many_connections")],
)
def test_a_request_without_memory_or_a_descriptor_for_it_is_told_to_come_again(
    narrow: tuple[httpx.Client, Path], monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, code: str
) -> None:
    client, _ = narrow

    async def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(WorkerPool, "run", fail)
        answer = client.get("/v1/galleries")
    error_of(answer, status, code)
    assert int(answer.headers["retry-after"]) >= 1
    assert client.get("/v1/galleries").status_code == 200


def test_a_full_house_answers_429_and_takes_requests_again(narrow: tuple[httpx.Client, Path]) -> None:
    client, _ = narrow
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.post("/v1/embed", files={"image": COLLINS}), range(16)))
    assert {answer.status_code for answer in answers} == {200, 429}
    refused = next(answer for answer in answers if answer.status_code == 429)
    error_of(refused, 429, "overloaded")
    assert int(refused.headers["retry-after"]) >= 1
    assert client.post("/v1/embed", files={"image": COLLINS}).status_code == 200


@pytest.mark.anyio
async def test_work_that_takes_too_long_is_given_up_but_counts_until_it_ends() -> None:
    admission = Admission(queue_limit=2, byte_limit=300)
    workers = WorkerPool(threads=1, seconds=0.5, admission=admission)  # in which the thread begins
    release = threading.Event()
    with admission.admit(""):
        admission.count_bytes(240)
        with pytest.raises(Overloaded):
            admission.count_bytes(1)
        with refused("request_timeout", LikenessError):
            await workers.run(release.wait)
    assert (admission.admitted, admission.bytes) == (1, 240), "the thread is still busy, with the request's body"
    with pytest.raises(LikenessError):  # waits behind the slow one, and is dropped unbegun
        await workers.run(lambda: pytest.fail("dropped work was done"))
    assert admission.admitted == 1
    release.set()
    with anyio.fail_after(PATIENCE_S):
        while admission.admitted:
            await anyio.sleep(0.01)
    assert (admission.bytes, workers.waiting) == (0, 0)
    workers.close()


@pytest.mark.anyio
async def test_a_body_that_does_not_arrive_is_not_waited_for_forever() -> None:
    async def receive() -> Message:
        await anyio.sleep_forever()
        raise AssertionError

    request = Request({"type": "http", "method": "POST", "headers": [(b"content-length", b"10")]}, receive)
    with anyio.fail_after(PATIENCE_S), pytest.raises(InvalidInput) as caught:
        await read_body(request, limit=100, seconds=0.05, count_bytes=lambda _: None)
    assert caught.value.code == "body_timeout"


@pytest.mark.anyio
async def test_a_client_that_leaves_makes_room(tmp_path: Path) -> None:
    app = made(tmp_path)
    sent: list[Message] = []
    waiting: list[Message] = [{"type": "http.request", "body": b"x", "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> Message:
        return waiting.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    async with app.router.lifespan_context(app):
        key = load_key(tmp_path)[0]
        await app(scope_of("POST", "/v1/detect", key, content_type="image/png"), receive, send)
        assert app.state.components.admission.admitted == 0
        app.state.status = "draining"
        waiting.append({"type": "http.request"})
        await app(scope_of("GET", "/readyz", key), receive, send)
    start, body = sent
    assert start["status"] == 503, "nothing was sent to the client that left; this answers the next one"
    assert json.loads(body["body"]) == {"status": "draining"}


@pytest.mark.anyio
async def test_a_body_is_not_read_beyond_its_limit() -> None:
    read = 0

    async def receive() -> Message:
        nonlocal read
        read += 10
        return {"type": "http.request", "body": b"x" * 10, "more_body": True}

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    with refused("payload_too_large", InvalidInput):
        await read_body(request, limit=95, seconds=10, count_bytes=lambda _: None)
    assert read == 100


def test_answers_do_not_wait_for_acknowledgements() -> None:
    """Nagle's algorithm with delayed acknowledgements cost 40 ms a request on connections that are used again."""
    with (
        listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_reserved_port_waits_for_whom_it_was_reserved(port: int) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    for _ in range(2):  # and again once a server has ended
        with listen("127.0.0.1", port), socket.create_connection(("127.0.0.1", port)):
            pass
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))


def test_the_server_says_where_it_is_and_where_the_key_is(shared_server: LiveServer) -> None:
    with shared_server.client() as client:
        assert client.get("/readyz").json() == {"status": "ok"}
    printed = shared_server.log.read_text()
    assert shared_server.url in printed
    assert f"The admin key is in {shared_server.data_dir / ADMIN_KEY_FILE}" in printed
    assert shared_server.key not in printed, "the key itself is told to a terminal only"
    assert f'curl -H "x-api-key: $(cat {shared_server.data_dir / ADMIN_KEY_FILE})"' in printed


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"embedder": "nothing"}, "There is no model package 'nothing'"),
        ({"embedder": "yunet"}, "not for `embed`"),
        ({"models_dir": Path("/nowhere")}, "There is no folder /nowhere"),
        ({"data_dir": Path("/dev/null/x")}, "^/dev/null/x: "),
        ({"device": "cuda"}, "device=cuda cannot be used: .*LIKENESS_DEVICE=cpu"),
        ({"host": "192.0.2.1"}, "Cannot listen on 192.0.2.1"),
    ],
)
def test_what_makes_a_start_impossible_is_said_in_a_sentence(
    tmp_path: Path, settings: dict[str, Any], sentence: str
) -> None:
    give_models(tmp_path)
    given: dict[str, Any] = {"data_dir": tmp_path, "port": 0} | settings
    with own_logging(), pytest.raises(Unusable, match=sentence):
        serve(Settings(**given))


def test_a_start_that_is_impossible_prints_one_line_and_no_traceback(tmp_path: Path) -> None:
    done = run(tmp_path, "serve", PORT=0, EMBEDDER="nothing")
    assert done.returncode == Exit.FAILED
    assert "There is no model package 'nothing'" in done.stderr
    assert "Traceback" not in done.stderr
    assert "answers at" not in done.stdout


def test_requests_for_another_servers_name_are_refused(tmp_path: Path) -> None:
    """Where the servers are named; all other tests name a host that no setting does."""
    with running(tmp_path / "data", hosts="faces.example.org,[2001:db8::1]") as client:
        for host in ("faces.example.org", "Faces.Example.ORG:8443", "[2001:db8::1]:8000", "service"):
            assert client.get("/version", headers={"host": host}).status_code == 200, host
        for host in (
            "evil.example",
            "faces.example.org.evil.example",
            "evil.example:faces.example.org",
            "",
            "127.0.0.1",
        ):
            for path in ("/version", "/v1/galleries", "/"):
                error_of(client.get(path, headers={"host": host}), 421, "host_not_allowed")
        signed = client.post("/", headers={"host": "evil.example", "x-amz-target": "RekognitionService.ListFaces"})
        assert signed.status_code == 400
