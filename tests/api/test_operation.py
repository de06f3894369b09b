"""A new operation is one function: its declaration gives it authorization, audit entry and a place in the document.

In the service it takes three files at most: its models, its function, and a new module's place in `app.api.routes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import pytest

from app.access.grants import Scope
from app.api.dependencies import GalleriesDep, GalleryId, SubjectId
from app.api.route import Router
from app.api.schemas import Params, Wire
from app.api.sent import JSON
from tests.support.access import OWN, Ground, access_ground, check_access, keys
from tests.support.service import error_of


class GreetRequest(Params):
    example: ClassVar[dict[str, Any]] = {"greeting": "Good morning"}
    greeting: str


class Greeting(Wire):
    """A greeting."""

    example: ClassVar[dict[str, Any]] = {"text": "Good morning, Eileen Collins"}
    text: str


router = Router("subjects")


@router.operation(
    "POST",
    "/v1/galleries/{gallery}/subjects/{subject}/greet",
    scope=Scope.ENROLL,
    changes=True,
    codes=("subject_not_found",),
)
def greet(
    galleries: GalleriesDep, gallery: GalleryId, subject: SubjectId, asked: Annotated[GreetRequest, JSON]
) -> Greeting:
    """Greet a subject.

    Says good morning.
    """
    found = galleries.store.subject(galleries.store.gallery(gallery), subject)
    return Greeting(text=f"{asked.greeting}, {found.name or found.id}")


(GREET,) = router.operations
NAME = f"POST {GREET.path}"


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with access_ground(tmp_path_factory.mktemp("operation"), [router]) as found:
        yield found


@pytest.mark.parametrize(("scope", "way"), keys())
def test_it_is_authorized(ground: Ground, scope: str, way: str) -> None:
    check_access(ground, scope, way, [NAME])


def test_it_is_in_the_audit_log_before_and_after(ground: Ground) -> None:
    ground.inhabit()
    path = GREET.fill(gallery=OWN, subject="eileen")
    answer = ground.client.post(path, json={"greeting": "Hello"})
    assert answer.json() == {"text": "Hello, eileen"}
    missing = ground.client.post(GREET.fill(gallery=OWN, subject="no/body"), json={"greeting": "Hello"})
    error_of(missing, 404, "subject_not_found")
    entries = ground.client.get("/v1/audit?operation=greet&limit=2").json()["entries"]
    assert [(entry["subject"], entry["status"]) for entry in entries] == [("no/body", 404), ("eileen", 200)]
    assert all((entry["key"], entry["gallery"]) == ("admin.key", OWN) for entry in entries)


def test_it_is_in_the_document(ground: Ground) -> None:
    found = ground.operations[NAME]
    assert (found["summary"], found["description"]) == ("Greet a subject", "Says good morning.")
    assert (found["tags"], found["x-scope"], found["x-unrestricted"]) == (["subjects"], "enroll", False)
    assert found["security"] == [{"bearer": []}, {"api_key": []}]
    body = found["requestBody"]["content"]["application/json"]
    assert body == {"schema": {"$ref": "#/components/schemas/GreetRequest"}, "example": GreetRequest.example}
    assert found["responses"]["200"]["content"]["application/json"]["example"] == Greeting.example
    codes = {
        code
        for response in found["responses"].values()
        for code in response["content"]["application/json"].get("examples", {})
    }
    assert codes == set(GREET.error_codes)
    assert {"missing_key", "missing_scope", "gallery_not_found", "invalid_json", "subject_not_found"} <= codes


def test_its_path_takes_any_id() -> None:
    assert GREET.fill(gallery="a/b", subject="王") == "/v1/galleries/a%2Fb/subjects/%E7%8E%8B/greet"
