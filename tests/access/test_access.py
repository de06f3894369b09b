"""Who may do what: every operation of the OpenAPI document, with every scope, and with every way to have no right.

One of the operations is new, added as a user adds one: by a declaration on its handler, which gives it authorization,
its entry in the audit log, its error codes and its place in the document.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from app.access.grants import Scope
from app.api.components import GalleryId, SubjectId
from app.api.operation import CALL_CODES, JSON_CODES, KEYED_CODES, NO_SUBJECT
from app.api.route import Router
from app.api.schemas.base import Example, Params, Wire
from app.gallery.service import Galleries
from tests.support.access import (
    FACE,
    GALLERY,
    KINDS,
    NOT_FOUND,
    OPEN,
    OTHER,
    OWN,
    SCOPES,
    SIGHTING,
    STRANGER,
    SUBJECT,
    Ground,
    access_ground,
    check_access,
    keys,
    keys_of,
    state,
    token,
)
from tests.support.service import COLLINS, error_of, running

NEEDS: dict[str, str] = {
    "POST /v1/detect": "recognize",
    "POST /v1/embed": "recognize",
    "POST /v1/verify": "recognize",
    "GET /v1/galleries": "read",
    "POST /v1/galleries": "admin",
    f"GET {GALLERY}": "read",
    f"POST {GALLERY}/challenges": "recognize",
    f"POST {GALLERY}/challenges/answer": "recognize",
    f"PATCH {GALLERY}": "admin",
    f"DELETE {GALLERY}": "admin",
    f"GET {GALLERY}/check": "admin",
    f"POST {GALLERY}/review": "admin",
    f"GET {GALLERY}/review": "read",
    f"POST {GALLERY}/review/{{finding}}/dismiss": "enroll",
    f"DELETE {GALLERY}/review/{{finding}}/dismiss": "enroll",
    f"GET {GALLERY}/reembed": "read",
    f"POST {GALLERY}/reembed": "admin",
    f"DELETE {GALLERY}/reembed": "admin",
    f"POST {GALLERY}/reembed/rollback": "admin",
    f"POST {GALLERY}/reembed/finish": "admin",
    f"POST {GALLERY}/identify": "recognize",
    f"GET {GALLERY}/subjects": "read",
    f"POST {GALLERY}/subjects": "enroll",
    f"GET {SUBJECT}": "read",
    f"POST {SUBJECT}/greet": "enroll",
    f"PATCH {SUBJECT}": "enroll",
    f"DELETE {SUBJECT}": "enroll",
    f"POST {SUBJECT}/verify": "recognize",
    f"GET {SUBJECT}/faces": "read",
    f"POST {SUBJECT}/faces": "enroll",
    f"GET {FACE}": "read",
    f"DELETE {FACE}": "enroll",
    f"GET {FACE}/crop": "read",
    f"POST {FACE}/move": "enroll",
    f"POST {SUBJECT}/faces/move": "enroll",
    f"POST {SUBJECT}/merge": "enroll",
    f"GET {SUBJECT}/corrections": "read",
    f"POST {SUBJECT}/corrections": "enroll",
    f"DELETE {SUBJECT}/corrections/{{correction}}": "enroll",
    f"GET {GALLERY}/calibration": "admin",
    f"POST {GALLERY}/calibration": "admin",
    "GET /v1/models": "any",
    "POST /v1/models": "admin",
    "GET /v1/models/pullable": "admin",
    "POST /v1/models/pull": "admin",
    "DELETE /v1/models/{package}": "admin",
    f"POST {SUBJECT}/erase": "admin",
    "GET /v1/receipts": "admin",
    "GET /v1/receipts/{receipt}": "admin",
    "GET /v1/server-key": "any",
    "GET /v1/key": "any",
    "POST /v1/sign-in-codes": "any",
    "POST /v1/session": "any",
    "DELETE /v1/session": "any",
    "GET /v1/keys": "admin",
    "POST /v1/keys": "admin",
    "GET /v1/keys/{key}": "admin",
    "DELETE /v1/keys/{key}": "admin",
    "POST /v1/keys/{key}/rotate": "admin",
    "GET /v1/audit": "admin",
    f"POST {GALLERY}/import": "admin",
    f"POST {GALLERY}/group": "enroll",
    f"GET {GALLERY}/group/{{job}}": "enroll",
    f"POST {GALLERY}/export": "admin",
    "GET /v1/jobs/{job}/result": "admin",
    "GET /v1/jobs": "read",
    "GET /v1/jobs/{job}": "read",
    "GET /v1/jobs/{job}/report": "read",
    "POST /v1/jobs/{job}/cancel": "admin",
    f"PUT {SIGHTING}": "watch",
    f"PATCH {SIGHTING}": "watch",
    f"GET {GALLERY}/sightings": "read",
    f"DELETE {GALLERY}/sightings": "enroll",
    f"GET {SIGHTING}": "read",
    f"DELETE {SIGHTING}": "enroll",
    f"GET {SIGHTING}/crop": "read",
    f"POST {SIGHTING}/who": "enroll",
    f"PUT {GALLERY}/cameras": "watch",
    f"GET {GALLERY}/cameras": "read",
    f"GET {GALLERY}/strangers": "read",
    f"GET {STRANGER}": "read",
    f"PATCH {STRANGER}": "enroll",
    f"DELETE {STRANGER}": "enroll",
    f"GET {STRANGER}/resembling": "read",
    f"POST {STRANGER}/name": "enroll",
    f"POST {STRANGER}/merge": "enroll",
    f"POST {STRANGER}/part": "enroll",
    "GET /v1/events": "read",
    "GET /v1/webhooks": "admin",
    "POST /v1/webhooks": "admin",
    "GET /v1/webhooks/{webhook}": "admin",
    "DELETE /v1/webhooks/{webhook}": "admin",
    "POST /v1/webhooks/{webhook}/resume": "admin",
    "GET /metrics": "metrics",
}
"""The scope of each operation, written down a second time: a change of a declaration must be on purpose."""
EVERYWHERE = {
    "POST /v1/models",
    "GET /v1/models/pullable",
    "POST /v1/models/pull",
    "DELETE /v1/models/{package}",
    "POST /v1/galleries",
    f"DELETE {GALLERY}",
    *(name for name in NEEDS if "/v1/keys" in name or "/v1/webhooks" in name),
    "GET /v1/audit",
    "GET /v1/receipts",
    "GET /v1/receipts/{receipt}",
}
"""Operations that no key which is restricted to galleries may call."""


router = Router("subjects")


class GreetRequest(Params):
    example: ClassVar[Example] = {"greeting": "Good morning"}
    greeting: str


class Greeting(Wire):
    """A greeting."""

    example: ClassVar[Example] = {"text": "Good morning, Eileen Collins"}
    text: str


@router.operation("POST", f"{SUBJECT}/greet", scope=Scope.ENROLL, changes=True, codes=NO_SUBJECT)
def greet(galleries: Galleries, gallery: GalleryId, subject: SubjectId, asked: GreetRequest) -> Greeting:
    """Greet a subject.

    Says good morning.
    """
    found = galleries.store.subject(galleries.store.gallery(gallery), subject)
    return Greeting(text=f"{asked.greeting}, {found.name or found.id}")


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with access_ground(tmp_path_factory.mktemp("access"), [router]) as found:
        yield found


def test_the_table_and_the_document_name_the_same_operations_and_scopes(ground: Ground) -> None:
    keyed = {name: operation for name, operation in ground.operations.items() if name not in OPEN}
    assert {name: operation["x-scope"] for name, operation in keyed.items()} == NEEDS
    assert {name for name, operation in keyed.items() if operation["x-unrestricted"]} == EVERYWHERE


@pytest.mark.parametrize(("scope", "way"), keys())
def test_every_operation_with_a_key_of_this_scope(ground: Ground, scope: str, way: str) -> None:
    check_access(ground, dict.fromkeys(NEEDS, (scope, way)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_operation_with_a_key_of_this_kind(ground: Ground, kind: str) -> None:
    check_access(ground, keys_of(kind, NEEDS))


def test_a_new_operation_answers_and_is_in_the_audit_log(ground: Ground) -> None:
    ground.inhabit()
    path = router.operations[0].fill(gallery=OWN, subject="{}")
    answers = [
        ground.admin("POST", path.replace("%7B%7D", subject), json=body)
        for subject, body in (
            ("eileen", {"greeting": "Hello"}),
            ("no%2Fbody", {"greeting": "Hello"}),
            ("eileen", {"greetings": 1}),
        )
    ]
    assert answers[0].json() == {"text": "Hello, eileen"}
    error_of(answers[1], 404, "subject_not_found")
    error_of(answers[2], 422, "invalid_request")
    entries = ground.admin("GET", "/v1/audit?operation=greet&limit=3").json()["entries"]
    found = [(entry["subject"], entry["status"], entry["key"], entry["gallery"]) for entry in entries]
    assert found == [
        (subject, status, "admin.key", OWN) for subject, status in (("eileen", 422), ("no/body", 404), ("eileen", 200))
    ]


def test_a_new_operation_is_in_the_document(ground: Ground) -> None:
    found = ground.operations[f"POST {SUBJECT}/greet"]
    assert (found["summary"], found["description"]) == ("Greet a subject", "Says good morning.")
    assert (found["tags"], found["x-scope"], found["x-unrestricted"]) == (["subjects"], "enroll", False)
    assert found["security"] == [{"bearer": []}, {"api_key": []}]
    body = found["requestBody"]["content"]["application/json"]
    assert body == {"schema": {"$ref": "#/components/schemas/GreetRequest"}, "example": {"greeting": "Good morning"}}
    good = found["responses"]["200"]["content"]["application/json"]
    assert good["example"] == {"text": "Good morning, Eileen Collins"}
    codes = {
        code
        for response in found["responses"].values()
        for code in response["content"]["application/json"].get("examples", {})
    }
    of_call = {"subject_not_found", "gallery_not_found", "invalid_id"}
    assert codes == {*KEYED_CODES, *CALL_CODES, *JSON_CODES, *of_call}


def test_a_new_operations_path_takes_any_id() -> None:
    (found,) = router.operations
    assert found.fill(gallery="a/b", subject="王") == "/v1/galleries/a%2Fb/subjects/%E7%8E%8B/greet"


def test_a_restricted_key_lists_its_galleries_alone_page_by_page(ground: Ground) -> None:
    ground.inhabit()
    listed = ground.client.get("/v1/galleries?limit=1", headers={"x-api-key": token("read", "own gallery")})
    assert [gallery["id"] for gallery in listed.json()["galleries"]] == [OWN]
    assert listed.json()["next_cursor"] is None


def test_another_gallery_looks_as_if_it_were_not_there(ground: Ground) -> None:
    headers = {"x-api-key": token("read", "own gallery")}
    there, nowhere = (ground.client.get(f"/v1/galleries/{name}", headers=headers) for name in (OTHER, "nowhere"))
    assert error_of(there, 404, "gallery_not_found") == {"gallery": OTHER}
    assert error_of(nowhere, 404, "gallery_not_found") == {"gallery": "nowhere"}
    assert there.json()["error"]["message"].replace(OTHER, "nowhere") == nowhere.json()["error"]["message"]


def test_an_id_of_another_gallery_is_as_unknown_as_an_invented_one(ground: Ground) -> None:
    """Whatever it is the id of: the path's gallery, which the key may see, is not the one that it belongs to."""
    ids = ground.inhabit()
    ground.admin("POST", f"/v1/galleries/{OTHER}/subjects/eileen/faces", files={"images": COLLINS}).raise_for_status()
    before, asked = state(ground.data_dir), 0
    for name in ground.operations.keys() - EVERYWHERE - OPEN - {f"PUT {SIGHTING}"}:  # that one takes any new id
        fields = set(re.findall(r"{(\w+)}", name)) - {"gallery", "subject"}
        if not fields:
            continue
        somebody, key = ids | {"gallery": OTHER}, token("admin", "other gallery")
        answers = [ground.ask(name, somebody | dict.fromkeys(other, "9" * 32), key) for other in ((), fields)]
        codes = {
            (answer.status_code, "" if answer.is_success else answer.json()["error"]["code"]) for answer in answers
        }
        assert len(codes) == 1, (name, codes)
        assert codes.pop()[0] == NOT_FOUND, name
        asked += 1
    assert asked >= 20
    assert state(ground.data_dir) == before


@pytest.mark.parametrize(
    ("scope", "where", "asked", "nearest"),
    [
        ("read", "unrestricted", "elsewere", OTHER),
        ("read", "unrestricted", "nowhere at all", None),
        ("read", "own gallery", "owm", OWN),
        ("read", "own gallery", "elsewere", None),
        ("recognize", "unrestricted", "elsewere", None),
    ],
)
def test_a_gallery_of_almost_the_same_id_is_named_to_keys_that_may_list_it(
    ground: Ground, scope: str, where: str, asked: str, nearest: str | None
) -> None:
    ground.inhabit()
    headers = {"x-api-key": token(scope, where)}
    path = f"/v1/galleries/{asked}"
    if scope == "read":
        answer = ground.client.get(path, headers=headers)
    else:
        answer = ground.client.post(f"{path}/identify", headers=headers, files={"image": COLLINS})
    told = {} if nearest is None else {"nearest": nearest}
    assert error_of(answer, 404, "gallery_not_found") == {"gallery": asked} | told
    assert ("Did you mean" in answer.json()["error"]["message"]) is bool(nearest)


@pytest.mark.parametrize(
    "path", ["elsewher%65", "%65lsewhere", "own%2F..%2Felsewhere", "own/../elsewhere", "ELSEWHERE"]
)
def test_no_spelling_of_a_path_leads_to_another_gallery(ground: Ground, path: str) -> None:
    ground.inhabit()
    answer = ground.client.get(f"/v1/galleries/{path}", headers={"x-api-key": token("read", "own gallery")})
    assert answer.status_code in {403, 404}


def test_a_gallery_is_the_same_however_its_id_is_composed(ground: Ground) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    ground.admin("POST", "/v1/galleries", json={"id": composed})
    made = ground.admin("POST", "/v1/keys", json={"scopes": ["read"], "galleries": [decomposed]}).json()
    for spelling in (composed, decomposed):
        answer = ground.client.get(f"/v1/galleries/{spelling}", headers={"x-api-key": made["secret"]})
        assert answer.json()["id"] == composed
    assert made["galleries"] == [composed]


def test_a_path_without_an_operation_is_not_found_by_any_key(ground: Ground) -> None:
    for scope in SCOPES:
        answer = ground.client.get("/v1/no/such", headers={"x-api-key": token(scope, "own gallery")})
        error_of(answer, 404, "not_found")
    error_of(ground.client.get("/v1/no/such", headers={"x-api-key": ""}), 401, "missing_key")
    assert ground.client.get("/openapi.json", headers={"x-api-key": token("read", "own gallery")}).is_success


def test_the_secret_is_shown_once(ground: Ground) -> None:
    made = ground.admin("POST", "/v1/keys", json={"id": "once", "scopes": ["read"]}).json()
    assert made["secret"].startswith("lk_once_")
    for path in ("/v1/keys/once", "/v1/keys?limit=1000", "/v1/audit?limit=1000"):
        assert made["secret"].removeprefix("lk_once_") not in ground.admin("GET", path).raise_for_status().text


def test_a_key_works_until_it_is_revoked_and_its_rate_is_kept(ground: Ground) -> None:
    made = ground.admin("POST", "/v1/keys", json={"scopes": ["read"], "rate": "1/m:2"}).json()
    headers = {"authorization": f"Bearer {made['secret']}", "x-api-key": ""}
    answers = [ground.client.get("/v1/galleries", headers=headers) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    error_of(answers[2], 429, "rate_limited")
    assert 1 <= int(answers[2].headers["retry-after"]) <= 60
    ground.admin("DELETE", f"/v1/keys/{made['id']}").raise_for_status()
    error_of(ground.client.get("/v1/galleries", headers=headers), 401, "revoked_key")


def test_only_a_key_with_templates_gives_that_scope(ground: Ground) -> None:
    """Neither to a new key, nor by taking over one that has it with a new secret."""
    admin = {"x-api-key": ground.admin("POST", "/v1/keys", json={"scopes": ["admin"]}).json()["secret"]}
    both = {"id": "exact", "scopes": ["recognize", "templates"]}
    details = error_of(ground.client.post("/v1/keys", json=both, headers=admin), 403, "missing_scope")
    assert details["scope"] == "templates"
    ground.admin("POST", "/v1/keys", json=both).raise_for_status()
    error_of(ground.client.post("/v1/keys/exact/rotate", json={}, headers=admin), 403, "missing_scope")
    ground.client.delete("/v1/keys/exact", headers=admin).raise_for_status()
    giver = ground.admin("POST", "/v1/keys", json={"scopes": ["admin", "templates"]}).json()["secret"]
    both["id"] = "given"
    ground.client.post("/v1/keys", json=both, headers={"x-api-key": giver}).raise_for_status()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"scopes": []}, "invalid_request"),
        ({"scopes": ["fly"]}, "invalid_request"),
        ({"scopes": ["read"], "id": "A_b"}, "invalid_request"),
        ({"scopes": ["read"], "rate": "often"}, "invalid_rate"),
        ({"scopes": ["read"], "galleries": [".."]}, "invalid_id"),
        ({"scopes": ["read"], "expires_at": "2026-01-01T00:00:00Z"}, "invalid_expiry"),
        ({"scopes": ["read"], "expires_at": "2036-01-01"}, "invalid_request"),
        ({"scopes": ["read"], "expires_at": 1}, "invalid_request"),
    ],
)
def test_keys_that_make_no_sense_are_refused(ground: Ground, body: dict[str, Any], code: str) -> None:
    error_of(ground.admin("POST", "/v1/keys", json=body), 422, code)


def test_an_address_that_guesses_is_told_to_wait_and_good_keys_go_on(tmp_path: Path) -> None:
    """Keys or sign-in codes alike."""
    with running(tmp_path / "data", failed_keys="3/m") as client:
        made = client.post("/v1/keys", json={"scopes": ["read"]}).json()
        used, code = {"x-api-key": made["secret"]}, client.post("/v1/sign-in-codes").json()["code"]
        assert client.get("/v1/galleries", headers=used).is_success
        guesses = [client.get("/v1/galleries", headers={"x-api-key": f"lk_{made['id']}_{n}"}) for n in range(2)]
        guesses += [client.post("/v1/sign-in", headers={"x-api-key": f"lc_{n:016x}_guess"}) for n in range(2)]
        guesses += [
            client.post("/v1/sign-in", headers={"x-api-key": code}),
            client.get("/v1/galleries", headers={"x-api-key": "lk_a_b"}),
        ]
        assert [guess.status_code for guess in guesses] == [401, 401, 401, 429, 429, 429]
        error_of(guesses[-1], 429, "too_many_failures")
        assert 1 <= int(guesses[-1].headers["retry-after"]) <= 20
        assert client.get("/v1/galleries", headers=used).is_success
        assert client.get("/v1/galleries").is_success
