"""One match decides what a request is: keys before anything is told, parameters treated alike, one answer each."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal
from unicodedata import normalize
from urllib.parse import quote

import httpx
import pytest
from fastapi.responses import FileResponse, StreamingResponse
from starlette.types import Message

from app.api.operation import Operation
from app.api.page import PAGE_PATH
from app.api.page_files import PAGE_FILES
from app.api.route import OperationRoute, Router
from app.config import Settings
from app.errors import DatabaseBusy
from app.features.audit.reading import AuditFilter, entries
from app.gallery.store import Store
from app.gallery.text import MAX_TEXT
from app.main import create_app, own_operations
from app.server.data_folder import load_key
from tests.support.service import error_of, made, running_here, scope_of

READS = [operation for operation in own_operations() if operation.method == "GET" and not operation.monitoring]
OPTIONAL: dict[str, Any] = dict.fromkeys(("compreface", "deepstack", "immich", "rekognition", "watching"), "on")
UNKNOWN = ("/v1/galeries", "/v1/galleries/", "/v1/galleries/own/nothing", "/v2/detect", "/nothing")


def test_every_route_is_an_operation_or_the_page() -> None:
    app = create_app(Settings(data_dir=Path("unused"), **OPTIONAL))
    others = {getattr(route, "path", "") for route in app.routes if not isinstance(route, OperationRoute)}
    assert others == {PAGE_PATH, PAGE_FILES + "{name:path}"}, "anything else would be served without a key"


@pytest.mark.parametrize("path", UNKNOWN)
def test_an_unknown_path_is_not_found_but_only_for_a_key(api: httpx.Client, path: str) -> None:
    error_of(api.get(path), 404, "not_found")
    error_of(api.get(path, headers={"x-api-key": ""}), 401, "missing_key")
    error_of(api.get(path, headers={"x-api-key": "lk_wrong"}), 401, "wrong_key")


def test_another_method_is_not_allowed_but_only_for_a_key(api: httpx.Client) -> None:
    refused = api.put("/v1/models")
    error_of(refused, 405, "method_not_allowed")
    assert refused.headers["allow"] == "GET, HEAD, POST"
    error_of(api.put("/v1/models", headers={"x-api-key": ""}), 401, "missing_key")


@pytest.mark.parametrize("operation", READS, ids=lambda operation: operation.name)
def test_a_parameter_that_is_unknown_or_given_twice_is_an_error_everywhere(
    api: httpx.Client, operation: Operation
) -> None:
    path = operation.path.replace("{", "").replace("}", "")
    (problem,) = error_of(api.get(path, params={"nonsense": "1"}), 422, "invalid_request")["errors"]
    assert problem["where"] == "query.nonsense"
    for name in operation.query.model_fields if operation.query else ():
        (problem,) = error_of(api.get(f"{path}?{name}=1&{name}=1"), 422, "invalid_request")["errors"]
        assert (problem["where"], problem["what"]) == (f"query.{name}", "Given more than once")


@pytest.mark.anyio
async def test_an_error_after_the_answer_began_cuts_it_short_and_sends_no_second_one(tmp_path: Path) -> None:
    router = Router("server")

    async def pieces() -> AsyncIterator[bytes]:
        yield b"the beginning"
        await asyncio.sleep(0)
        raise DatabaseBusy("in the middle")

    @router.operation("GET", "/v1/broken", scope=None)
    async def broken() -> StreamingResponse:
        """Break off."""
        return StreamingResponse(pieces())

    app = made(tmp_path, routers=[router])
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    async with app.router.lifespan_context(app):
        await app(scope_of("GET", "/v1/broken", load_key(tmp_path)[0]), receive, send)
    with closing(Store(f"sqlite:///{tmp_path / 'likeness.db'}")) as sql:
        (entry,) = entries(sql.database, AuditFilter(), limit=10, newest_first=True).items
    assert (entry.operation, entry.status) == ("broken", 200)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == 200
    assert sent[1].get("more_body"), "the answer is not whole, and does not look so"


@pytest.mark.anyio
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_answer_that_fails_before_it_begins_is_recorded_as_the_error_that_is_sent(
    tmp_path: Path, method: str
) -> None:
    router = Router("server")

    @router.operation(method, "/v1/lost", scope=None)
    async def lost() -> FileResponse:
        """Answer with a file, as a feature of another distribution may, that is gone."""
        return FileResponse(tmp_path / "gone")

    async with running_here(tmp_path, routers=[router]) as (_, client):
        error_of(await client.request(method, "/v1/lost"), 500, "internal_error")
    with closing(Store(f"sqlite:///{tmp_path / 'likeness.db'}")) as sql:
        (entry,) = entries(sql.database, AuditFilter(), limit=10, newest_first=True).items
    assert (entry.operation, entry.status) == ("lost", 500)


@pytest.mark.anyio
async def test_every_handler_finds_what_it_takes_by_its_name(tmp_path: Path) -> None:
    async with running_here(tmp_path, **OPTIONAL) as (app, _):
        parts = app.state.components.parts
        for route in (route for route in app.routes if isinstance(route, OperationRoute)):
            handler = inspect.getclosurevars(route.endpoint).nonlocals["handler"]
            for name, parameter in inspect.signature(handler, eval_str=True).parameters.items():
                if name in parts:
                    assert isinstance(parts[name], parameter.annotation), (route.path, name)
                elif isinstance(parameter.annotation, type) and parameter.annotation in map(type, parts.values()):
                    pytest.fail(f"{route.path}: nothing is called {name}")


def test_every_id_and_search_in_a_query_is_counted_and_compared_in_its_composed_form() -> None:
    """As macOS and some clients send them, in NFD, where `e` and its accent are two characters."""
    wanted, found = "\u00e9" * MAX_TEXT, 0
    for operation in own_operations():
        fields = operation.query.model_fields if operation.query else {}
        for name in fields.keys() & {"gallery", "subject", "search"}:
            assert operation.query is not None
            params = operation.query.model_validate({name: normalize("NFD", wanted)})
            assert getattr(params, name) == wanted, operation.name
            found += 1
    assert found >= 7


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_an_id_in_a_path_is_counted_in_its_composed_form(
    api: httpx.Client, gallery: str, form: Literal["NFC", "NFD"]
) -> None:
    wanted = "\u00e9" * MAX_TEXT
    api.post(f"{gallery}/subjects", json={"id": wanted}).raise_for_status()
    sent = quote(normalize(form, wanted))
    assert api.get(f"{gallery}/subjects/{sent}").raise_for_status().json()["id"] == wanted
    error_of(api.get(f"{gallery}/subjects/{sent}{sent}"), 422, "invalid_request")
