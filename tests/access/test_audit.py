"""The audit log: what is in it, what never is, and what survives."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import httpx
import pytest
from starlette.types import Message

from app.access import audit as audit_module
from app.access.audit import AuditEntry, AuditLog, AuditStore
from app.db.clock import DAY_S
from app.errors import DatabaseUnavailable, InvalidInput, LikenessError, Unusable
from app.features.audit.reading import AuditFilter, entries
from app.features.audit.sink import AuditSink
from app.gallery.store import Store
from app.main import own_operations
from app.server.data_folder import load_key
from app.types import utc_now, utc_text
from tests.conftest import PROJECT
from tests.support import packages, turning
from tests.support.jobs import waiting_job
from tests.support.live import serving
from tests.support.service import AGAIN, COLLINS, HOPPER, enrolled, error_of, made, running, scope_of
from tests.support.sighted import told
from tests.support.tarred import tar_of
from tests.support.waiting import until

NOW = 1_800_000_000.0
WAIT_S = 60.0
CHANGES = {operation.name for operation in own_operations() if operation.changes}
OF_REVIEWS = {"review", "dismiss_finding", "reopen_finding"}
OF_WATCHING = {
    operation.name
    for operation in own_operations()
    if operation.changes and re.search("sighting|stranger|webhook", operation.path)
}
MADE = "made"
"""Stands for the id of what the operation makes."""
OF_JOBS = (
    {"calibrate_gallery", "cancel_job", "import", "export", "group_photos", "add_model", "pull_model", "remove_model"}
    | OF_REVIEWS
    | {name for name in CHANGES if "reembed" in name}
)


class Slow(AuditStore):
    """Counts transactions, waits where it is told to, and fails as a lost database does."""

    transactions = 0
    lost = False
    go_on: threading.Event | None = None

    def write(self, entries: Sequence[AuditEntry]) -> None:
        if self.go_on:
            self.go_on.wait(WAIT_S)
        if self.lost:
            raise DatabaseUnavailable("The database can't be used at the moment.")
        super().write(entries)
        self.transactions += 1


@pytest.fixture
def store(database_url: str) -> Iterator[Slow]:
    with closing(Store(database_url)) as sql:
        yield Slow(sql.database)


def by_door(operation: str, request_id: str, **values: Any) -> AuditEntry:
    return AuditEntry(key="door", operation=operation, request_id=request_id, **values)


def all_of(store: AuditStore, **wanted: Any) -> list[AuditEntry]:
    return list(entries(store.database, AuditFilter(**wanted), limit=100_000, newest_first=False).items)


def test_what_was_written_is_in_the_database_and_its_outcome_is_added(store: Slow) -> None:
    before = utc_now()
    with closing(AuditLog(store)) as log:
        entry = by_door("enroll", "r1")
        log.write(entry).result(WAIT_S)
        (begun,) = all_of(store)
        assert before <= begun.at <= utc_now()
        assert (begun.at, begun.key, begun.operation, begun.status) == (entry.at, "door", "enroll", None)
        entry.status, entry.subject = 201, "eileen"
        log.write(entry).result(WAIT_S)
        (done,) = all_of(store)
        assert (done.key, done.status, done.subject) == (begun.key, 201, "eileen")


def test_what_is_committed_goes_to_the_sink_and_nothing_else(store: Slow, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line)["audit"] for line in path.read_text().splitlines()]

    with closing(AuditLog(store, sink=AuditSink(str(path)))) as log:
        entry = by_door("enroll", "r1")
        entry.subject = "\n\u2028\xe9"
        log.write(entry).result(WAIT_S)
        assert [(line["row"], line["status"], line["subject"]) for line in lines()] == [
            (entry.row, None, entry.subject)
        ]
        entry.status = 201
        log.write(entry).result(WAIT_S)
        assert lines()[1] == asdict(entry)
        path.rename(tmp_path / "rotated")
        store.lost = True
        with pytest.raises(DatabaseUnavailable):
            log.write(by_door("erase", "r2")).result(WAIT_S)
        store.lost = False
        log.note(by_door("identify", "r3"))
        until(lambda: path.exists() and path.read_text().endswith("\n"))
        assert [line["operation"] for line in lines()] == ["identify"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_sink_that_fails_stops_no_operation(
    store: Slow, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with pytest.raises(Unusable, match="No such file"):
        AuditSink(str(tmp_path / "none" / "audit.jsonl"))
    folder = tmp_path / "there"
    folder.mkdir()
    sink = AuditSink(str(folder / "audit.jsonl"))
    shutil.rmtree(folder)
    with closing(AuditLog(store, sink=sink)) as log:
        log.write(by_door("enroll", "r1")).result(WAIT_S)
    assert len(all_of(store)) == 1
    assert "the audit sink" in caplog.text
    AuditSink("stdout").write(all_of(store))
    assert json.loads(capfdbinary.readouterr().out)["audit"]["operation"] == "enroll"


def test_a_pipe_that_nobody_reads_holds_changes_up_once_and_what_it_lacks_is_counted(
    store: Slow, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(Unusable):
        AuditSink(str(pipe))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    sink = AuditSink(str(pipe))
    written = 0
    with closing(AuditLog(store, sink=sink)) as log:
        while log.sink_available:
            log.write(by_door("enroll", str(written))).result(WAIT_S)
            written += 1
            assert written < 10_000, "the pipe takes everything"
        for _ in range(50):
            log.write(by_door("enroll", str(written))).result(WAIT_S)
            written += 1
        assert sink.lost > 0
        read = os.read(reader, 2**20)
        sink.retry()
        until(lambda: log.sink_available)
        log.write(by_door("enroll", "last")).result(WAIT_S)
        read += os.read(reader, 2**20)
    os.close(reader)
    lines = [json.loads(line)["audit"]["request_id"] for line in read.splitlines()]
    assert lines[-1] == "last"
    assert len(lines) - 1 + sink.lost == written
    assert len(all_of(store)) == written + 1


def test_what_comes_together_shares_a_transaction(store: Slow) -> None:
    store.go_on = threading.Event()
    with closing(AuditLog(store)) as log:
        futures = [log.write(by_door("enroll", str(number))) for number in range(100)]
        store.go_on.set()
        wait(futures, WAIT_S)
        assert [entry.request_id for entry in all_of(store)] == [str(number) for number in range(100)]
        assert store.transactions <= 2, "one for whoever came first, one for all who came meanwhile"


def test_notes_are_written_soon_and_at_the_end_at_once(store: Slow) -> None:
    log = AuditLog(store)
    log.note(by_door("identify", "r1"))
    until(lambda: all_of(store))
    for number in range(1200):
        log.note(by_door("identify", str(number)))
    log.close()
    assert len(all_of(store)) == 1201
    with pytest.raises(LikenessError, match="stopping"):
        log.write(by_door("enroll", "late")).result(WAIT_S)


def test_a_lost_database_refuses_changes_and_keeps_notes_for_later(
    store: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "RETRY_S", 0.05)
    store.lost = True
    with closing(AuditLog(store)) as log:
        log.note(by_door("identify", "kept"))
        with pytest.raises(Unusable):
            log.write(by_door("enroll", "refused")).result(WAIT_S)
        store.lost = False
        until(lambda: [entry.request_id for entry in all_of(store)] == ["kept"])


def test_memory_is_bounded_while_the_database_is_away(store: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    most, batch = 100, 5
    monkeypatch.setattr("app.access.audit.MAX_WAITING", most)
    monkeypatch.setattr("app.access.audit.BATCH", batch)
    store.go_on = threading.Event()
    log = AuditLog(store)
    log.write(by_door("enroll", "first"))
    for number in range(most + 2 * batch):
        log.note(by_door("identify", str(number)))
    store.go_on.set()
    log.close()
    assert most <= len(all_of(store)) <= most + batch, "what waits, and what was being written"


def test_who_leaves_early_harms_nobody(store: Slow) -> None:
    store.go_on = threading.Event()
    with closing(AuditLog(store)) as log:
        blocked = log.write(by_door("enroll", "0"))
        until(blocked.running)
        gone = log.write(by_door("enroll", "1"))
        assert gone.cancel()
        store.go_on.set()
        log.write(by_door("enroll", "2")).result(WAIT_S)
        assert [entry.request_id for entry in all_of(store)] == ["0", "1", "2"]


def test_old_entries_go_and_others_stay(store: Slow) -> None:
    store.write([by_door("enroll", str(days), at=utc_text(NOW - days * DAY_S)) for days in (400, 366, 364, 0)])
    with closing(AuditLog(store, days=365, clock=lambda: NOW)) as log:
        assert log.prune() == 2
        assert [entry.request_id for entry in all_of(store)] == ["364", "0"]
    with closing(AuditLog(store, days=0, clock=lambda: NOW + 1e9)) as log:
        assert log.prune() == 0


def test_entries_are_filtered_and_paged_both_ways(store: Slow) -> None:
    for number in range(10):
        who, gallery = ("door", "staff") if number % 2 else ("desk", "guests")
        entry = AuditEntry(
            at=utc_text(NOW + number),
            key=who,
            operation="enroll" if number < 6 else "identify",
            request_id=str(number),
            gallery=gallery,
        )
        entry.subject = f"s{number}"
        store.write([entry])

    def found(newest_first: bool, **wanted: Any) -> list[int]:
        seen: list[int] = []
        cursor = None
        while True:
            page = entries(store.database, AuditFilter(**wanted), cursor, 3, newest_first=newest_first)
            seen += [int(entry.request_id) for entry in page.items]
            if (cursor := page.next_cursor) is None:
                return seen

    assert found(False) == list(range(10))
    assert found(True) == list(range(9, -1, -1))
    assert found(False, key="door") == [1, 3, 5, 7, 9]
    assert found(False, gallery="guests", operation="enroll") == [0, 2, 4]
    assert found(False, subject="s7") == [7]
    assert found(True, since=utc_text(NOW + 3), until=utc_text(NOW + 6)) == [5, 4, 3]
    page = entries(store.database, AuditFilter(), None, 3, newest_first=True)
    with pytest.raises(InvalidInput, match="cursor"):
        entries(store.database, AuditFilter(), page.next_cursor, 3, newest_first=False)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audited") / "data"


@pytest.fixture(scope="module")
def service(data_dir: Path) -> Iterator[httpx.Client]:
    with running(data_dir, watching="on", stranger_days=1, webhook_networks=("127.0.0.0/8",)) as client:
        yield client


def entry_of(client: httpx.Client, answer: httpx.Response) -> dict[str, Any]:
    """The one entry of this request."""
    found: list[dict[str, Any]] = []

    def look() -> bool:
        entries = client.get("/v1/audit?limit=1000").raise_for_status().json()["entries"]
        found[:] = [entry for entry in entries if entry["request_id"] == answer.headers["x-request-id"]]
        return bool(found)

    until(look)
    (entry,) = found
    return entry


def test_entries_of_a_span_of_time_are_listed(service: httpx.Client) -> None:
    entry = entry_of(service, service.get("/v1/galleries/nowhere"))

    def listed(**span: str) -> bool:
        entries = service.get("/v1/audit", params={"limit": 1000, **span}).raise_for_status().json()["entries"]
        return entry in entries

    assert listed(since=entry["at"])
    assert not listed(until=entry["at"])
    assert listed(since="2020-01-01T00:00:00Z", until="2100-01-01T00:00:00+01:00")
    assert not listed(since="2100-01-01T00:00:00Z")
    error_of(service.get("/v1/audit", params={"until": "yesterday"}), 422, "invalid_request")


class Recorded:
    """Calls operations, each of which must be in the log, about these ids, when it is answered."""

    def __init__(self, service: httpx.Client) -> None:
        self._service = service
        self.done: set[str] = set()

    def do(
        self, name: str, method: str, path: str, about: tuple[str | None, str | None, str | None], **given: Any
    ) -> Any:
        answer = self._service.request(method, path, **given)
        entries = self._service.get("/v1/audit?limit=20").json()["entries"]
        rows = [entry for entry in entries if entry["request_id"] == answer.headers["x-request-id"]]
        assert len(rows) == 1, name
        row = rows[0]
        assert (row["key"], row["operation"], row["status"]) == ("admin.key", name, answer.status_code)
        assert answer.is_success, answer.text
        document: Any = answer.json() if answer.content else {}
        made = document["id"] if about[2] == MADE else about[2]
        assert (row["gallery"], row["subject"], row["target"]) == (*about[:2], made), name
        self.done.add(name)
        return document


def test_every_operation_that_changes_something_is_recorded_when_it_is_answered(service: httpx.Client) -> None:
    """Read from the database with no wait between, in the order of a gallery's life."""
    recorded = Recorded(service)
    do = recorded.do
    gallery = "/v1/galleries/g%2F1"
    subject = f"{gallery}/subjects/eileen"
    do("create_gallery", "POST", "/v1/galleries", ("g/1", None, None), json={"id": "g/1"})
    private = {"id": "eileen", "name": "Never In The Log", "metadata": {"never": "in-the-log"}}
    do("create_subject", "POST", f"{gallery}/subjects", ("g/1", "eileen", None), json=private)
    do("update_gallery", "PATCH", gallery, ("g/1", None, None), json={"search": "int8"})
    do("update_subject", "PATCH", subject, ("g/1", "eileen", None), json={"name": "Never In The Log"})
    enrolled = do("enroll", "POST", f"{subject}/faces", ("g/1", "eileen", None), files={"images": COLLINS})
    face = enrolled["enrolled"][0]["face_id"]
    asked = service.post(f"{gallery}/challenges", json={"operation": "identify"}).raise_for_status().json()
    followed = {
        "data": {"challenge": asked["challenge"]},
        "files": [("images", turning.frame(step)) for step in asked["steps"]],
    }
    do("answer_challenge", "POST", f"{gallery}/challenges/answer", ("g/1", None, None), **followed)
    do("move_face", "POST", f"{subject}/faces/{face}/move", ("g/1", "eileen", face), json={"subject": "eileen"})
    move = {"faces": [face], "subject": "other", "create": True}
    do("move_faces", "POST", f"{subject}/faces/move", ("g/1", "eileen", "other"), json=move)
    merged = f"{gallery}/subjects/other/merge"
    do("merge_subject", "POST", merged, ("g/1", "other", "eileen"), json={"into": "eileen"})
    corrected = f"{subject}/corrections"
    wrong = do(
        "add_correction", "POST", corrected, ("g/1", "eileen", None), files={"image": COLLINS}, params={"confirm": True}
    )["id"]
    do("delete_correction", "DELETE", f"{corrected}/{wrong}", ("g/1", "eileen", wrong))
    do("delete_face", "DELETE", f"{subject}/faces/{face}", ("g/1", "eileen", face))
    do("delete_subject", "DELETE", subject, ("g/1", "eileen", None))
    service.post(f"{gallery}/subjects", json={"id": "eileen"})
    do("erase_subject", "POST", f"{subject}/erase", ("g/1", "eileen", None))
    do("delete_gallery", "DELETE", gallery, ("g/1", None, None))
    do("create_key", "POST", "/v1/keys", (None, None, "door"), json={"id": "door", "scopes": ["read"]})
    do("rotate_key", "POST", "/v1/keys/door/rotate", (None, None, "door"), json={})
    made_code = do("create_sign_in_code", "POST", "/v1/sign-in-codes", (None, None, None))["code"]
    do("sign_in", "POST", "/v1/sign-in", (None, None, None), headers={"x-api-key": made_code})
    do("begin_session", "POST", "/v1/session", (None, None, None))
    do("end_session", "DELETE", "/v1/session", (None, None, None))
    do("revoke_key", "DELETE", "/v1/keys/door", (None, None, "door"))
    assert recorded.done == CHANGES - OF_JOBS - OF_WATCHING
    text = service.get("/v1/audit?limit=1000").text.lower()
    assert "never in the log" not in text
    assert "in-the-log" not in text
    assert made_code.lower() not in text


def test_what_is_said_of_sightings_and_strangers_is_recorded_when_it_is_answered(service: httpx.Client) -> None:
    recorded = Recorded(service)
    do, gallery = recorded.do, "/v1/galleries/g%2F2"
    service.post("/v1/galleries", json={"id": "g/2"}).raise_for_status()
    enrolled(service, gallery, "eileen", COLLINS)
    first, second, third = (told(service, HOPPER, HOPPER, gallery="g%2F2") for _ in range(3))
    stranger, strangers = first["stranger"], f"{gallery}/strangers"
    about_stranger = ("g/2", None, stranger)
    parting = f"{strangers}/{stranger}/part"
    parted = do("part_stranger", "POST", parting, about_stranger, json={"sightings": [second["id"]]})["id"]
    joining = f"{strangers}/{parted}/merge"
    do("merge_strangers", "POST", joining, ("g/2", None, parted), json={"into": stranger})
    parted = do("part_stranger", "POST", parting, about_stranger, json={"sightings": [third["id"]]})["id"]
    do("forget_stranger", "DELETE", f"{strangers}/{parted}", ("g/2", None, parted))
    do("edit_stranger", "PATCH", f"{strangers}/{stranger}", about_stranger, json={"note": "Never In The Log"})
    naming = f"{strangers}/{stranger}/name"
    do("name_stranger", "POST", naming, ("g/2", "grace", stranger), json={"subject": "grace"})
    saying = f"{gallery}/sightings/{second['id']}/who"
    do("say_who", "POST", saying, ("g/2", "eileen", second["id"]), json={"subject": "eileen"})
    do("delete_sighting", "DELETE", f"{gallery}/sightings/{second['id']}", ("g/2", None, second["id"]))
    do("delete_sightings", "DELETE", f"{gallery}/sightings", ("g/2", None, None))
    hook = {"url": "http://127.0.0.1:9/", "kinds": ["left"], "cameras": ["none"]}
    webhook = do("create_webhook", "POST", "/v1/webhooks", (None, None, MADE), json=hook)["id"]
    do("resume_webhook", "POST", f"/v1/webhooks/{webhook}/resume", (None, None, webhook))
    do("delete_webhook", "DELETE", f"/v1/webhooks/{webhook}", (None, None, webhook))
    assert recorded.done == OF_WATCHING
    assert "never in the log" not in service.get("/v1/audit?limit=1000").text.lower()


@pytest.mark.long
def test_what_begins_and_ends_jobs_is_recorded_when_it_is_answered(tmp_path: Path) -> None:
    models = tmp_path / "models"
    shutil.copytree(PROJECT / "models", models)
    packages.install(models, "small")
    done: set[str] = set()
    with running(tmp_path / "data", models_dir=models, embedder="sface") as client:
        secret = client.post("/v1/keys", json={"id": "desk", "scopes": ["admin"]}).json()["secret"]
        client.post("/v1/galleries", json={"id": "g/1"}).raise_for_status()
        client.post("/v1/galleries/g%2F1/subjects/eileen/faces", files={"images": COLLINS}).raise_for_status()

        def do(
            name: str, method: str, path: str, target: str | None = None, about: str | None = "g/1", **given: Any
        ) -> Any:
            answer = client.request(method, path, headers={"x-api-key": secret}, **given)
            assert answer.is_success, answer.text
            row = entry_of(client, answer)
            assert (row["key"], row["operation"], row["status"]) == ("desk", name, answer.status_code)
            assert (row["subject"], row["target"]) == (None, target)
            assert row["gallery"] == about, name
            done.add(name)
            return answer.json() if answer.content else None

        def comes_to(state: str | None) -> None:
            until(lambda: client.get(reembed).json().get("state") == state)

        gallery = "/v1/galleries/g%2F1"
        reembed = f"{gallery}/reembed"
        imported = do("import", "POST", f"{gallery}/import", files={"archive": tar_of({"x/1.jpg": COLLINS})})
        exported = do("export", "POST", f"{gallery}/export")
        ids = {imported["id"], exported["id"]}
        until(lambda: ids <= {job["id"] for job in client.get("/v1/jobs?state=done").json()["jobs"]})
        do("calibrate_gallery", "POST", f"{gallery}/calibration")
        client.post("/v1/galleries/g%2F1/subjects/eileen%20again/faces", files={"images": AGAIN}).raise_for_status()
        review = f"{gallery}/review"
        do("review", "POST", review)
        until(lambda: bool(client.get(review).json()["findings"]))
        finding = client.get(review).json()["findings"][0]["id"]
        do("dismiss_finding", "POST", f"{review}/{finding}/dismiss", finding)
        do("reopen_finding", "DELETE", f"{review}/{finding}/dismiss", finding)
        waiting = waiting_job(tmp_path / "data", "g/1").id
        do("cancel_job", "POST", f"/v1/jobs/{waiting}/cancel", waiting)
        do("reembed", "POST", reembed, json={"embedder": "small"})
        comes_to("switched")
        do("roll_back_reembedding", "POST", f"{reembed}/rollback")
        do("cancel_reembedding", "DELETE", reembed)
        comes_to(None)
        do("reembed", "POST", reembed, json={"embedder": "small"})
        comes_to("switched")
        do("finish_reembedding", "POST", f"{reembed}/finish")
        do("group_photos", "POST", f"{gallery}/group", files={"archive": tar_of({"1.jpg": COLLINS})})
        do("add_model", "POST", "/v1/models?name=x", about=None, files={"file": b"no ONNX"})
        pulled = do("pull_model", "POST", "/v1/models/pull", about=None, json={"name": "best"})["id"]
        do("cancel_job", "POST", f"/v1/jobs/{pulled}/cancel", pulled, about=None)
        packages.install(tmp_path / "data" / "packages", "extra")
        do("remove_model", "DELETE", "/v1/models/extra", "extra", about=None)
    assert done == OF_JOBS


def test_every_operation_is_recorded_with_its_key_and_ids(service: httpx.Client) -> None:
    """Also if there is nothing of these ids."""
    ids = {"gallery": "no g/1", "subject": "no one/\u738b", "face_id": "a" * 32, "key": "no-key"}
    named = (
        dict.fromkeys(
            ("job", "receipt", "finding", "correction", "sighting", "stranger", "webhook", "package"), "b" * 32
        )
        | ids
    )
    quoted = {name: quote(value, safe="") for name, value in named.items()}
    operations = [operation for operation in own_operations() if not (operation.monitoring or operation.streams)]
    answers = [service.request(operation.method, operation.path.format(**quoted)) for operation in operations]
    entry_of(service, answers[-1])  # entries are written in their order
    entries = service.get("/v1/audit?limit=1000").raise_for_status().json()["entries"]
    for operation, answer in zip(operations, answers, strict=True):
        (row,) = (entry for entry in entries if entry["request_id"] == answer.headers["x-request-id"])
        if not operation.wire.takes_keys:  # the key that this sends is no code
            assert (row["key"], row["operation"], row["status"]) == (None, operation.name, 401)
            continue
        about = re.findall(r"\{(\w+)\}", operation.path)
        others = [named[name] for name in about if name not in {"gallery", "subject"}]
        assert (row["key"], row["operation"], row["status"]) == ("admin.key", operation.name, answer.status_code)
        assert row["gallery"] == (ids["gallery"] if "gallery" in about else None), operation.name
        assert row["subject"] == (ids["subject"] if "subject" in about else None), operation.name
        assert row["target"] == (others[0] if others else None), operation.name


def test_refused_keys_are_recorded_as_far_as_they_are_known(service: httpx.Client) -> None:
    made = service.post("/v1/keys", json={"id": "weak", "scopes": ["read"]}).json()
    refused = service.delete("/v1/galleries/any", headers={"x-api-key": made["secret"]})
    error_of(refused, 403, "missing_scope")
    entry = entry_of(service, refused)
    assert (entry["key"], entry["operation"], entry["status"]) == ("weak", "delete_gallery", 403)
    guess = service.get("/v1/galleries", headers={"x-api-key": "lk_weak_guess"})
    assert (entry_of(service, guess)["key"], entry_of(service, guess)["status"]) == (None, 401)
    service.delete("/v1/keys/weak")
    revoked = service.get("/v1/galleries", headers={"x-api-key": made["secret"]})
    assert (entry_of(service, revoked)["key"], entry_of(service, revoked)["status"]) == ("weak", 401)


def test_changes_are_read_alone(service: httpx.Client) -> None:
    made = service.post("/v1/galleries", json={"id": "changed"})
    read = service.get("/v1/galleries/changed")
    entry_of(service, read)
    listed = service.get("/v1/audit?limit=1000&changes=true").json()["entries"]
    ids = {entry["request_id"] for entry in listed}
    assert made.headers["x-request-id"] in ids
    assert read.headers["x-request-id"] not in ids
    assert {entry["operation"] for entry in listed} <= CHANGES


def test_what_nothing_limits_is_not_recorded(service: httpx.Client) -> None:
    missing = service.get("/v1/galleries", headers={"x-api-key": ""})
    after = service.get("/v1/galleries")
    entry_of(service, after)
    ids = [entry["request_id"] for entry in service.get("/v1/audit?limit=1000").json()["entries"]]
    assert missing.headers["x-request-id"] not in ids


def test_ids_that_nothing_can_have_are_not_recorded(service: httpx.Client) -> None:
    answer = service.get(f"/v1/galleries/crew/subjects/{'x' * 300}")
    assert entry_of(service, answer)["subject"] is None
    answer = service.get("/v1/galleries/crew/subjects/a%00b")
    assert entry_of(service, answer)["subject"] is None


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/v1/detect", "/v1/galleries/crew/subjects/collins/faces"], ids=["reads", "changes"])
async def test_a_client_that_leaves_before_its_answer_is_recorded_as_gone(tmp_path: Path, path: str) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def leaving() -> Message:
        return {"type": "http.disconnect"}

    app = made(tmp_path)
    async with app.router.lifespan_context(app):
        key = load_key(tmp_path)[0]
        await app(scope_of("POST", path, key, content_type="image/png", x_request_id="leaves"), leaving, send)
        with anyio.CancelScope() as connection:

            async def ended() -> Message:  # as where the server ends the connection's task
                connection.cancel()
                await anyio.sleep_forever()
                raise AssertionError

            scope = scope_of("POST", path, key, content_type="image/png", x_request_id="is-ended")
            await app(scope, ended, send)
    assert sent == []
    with closing(Store(f"sqlite:///{tmp_path / 'likeness.db'}")) as sql:
        written = [(entry.request_id, entry.status) for entry in all_of(AuditStore(sql.database))]
    assert written == [("leaves", 499), ("is-ended", 499)]


def test_a_server_that_stops_leaves_nothing_unwritten(tmp_path: Path) -> None:
    with running(tmp_path / "data") as client:
        ids = [client.get("/v1/models").headers["x-request-id"] for _ in range(20)]
    with closing(Store(f"sqlite:///{tmp_path / 'data' / 'likeness.db'}")) as sql:
        assert [entry.request_id for entry in all_of(AuditStore(sql.database))] == ids


@pytest.mark.long
def test_what_was_acknowledged_is_in_the_log_after_kill_9(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server, server.client() as client:
        ids = [
            client.post("/v1/galleries", json={"id": f"g{number}"}).raise_for_status().headers["x-request-id"]
            for number in range(20)
        ]
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    with closing(Store(f"sqlite:///{tmp_path / 'data' / 'likeness.db'}")) as sql:
        entries = all_of(AuditStore(sql.database), operation="create_gallery")
    assert [(entry.request_id, entry.status, entry.gallery) for entry in entries] == [
        (request_id, 201, f"g{number}") for number, request_id in enumerate(ids)
    ]


def test_nothing_is_changed_that_cannot_be_recorded(service: httpx.Client, data_dir: Path) -> None:
    service.post("/v1/galleries", json={"id": "kept"}).raise_for_status()
    with closing(sqlite3.connect(data_dir / "likeness.db", timeout=WAIT_S)) as database:
        database.execute("ALTER TABLE audit RENAME TO elsewhere")
        error_of(service.delete("/v1/galleries/kept"), 503, "database_unavailable")
        error_of(service.post("/v1/galleries", json={"id": "more"}), 503, "database_unavailable")
        left = {gallery["id"] for gallery in service.get("/v1/galleries").json()["galleries"]}
        assert {"kept", "more"} & left == {"kept"}
        database.execute("ALTER TABLE elsewhere RENAME TO audit")
    assert service.delete("/v1/galleries/kept").status_code == 204
