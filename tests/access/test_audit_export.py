"""Exports of the audit log: whole ones are found whole, and nothing can be changed in them unseen."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from app.access import audit_export as export_module
from app.access.audit import DAY_S
from app.access.audit_chain import MAX_LINE, PURPOSE, Broken, Chain, Reader
from app.access.audit_export import AuditExports
from app.access.audit_store import AuditEntry, AuditStore
from app.db import signing
from app.db.schema import AUDIT
from app.db.signing import Signer
from app.errors import Conflict, InvalidInput
from app.gallery.store import Store
from app.timestamps import utc_text
from tests.support.commands import run as likeness
from tests.support.live import serving
from tests.support.service import error_of, running

NOW = 1_800_000_000.0
WAIT_S = 20.0
SIGNER = Signer(bytes(range(32)))


@pytest.fixture
def store(database_url: str) -> Iterator[AuditStore]:
    with closing(Store(database_url)) as sql:
        yield AuditStore(sql.database)


def exports(store: AuditStore, *, days: float = 0, now: float = NOW, signer: Signer = SIGNER) -> AuditExports:
    return AuditExports(store, signer, days=days, clock=lambda: now)


def entry(number: int, status: int | None = 200, at: float = NOW) -> AuditEntry:
    return AuditEntry(utc_text(at), "door", "enroll", f"r{number}", "staff", "königin", None, status)


def exported(source: AuditExports, reader: Reader | None = None) -> tuple[Reader, list[dict[str, Any]]]:
    """Everything that the log holds, after what `reader` has read; and the new lines."""
    reader = reader or Reader()
    found: list[dict[str, Any]] = []
    while True:
        for line in source.after(reader.checkpoint.decode() or None).splitlines():
            reader.add(line)
            found.append(json.loads(line))
        if reader.complete:
            return reader, found


def kinds(lines: list[dict[str, Any]]) -> list[str]:
    return [line["kind"] for line in lines]


# ---------------------------------------------------------------- what is chained, and when


def test_an_export_goes_on_where_it_ended(store: AuditStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "ENTRIES_AT_ONCE", 3)
    reader, lines = exported(exports(store))
    assert (kinds(lines), reader.fault()) == (["checkpoint"], None), "an empty log can be exported, too"
    store.write([entry(number) for number in range(7)])
    reader, lines = exported(exports(store), reader)
    assert kinds(lines) == [*["entry"] * 3, "checkpoint", *["entry"] * 3, "checkpoint", "entry", "checkpoint"]
    assert [line["request_id"] for line in lines if line["kind"] == "entry"] == [f"r{number}" for number in range(7)]
    store.write([entry(7)])
    reader, lines = exported(exports(store), reader)
    assert kinds(lines) == ["entry", "checkpoint"]
    assert (reader.entries, reader.missing, reader.fault()) == (8, 0, None)


def test_an_outcome_that_comes_later_is_a_line_of_its_own(store: AuditStore) -> None:
    running, other = entry(0, None), entry(1, None)
    store.write([running, other, entry(2)])
    reader, lines = exported(exports(store))
    assert [line["status"] for line in lines[:3]] == [None, None, 200]
    assert reader.open == {running.row, other.row}
    running.status, running.target = 201, "f1"
    store.write([running])
    reader, lines = exported(exports(store), reader)
    assert kinds(lines) == ["outcome", "checkpoint"]
    assert (lines[0]["row"], lines[0]["status"], lines[0]["target"]) == (running.row, 201, "f1")
    assert reader.open == {other.row}
    reader, lines = exported(exports(store, now=NOW + DAY_S + 1), reader)
    assert kinds(lines) == ["lost", "checkpoint"], "its server was killed: no outcome will come"
    assert (reader.open, reader.lost, reader.fault()) == (set(), 1, None)


def test_open_entries_are_bounded(store: AuditStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "MAX_OPEN", 2)
    entries = [entry(number, None) for number in range(5)]
    store.write(entries)
    reader, _ = exported(exports(store))
    assert (reader.open, reader.lost) == ({entries[3].row, entries[4].row}, 3)


def test_entries_that_are_pruned_stay_in_the_file(store: AuditStore) -> None:
    old = NOW - 366 * DAY_S
    store.write([entry(0, at=old), entry(1, None, at=old), entry(2, at=old)])
    reader, _ = exported(exports(store, days=365, now=old))
    store.prune(utc_text(NOW - 365 * DAY_S))
    reader, lines = exported(exports(store, days=365), reader)
    assert kinds(lines) == ["lost", "checkpoint"], "an open one went without an outcome"
    store.write([entry(3)])
    reader, lines = exported(exports(store, days=365), reader)
    assert (kinds(lines), reader.entries, reader.fault()) == (["entry", "checkpoint"], 4, None)


def test_rows_that_are_missing_in_between_are_counted(store: AuditStore) -> None:
    entries = [entry(number, None) for number in range(6)]
    store.write(entries)
    with store.database.write() as connection:
        connection.execute(sa.delete(AUDIT).where(AUDIT.c.key.in_([entries[2].row, entries[3].row])))
    reader, _ = exported(exports(store))
    assert (reader.entries, reader.missing) == (4, 2)


@pytest.mark.parametrize("change", ["deleted", "altered"])
def test_a_log_that_is_not_the_exported_one_is_refused(store: AuditStore, change: str) -> None:
    """As after the restore of an older backup, whose rows get the same numbers again."""
    last = entry(1, None)
    store.write([entry(0), last])
    reader, _ = exported(exports(store))
    with store.database.write() as connection:
        if change == "deleted":
            connection.execute(sa.delete(AUDIT).where(AUDIT.c.key == last.row))
        else:
            connection.execute(sa.update(AUDIT).values(request_id="another").where(AUDIT.c.key == last.row))
    for days in (0, 365):
        with pytest.raises(Conflict) as caught:
            exports(store, days=days).after(reader.checkpoint.decode())
        assert caught.value.code == "audit_log_differs"


def test_an_entry_that_is_committed_late_is_not_skipped(store: AuditStore) -> None:
    """PostgreSQL gives a row its number before it is committed: one of a lower number may appear later."""
    if store.database.is_sqlite:
        assert store.last_settled() == 0
        return
    values = {"at": utc_text(NOW), "operation": "enroll", "request_id": "late", "status": 200}
    found: list[Reader] = []
    thread = threading.Thread(target=lambda: found.append(exported(exports(store))[0]))
    with store.database.write() as connection:
        connection.execute(sa.insert(AUDIT).values(values))
        store.write([entry(1)])
        thread.start()
        thread.join(0.3)
        assert not found, "it waits for the transaction"
    thread.join(WAIT_S)
    assert found[0].entries == 2


def test_a_server_continues_its_own_exports_only(store: AuditStore) -> None:
    store.write([entry(0)])
    reader, lines = exported(exports(store))
    checkpoint = reader.checkpoint.decode()
    stranger = Signer(bytes(32))
    chain = Chain(5, "0" * 64)
    chain.sign({"at": utc_text(NOW), "last": None, "open": [], "complete": True}, stranger)
    wrong = ["", "{}", "[]", "null", checkpoint + " ", checkpoint.replace('"complete":true', '"complete":false')]
    wrong += [chain.lines[0].decode(), json.dumps(lines[0]), "[" * 50_000, '{"signature":{"value":1,"public_key":2}}']
    wrong += ['{"a":"\\ud800","signature":{"public_key":"","value":""}}', checkpoint.replace("Ed25519", "Ed448")]
    for text in wrong:
        with pytest.raises(InvalidInput) as caught:
            exports(store).after(text)
        assert caught.value.code == "invalid_checkpoint", text[:50]


# ---------------------------------------------------------------- tampering


def made() -> list[bytes]:
    """The lines of an export of three parts, with every kind of line."""
    chain = Chain()
    fields = {"at": utc_text(NOW), "key": None, "operation": "enroll", "gallery": "g", "subject": "é", "target": None}
    last: dict[str, Any] | None = None
    for part in range(3):
        if part:
            chain.add("outcome", fields | {"row": 4 * part, "request_id": f"r{4 * part}", "status": 201})
            chain.add("lost", {"row": 4 * part - 1})
        for row in range(4 * part + 1, 4 * part + 5):
            status = None if row % 4 in {0, 3} else 200
            chain.add("entry", fields | {"row": row, "request_id": f"r{row}", "status": status})
            last = {"row": row, "at": utc_text(NOW), "request_id": f"r{row}"}
        open_rows = [4 * part + 3, 4 * part + 4]
        chain.sign({"at": utc_text(NOW), "last": last, "open": open_rows, "complete": part == 2}, SIGNER)
    return chain.lines


LINES = made()
WHOLE = b"".join(line + b"\n" for line in LINES)


def fault(content: bytes, head: str | None = None) -> str | None:
    reader = Reader()
    try:
        reader.read(io.BytesIO(content))
    except Broken as broken:
        return broken.message
    return reader.fault(head)


def joined(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def heads() -> list[str]:
    """The digest of every checkpoint, in order."""
    reader = Reader()
    found: list[str] = []
    for line in LINES:
        reader.add(line)
        if not reader.unsigned:
            found.append(reader.head)
    return found


def test_a_whole_export_is_found_whole() -> None:
    assert fault(WHOLE) is None
    assert len(heads()) == 3
    assert all(fault(WHOLE, head) is None for head in heads())


@given(place=st.integers(0, len(WHOLE) - 1), value=st.integers(1, 255))
@settings(max_examples=300, deadline=None)
def test_no_byte_can_be_changed(place: int, value: int) -> None:
    altered = bytearray(WHOLE)
    altered[place] ^= value
    assert fault(bytes(altered)) is not None


@given(place=st.integers(0, len(WHOLE)), more=st.binary(min_size=1, max_size=40))
@settings(deadline=None)
def test_nothing_can_be_put_in(place: int, more: bytes) -> None:
    assert fault(WHOLE[:place] + more + WHOLE[place:]) is not None


@given(start=st.integers(0, len(WHOLE) - 1), count=st.integers(1, 400))
@settings(deadline=None)
def test_nothing_can_be_taken_out(start: int, count: int) -> None:
    """What ends at a checkpoint is whole by itself: only a head that was kept elsewhere shows the rest is gone."""
    rest = WHOLE[:start] + WHOLE[start + count :]
    found = fault(rest)
    is_beginning = WHOLE.startswith(rest) and rest.endswith(b"\n") and b'"checkpoint"' in rest.splitlines()[-1]
    assert (found is None) == is_beginning
    assert fault(rest, heads()[-1]) is not None


@given(st.data())
@settings(deadline=None)
def test_lines_keep_their_order_and_number(data: st.DataObject) -> None:
    order = data.draw(st.lists(st.integers(0, len(LINES) - 1), max_size=len(LINES) + 2))
    whole = order in [list(range(count)) for count in (5, 12, 19)]  # the beginnings that end at a checkpoint
    assert (fault(joined([LINES[number] for number in order])) is None) == whole


@given(
    st.integers(0, len(LINES) - 1),
    st.sampled_from(["status", "subject", "key", "row", "at", "open", "last", "number", "version"]),
    st.one_of(st.none(), st.integers(0, 20), st.text(max_size=5), st.just([]), st.just({"row": 1})),
)
@settings(max_examples=150, deadline=None)
def test_a_repaired_chain_lacks_the_signature(number: int, name: str, value: object) -> None:
    """An administrator who alters a line and computes every digest after it again can't sign it."""
    documents = [json.loads(line) for line in LINES]
    if name not in documents[number] or documents[number][name] == value:
        return
    documents[number][name] = value
    chain = Chain()
    for document in documents:
        document["previous"] = chain.previous
        chain._append(document)
    assert fault(joined(chain.lines)) is not None


def test_a_forger_with_a_key_of_their_own_is_another_signer() -> None:
    forger = Signer(bytes(32))
    documents = [json.loads(line) for line in LINES]
    for changed in (range(len(LINES)), [len(LINES) - 1]):
        chain = Chain()
        for number, document in enumerate(documents):
            plain = {name: value for name, value in document.items() if name != "signature"}
            plain["previous"] = chain.previous
            signer = forger if number in changed else SIGNER
            chain._append(signing.signed(plain, signer, PURPOSE) if plain["kind"] == "checkpoint" else plain)
        reader = Reader()
        if len(changed) == 1:
            with pytest.raises(Broken, match="another key"):
                reader.read(io.BytesIO(joined(chain.lines)))
        else:
            reader.read(io.BytesIO(joined(chain.lines)))
            assert reader.public_key == forger.public_key != SIGNER.public_key


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda lines: [*lines[:2], *lines[3:]], "line 3: 1 lines before it were removed or moved"),
        (lambda lines: [*lines[:2], lines[1], *lines[2:]], "line 3: it was inserted or moved here"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "line 1: 1 lines before it were removed or moved"),
        (lambda lines: [lines[0].replace(b"staff", b"stuff").replace(b'"g"', b'"h"'), *lines[1:]], "line 2: this line"),
        (lambda lines: lines[:-1], "was cut off: its last 6 lines"),
        (lambda _: [], "no checkpoint"),
        (lambda lines: [*lines, b"x" * MAX_LINE], "longer than any line"),
        (lambda lines: [*lines, b"[" * 100_000], "not in the form"),
        (lambda lines: [*lines, b'{"kind":[]}'], "other fields"),
        (lambda lines: [*lines, b'{"kind":"lost","number":NaN,"previous":"","row":1}'], "not in the form"),
        (lambda lines: [*lines, b'{"kind":"lost","number":20,"previous":"","row":true}'], "a number in it is none"),
    ],
)
def test_it_says_where_it_breaks(change: Callable[[list[bytes]], list[bytes]], why: str) -> None:
    found = fault(joined(change(LINES)))
    assert found is not None
    assert why in found


# ---------------------------------------------------------------- from a server, and from the command line


def test_a_running_server_signs_what_it_did(tmp_path: Path) -> None:
    with running(tmp_path / "data") as client:
        client.post("/v1/galleries", json={"id": "crew"}).raise_for_status()
        answer = client.post("/v1/audit/export", json={}).raise_for_status()
        assert answer.headers["content-type"].startswith("application/x-ndjson")
        lines = answer.content.splitlines()
        reader = Reader()
        for line in lines:
            reader.add(line)
        key = client.get("/v1/server-key").json()["public_key"]
        assert signing.is_named(reader.public_key or b"", key)
        assert "create_gallery" in [json.loads(line).get("operation") for line in lines]
        error_of(client.post("/v1/audit/export", json={"after": lines[0].decode()}), 422, "invalid_checkpoint")
        secret = client.post("/v1/keys", json={"id": "k", "scopes": ["admin"], "galleries": ["crew"]}).json()["secret"]
        refused = client.post("/v1/audit/export", json={}, headers={"x-api-key": secret})
        error_of(refused, 403, "gallery_restricted")


@pytest.mark.long
def test_the_command_appends_and_verifies(tmp_path: Path) -> None:
    folder, file = tmp_path / "data", tmp_path / "audit.jsonl"
    with serving(folder) as server, server.client() as client:
        client.post("/v1/galleries", json={"id": "crew"}).raise_for_status()
        first = likeness(folder, "audit", "export", "--to", file, "--json")
        assert first.returncode == 0, first
        assert file.stat().st_mode & 0o777 == 0o600
        (tmp_path / "key.json").write_bytes(client.get("/v1/server-key").content)
        pem = client.get("/v1/server-key").json()["pem"]
    begun = file.read_bytes()
    second = likeness(folder, "audit", "export", "--to", file, "--json")  # in the command's own process
    assert second.returncode == 0, second
    assert file.read_bytes().startswith(begun)
    assert second.rows[0]["entries"] > first.rows[0]["entries"]
    assert second.rows[0]["missing"] == 0

    (tmp_path / "key.pem").write_text(pem)
    head, signer = first.rows[0]["head"], first.rows[0]["signer"]
    for right in (["--signer", signer], ["--signer", tmp_path / "key.json"], ["--signer", tmp_path / "key.pem"]):
        done = likeness(tmp_path / "nowhere", "audit", "verify", file, *right, "--head", head)
        assert done.returncode == 0, done
        assert "whole" in done.stdout
    assert "signed with another key" in likeness(folder, "audit", "verify", file, "--signer", "0" * 64).stdout
    cut = likeness(folder, "audit", "verify", file, "--head", "0" * 64, "--json")
    assert (cut.returncode, cut.rows[0]["whole"]) == (1, False)

    file.write_bytes(file.read_bytes() + begun.splitlines()[0][:50])  # killed while it wrote
    assert likeness(folder, "audit", "verify", file).returncode == 1
    again = likeness(folder, "audit", "export", "--to", file)
    assert again.returncode == 0
    assert "not signed" in again.stderr
    assert likeness(folder, "audit", "verify", file).returncode == 0

    file.write_bytes(file.read_bytes().replace(b"create_gallery", b"delete_gallery"))
    broken = likeness(folder, "audit", "verify", file)
    assert (broken.returncode, "NOT whole" in broken.stdout) == (1, True)
    assert likeness(folder, "audit", "export", "--to", file).returncode == 3
    assert likeness(folder, "audit", "export", "--to", file, "--subject", "ada").returncode == 2
    (tmp_path / "letter.txt").write_text("something else")
    assert likeness(folder, "audit", "export", "--to", tmp_path / "letter.txt").returncode != 0
    assert (tmp_path / "letter.txt").read_text() == "something else"
    assert likeness(folder, "audit", "verify", tmp_path / "none").returncode == 2


@pytest.mark.long
def test_two_exports_into_one_file_do_not_mix(tmp_path: Path) -> None:
    import fcntl  # noqa: PLC0415 - this test alone

    folder, file = tmp_path / "data", tmp_path / "audit.jsonl"
    with serving(folder), file.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = likeness(folder, "audit", "export", "--to", file)
    assert done.returncode != 0
    assert "audit_export_in_use" in done.stderr
