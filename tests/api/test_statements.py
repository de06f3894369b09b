"""How often a request asks the database: each statement is a journey, to PostgreSQL even to another machine."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.access import keys
from app.access.audit import AuditEntry, AuditStore
from app.gallery.store import Store
from app.inference import embedders
from tests.support.listening import listening
from tests.support.service import BOTH, COLLINS, enroll, running
from tests.support.trace import BACKGROUND
from tests.support.waiting import until

GALLERY = "/v1/galleries/staff"


@contextmanager
def counted(database: str) -> Iterator[Counter[str]]:
    """Count the commits, and the statements on each table but the audit log's, of all threads of requests.

    ``database`` is a URL, or a folder with SQLite's file.
    """
    counts: Counter[str] = Counter()

    def is_of_a_request() -> bool:
        return not threading.current_thread().name.startswith(BACKGROUND)

    def statement(_connection: object, _cursor: object, text: str, *_: Any) -> None:
        tables = set(re.findall(r"(?:FROM|INTO|UPDATE) (\w+)", text)) - {"audit"}
        if tables and is_of_a_request():
            counts.update({*tables, "statements"})

    def commit(_connection: object) -> None:
        counts["commits"] += is_of_a_request()

    with listening(database, before_cursor_execute=statement, commit=commit):
        yield counts


def test_a_request_reads_its_gallery_once_and_a_change_again_under_its_lock(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "CACHE_S", 600.0)  # on a slow machine too, the requests' key was looked up before,
    monkeypatch.setattr(embedders, "BOUND_S", 600.0)  # and whether the package is the gallery's
    with running(tmp_path, database_url=database_url) as api:
        api.post("/v1/galleries", json={"id": "staff"}).raise_for_status()
        enroll(api, GALLERY, "eileen", COLLINS).raise_for_status()
        with counted(database_url) as enrolled:
            enroll(api, GALLERY, "eileen", COLLINS).raise_for_status()
        api.patch(f"{GALLERY}/subjects/eileen", json={"name": "Eileen Collins"}).raise_for_status()  # empties the cache
        with counted(database_url) as identified:
            api.post(f"{GALLERY}/identify", files={"image": BOTH}).raise_for_status()
    locked = not database_url.startswith("sqlite")
    assert enrolled["galleries"] == 3 + locked  # opened; again in the change, under a lock; the log's new end
    assert enrolled["statements"] <= 14 + locked, enrolled  # SQLite: one less while names are kept, up to a second
    del identified["commits"]  # the audit log writes as it will
    assert identified == {"statements": 2, "galleries": 1, "corrections": 1, "faces": 1}


@pytest.mark.parametrize(("policy", "read"), [("allow", 0), ("warn", 1)])
def test_only_an_enrollment_that_looks_for_resemblances_reads_the_calibration(
    tmp_path: Path, policy: str, read: int
) -> None:
    with running(tmp_path) as api:
        api.post("/v1/galleries", json={"id": "staff"}).raise_for_status()
        api.patch(GALLERY, json={"calibration": "gallery"}).raise_for_status()
        with counted(str(tmp_path)) as counts:
            enroll(api, GALLERY, "eileen", COLLINS, on_conflict=policy).raise_for_status()
    assert counts["gallery_calibrations"] == read


def test_the_outcome_of_an_enrollment_is_in_its_change_or_corrected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One commit before the work and one for all that it writes; a failure after that is what the log says."""
    with running(tmp_path) as api:
        api.post("/v1/galleries", json={"id": "staff"}).raise_for_status()
        enroll(api, GALLERY, "eileen", COLLINS).raise_for_status()
        with counted(str(tmp_path)) as counts:
            enroll(api, GALLERY, "eileen", COLLINS).raise_for_status()
        monkeypatch.setattr("app.api.routes.recognition.enroll_answer", None)
        assert enroll(api, GALLERY, "eileen", COLLINS).status_code == 500
        assert enroll(api, GALLERY, "eileen", b"no photo").status_code == 415
        logged = api.get("/v1/audit", params={"operation": "enroll"}).raise_for_status().json()["entries"]
    assert counts["commits"] == 2
    assert [entry["status"] for entry in logged] == [415, 500, 201, 201]


def test_the_audit_log_empties_no_cache_and_every_other_commit_does(tmp_path: Path) -> None:
    with closing(Store(f"sqlite:///{tmp_path / 'likeness.db'}")) as store:
        gallery = store.create_gallery("staff", "tiny@1", 16)
        known = store.gallery("staff")
        AuditStore(store.database).write([AuditEntry(key=None, operation="enroll", request_id="1")])
        assert store.gallery("staff") is known
        store.update_gallery(gallery, {"on_conflict": "reject"})
        assert store.gallery("staff").on_conflict == "reject"
        with closing(sqlite3.connect(tmp_path / "likeness.db")) as other, other:
            other.execute("UPDATE galleries SET on_conflict = 'allow'")
        until(lambda: store.gallery("staff").on_conflict == "allow")
