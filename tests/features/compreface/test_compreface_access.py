"""Who may do what through CompreFace's interface: every call, with every scope, and with every way to have no right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.features.compreface.routes import ROUTERS
from tests.support.access import KINDS, OTHER, OWN, REFUSED, keys, keys_of, state, token, with_keys
from tests.support.service import COLLINS

RECOGNITION = "/api/v1/recognition"
SUBJECTS, FACES = f"{RECOGNITION}/subjects", f"{RECOGNITION}/faces"
NEEDS: dict[str, str] = {
    f"GET {SUBJECTS}": "read",
    f"POST {SUBJECTS}": "enroll",
    f"PUT {SUBJECTS}/{{subject}}": "enroll",
    f"DELETE {SUBJECTS}/{{subject}}": "delete",
    f"DELETE {SUBJECTS}": "delete",
    f"GET {FACES}": "read",
    f"POST {FACES}": "enroll",
    f"DELETE {FACES}": "delete",
    f"POST {FACES}/delete": "delete",
    f"DELETE {FACES}/{{face_id}}": "delete",
    f"GET {FACES}/{{face_id}}/img": "read",
    f"POST {RECOGNITION}/recognize": "recognize",
    f"POST {FACES}/{{face_id}}/verify": "recognize",
    f"POST {RECOGNITION}/embeddings/recognize": "templates",
    f"POST {RECOGNITION}/embeddings/faces/{{face_id}}/verify": "templates",
    "POST /api/v1/detection/detect": "recognize",
    "POST /api/v1/verification/verify": "recognize",
    "POST /api/v1/verification/embeddings/verify": "recognize",
}
"""What was decided, written down apart from the code that decides."""
OPERATIONS = [operation for router in ROUTERS for operation in router.operations]
EXPLICIT = {"templates"}
"""Scopes that `admin` does not imply."""
CREATED = {f"POST {SUBJECTS}", f"POST {FACES}"}


@dataclass
class Ground:
    """A service with a key of each kind, and somebody to ask about in the keys' own gallery and in `default`."""

    client: httpx.Client
    data_dir: Path

    def inhabit(self, gallery: str) -> dict[str, str]:
        faces = f"/v1/galleries/{gallery}/subjects/eileen/faces"
        for name in (gallery, OTHER):
            self.client.delete(f"/v1/galleries/{name}/subjects/new")
        found = self.client.get(faces)
        if not found.is_success or not found.json()["faces"]:
            self.client.post(faces, files={"images": COLLINS}).raise_for_status()
            found = self.client.get(faces)
        return {"subject": "eileen", "face_id": found.json()["faces"][0]["face_id"]}

    def ask(self, name: str, somebody: dict[str, str], key: str) -> httpx.Response:
        method, path = name.split()
        embedding = [1.0] * 128
        photo: dict[str, Any] = {"files": {"file": COLLINS}}
        sent: dict[str, Any] = {
            f"POST {SUBJECTS}": {"json": {"subject": "new"}},
            f"PUT {SUBJECTS}/{{subject}}": {"json": {"subject": "new"}},
            f"POST {FACES}": photo | {"params": {"subject": "new"}},
            f"POST {FACES}/delete": {"json": [somebody["face_id"]]},
            f"POST {RECOGNITION}/recognize": photo,
            f"POST {FACES}/{{face_id}}/verify": photo,
            "POST /api/v1/detection/detect": photo,
            "POST /api/v1/verification/verify": {"files": {"source_image": COLLINS, "target_image": COLLINS}},
            "POST /api/v1/verification/embeddings/verify": {"json": {"source": embedding, "targets": [embedding]}},
        }.get(name, {"json": {"embeddings": [embedding]}} if "embeddings" in path else {})
        return self.client.request(method, path.format(**somebody), headers={"x-api-key": key}, **sent)

    def people(self, gallery: str) -> Any:
        subjects = f"/v1/galleries/{gallery}/subjects"
        return [self.client.get(path).json() for path in (subjects, f"{subjects}/eileen/faces")]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    folder = tmp_path_factory.mktemp("access")
    with with_keys(folder, "default", OWN, OTHER, "default") as client:
        yield Ground(client, folder / "data")


def test_the_table_names_every_call() -> None:
    assert {f"{call.method} {call.path}": str(call.scope) for call in OPERATIONS} == NEEDS


def test_what_reads_is_not_said_to_change() -> None:
    for call in OPERATIONS:
        assert call.changes == (call.scope in {"enroll", "delete"}), call


@pytest.mark.parametrize(("scope", "way"), keys("default"))
def test_every_call_with_a_key_of_this_scope(ground: Ground, scope: str, way: str) -> None:
    check_calls(ground, dict.fromkeys(NEEDS, (scope, way)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_call_with_a_key_of_this_kind(ground: Ground, kind: str) -> None:
    check_calls(ground, keys_of(kind, NEEDS, "default"))


def check_calls(ground: Ground, keys: Mapping[str, tuple[str, str]]) -> None:
    """Call each operation with its key, first those that must refuse it; refusals must change nothing."""
    ways = {way for _, way in keys.values()}
    home = "default" if "default" in ways else OWN
    due = {name: expected(name, needed, *keys[name]) for name, needed in NEEDS.items()}
    got: dict[str, tuple[int, int | None]] = {}
    somebody, before = ground.inhabit(home), state(ground.data_dir)
    people = ground.people(home)

    def ask(name: str) -> bool:
        answer = ground.ask(name, somebody, token(*keys[name]))
        got[name] = (answer.status_code, None if answer.is_success else answer.json()["code"])
        return answer.is_success

    refused = [name for name in NEEDS if due[name][0] not in {200, 201}]
    assert not [name for name in refused if ask(name)], "these must be refused"
    assert state(ground.data_dir) == before, "a refused call has changed something"
    for name in (name for name in NEEDS if name not in refused):
        done = ask(name)
        if state(ground.data_dir) != before:
            assert done, f"{name} was refused and has changed something"
            assert "other gallery" not in ways or ground.people(home) == people, "no key reaches into another gallery"
            somebody, before = ground.inhabit(home), state(ground.data_dir)
    assert got == due


def expected(name: str, needed: str, scope: str, way: str) -> tuple[int, int | None]:
    """Return the status, and the code of an error, that a key of this scope and way should get."""
    if way in REFUSED:
        return (400, 20) if way == "none" else (404, 10)
    if scope != needed and (scope != "admin" or needed in EXPLICIT):
        return 403, 1
    good = (201 if name in CREATED else 200, None)
    return elsewhere(name, good) if way == "other gallery" else good


def elsewhere(name: str, good: tuple[int, int | None]) -> tuple[int, int | None]:
    """What asking about somebody of another gallery gives: nobody of that name or id is there."""
    if "{subject}" in name:
        return 404, 42
    if "{face_id}" in name and not name.endswith("/img"):
        return 404, 44
    return good
