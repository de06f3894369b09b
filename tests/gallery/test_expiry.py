"""Expiring subjects are in no answer after their expiry and are erased; consent is kept with them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from likeness_client import Client

from app.access.audit import AuditLog, AuditStore
from app.errors import Conflict, InvalidInput, NotFound
from app.features import signatures
from app.features.audit.reading import AuditFilter
from app.features.audit.reading import entries as entries_of
from app.features.bulk.rows import everything
from app.features.checks.comparing import check_index
from app.features.erasure.checking import check_receipt
from app.features.erasure.erasing import Erasures
from app.features.listing import count_people, face_ids, faces_by_id, placed_faces, subject_ids
from app.features.monitoring.collector import Totals, count_totals
from app.features.signatures import Signer
from app.features.transfers import Move, dissolve_subject, move_faces, rename_subject
from app.gallery.records import Consent, Counts, Terms
from app.gallery.service import Galleries
from app.gallery.store import Change
from app.gallery.subjects import create_subject, edit_subject
from app.gallery.text import is_unnamed
from app.types import utc_text
from tests.support.changing import changed, written
from tests.support.erasing import erasures
from tests.support.following import PAST, found, let_expire
from tests.support.galleries import enroll, face, staff, template
from tests.support.live import serving
from tests.support.service import COLLINS, HOPPER, error_of
from tests.support.waiting import until

LATER = utc_text(datetime.now(UTC) + timedelta(days=30))


def open_expiry(galleries: Galleries) -> tuple[Erasures, AuditLog]:
    log = AuditLog(AuditStore(galleries.store.database))
    return Erasures(galleries, Signer(bytes(32)), recorded=lambda *who: log.recorded("expire_subject", *who)), log


def ends_of(galleries: Galleries) -> dict[str, str | None]:
    found = galleries.store.subjects(staff(galleries)).items
    return {"~" if is_unnamed(subject.id) else subject.id: subject.expires_at for subject in found}


def test_faces_keep_the_promise_when_their_subject_is_dissolved_or_they_go_to_a_new_one(galleries: Galleries) -> None:
    made = galleries.enroll(
        galleries.store.gallery("staff"), "eileen", [face(1), face(1)], terms=Terms(expires_at=LATER)
    )
    changed(galleries, "staff", move_faces, [Move(made.faces[0].face_id, "eileen", "grace")], create=True)
    changed(galleries, "staff", dissolve_subject, "eileen")
    assert ends_of(galleries) == {"grace": LATER, "~": LATER}


def test_faces_neither_leave_nor_join_who_has_expired(galleries: Galleries, database_url: str) -> None:
    ids = {name: enroll(galleries, name, 1).faces[0].face_id for name in ("eileen", "grace")}
    let_expire(database_url, "eileen")
    verbs: list[Callable[[Change], object]] = [
        lambda change: move_faces(change, [Move(ids["grace"], "grace", "eileen")]),
        lambda change: move_faces(change, [Move(ids["eileen"], "eileen", "grace")]),
        lambda change: rename_subject(change, "grace", "eileen"),
        lambda change: rename_subject(change, "eileen", "grace"),
        lambda change: rename_subject(change, "eileen", "nobody"),
        lambda change: dissolve_subject(change, "eileen"),
    ]
    for verb in verbs:
        with pytest.raises(Conflict) as caught:
            changed(galleries, "staff", verb)
        assert caught.value.code == "subject_expired"
    assert ends_of(galleries) == {"grace": None}


def test_terms_that_make_no_sense_change_nothing(galleries: Galleries) -> None:
    for terms, code in (
        (Terms(expires_at=PAST), "invalid_expiry"),
        (Terms(consent=Consent("", PAST)), "invalid_consent"),
        (Terms(consent=Consent("a\0b", PAST)), "invalid_consent"),
        (Terms(consent=Consent("x" * 1001, PAST)), "invalid_consent"),
    ):
        with pytest.raises(InvalidInput) as caught:
            written(galleries.store, staff(galleries), create_subject, "eileen", terms=terms)
        assert caught.value.code == code
        with pytest.raises(InvalidInput):
            galleries.enroll(galleries.store.gallery("staff"), "eileen", [face(1)], terms=terms)
    with pytest.raises(NotFound):
        galleries.store.subject(staff(galleries), "eileen")


def test_who_has_expired_is_not_answered_before_anybody_sweeps(galleries: Galleries, database_url: str) -> None:
    enroll(galleries, "eileen", 1)
    enroll(galleries, "grace", 2)
    let_expire(database_url, "eileen")
    assert found(galleries, 1) == []
    assert found(galleries, 2) == ["grace"]
    with pytest.raises(NotFound) as caught:
        galleries.open_search(galleries.store.gallery("staff")).verify("eileen", template(1))
    assert caught.value.code == "subject_not_found"
    with pytest.raises(Conflict) as conflict:
        enroll(galleries, "eileen", 3)
    assert conflict.value.code == "subject_expired"
    assert check_index(galleries, galleries.store.gallery("staff")).faces == 2, "nothing came of the enrollment"


def test_who_has_expired_hides_nobody(galleries: Galleries, database_url: str) -> None:
    """Not even where more than an index returns at a time have expired, and all of them are nearer to the probe."""
    gone = [f"gone{number}" for number in range(40)]
    for name in gone:
        enroll(galleries, name, 1)
    enroll(galleries, "grace", 2)
    let_expire(database_url, *gone)
    gallery = staff(galleries)
    for limit in (1, 3):
        nearest, exact = galleries.open_search(gallery).search([template(1), template(2)], limit)
        assert [[candidate.subject for candidate in ranking] for ranking in (nearest, exact)] == [["grace"], ["grace"]]


def test_who_was_answered_before_is_not_answered_when_the_end_has_come(
    galleries: Galleries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is committed meanwhile, so that what was read for the first answer is kept."""
    galleries.enroll(galleries.store.gallery("staff"), "eileen", [face(1)], terms=Terms(expires_at=LATER))
    assert [found(galleries, 1) for _ in range(2)] == [["eileen"], ["eileen"]]
    monkeypatch.setattr("app.gallery.store.utc_now", lambda: "9999-01-01T00:00:00.000000Z")
    assert found(galleries, 1) == []


def test_who_has_expired_is_in_no_list_and_can_not_be_given_more_time(galleries: Galleries, database_url: str) -> None:
    """Also where the subject was read, and so cached, before."""
    store, gallery = galleries.store, galleries.store.gallery("staff")
    ids = {name: enroll(galleries, name, seed).faces[0].face_id for seed, name in enumerate(("eileen", "grace"))}
    store.subject(gallery, "eileen")
    let_expire(database_url, "eileen")
    verbs: list[Callable[[], object]] = [
        lambda: store.subject(gallery, "eileen"),
        lambda: store.faces(gallery, "eileen"),
        lambda: store.face(gallery, ids["eileen"]),
        lambda: store.face(gallery, ids["eileen"], "eileen"),
        lambda: written(store, gallery, edit_subject, "eileen", terms=Terms(expires_at=None)),
        lambda: written(store, gallery, edit_subject, "eileen", terms=Terms(expires_at=LATER)),
    ]
    for verb in verbs:
        with pytest.raises(NotFound):
            verb()
    with pytest.raises(Conflict) as caught:
        galleries.enroll(gallery, "eileen", [face(3)], terms=Terms(expires_at=LATER))
    assert caught.value.code == "subject_expired"
    with everything(store, gallery, crops=False) as all_of_it:
        exported = [record.id for record in all_of_it.subjects], [record.subject for record in all_of_it.faces]
        assert (all_of_it.counts.subjects, all_of_it.counts.faces) == (1, 1)
    assert exported == (["grace"], ["grace"])
    lists = [
        [subject.id for subject in store.subjects(gallery).items],
        [subject.id for subject in store.subjects(gallery, expires_before="2999-01-01").items],
        subject_ids(store, gallery),
        [subject for _, subject in face_ids(store, gallery)[0]],
        [face.subject for face in placed_faces(store, gallery).items],
        [face.subject for face in faces_by_id(store, gallery, list(ids.values())).values()],
    ]
    assert lists == [["grace"], [], *[["grace"]] * 4]
    assert count_people(store, gallery) == 1
    assert store.counts(gallery) == Counts(1, 1)
    assert store.counts(gallery, expired=True) == Counts(2, 2)
    assert count_totals(store.database) == Totals(1, 1, 1)


def test_who_expires_while_nothing_else_happens_counts_no_more(
    galleries: Galleries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counts are cached until the database changes."""
    store, gallery = galleries.store, galleries.store.gallery("staff")
    for seed, name in enumerate(("eileen", "grace")):
        galleries.enroll(gallery, name, [face(seed)], terms=Terms(expires_at=LATER if seed else None))
    assert store.counts(gallery) == Counts(2, 2)
    for module in ("app.gallery.store", "app.features.monitoring.collector"):
        monkeypatch.setattr(f"{module}.utc_now", lambda: LATER)
    assert store.counts(gallery) == Counts(1, 1)
    assert store.counts(gallery, expired=True) == Counts(2, 2)
    assert count_totals(store.database) == Totals(1, 1, 1)
    monkeypatch.undo()
    assert store.counts(gallery) == Counts(2, 2), "the clock was put back"


def test_the_sweep_erases_them_with_receipts_and_audit_entries(galleries: Galleries, database_url: str) -> None:
    for seed in range(4):
        enroll(galleries, f"s{seed}", seed)
    let_expire(database_url, "s1", "s3")
    written(galleries.store, staff(galleries), edit_subject, "s2", terms=Terms(expires_at=LATER))
    work, log = open_expiry(galleries)
    ending = galleries.store.subjects(staff(galleries), expires_before="2999-01-01").items
    assert [subject.id for subject in ending] == ["s2"]
    assert work.sweep() == 2
    assert work.sweep() == 0
    assert [subject.id for subject in galleries.store.subjects(staff(galleries)).items] == ["s0", "s2"]
    assert check_index(galleries, galleries.store.gallery("staff")).ok
    receipts = erasures(galleries).receipts().items
    assert [(receipt["reason"], receipt["erased"]["faces"]) for receipt in receipts] == [("expired", 1)] * 2
    for receipt in receipts:
        check_receipt(receipt)
    entries = entries_of(log.store.database, AuditFilter(operation="expire_subject"), newest_first=False).items
    assert sorted((entry.key or "", entry.gallery, entry.subject, entry.status) for entry in entries) == [
        ("", "staff", "s1", 204),
        ("", "staff", "s3", 204),
    ]
    log.close()


def test_two_servers_erase_each_subject_once(pair: tuple[Galleries, Galleries], database_url: str) -> None:
    names = [f"s{seed}" for seed in range(12)]
    for seed, name in enumerate(names):
        enroll(pair[0], name, seed)
    let_expire(database_url, *names)
    opened = [open_expiry(galleries) for galleries in pair]
    with ThreadPoolExecutor(2) as pool:
        erased = list(pool.map(lambda expiry: expiry[0].sweep(), opened))
    assert sum(erased) == 12
    assert len(erasures(pair[0]).receipts().items) == 12
    for galleries, (_, log) in zip(pair, opened, strict=True):
        log.close()
        galleries.indexes.follow()
        assert check_index(galleries, galleries.store.gallery("staff")).indexed == 0


def test_more_time_given_just_before_the_sweep_is_kept(galleries: Galleries, monkeypatch: pytest.MonkeyPatch) -> None:
    enroll(galleries, "eileen", 1)
    work, log = open_expiry(galleries)
    monkeypatch.setattr(Erasures, "_expired", lambda _: [("staff", "eileen")])  # as it was a moment ago
    assert work.sweep() == 0
    assert found(galleries, 1) == ["eileen"]
    log.close()


def test_terms_over_http(api: httpx.Client, gallery: str) -> None:
    consent = {"note": "form 12", "given_at": "2026-05-01T10:00:00+02:00"}
    made = api.post(f"{gallery}/subjects", json={"id": "eileen", "expires_at": LATER, "consent": consent}).json()
    assert datetime.fromisoformat(made["expires_at"]) == datetime.fromisoformat(LATER)
    assert made["consent"] == {"note": "form 12", "given_at": "2026-05-01T08:00:00Z"}
    before = api.get(f"{gallery}/subjects", params={"expires_before": "2999-01-01T00:00:00Z"}).json()
    assert [subject["id"] for subject in before["subjects"]] == ["eileen"]
    assert api.get(f"{gallery}/subjects", params={"expires_before": LATER}).json()["subjects"] == []
    changed = api.patch(f"{gallery}/subjects/eileen", json={"expires_at": None, "consent": {"note": "letter"}}).json()
    assert (changed["expires_at"], changed["consent"]["note"]) == (None, "letter")
    kept = api.patch(f"{gallery}/subjects/eileen", json={"name": "Eileen"}).json()
    assert kept["consent"] == changed["consent"]
    given = {"expires_at": LATER, "consent": "form 13"}
    for subject, terms in (("grace", given), ("grace", {}), ("eileen", {"expires_at": LATER})):
        enrolled = api.post(f"{gallery}/subjects/{subject}/faces", data=terms, files={"images": HOPPER})
        enrolled.raise_for_status()
    eileen = api.get(f"{gallery}/subjects/eileen").json()
    assert (eileen["expires_at"] is None, eileen["consent"]["note"]) == (False, "letter")
    grace = api.get(f"{gallery}/subjects/grace").json()
    assert (grace["expires_at"] is None, grace["consent"]["note"]) == (False, "form 13")
    for body, code in (({"expires_at": PAST}, "invalid_expiry"), ({"consent": {"note": "\u2028"}}, "invalid_consent")):
        error_of(api.patch(f"{gallery}/subjects/eileen", json=body), 422, code)
        error_of(api.post(f"{gallery}/subjects", json={"id": "new", **body}), 422, code)


def test_the_client_says_them_and_erases(api: httpx.Client, gallery: str) -> None:
    client = Client("http://service", api.headers["x-api-key"], transport=api._transport)  # left open: it is the tests'
    name, at = gallery.rpartition("/")[2], datetime(2096, 1, 31, 12, tzinfo=UTC)
    made = client.create_subject(name, "eileen", expires_at=at, consent={"note": "form 12"})
    assert (made.expires_at, made.consent and made.consent.note) == (at, "form 12")
    client.enroll(name, "grace", [HOPPER], expires_at=at, consent="form 13")
    found = client.subjects(name, expires_before=datetime(2097, 1, 1, tzinfo=UTC)).subjects
    assert [(subject.id, subject.consent and subject.consent.note) for subject in found] == [
        ("eileen", "form 12"),
        ("grace", "form 13"),
    ]
    receipt = client.erase_subject(name, "grace")
    assert client.receipt(receipt.id) == receipt
    assert receipt in list(client.all_receipts())
    assert receipt.signature.public_key == client.server_key().public_key
    assert check_receipt(receipt.model_dump(mode="json"), signatures.decode(client.server_key().public_key))


@pytest.mark.long
def test_a_running_server_erases_who_has_expired(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data, {"EXPIRY_SECONDS": 0.2}) as server, ExitStack() as stack:
        client = stack.enter_context(server.client("/v1"))
        client.post("/galleries", json={"id": "crew"}).raise_for_status()
        faces = "/galleries/crew/subjects/eileen/faces"
        client.post(faces, params={"expires_at": LATER}, files={"images": COLLINS}).raise_for_status()
        at = datetime.now(UTC)

        def shorten() -> bool:
            """Not if the end has come before it was written."""
            nonlocal at
            at = datetime.now(UTC) + timedelta(seconds=2)
            changed = client.patch("/galleries/crew/subjects/eileen", json={"expires_at": at.isoformat()})
            return changed.is_success

        until(shorten)
        until(lambda: client.get("/galleries/crew/subjects/eileen").status_code == 404)
        assert datetime.now(UTC) >= at
        until(lambda: bool(client.get("/receipts").json()["receipts"]))
        (receipt,) = client.get("/receipts").json()["receipts"]
        assert (receipt["reason"], receipt["erased"]["crops"]) == ("expired", 1)
        (entry,) = client.get("/audit", params={"operation": "expire_subject"}).json()["entries"]
        assert (entry["key"], entry["subject"], entry["status"]) == (None, "eileen", 204)
