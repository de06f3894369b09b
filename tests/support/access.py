"""Call every operation of the OpenAPI document with every scope and with every kind of key that lacks the right."""

from __future__ import annotations

import itertools
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api.route import Router
from tests.support.jobs import waiting_job
from tests.support.service import COLLINS, HOPPER, running

OWN, OTHER = "own", "elsewhere"
NAMED = "grace"
"""The name that the stranger gets."""
SCOPES = ("read", "recognize", "enroll", "admin", "delete", "metrics", "watch", "templates")
REFUSED = ("expired", "revoked", "wrong", "none")
KINDS = ("own scope", "other scope", "other gallery", "none")
"""Keys: exactly the scope needed; another scope, in turns; the scope needed, for another gallery; no key."""
SECRET = "0123456789abcdef" * 3
GALLERY = "/v1/galleries/{gallery}"
SUBJECT = f"{GALLERY}/subjects/{{subject}}"
FACE = f"{SUBJECT}/faces/{{face_id}}"
SIGHTING = f"{GALLERY}/sightings/{{sighting}}"
STRANGER = f"{GALLERY}/strangers/{{stranger}}"
NOT_FOUND = 404
REFUSALS = {401, 403}
TAKING = ("/erase", "/cancel", "/who", "/name")
"""Path ends of operations that remove what others need, besides the deletions."""
OPEN = {"GET /livez", "GET /readyz", "GET /version", "POST /v1/sign-in"}
"""Operations that need no key; the last one takes a code."""
LET_IN = {
    f"POST {GALLERY}/reembed": (409, "package_unchanged"),
    f"GET {GALLERY}/reembed": (404, "reembedding_not_found"),
    f"DELETE {GALLERY}/reembed": (404, "reembedding_not_found"),
    f"POST {GALLERY}/review/{{finding}}/dismiss": (404, "finding_not_found"),
    f"DELETE {GALLERY}/review/{{finding}}/dismiss": (404, "finding_not_found"),
    f"POST {SUBJECT}/merge": (404, "subject_not_found"),
    f"POST {STRANGER}/merge": (404, "stranger_not_found"),
    f"POST {STRANGER}/part": (404, "sighting_not_found"),
    f"POST {GALLERY}/challenges/answer": (422, "wrong_challenge"),
    f"POST {GALLERY}/reembed/rollback": (404, "reembedding_not_found"),
    f"GET {GALLERY}/group/{{job}}": (404, "job_not_found"),
    "POST /v1/models": (422, "empty_upload"),
    "POST /v1/models/pull": (422, "invalid_request"),
    "DELETE /v1/models/{package}": (404, "package_not_found"),
    f"POST {GALLERY}/reembed/finish": (404, "reembedding_not_found"),
}
"""The answer to a key that may call the operation, if it is not a success: there is nothing to act on."""
WEBHOOK = {"url": "http://127.0.0.1:9/", "kinds": ["left"], "cameras": ["none"]}
STATE = (
    "SELECT * FROM galleries",
    "SELECT * FROM subjects",
    "SELECT * FROM faces",
    "SELECT * FROM crops",
    "SELECT * FROM corrections",
    "SELECT * FROM api_keys",
    "SELECT id FROM receipts",
    "SELECT id, subject_key, camera, zone, decision, score, frames, settled, heard_at, template, crop FROM sightings",
    "SELECT * FROM strangers",
    "SELECT id, url FROM webhooks",
    "SELECT id, kind = 'nobodys' AND state FROM jobs",
)
"""Leaves out whether a sighting has ended: the service ends tracks by itself after a while without reports."""


def every_key(unrestricted: str = "unrestricted") -> list[tuple[str, str]]:
    """Return the scope and kind of each key to try. An invalid key is refused before its scope matters."""
    ways = (unrestricted, "own gallery", "other gallery")
    return [*itertools.product(SCOPES, ways), *itertools.product(("admin",), REFUSED)]


def keys(unrestricted: str = "unrestricted") -> list[Any]:
    """Return `every_key` as parameters of a test of the second stage; the first one has `KINDS`."""
    return [pytest.param(*key, marks=pytest.mark.long) for key in every_key(unrestricted)]


def keys_of(kind: str, needs: Mapping[str, str], unrestricted: str = "unrestricted") -> dict[str, tuple[str, str]]:
    """Return the scope and kind of the key with which each operation is called, by the scope that it needs."""
    if kind == "none":
        return dict.fromkeys(needs, ("admin", "none"))
    chosen = {}
    for number, (name, needed) in enumerate(needs.items()):
        others = [scope for scope in SCOPES if scope not in {needed, "admin"}]
        scope = needed if needed in SCOPES and kind != "other scope" else others[number % len(others)]
        chosen[name] = scope, "other gallery" if kind == "other gallery" else unrestricted
    return chosen


def token(scope: str, way: str) -> str:
    """Return the secret of that key."""
    if way == "wrong":
        return f"lk_{scope}-own-gallery_{SECRET[::-1]}"
    return "" if way == "none" else f"lk_{scope}-{way.replace(' ', '-')}_{SECRET}"


@dataclass
class Ground:
    """A service with a key of each kind, and methods that send requests to it."""

    client: httpx.Client
    data_dir: Path
    operations: dict[str, dict[str, Any]]
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def admin(self, method: str, path: str, **given: Any) -> httpx.Response:
        return self.client.request(method, path, **given)

    def inhabit(self) -> dict[str, str]:
        """Make sure that everything a path may name exists; return its ids."""
        for gallery in (OWN, OTHER):
            self.admin("POST", "/v1/galleries", json={"id": gallery})
        faces = f"/v1/galleries/{OWN}/subjects/eileen/faces"
        found = self.admin("GET", faces).json().get("faces")
        if not found:
            found = self.admin("POST", faces, files={"images": COLLINS}).raise_for_status().json()["enrolled"]
        if self.admin("GET", f"/v1/galleries/{OWN}/review").status_code == NOT_FOUND:
            self.admin("POST", f"/v1/galleries/{OWN}/review").raise_for_status()
        calibration = f"/v1/galleries/{OWN}/calibration"
        while self.admin("GET", calibration).status_code == NOT_FOUND:
            self.admin("POST", calibration).raise_for_status()
            time.sleep(0.05)
        key = f"spare-{next(self.numbers)}"
        self.admin("POST", "/v1/keys", json={"id": key, "scopes": ["read"]}).raise_for_status()
        face = found[0]["face_id"]
        return {
            "gallery": OWN,
            "subject": "eileen",
            "face_id": face,
            "key": key,
            "job": self.job(),
            "finding": "b" * 32,
            "package": "not-there",
            "correction": self.correction(),
            "exported": self.exported(),
            "receipt": self.receipt(),
        } | self.watched()

    def watched(self) -> dict[str, str]:
        """Return the ids of a sighting, of a stranger, and of a webhook that nothing is sent to."""
        gallery, sighting = f"/v1/galleries/{OWN}", "e" * 32
        self.admin("DELETE", f"{gallery}/subjects/{NAMED}")  # otherwise the stranger's face is already known
        if self.admin("GET", f"{gallery}/sightings/{sighting}").status_code == NOT_FOUND:
            told = {"images": COLLINS}
            self.admin("PUT", f"{gallery}/sightings/{sighting}", files=told).raise_for_status()
        strangers = [stranger["id"] for stranger in self.admin("GET", f"{gallery}/strangers").json()["strangers"]]
        if not strangers:
            photos = [("images", HOPPER), ("images", HOPPER)]
            seen = self.admin("PUT", f"{gallery}/sightings/{uuid.uuid4().hex}", files=photos).raise_for_status().json()
            assert seen["stranger"], f"the photos of nobody in the gallery made no stranger: {seen}"
            strangers = [seen["stranger"]]
        named = {"sighting": sighting, "stranger": strangers[0]}
        hooks = self.admin("GET", "/v1/webhooks").json()["webhooks"]
        made = hooks or [self.admin("POST", "/v1/webhooks", json=WEBHOOK).raise_for_status().json()]
        return named | {"webhook": made[0]["id"]}

    def receipt(self) -> str:
        """Return the id of an erasure's receipt."""
        done = self.admin("GET", "/v1/receipts").json()["receipts"]
        if not done:
            self.admin("POST", f"/v1/galleries/{OWN}/subjects", json={"id": "gone"})
            done = [self.admin("POST", f"/v1/galleries/{OWN}/subjects/gone/erase").raise_for_status().json()]
        return str(done[0]["id"])

    def correction(self) -> str:
        """Return the id of a correction of eileen's."""
        path = f"/v1/galleries/{OWN}/subjects/eileen/corrections"
        found = self.admin("GET", path).json()["corrections"]
        made = found or [self.admin("POST", path, files={"image": HOPPER}).raise_for_status().json()]
        return str(made[0]["id"])

    def job(self) -> str:
        """Return a queued job in the key's own gallery."""
        waiting = self.admin("GET", "/v1/jobs", params={"gallery": OWN, "state": "queued"}).json()["jobs"]
        return str(waiting[0]["id"]) if waiting else waiting_job(self.data_dir, OWN).id

    def exported(self) -> str:
        """Return a job of the key's own gallery that has a result."""
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
        if path == "/v1/events":
            return {"params": {"seconds": 0}}
        if name in {f"POST {SUBJECT}/faces", f"POST {GALLERY}/challenges/answer", f"PUT {SIGHTING}"}:
            return {"files": {"images": COLLINS}}
        if name in {f"POST {GALLERY}/import", f"POST {GALLERY}/group", "POST /v1/models"}:
            return {"files": {"file": b""} if path == "/v1/models" else {"archive": b"no tar"}}
        if name == f"POST {SUBJECT}/corrections":
            return {"files": {"image": COLLINS}, "params": {"confirm": True}}
        content = self.operations[name].get("requestBody", {}).get("content", {})
        if "multipart/form-data" in content:
            fields = ("image1", "image2") if path == "/v1/verify" else ("image",)
            return {"files": dict.fromkeys(fields, COLLINS)}
        number = next(self.numbers)
        bodies: dict[str, Any] = {
            "POST /v1/galleries": {"id": f"new-{number}"},
            f"POST {GALLERY}/reembed": {"embedder": "sface"},
            f"POST {GALLERY}/subjects": {"id": f"new-{number}"},
            f"PATCH {GALLERY}": {"search": "fp32" if number % 2 else "int8"},
            f"POST {SIGHTING}/who": {"subject": "eileen"},
            f"POST {STRANGER}/name": {"subject": NAMED},
            f"POST {STRANGER}/merge": {"into": "f" * 32},
            f"POST {STRANGER}/part": {"sightings": ["f" * 32]},
            "POST /v1/webhooks": WEBHOOK,
            "POST /v1/models/pull": {"name": ""},
            f"PATCH {SUBJECT}": {"name": f"new-{number}"},
            f"POST {SUBJECT}/greet": {"greeting": "Hello"},
            "POST /v1/keys": {"scopes": ["read"]},
            f"POST {FACE}/move": {"subject": "eileen"},
            f"POST {SUBJECT}/faces/move": {"faces": ["0" * 32], "subject": "eileen"},
            f"POST {SUBJECT}/merge": {"into": "nobody"},
            "POST /v1/keys/{key}/rotate": {},
        }
        example = content.get("application/json", {}).get("example")
        return {"json": bodies.get(name, example)} if name in bodies or example else {}


def state(data_dir: Path) -> list[list[Any]]:
    """Return everything in the database that an operation could have changed, except what jobs in progress write."""
    with closing(sqlite3.connect(data_dir / "likeness.db")) as database:
        return [database.execute(query).fetchall() for query in STATE]


def write_keys(folder: Path, unrestricted: str = "unrestricted") -> Path:
    """Write a keys file with a key of each scope and kind, and return its path."""
    ways = {
        unrestricted: "",
        "own-gallery": f"galleries: [{OWN}], ",
        "other-gallery": f"galleries: [{OTHER}], ",
        "expired": "expires_at: 2026-01-01T00:00:00Z, ",
        "revoked": "",
    }
    lines = [
        f"  - {{id: {scope}-{way}, scopes: [{scope}], {extra}secret: {SECRET}}}"
        for scope in SCOPES
        for way, extra in ways.items()
    ]
    path = folder / "keys.yaml"
    path.write_text("\n".join(["keys:", *lines]))
    return path


@contextmanager
def with_keys(
    folder: Path, unrestricted: str = "unrestricted", *galleries: str, **settings: Any
) -> Iterator[httpx.Client]:
    """Yield the client of a service in ``folder / "data"`` with these galleries and a key of each scope and kind."""
    keys_file = write_keys(folder, unrestricted)
    with running(folder / "data", keys_file=keys_file, failed_keys="100000/s", **settings) as client:
        for gallery in galleries:
            client.post("/v1/galleries", json={"id": gallery}).raise_for_status()
        for scope in SCOPES:
            client.delete(f"/v1/keys/{scope}-revoked").raise_for_status()
        yield client


@contextmanager
def access_ground(folder: Path, routers: Iterable[Router] = ()) -> Iterator[Ground]:
    """Yield a service with these further operations and a key of each scope and kind."""
    settings: dict[str, Any] = {"watching": "on", "stranger_days": 1, "webhook_networks": ("127.0.0.0/8",)}
    with with_keys(folder, routers=routers, **settings) as client:
        document = client.get("/openapi.json").json()
        operations = {
            f"{method.upper()} {path}": operation
            for path, found in document["paths"].items()
            for method, operation in found.items()
            if path.startswith("/v1/") or operation["tags"] == ["server"]
        }
        yield Ground(client, folder / "data", operations)


def expected(name: str, operation: dict[str, Any], scope: str, way: str) -> tuple[int, str]:
    """Return the status and error code that a key of this scope and kind should get, according to the document."""
    refusals = {
        "none": (401, "missing_key"),
        "wrong": (401, "wrong_key"),
        "expired": (401, "expired_key"),
        "revoked": (401, "revoked_key"),
    }
    if way in refusals:
        return refusals[way]
    if operation["x-scope"] not in {scope, "any"} and scope != "admin":
        return 403, "missing_scope"
    if operation["x-unrestricted"] and way != "unrestricted":
        return 403, "gallery_restricted"
    if "{gallery}" in name and way == "other gallery":
        return 404, "gallery_not_found"
    if "{job}" in name and way == "other gallery":
        return 404, "job_not_found"
    good = next(int(status) for status in operation["responses"] if status.startswith("2"))
    return LET_IN.get(name, (good, ""))


def check_access(ground: Ground, keys: Mapping[str, tuple[str, str]]) -> None:
    """Call each operation with its key, those that must refuse it first. Check that refusals change nothing."""
    due = {name: expected(name, ground.operations[name], *key) for name, key in keys.items()}
    got: dict[str, tuple[int, str]] = {}
    ids, before = ground.inhabit(), state(ground.data_dir)

    def ask(name: str) -> bool:
        answer = ground.ask(name, ids, token(*keys[name]))
        got[name] = (answer.status_code, "" if answer.is_success else answer.json()["error"]["code"])
        return answer.is_success

    refused = [name for name, (status, _) in due.items() if status in REFUSALS]
    assert not [name for name in refused if ask(name)], "these must be refused"
    assert state(ground.data_dir) == before, "a refused operation has changed something"
    for name in (name for name in due if name not in refused):
        done = ask(name)
        if (now := state(ground.data_dir)) != before:
            assert done, f"{name} was refused and has changed something"
            if name.startswith("DELETE") or name.endswith(TAKING):
                ids, now = ground.inhabit(), state(ground.data_dir)
            before = now
    assert got == due, {name: (got[name], due[name]) for name in due if got[name] != due[name]}
