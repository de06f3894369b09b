"""Who may do what: every operation of the OpenAPI document, with every scope, and with every way to have no right."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.jobs import NOBODYS, waiting_job
from tests.support.service import COLLINS, error_of, running

OWN, OTHER = "own", "elsewhere"
SCOPES = ("read", "recognize", "enroll", "admin")
WAYS = ("unrestricted", "own gallery", "other gallery", "expired", "revoked", "wrong", "none")
SECRET = "0123456789abcdef" * 3
GALLERY = "/v1/galleries/{gallery}"
SUBJECT = f"{GALLERY}/subjects/{{subject}}"
FACE = f"{SUBJECT}/faces/{{face_id}}"
NEEDS: dict[str, str] = {
    "POST /v1/detect": "recognize",
    "POST /v1/embed": "recognize",
    "POST /v1/verify": "recognize",
    "GET /v1/galleries": "read",
    "POST /v1/galleries": "admin",
    f"GET {GALLERY}": "read",
    f"PATCH {GALLERY}": "admin",
    f"DELETE {GALLERY}": "admin",
    f"GET {GALLERY}/check": "admin",
    f"GET {GALLERY}/reembed": "read",
    f"POST {GALLERY}/reembed": "admin",
    f"DELETE {GALLERY}/reembed": "admin",
    f"POST {GALLERY}/reembed/rollback": "admin",
    f"POST {GALLERY}/reembed/finish": "admin",
    f"POST {GALLERY}/identify": "recognize",
    f"GET {GALLERY}/subjects": "read",
    f"POST {GALLERY}/subjects": "enroll",
    f"GET {SUBJECT}": "read",
    f"PATCH {SUBJECT}": "enroll",
    f"DELETE {SUBJECT}": "enroll",
    f"POST {SUBJECT}/verify": "recognize",
    f"GET {SUBJECT}/faces": "read",
    f"POST {SUBJECT}/faces": "enroll",
    f"GET {FACE}": "read",
    f"DELETE {FACE}": "enroll",
    f"GET {FACE}/crop": "read",
    f"POST {FACE}/move": "enroll",
    "GET /v1/models": "any",
    f"POST {SUBJECT}/erase": "admin",
    "GET /v1/receipts": "admin",
    "GET /v1/receipts/{receipt}": "admin",
    "GET /v1/server-key": "any",
    "GET /v1/key": "any",
    "GET /v1/keys": "admin",
    "POST /v1/keys": "admin",
    "GET /v1/keys/{key}": "admin",
    "DELETE /v1/keys/{key}": "admin",
    "POST /v1/keys/{key}/rotate": "admin",
    "GET /v1/audit": "admin",
    f"POST {GALLERY}/import": "admin",
    f"POST {GALLERY}/export": "admin",
    "GET /v1/jobs/{job}/result": "admin",
    "GET /v1/jobs": "read",
    "GET /v1/jobs/{job}": "read",
    "GET /v1/jobs/{job}/report": "read",
    "POST /v1/jobs/{job}/cancel": "admin",
    "GET /metrics": "any",
}
"""What was decided, written down apart from the code that decides."""
EVERYWHERE = {
    "POST /v1/galleries",
    f"DELETE {GALLERY}",
    *(name for name in NEEDS if "/v1/keys" in name),
    "GET /v1/audit",
    "GET /v1/receipts",
    "GET /v1/receipts/{receipt}",
}
"""What no key that is restricted to galleries may do."""
LET_IN = {
    f"POST {GALLERY}/reembed": (409, "package_unchanged"),
    f"GET {GALLERY}/reembed": (404, "reembedding_not_found"),
    f"DELETE {GALLERY}/reembed": (404, "reembedding_not_found"),
    f"POST {GALLERY}/reembed/rollback": (404, "reembedding_not_found"),
    f"POST {GALLERY}/reembed/finish": (404, "reembedding_not_found"),
}
"""What a key hears that may do it, where there is nothing to be done."""
OPEN = {"GET /livez", "GET /readyz", "GET /version"}


@dataclass
class Ground:
    """A service with a key of each kind, and what requests are made of."""

    client: httpx.Client
    data_dir: Path
    operations: dict[str, dict[str, Any]]
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def token(self, scope: str, way: str) -> str:
        return {"none": "", "wrong": f"lk_{scope}-unrestricted_{SECRET[::-1]}"}.get(
            way, f"lk_{scope}-{way.replace(' ', '-')}_{SECRET}"
        )

    def admin(self, method: str, path: str, **given: Any) -> httpx.Response:
        return self.client.request(method, path, **given)

    def inhabit(self) -> dict[str, str]:
        """Makes sure that everybody is there whom a path may name."""
        for gallery in (OWN, OTHER):
            self.admin("POST", "/v1/galleries", json={"id": gallery})
        faces = f"/v1/galleries/{OWN}/subjects/eileen/faces"
        found = self.admin("GET", faces).json().get("faces")
        if not found:
            found = self.admin("POST", faces, files={"images": COLLINS}).raise_for_status().json()["enrolled"]
        key = f"spare-{next(self.numbers)}"
        self.admin("POST", "/v1/keys", json={"id": key, "scopes": ["read"]}).raise_for_status()
        face = found[0]["face_id"]
        return {
            "gallery": OWN,
            "subject": "eileen",
            "face_id": face,
            "key": key,
            "job": self.job(),
            "exported": self.exported(),
            "receipt": self.receipt(),
        }

    def receipt(self) -> str:
        """Of an erasure, made once."""
        done = self.admin("GET", "/v1/receipts").json()["receipts"]
        if not done:
            self.admin("POST", f"/v1/galleries/{OWN}/subjects", json={"id": "gone"})
            done = [self.admin("POST", f"/v1/galleries/{OWN}/subjects/gone/erase").raise_for_status().json()]
        return str(done[0]["id"])

    def job(self) -> str:
        """One that waits, in the key's own gallery."""
        waiting = self.admin("GET", "/v1/jobs", params={"gallery": OWN, "state": "queued"}).json()["jobs"]
        return str(waiting[0]["id"]) if waiting else waiting_job(self.data_dir, OWN).id

    def exported(self) -> str:
        """A job of the key's own gallery that has left a file."""
        done = {"gallery": OWN, "state": "done"}
        end = time.monotonic() + 60
        while time.monotonic() < end:
            jobs = self.admin("GET", "/v1/jobs", params=done).json()["jobs"]
            if found := [job["id"] for job in jobs if job["has_result"]]:
                return str(found[0])
            if not self.admin("GET", "/v1/jobs", params={"gallery": OWN, "state": "running"}).json()["jobs"]:
                self.admin("POST", f"/v1/galleries/{OWN}/export").raise_for_status()
            time.sleep(0.05)
        raise AssertionError("no export came to its end")

    def ask(self, name: str, somebody: dict[str, str], token: str) -> httpx.Response:
        method, path = name.split()
        if path.endswith("/result"):
            somebody = somebody | {"job": somebody["exported"]}
        return self.client.request(method, path.format(**somebody), headers={"x-api-key": token}, **self._body(name))

    def _body(self, name: str) -> dict[str, Any]:
        path = name.split()[1]
        if path == "/v1/verify":
            return {"files": {"image1": COLLINS, "image2": COLLINS}}
        if name == f"POST {SUBJECT}/faces":
            return {"files": {"images": COLLINS}}
        if name == f"POST {GALLERY}/import":
            return {"files": {"archive": b"no tar"}}
        content = self.operations[name].get("requestBody", {}).get("content", {})
        if "multipart/form-data" in content:
            return {"files": {"image": COLLINS}}
        number = next(self.numbers)
        bodies: dict[str, Any] = {
            "POST /v1/galleries": {"id": f"new-{number}"},
            f"POST {GALLERY}/reembed": {"embedder": "sface"},
            f"POST {GALLERY}/subjects": {"id": f"new-{number}"},
            f"PATCH {GALLERY}": {"search": "fp32" if number % 2 else "int8"},
            f"PATCH {SUBJECT}": {"name": f"new-{number}"},
            "POST /v1/keys": {"scopes": ["read"]},
            f"POST {FACE}/move": {"subject": "eileen"},
            "POST /v1/keys/{key}/rotate": {},
        }
        return {"json": bodies[name]} if name in bodies else {}

    def state(self) -> Any:
        """Everything that an operation could have changed."""
        subjects = f"/v1/galleries/{OWN}/subjects"
        paths = [
            "/v1/galleries?limit=1000",
            "/v1/keys?limit=1000",
            subjects,
            f"{subjects}/eileen/faces",
        ]
        jobs = self.admin("GET", "/v1/jobs?limit=1000").raise_for_status().json()["jobs"]
        waiting = [(job["id"], job["kind"] == NOBODYS and job["state"]) for job in jobs]
        return [waiting, *(self.admin("GET", path).raise_for_status().json() for path in paths)]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    folder = tmp_path_factory.mktemp("access")
    lines = ["keys:"]
    for scope in SCOPES:
        for way, extra in {
            "unrestricted": "",
            "own-gallery": f"galleries: [{OWN}], ",
            "other-gallery": f"galleries: [{OTHER}], ",
            "expired": "expires_at: 2026-01-01T00:00:00Z, ",
            "revoked": "",
        }.items():
            lines.append(f"  - {{id: {scope}-{way}, scopes: [{scope}], {extra}secret: {SECRET}}}")
    (folder / "keys.yaml").write_text("\n".join(lines))
    with running(folder / "data", keys_file=folder / "keys.yaml", failed_keys="100000/s") as client:
        document = client.get("/openapi.json").json()
        operations = {
            f"{method.upper()} {path}": operation
            for path, found in document["paths"].items()
            for method, operation in found.items()
        }
        for scope in SCOPES:
            client.delete(f"/v1/keys/{scope}-revoked").raise_for_status()
        yield Ground(client, folder / "data", operations)


def expected(name: str, scope: str, way: str, good: int) -> tuple[int, str]:
    """Status and error code of one cell."""
    refusals = {
        "none": (401, "missing_key"),
        "wrong": (401, "wrong_key"),
        "expired": (401, "expired_key"),
        "revoked": (401, "revoked_key"),
    }
    if way in refusals:
        return refusals[way]
    if NEEDS[name] not in {scope, "any"} and scope != "admin":
        return 403, "missing_scope"
    if name in EVERYWHERE and way != "unrestricted":
        return 403, "gallery_restricted"
    if "{gallery}" in name and way == "other gallery":
        return 404, "gallery_not_found"
    if "{job}" in name and way == "other gallery":
        return 404, "job_not_found"
    return LET_IN.get(name, (good, ""))


def test_the_table_and_the_document_name_the_same_operations_and_scopes(ground: Ground) -> None:
    keyed = {name: operation for name, operation in ground.operations.items() if name not in OPEN}
    assert {name: operation["x-scope"] for name, operation in keyed.items()} == NEEDS
    assert {name for name, operation in keyed.items() if operation["x-unrestricted"]} == EVERYWHERE


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scope", SCOPES)
def test_every_operation_with_a_key_of_this_scope(ground: Ground, scope: str, way: str) -> None:
    got: dict[str, tuple[int, str]] = {}
    due: dict[str, tuple[int, str]] = {}
    refused: list[str] = []
    somebody: dict[str, str] = {}
    before: Any = None
    moved = True

    def nothing_has_changed() -> None:
        assert ground.state() == before, f"one of these, which were refused, has changed something: {refused}"
        refused.clear()

    for name, operation in ground.operations.items():
        if name in OPEN:
            continue
        good = next(int(status) for status in operation["responses"] if status.startswith("2"))
        due[name] = expected(name, scope, way, good)
        if moved:
            somebody = ground.inhabit()
            before = ground.state()
        elif not due[name][1] and refused:
            nothing_has_changed()
        answer = ground.ask(name, somebody, ground.token(scope, way))
        code = "" if answer.is_success else answer.json()["error"]["code"]
        got[name] = (answer.status_code, code)
        moved = answer.is_success
        if not moved and not name.startswith("GET"):
            refused.append(name)
    assert got == due
    if refused:
        nothing_has_changed()
    assert len(got) == len(NEEDS)


def test_a_restricted_key_lists_its_galleries_alone_page_by_page(ground: Ground) -> None:
    ground.inhabit()
    listed = ground.client.get("/v1/galleries?limit=1", headers={"x-api-key": ground.token("read", "own gallery")})
    assert [one["id"] for one in listed.json()["galleries"]] == [OWN]
    assert listed.json()["next_cursor"] is None


def test_another_gallery_looks_as_if_it_were_not_there(ground: Ground) -> None:
    headers = {"x-api-key": ground.token("read", "own gallery")}
    there, nowhere = (ground.client.get(f"/v1/galleries/{name}", headers=headers) for name in (OTHER, "nowhere"))
    assert error_of(there, 404, "gallery_not_found") == {"gallery": OTHER}
    assert error_of(nowhere, 404, "gallery_not_found") == {"gallery": "nowhere"}
    assert there.json()["error"]["message"].replace(OTHER, "nowhere") == nowhere.json()["error"]["message"]


@pytest.mark.parametrize(
    "path", ["elsewher%65", "%65lsewhere", "own%2F..%2Felsewhere", "own/../elsewhere", "ELSEWHERE"]
)
def test_no_spelling_of_a_path_leads_to_another_gallery(ground: Ground, path: str) -> None:
    ground.inhabit()
    answer = ground.client.get(f"/v1/galleries/{path}", headers={"x-api-key": ground.token("read", "own gallery")})
    assert answer.status_code in {403, 404}


def test_a_gallery_is_the_same_however_its_id_is_composed(ground: Ground) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    ground.admin("POST", "/v1/galleries", json={"id": composed})
    made = ground.admin("POST", "/v1/keys", json={"scopes": ["read"], "galleries": [decomposed]}).json()
    for spelling in (composed, decomposed):
        answer = ground.client.get(f"/v1/galleries/{spelling}", headers={"x-api-key": made["secret"]})
        assert answer.json()["id"] == composed
    assert made["galleries"] == [composed]


def test_what_has_no_rule_is_for_unrestricted_admins(ground: Ground) -> None:
    for scope in SCOPES:
        answer = ground.client.get("/v1/no/such", headers={"x-api-key": ground.token(scope, "unrestricted")})
        error_of(answer, *((404, "not_found") if scope == "admin" else (403, "missing_scope")))
    admin_of_own = {"x-api-key": ground.token("admin", "own gallery")}
    error_of(ground.client.get("/v1/no/such", headers=admin_of_own), 403, "gallery_restricted")
    assert ground.client.get("/openapi.json", headers={"x-api-key": ground.token("read", "own gallery")}).is_success


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
    with running(tmp_path / "data", failed_keys="3/m") as client:
        made = client.post("/v1/keys", json={"scopes": ["read"]}).json()
        used = {"x-api-key": made["secret"]}
        assert client.get("/v1/galleries", headers=used).is_success
        guesses = [client.get("/v1/galleries", headers={"x-api-key": f"lk_{made['id']}_{n}"}) for n in range(5)]
        assert [guess.status_code for guess in guesses] == [401, 401, 401, 429, 429]
        error_of(guesses[-1], 429, "too_many_failures")
        assert 1 <= int(guesses[-1].headers["retry-after"]) <= 20
        assert client.get("/v1/galleries", headers=used).is_success
        assert client.get("/v1/galleries").is_success
