"""Backups: the database as one moment saw it, taken while others write; restored whole, or not at all."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from app.bulk.backup import Summary, restore, write_backup
from app.db import usage
from app.db.key_file import FoundRings
from app.db.schema import FACES, JOBS, METADATA
from app.db.signing import Signer, canonical, encode
from app.errors import LikenessError
from app.gallery.bulk import BulkFace, BulkSubject, write_many
from app.gallery.deleting import delete_subject
from app.gallery.service import Galleries
from app.gallery.store import Store
from app.jobs.store import JobStore
from app.types import Quality
from tests.conftest import PROJECT
from tests.support.changing import changed
from tests.support.commands import run
from tests.support.live import environment, serving
from tests.support.postgres import new_database
from tests.support.ready import give_models
from tests.support.tarred import units

PACKAGE = "p@1"
NO_RINGS = FoundRings(None, True, None)


def trusted(path: Path, url: str, *, replace: bool = False) -> Summary:
    """Restore a backup that nobody signed."""
    return restore(path, url, rings=NO_RINGS, replace=replace, trust=True)


def put(galleries: Galleries, subject: str, vector: Any, crop: bytes | None = None) -> None:
    face = BulkFace(subject, vector.astype("<f4").tobytes(), Quality(50.0, ()), crop=crop)
    changed(galleries, "g", write_many, PACKAGE, [], [face])


@pytest.fixture
def galleries(database_url: str) -> Iterator[Galleries]:
    made = Galleries(Store(database_url))
    made.create_gallery("g", PACKAGE, 128)
    yield made
    made.close()


def store_of(galleries: Galleries) -> Store:
    return galleries.store


def rows(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """Everything but the keys of jobs' files."""
    with store.database.read() as connection:
        return {
            table.name: sorted(
                map(tuple, connection.execute(sa.select(*[c for c in table.c if c is not JOBS.c.secret]))), key=repr
            )
            for table in METADATA.sorted_tables
        }


@pytest.fixture(params=["sqlite", "postgresql"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where to restore to: either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'restored' / 'likeness.db'}"
    return new_database(request.getfixturevalue("postgresql"))


def test_what_is_restored_is_what_there_was(galleries: Galleries, target: str, tmp_path: Path) -> None:
    vectors = units(60)
    faces = [
        BulkFace(f"s{n}", vectors[n].tobytes(), Quality(50.0, ()), crop=b"\xff\xd8" + bytes([n])) for n in range(60)
    ]
    subjects = [BulkSubject("s0", "Ren\u00e9e \u96ea", {"a": [1, None, "\u2603"]})]
    changed(galleries, "g", write_many, PACKAGE, subjects, faces)
    changed(galleries, "g", delete_subject, "s59")
    store = store_of(galleries)
    jobs = JobStore(store.database)
    job = jobs.create("none", store.gallery("g"), {"a": 1}, secret=b"k" * 32, place="here")
    summary = write_backup(store.database, tmp_path / "backup", "1")
    assert (summary.rows["faces"], summary.rows["crops"], summary.rows["jobs"]) == (59, 59, 1)
    assert (tmp_path / "backup").stat().st_mode & 0o077 == 0
    assert b"k" * 32 not in gzip.decompress((tmp_path / "backup").read_bytes())
    expected = rows(store)

    assert trusted(tmp_path / "backup", target).rows == summary.rows
    again = Store(target)
    assert rows(again) == expected
    assert JobStore(again.database).secret(job) is None
    other = Galleries(again)
    assert other.check("g").ok
    put(other, "new", units(1, seed=9)[0])
    with again.database.read() as connection:
        assert connection.execute(sa.select(sa.func.max(FACES.c.key))).scalar_one() > 60, "keys are not used again"
    other.close()


@pytest.mark.long
def test_a_backup_while_others_enroll_holds_all_that_was_acknowledged_before(
    galleries: Galleries, target: str, tmp_path: Path, full: bool
) -> None:
    done: list[str] = []
    stop = threading.Event()

    def enroll(thread: int) -> None:
        for number, vector in enumerate(units(2_000, seed=thread)):
            if stop.is_set():
                return
            put(galleries, f"{thread}-{number}", vector)
            done.append(f"{thread}-{number}")

    threads = [threading.Thread(target=enroll, args=[n]) for n in range(4)]
    for thread in threads:
        thread.start()
    try:
        backups = []
        for number in range(3 if full else 1):
            while len(done) < 40 * (number + 1):
                assert any(thread.is_alive() for thread in threads)
            before = set(done)
            path = tmp_path / f"backup{number}"
            write_backup(store_of(galleries).database, path, "1")
            backups.append((path, before, set(done)))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    for path, before, after in backups[-1:]:
        trusted(path, target)
        other = Galleries(Store(target))
        report = other.check("g")
        found = {one.id for one in other.store.subjects(other.store.gallery("g"), limit=10_000).items}
        assert report.ok
        assert report.faces == report.subjects == len(found)
        assert before <= found <= after | set(done)
        other.close()


def test_an_index_that_runs_on_is_made_anew_after_a_restore(target: str, tmp_path: Path) -> None:
    first = Galleries(Store(target))
    first.create_gallery("g", PACKAGE, 128)
    put(first, "kept", units(1)[0])
    write_backup(store_of(first).database, tmp_path / "backup", "1")
    for number in range(3):
        put(first, f"lost-{number}", units(1, seed=2)[0])
    if target.startswith("sqlite"):
        first.close()  # its file is replaced
    trusted(tmp_path / "backup", target, replace=True)
    if target.startswith("sqlite"):
        first = Galleries(Store(target))
    other = Galleries(Store(target))
    put(other, "new", units(1, seed=3)[0])
    first.indexes.follow()
    assert sum(first.sizes(first.store.gallery("g")).values()) == 2
    assert first.check("g").ok
    assert other.check("g").ok
    first.close()
    other.close()


def test_a_database_that_is_not_empty_is_left_alone_unless_told(
    galleries: Galleries, target: str, tmp_path: Path
) -> None:
    put(galleries, "one", units(1)[0])
    write_backup(store_of(galleries).database, tmp_path / "backup", "1")
    there = Galleries(Store(target))
    there.create_gallery("mine", PACKAGE, 128)
    there.close()
    with pytest.raises(LikenessError) as caught:
        trusted(tmp_path / "backup", target)
    assert caught.value.code == "database_not_empty"
    again = Store(target)
    assert [one.id for one in again.galleries().items] == ["mine"]
    again.close()
    trusted(tmp_path / "backup", target, replace=True)
    again = Store(target)
    assert [one.id for one in again.galleries().items] == ["g"]
    again.close()


def whole(lines: list[bytes]) -> bytes:
    """With the last line's sum as it should be."""
    last = json.loads(lines[-1])
    last["sha256"] = hashlib.sha256(b"".join(line + b"\n" for line in lines[:-1])).hexdigest()
    return gzip.compress(b"\n".join([*lines[:-1], json.dumps(last).encode()]) + b"\n")


def replaced(lines: list[bytes], old: bytes, new: bytes) -> list[bytes]:
    return [line.replace(old, new) for line in lines]


SPOILED: dict[str, tuple[Callable[[list[bytes]], bytes], str]] = {
    "cut": (lambda lines: gzip.compress(b"\n".join(lines))[:-40], "invalid_backup"),
    "without its end": (lambda lines: gzip.compress(b"\n".join(lines[:-1])), "invalid_backup"),
    "altered": (lambda lines: gzip.compress(b"\n".join(replaced(lines, b"one", b"two"))), "invalid_backup"),
    "a row less": (lambda lines: whole([*lines[:-2], lines[-1]]) if lines else b"", "invalid_backup"),
    "one more": (lambda lines: gzip.compress(b"\n".join([*lines, b"[]"])), "invalid_backup"),
    "no backup": (lambda _: b"nonsense", "invalid_backup"),
    "no gzip inside": (lambda _: gzip.compress(b"nonsense"), "invalid_backup"),
    "of a later schema": (lambda lines: whole(replaced(lines, b'"revision":"0', b'"revision":"9')), "database_too_new"),
    "of a later version": (lambda lines: whole(replaced(lines, b'"version":1,', b'"version":2,')), "invalid_backup"),
    "a table unheard of": (
        lambda lines: whole(replaced(lines, b'"table":"crops"', b'"table":"crumbs"')),
        "invalid_backup",
    ),
    "a face of nobody": (lambda lines: whole([line for line in lines if b'"s0"' not in line]), "invalid_backup"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_a_backup_that_was_spoiled_changes_nothing(what: str, tmp_path: Path) -> None:
    spoil, code = SPOILED[what]
    url = f"sqlite:///{tmp_path / 'likeness.db'}"
    galleries = Galleries(Store(url))
    galleries.create_gallery("g", PACKAGE, 128)
    put(galleries, "s0", units(1)[0])
    put(galleries, "one", units(1)[0])
    before = rows(store_of(galleries))
    write_backup(store_of(galleries).database, tmp_path / "backup", "1")
    galleries.close()
    lines = gzip.decompress((tmp_path / "backup").read_bytes()).splitlines()
    (tmp_path / "spoiled").write_bytes(spoil(lines))
    with pytest.raises(LikenessError) as caught:
        trusted(tmp_path / "spoiled", url, replace=True)
    assert caught.value.code == code
    again = Store(url)
    assert rows(again) == before
    again.close()
    assert not list(tmp_path.glob("*.restoring*"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A data folder with a gallery, keys and a signed backup beside it."""
    data = tmp_path / "home"
    give_models(data)
    assert run(data, "galleries", "create", "crew").returncode == 0
    assert run(data, "keys", "create", "--id", "aws", "--aws").returncode == 0
    assert run(data, "backup", tmp_path / "backup").returncode == 0
    return data


def galleries_of(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM galleries")]


def with_an_admin_key(lines: list[bytes]) -> list[bytes]:
    """A backup to which a key was added that may do everything, with numbers and sum put right."""
    documents = [json.loads(line) for line in lines]
    at = next(n for n, one in enumerate(documents) if isinstance(one, dict) and one.get("table") == "api_keys")
    row = list(documents[at + 1])
    columns = documents[at]["columns"]
    row[columns.index("id")], row[columns.index("key")] = "intruder", 999
    documents.insert(at + 1, row)
    documents[-1]["rows"]["api_keys"] += 1
    packed = [json.dumps(one, ensure_ascii=False, separators=(",", ":")).encode() for one in documents]
    return gzip.decompress(whole(packed)).splitlines()


def signed_by(lines: list[bytes], signer: Signer | None) -> bytes:
    end = json.loads(lines[-1])
    del end["signature"], end["public_key"]
    if signer is not None:
        signed = canonical({name: end[name] for name in ("rows", "last_keys", "sha256")})
        end |= {"public_key": encode(signer.public_key), "signature": encode(signer.sign(signed, b"backup"))}
    return gzip.compress(b"\n".join([*lines[:-1], json.dumps(end).encode()]) + b"\n")


def test_a_backup_is_taken_from_who_signed_it_and_an_altered_one_never(home: Path, tmp_path: Path) -> None:
    backup, other = tmp_path / "backup", tmp_path / "other"
    done = run(other, "restore", backup, "--vault-key", home / "vault.key")
    assert done.returncode == 0, done
    before = (other / "likeness.db").read_bytes()

    lines = with_an_admin_key(gzip.decompress(backup.read_bytes()).splitlines())
    forged = {
        "altered": (whole(lines), "signature_wrong", False),
        "unsigned": (signed_by(lines, None), "unknown_signer", True),
        "of another signer": (signed_by(lines, Signer(Signer.make())), "unknown_signer", True),
    }
    for name, (content, code, trusted) in forged.items():
        (tmp_path / "forged").write_bytes(content)
        done = run(other, "restore", tmp_path / "forged", "--replace")
        assert done.returncode != 0, name
        assert code in done.stderr, (name, done)
        assert (other / "likeness.db").read_bytes() == before
        done = run(other, "restore", tmp_path / "forged", "--replace", "--trust")
        assert (done.returncode == 0) is trusted, (name, done)
        before = (other / "likeness.db").read_bytes()


def test_a_backup_of_elsewhere_needs_to_be_trusted(home: Path, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger"
    done = run(stranger, "restore", tmp_path / "backup", "--without-secrets")
    assert "unknown_signer" in done.stderr, done
    assert not (stranger / "likeness.db").exists()
    assert run(stranger, "restore", tmp_path / "backup", "--without-secrets", "--trust").returncode == 0
    assert galleries_of(stranger / "likeness.db") == galleries_of(home / "likeness.db")


@pytest.mark.parametrize("options", [[], ["--trust"]])
def test_a_restore_with_a_wrong_vault_key_changes_nothing(home: Path, tmp_path: Path, options: list[str]) -> None:
    other = tmp_path / "other"
    give_models(other)
    assert run(other, "galleries", "create", "mine").returncode == 0
    before = (other / "likeness.db").read_bytes()
    done = run(other, "restore", tmp_path / "backup", "--replace", *options)
    assert done.returncode != 0, done
    assert ("sealed_unreadable" if options else "unknown_signer") in done.stderr
    assert (other / "likeness.db").read_bytes() == before
    assert run(other, "galleries", "list", "--json").rows[0]["id"] == "mine", "it starts as before"
    fresh = tmp_path / "fresh"
    done = run(fresh, "restore", tmp_path / "backup", "--vault-key", other / "vault.key", "--trust")
    assert done.returncode != 0, done
    assert not (fresh / "vault.key").exists(), "the right one may be given next"
    assert run(fresh, "restore", tmp_path / "backup", "--vault-key", home / "vault.key").returncode == 0


KILLED = """
import os, signal, sys
left = int(sys.argv.pop(1))
def watch(event, arguments):
    global left
    if event in ("open", "os.rename", "os.remove", "sqlite3.connect") and "likeness.db" in repr(arguments):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
from app.cli import main
main()
"""
"""`likeness`, killed before the Nth time that it opens, renames or deletes one of the database's files."""


@pytest.mark.long
def test_a_restore_killed_at_any_step_leaves_the_old_database_or_the_new_one(home: Path, tmp_path: Path) -> None:
    assert run(home, "galleries", "delete", "crew", "--yes").returncode == 0
    assert run(home, "galleries", "create", "later").returncode == 0
    kills, drafts, found = 0, 0, []
    while True:
        data = tmp_path / f"data{kills}"
        shutil.copytree(home, data)
        command = [sys.executable, "-c", KILLED, str(kills + 1), "restore", str(tmp_path / "backup"), "--replace"]
        done = subprocess.run(command, env=environment(data), capture_output=True, check=False)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done
        kills += 1
        drafts += any(data.glob("*.restoring*"))
        with usage.shared(data, f"sqlite:///{data / 'likeness.db'}"):
            assert not list(data.glob("*.restoring*"))
            store = Store(f"sqlite:///{data / 'likeness.db'}")
            with store.database.read() as connection:
                assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
            store.close()
        found.append(galleries_of(data / "likeness.db"))
    assert kills >= 8
    assert drafts >= 2, "some died beside a half-written database"
    assert found == sorted(found, key=lambda one: one == ["crew"]), "first the old one, from one step on the new one"
    assert {tuple(one) for one in found} == {("later",), ("crew",)}
    assert galleries_of(data / "likeness.db") == ["crew"]


@pytest.mark.long
def test_the_command_line_beside_a_server(tmp_path: Path, full: bool) -> None:
    def likeness(data: str, *words: str | Path) -> tuple[int, str]:
        done = run(tmp_path / data, *words)
        return done.returncode, done.stdout + done.stderr

    with serving(tmp_path / "first"):
        assert likeness("first", "enroll", "crew", "grace", PROJECT / "docs/samples/hopper.jpg", "--create")[0] == 0
        code, said = likeness("first", "backup", tmp_path / "backup")
        assert (code, "1 galleries, 1 subjects, 1 faces" in said) == (0, True), said
        code, said = likeness("first", "restore", tmp_path / "backup", "--replace")
        assert (code, "data_dir_in_use" in said) == (4, True), said
    code, said = likeness("second", "restore", tmp_path / "backup")
    assert (code, "vault_key_missing" in said) == (2, True), said
    code, said = likeness("second", "restore", tmp_path / "backup", "--vault-key", tmp_path / "first" / "vault.key")
    assert (code, "restored" in said) == (0, True), said
    assert likeness("third", "restore", tmp_path / "backup", "--without-secrets", "--trust")[0] == 0
    for data in ("second", "third") if full else ("third",):
        give_models(tmp_path / data)
        code, said = likeness(data, "identify", "crew", PROJECT / "docs/samples/hopper.jpg")
        assert (code, "known: grace" in said) == (0, True), said
