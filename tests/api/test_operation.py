"""A new operation, added as a user adds one: a module of models, one of routes, and its place among the routes.

These are all files of `app` that it touches. Its declaration gives it authorization, its entry in the audit log, its
error codes and its place in the document.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.access.grants import Scope
from app.api.components import GalleryId, SubjectId
from app.api.operation import CALL_CODES, JSON_CODES, KEYED_CODES
from app.api.route import Router
from tests.conftest import PROJECT
from tests.support.access import Ground, access_ground, check_access, keys
from tests.support.live import serving
from tests.support.service import error_of

MODELS = '''
"""What greeting a subject takes and answers."""

from __future__ import annotations

from typing import ClassVar

from app.api.schemas.base import Example, Params, Wire


class GreetRequest(Params):
    example: ClassVar[Example] = {"greeting": "Good morning"}
    greeting: str


class Greeting(Wire):
    """A greeting."""

    example: ClassVar[Example] = {"text": "Good morning, Eileen Collins"}
    text: str
'''
ROUTES = '''
"""Greetings."""

from __future__ import annotations

from typing import Annotated

from app.access.grants import Scope
from app.api.components import GalleriesDep, GalleryId, SubjectId
from app.api.operation import NO_SUBJECT
from app.api.route import Router
from app.api.schemas.greetings import Greeting, GreetRequest
from app.api.sent import JSON

router = Router("subjects")


@router.operation(
    "POST", "/v1/galleries/{gallery}/subjects/{subject}/greet", scope=Scope.ENROLL, changes=True, codes=NO_SUBJECT
)
def greet(
    galleries: GalleriesDep, gallery: GalleryId, subject: SubjectId, asked: Annotated[GreetRequest, JSON]
) -> Greeting:
    """Greet a subject.

    Says good morning.
    """
    found = galleries.store.subject(galleries.store.gallery(gallery), subject)
    return Greeting(text=f"{asked.greeting}, {found.name or found.id}")
'''
PATH = "/v1/galleries/{gallery}/subjects/{subject}/greet"
GREET = "/v1/galleries/staff/subjects/{}/greet"


@pytest.fixture(scope="module")
def greeter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server of a copy of `app` that can greet, with a subject."""
    code = tmp_path_factory.mktemp("code")
    shutil.copytree(PROJECT / "app", code / "app", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "pyproject.toml", code)
    (code / "app/api/schemas/greetings.py").write_text(MODELS)
    (code / "app/api/routes/greetings.py").write_text(ROUTES)
    place = code / "app/api/routes/__init__.py"
    text = place.read_text().replace("    galleries,\n", "    galleries,\n    greetings,\n")
    place.write_text(text.replace("MODULES = (", "MODULES = (greetings, "))
    settings = {"MODELS_DIR": PROJECT / "models"}
    with serving(tmp_path_factory.mktemp("data") / "data", settings, code=code) as server, server.client() as client:
        client.post("/v1/galleries", json={"id": "staff"}).raise_for_status()
        client.post("/v1/galleries/staff/subjects", json={"id": "eileen"}).raise_for_status()
        yield client


def test_it_answers_and_is_in_the_audit_log(greeter: httpx.Client) -> None:
    answer = greeter.post(GREET.format("eileen"), json={"greeting": "Hello"})
    assert answer.json() == {"text": "Hello, eileen"}
    missing = greeter.post(GREET.format("no%2Fbody"), json={"greeting": "Hello"})
    error_of(missing, 404, "subject_not_found")
    error_of(greeter.post(GREET.format("eileen"), json={"greetings": 1}), 422, "invalid_request")
    entries = greeter.get("/v1/audit?operation=greet&limit=3").json()["entries"]
    assert [(entry["subject"], entry["status"]) for entry in entries] == [
        ("eileen", 422),
        ("no/body", 404),
        ("eileen", 200),
    ]
    assert all((entry["key"], entry["gallery"]) == ("admin.key", "staff") for entry in entries)


def test_it_needs_a_key_with_its_scope(greeter: httpx.Client) -> None:
    made = greeter.post("/v1/keys", json={"id": "reader", "scopes": ["read"]}).raise_for_status().json()
    for key, status, code in (
        (None, 401, "missing_key"),
        ("lk_x", 401, "wrong_key"),
        (made["secret"], 403, "missing_scope"),
    ):
        request = httpx.Request("POST", greeter.base_url.join(GREET.format("eileen")), json={"greeting": "Hello"})
        if key:
            request.headers["x-api-key"] = key
        error_of(greeter.send(request), status, code)


def test_it_is_in_the_document(greeter: httpx.Client) -> None:
    document: dict[str, Any] = greeter.get("/openapi.json").json()
    found = document["paths"][PATH]["post"]
    assert (found["summary"], found["description"]) == ("Greet a subject", "Says good morning.")
    assert (found["tags"], found["x-scope"], found["x-unrestricted"]) == (["subjects"], "enroll", False)
    assert found["security"] == [{"bearer": []}, {"api_key": []}]
    body = found["requestBody"]["content"]["application/json"]
    assert body["schema"] == {"$ref": "#/components/schemas/GreetRequest"}
    assert body["example"] == {"greeting": "Good morning"}
    assert {"GreetRequest", "Greeting"} <= set(document["components"]["schemas"])
    good = found["responses"]["200"]["content"]["application/json"]
    assert good["example"] == {"text": "Good morning, Eileen Collins"}
    codes = {
        code
        for response in found["responses"].values()
        for code in response["content"]["application/json"].get("examples", {})
    }
    own = {"subject_not_found", "gallery_not_found", "invalid_id"}
    assert codes == {*KEYED_CODES, *CALL_CODES, *JSON_CODES, *own}


router = Router("subjects")


@router.operation("POST", PATH, scope=Scope.ENROLL, changes=True, codes=("subject_not_found",))
def greet(gallery: GalleryId, subject: SubjectId) -> dict[str, str]:
    """Greet a subject."""
    return {"text": f"{subject} of {gallery}"}


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with access_ground(tmp_path_factory.mktemp("operation"), [router]) as found:
        yield found


@pytest.mark.parametrize(("scope", "way"), keys())
def test_it_is_authorized(ground: Ground, scope: str, way: str) -> None:
    check_access(ground, scope, way, [f"POST {PATH}"])


def test_its_path_takes_any_id() -> None:
    (found,) = router.operations
    assert found.fill(gallery="a/b", subject="王") == "/v1/galleries/a%2Fb/subjects/%E7%8E%8B/greet"
