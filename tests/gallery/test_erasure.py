"""Erasure leaves nothing of a subject in any file, and its receipt can be checked anywhere."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import sqlalchemy as sa

from app.db.schema import RECEIPTS
from app.errors import NotFound, Unusable
from app.features import signatures
from app.features.erasure.checking import check_receipt, is_about
from app.features.erasure.erasing import NOT_REACHED_EVENTS, Erasures
from app.features.signatures import Signer
from app.gallery.service import Galleries
from app.search.snapshots import Snapshots
from tests.support.commands import run
from tests.support.erasing import erasures
from tests.support.following import engine_of, found, quiet
from tests.support.galleries import DIMENSION, PACKAGE, enroll, staff, template
from tests.support.live import serving
from tests.support.postgres import new_database
from tests.support.service import COLLINS, HOPPER, error_of, running
from tests.support.waiting import until

NAME, METADATA = "Zqxname Vanishing", {"zqxkey": "zqxvalue-of-somebody"}


def enroll_somebody(client: httpx.Client) -> dict[str, bytes]:
    """What can be looked for: one subject of two, with a template, crop, name and metadata."""
    client.post("/v1/galleries", json={"id": "crew"}).raise_for_status()
    subjects = "/v1/galleries/crew/subjects"
    client.post(subjects, json={"id": "gone", "name": NAME, "metadata": METADATA}).raise_for_status()
    made = client.post(f"{subjects}/gone/faces", files={"images": COLLINS}).raise_for_status().json()
    client.post(f"{subjects}/stays/faces", files={"images": HOPPER}).raise_for_status()
    face = made["enrolled"][0]["face_id"]
    crop = client.get(f"{subjects}/gone/faces/{face}/crop").raise_for_status().content
    embedded = client.post("/v1/embed", files={"image": COLLINS}).raise_for_status().json()
    vector = np.array(embedded["faces"][0]["embedding"], "<f4").tobytes()
    return {
        "template": vector[64:96],
        "crop": crop[700:740],
        "crop's end": crop[-48:-8],
        "name": NAME.encode(),
        "folded name": NAME.casefold().encode(),
        "metadata": METADATA["zqxkey"].encode(),
    }


def left(pieces: dict[str, bytes], *folders: Path) -> set[str]:
    paths = [path for folder in folders for path in ([folder] if folder.is_file() else folder.rglob("*"))]
    contents = [path.read_bytes() for path in paths if path.is_file() and path.parent.name != "models"]
    return {what for what, piece in pieces.items() if any(piece in content for content in contents)}


@pytest.mark.long
def test_an_erased_subject_is_in_no_file_of_a_running_server(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data, {"SNAPSHOT_SECONDS": 0}) as server, server.client() as client:
        pieces = enroll_somebody(client)
        assert left(pieces, data) == set(pieces)
        receipt = client.post("/v1/galleries/crew/subjects/gone/erase").raise_for_status().json()
        assert left(pieces, data, server.log) == set()
        assert {path.name for path in data.iterdir()} >= {"likeness.db", "likeness.db-wal", "likeness.db-shm"}
        assert receipt["erased"] == {"faces": 1, "templates": 1, "crops": 1, "corrections": 0, "sightings": 0}
        assert receipt["cleared"]["tables"] == "overwritten"
        assert receipt["complete"] is True
        assert "gone" not in json.dumps(receipt)
        assert client.get(f"/v1/receipts/{receipt['id']}").json() == receipt
        key = signatures.decode(client.get("/v1/server-key").json()["public_key"])
        assert check_receipt(receipt, key)
        error_of(client.get("/v1/galleries/crew/subjects/gone"), 404, "subject_not_found")
        assert client.get("/v1/galleries/crew/check").json()["ok"]
        faces = client.post("/v1/galleries/crew/identify", files={"image": HOPPER}).json()["faces"]
        assert faces[0]["candidates"][0]["subject"] == "stays"
        entries = client.get("/v1/audit", params={"operation": "erase_subject"}).json()["entries"]
        assert [(entry["subject"], entry["status"]) for entry in entries] == [("gone", 200)]
    assert left(pieces, tmp_path) == set()


def test_an_erased_subject_is_in_no_file_of_postgresql(postgresql: Path, first_postgresql: str, tmp_path: Path) -> None:
    url = new_database(postgresql, f"TEMPLATE {first_postgresql}")
    with running(tmp_path / "data", database_url=url) as client:
        pieces = enroll_somebody(client)
        with engine_of(url).connect() as connection:
            folder = connection.execute(sa.text("SHOW data_directory")).scalar_one()
            oid = connection.execute(sa.text("SELECT oid FROM pg_database WHERE datname = current_database()")).scalar()
        heap = Path(folder) / "base" / str(oid)
        checkpoint(url)
        assert left(pieces, heap) >= {"template", "name", "metadata"}
        receipt = client.post("/v1/galleries/crew/subjects/gone/erase?rewrite=true").raise_for_status().json()
        checkpoint(url)
        assert left(pieces, heap) == set()
        assert receipt["cleared"]["tables"] == "rewritten"
        assert any("write-ahead log" in text for text in receipt["not_reached"])
        client.post("/v1/galleries/crew/subjects", json={"id": "next"}).raise_for_status()
        second = client.post("/v1/galleries/crew/subjects/next/erase").raise_for_status().json()
        assert second["cleared"]["tables"] == "vacuumed"
        assert any("VACUUM FULL" in text for text in second["not_reached"])


def checkpoint(url: str) -> None:
    with engine_of(url).execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.exec_driver_sql("CHECKPOINT")


def start(url: str, folder: Path) -> Galleries:
    return quiet(url, Snapshots(folder, min_faces=1))


def test_snapshots_from_before_go_at_once_wherever_they_are(database_url: str, tmp_path: Path) -> None:
    """This server's, one that another process keeps in the same folder, and one of a folder of its own."""
    here, others = tmp_path / "own", tmp_path / "others"
    first = start(database_url, here)
    first.create_gallery("staff", PACKAGE, DIMENSION)
    for seed in range(5):
        enroll(first, f"s{seed}", seed)
    second, third = start(database_url, here), start(database_url, others)
    for galleries in (first, third):
        galleries.indexes.load()
        galleries.indexes.save()
    second.indexes.load()
    assert (len(list(here.glob("*.snapshot"))), len(list(others.glob("*.snapshot")))) == (1, 1)
    receipt = erasures(second).erase("staff", "s3")
    assert any("snapshots of other servers" in text for text in receipt["not_reached"])
    assert NOT_REACHED_EVENTS not in receipt["not_reached"], "where nothing was ever watched"
    assert list(here.glob("*.snapshot")) == []
    third.indexes.follow()
    assert list(others.glob("*.snapshot")) == []
    for galleries in (first, third):
        galleries.indexes.follow()
        galleries.indexes.save()
        assert found(galleries, 3) == []
        assert found(galleries, 2) == ["s2"]
    assert (len(list(here.glob("*.snapshot"))), len(list(others.glob("*.snapshot")))) == (1, 1)
    for galleries in (first, second, third):
        galleries.close()


def test_a_file_in_the_place_of_the_snapshots_keeps_no_erasure_from_being_complete(tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    galleries = start(f"sqlite:///{tmp_path / 'likeness.db'}", folder)
    galleries.create_gallery("staff", PACKAGE, DIMENSION)
    enroll(galleries, "s0", 0)
    galleries.indexes.load()
    shutil.rmtree(folder)
    folder.write_text("a backup program's")
    assert erasures(galleries).erase("staff", "s0")["complete"]
    assert found(galleries, 0) == []
    galleries.close()


def test_a_server_that_was_not_there_removes_its_snapshot_at_its_start(database_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    first = start(database_url, folder)
    first.create_gallery("staff", PACKAGE, DIMENSION)
    for seed in range(3):
        enroll(first, f"s{seed}", seed)
    first.close()
    assert list(folder.glob("*.snapshot"))
    elsewhere = quiet(database_url)
    erasures(elsewhere).erase("staff", "s0")
    elsewhere.close()
    again = start(database_url, folder)
    again.indexes.load()
    assert list(folder.glob("*.snapshot")) == []
    again.close()


def test_a_snapshot_that_is_just_being_written_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, folder = f"sqlite:///{tmp_path / 'likeness.db'}", tmp_path / "snapshots"
    galleries = start(url, folder)
    galleries.create_gallery("staff", PACKAGE, DIMENSION)
    for seed in range(3):
        enroll(galleries, f"s{seed}", seed)
    real = Snapshots.write

    def write(self: Snapshots, *given: Any) -> None:
        with closing(quiet(url)) as other:
            erasures(other).erase("staff", "s1")
        galleries.indexes.follow()
        real(self, *given)

    monkeypatch.setattr(Snapshots, "write", write)
    galleries.indexes.save()
    assert list(folder.glob("*.snapshot")) == []
    monkeypatch.undo()
    galleries.indexes.save()
    assert len(list(folder.glob("*.snapshot"))) == 1
    galleries.close()


def test_a_server_that_died_leaves_a_receipt_that_another_completes(
    galleries: Galleries, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    enroll(galleries, "eileen", 1, 2)
    work = erasures(galleries)

    def die(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(Erasures, "_scrub_index", die)
    with pytest.raises(KeyboardInterrupt):
        work.erase("staff", "eileen")
    monkeypatch.undo()
    with pytest.raises(NotFound):
        galleries.store.subject(staff(galleries), "eileen")
    assert work.receipts().items == ()
    assert work.complete_pending() == 0, "its server may still be at it"
    with engine_of(database_url).begin() as connection:
        receipt_id = connection.execute(sa.select(RECEIPTS.c.id)).scalar_one()
        connection.execute(sa.update(RECEIPTS).values(created_at="2026-01-01T00:00:00.000000Z"))
    with pytest.raises(NotFound):
        work.receipt(receipt_id)
    assert work.complete_pending() == 1
    (receipt,) = work.receipts().items
    assert receipt == work.receipt(receipt_id)
    assert receipt["erased"]["faces"] == 2
    check_receipt(receipt)


def test_nobody_erased_no_receipt(galleries: Galleries) -> None:
    for gallery, subject in (("staff", "nobody"), ("nowhere", "nobody")):
        with pytest.raises(NotFound):
            erasures(galleries).erase(gallery, subject)
    assert erasures(galleries).receipts().items == ()


def test_receipts_page_and_hold_only_as_they_were_signed(galleries: Galleries) -> None:
    for seed in range(3):
        enroll(galleries, f"s{seed}", seed)
    work = erasures(galleries)
    made = [work.erase("staff", f"s{seed}") for seed in range(3)]
    page = work.receipts(limit=2)
    assert [*page.items, *work.receipts(page.next_cursor, 2).items] == made
    receipt, key = made[0], Signer(bytes(32)).public_key
    assert check_receipt(receipt, key) is True
    assert check_receipt(receipt) is False
    assert [is_about(receipt, "staff", f"s{seed}") for seed in range(3)] == [True, False, False]
    assert not is_about(receipt, "other", "s0")
    wrong: list[dict[str, Any]] = [receipt | {"erased_at": "2026-01-01T00:00:00Z"}, receipt | {"more": 1}, {}]
    wrong += [{name: value for name, value in receipt.items() if name != gone} for gone in receipt]
    wrong += [receipt | {"signature": made[1]["signature"]}, receipt | {"signature": "x"}, receipt | {"signature": {}}]
    for document in wrong:
        with pytest.raises(Unusable):
            check_receipt(document, key)
    with pytest.raises(Unusable, match="another key"):
        check_receipt(receipt, Signer(bytes(range(32))).public_key)


def test_commands_erase_and_check_receipts_without_a_server(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(data) as client:
        client.post("/v1/galleries", json={"id": "crew"}).raise_for_status()
        client.post("/v1/galleries/crew/subjects", json={"id": "eileen"}).raise_for_status()
        server_key = client.get("/v1/server-key").json()
    receipt, key, pem, other = (tmp_path / name for name in ("receipt.json", "key.json", "key.pem", "other.json"))
    key.write_text(json.dumps(server_key))
    pem.write_text(server_key["pem"])
    other.write_text(json.dumps({"public_key": signatures.encode(Signer(bytes(32)).public_key)}))

    erased = run(data, "erase", "crew", "eileen", "--yes", "--save", receipt)
    assert (erased.returncode, "not reached: backups" in erased.stdout) == (0, True), erased.stderr
    verified = run(data, "receipts", "verify", receipt, "--server-key", key, "--subject", "eileen")
    assert (verified.returncode, "the server's key" in verified.stdout) == (0, True), verified.stderr
    assert run(data, "receipts", "verify", receipt, "--server-key", pem).returncode == 0
    assert run(data, "receipts", "verify", receipt, "--server-key", other).returncode == 1
    assert run(data, "receipts", "verify", receipt, "--subject", "grace").returncode == 1
    listed = json.loads(run(data, "receipts", "list", "--json").stdout)
    assert listed == json.loads(receipt.read_text())
    assert json.loads(run(data, "receipts", "show", listed["id"]).stdout) == listed
    receipt.write_text(receipt.read_text().replace('"faces":0', '"faces":9'))
    assert run(data, "receipts", "verify", receipt, "--server-key", key).returncode == 1
    receipt.write_text("nonsense")
    assert run(data, "receipts", "verify", receipt).returncode == 2, "a wrong file is a wrong argument"


def test_a_reader_delays_the_emptying_of_the_log_and_the_receipt_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.features.erasure.erasing.SCRUB_S", 0.5)
    path = tmp_path / "likeness.db"
    galleries = quiet(f"sqlite:///{path}")
    galleries.create_gallery("staff", PACKAGE, DIMENSION)
    enroll(galleries, "eileen", 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM faces").fetchone()
        receipt = erasures(galleries).erase("staff", "eileen")
        assert receipt["complete"] is False
        assert receipt["cleared"]["write_ahead_log"] == "emptied as soon as no reader uses it"
        enroll(galleries, "grace", 2)  # writers aren't held up
    until(lambda: path.with_name("likeness.db-wal").stat().st_size == 0)
    pieces = {"erased": template(1).vector.tobytes(), "kept": template(2).vector.tobytes()}
    assert left(pieces, tmp_path) == {"kept"}
    galleries.close()
