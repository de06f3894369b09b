"""Merging and moving back over HTTP, with the audit log, and with a server that is killed meanwhile."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from likeness_client import Client, ClientError

from app.features.bulk.rows import write_many
from app.gallery.records import StoredFace
from app.gallery.store import Store
from app.package.folders import find_packages, select
from app.types import Quality, Template
from tests.conftest import PROJECT
from tests.support.changing import written
from tests.support.live import serving
from tests.support.service import AGAIN, COLLINS, HOPPER, enrolled, error_of
from tests.support.stores import DIMENSION
from tests.support.tarred import units


def ids_of(*enrolling: Any) -> list[str]:
    """The ids of the faces that `enrolled` answers."""
    return [face["face_id"] for face in enrolled(*enrolling)]


def test_two_subjects_become_one_and_two_again(api: httpx.Client, gallery: str) -> None:
    ids = ids_of(api, gallery, "ann", COLLINS, AGAIN)
    kept = ids_of(api, gallery, "eileen", COLLINS)
    path = f"{gallery}/subjects/ann/merge"
    answer = api.post(path, json={"into": "eileen"}).raise_for_status()
    merged = answer.json()
    assert (merged["merged"], merged["faces"], merged["subject"]["face_count"]) == ("ann", ids, 3)
    assert api.post(path, json={"into": "eileen"}).json() == merged, "a client that lost the answer asks again"
    error_of(api.get(f"{gallery}/subjects/ann"), 404, "subject_not_found")
    found = api.post(f"{gallery}/identify", files={"image": COLLINS}).json()["faces"][0]["candidates"]
    assert [candidate["subject"] for candidate in found] == ["eileen"]
    back = {"faces": ids, "subject": "ann"}
    error_of(api.post(f"{gallery}/subjects/eileen/faces/move", json=back), 404, "subject_not_found")
    moved = api.post(f"{gallery}/subjects/eileen/faces/move", json=back | {"create": True}).raise_for_status().json()
    assert (moved["id"], moved["face_count"]) == ("ann", 2)
    assert [row["face_id"] for row in api.get(f"{gallery}/subjects/eileen/faces").json()["faces"]] == kept
    assert api.get(f"{gallery}/check").json()["ok"]


def test_bad_requests_change_nothing(api: httpx.Client, gallery: str) -> None:
    (face,) = ids_of(api, gallery, "ann", COLLINS)
    enrolled(api, gallery, "grace", HOPPER)
    path = f"{gallery}/subjects/ann"
    error_of(api.post(f"{path}/merge", json={"into": "ann"}), 422, "invalid_request")
    error_of(api.post(f"{path}/merge", json={"into": "nobody"}), 404, "subject_not_found")
    error_of(api.post(f"{gallery}/subjects/nobody/merge", json={"into": "ann"}), 404, "subject_not_found")
    error_of(api.post(f"{path}/merge", json={}), 422, "invalid_request")
    for faces, code in (([face, "f" * 32], "face_not_found"), (["no id"], "face_not_found"), ([], "invalid_request")):
        answer = api.post(f"{path}/faces/move", json={"faces": faces, "subject": "grace"})
        assert answer.json()["error"]["code"] == code
    error_of(api.post(f"{path}/faces/move", json={"faces": [face], "subject": "..", "create": True}), 422, "invalid_id")
    assert [row["face_id"] for row in api.get(f"{path}/faces").json()["faces"]] == [face]


def test_the_audit_log_names_both(api: httpx.Client, gallery: str) -> None:
    enrolled(api, gallery, "ann", COLLINS)
    ids = ids_of(api, gallery, "grace", HOPPER)
    api.post(f"{gallery}/subjects/grace/merge", json={"into": "ann"}).raise_for_status()
    move = {"faces": ids, "subject": "new", "create": True}
    api.post(f"{gallery}/subjects/ann/faces/move", json=move).raise_for_status()
    entries = api.get("/v1/audit", params={"gallery": gallery.rpartition("/")[2]}).json()["entries"]
    rows = {entry["operation"]: (entry["subject"], entry["target"], entry["status"]) for entry in entries}
    assert rows["merge_subject"] == ("grace", "ann", 200)
    assert rows["move_faces"] == ("ann", "new", 200)


def test_an_id_is_changed_and_everything_follows(api: httpx.Client, gallery: str) -> None:
    ids = ids_of(api, gallery, "ann", COLLINS)
    enrolled(api, gallery, "grace", HOPPER)
    correction = api.post(f"{gallery}/subjects/ann/corrections", files={"image": HOPPER}).raise_for_status().json()
    answer = api.patch(f"{gallery}/subjects/ann", json={"id": "eileen/1", "name": "Eileen"}).raise_for_status().json()
    assert (answer["id"], answer["name"], answer["face_count"]) == ("eileen/1", "Eileen", 1)
    path = f"{gallery}/subjects/eileen%2F1"
    assert [row["face_id"] for row in api.get(f"{path}/faces").json()["faces"]] == ids
    assert [row["id"] for row in api.get(f"{path}/corrections").json()["corrections"]] == [correction["id"]]
    error_of(api.get(f"{gallery}/subjects/ann"), 404, "subject_not_found")
    (found,) = api.post(f"{gallery}/identify", files={"image": AGAIN}).json()["faces"]
    assert found["candidates"][0]["subject"] == "eileen/1"
    error_of(api.patch(path, json={"id": "grace"}), 409, "subject_exists")
    error_of(api.patch(path, json={"id": None}), 422, "invalid_request")
    error_of(api.patch(path, json={"id": ""}), 422, "invalid_request")
    entries = api.get("/v1/audit", params={"gallery": gallery.rpartition("/")[2]}).json()["entries"]
    rows = [(entry["subject"], entry["target"]) for entry in entries if entry["operation"] == "update_subject"]
    assert ("ann", "eileen/1") in rows
    assert api.get(f"{gallery}/check").json()["ok"]


def test_an_id_is_made_unless_given(api: httpx.Client, gallery: str) -> None:
    first, second = (api.post(f"{gallery}/subjects", json={"name": "Ann"}).raise_for_status().json() for _ in range(2))
    assert first["id"] != second["id"]
    assert (first["name"], second["name"]) == ("Ann", "Ann")
    newest = api.get("/v1/audit", params={"subject": second["id"]}).json()["entries"]
    assert [entry["operation"] for entry in newest] == ["create_subject"]


@pytest.mark.long
def test_a_killed_server_leaves_before_or_after(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    faces, owner = 5_000, "crowd"
    store = Store(f"sqlite:///{folder / 'likeness.db'}")
    home = store.create_gallery("many", select(find_packages(PROJECT / "models"), "sface").id, DIMENSION, store="none")
    written(
        store,
        home,
        write_many,
        home.embedder,
        [],
        [StoredFace(owner, Template(vector, home.embedder), Quality(50.0, ())) for vector in units(faces, DIMENSION)],
    )
    store.close()
    chance = random.Random(5)
    for _ in range(3):
        other = "crowd" if owner == "mob" else "mob"
        with serving(folder) as server, Client(server.url, server.key) as client:
            client.create_subject("many", other)
            killer = threading.Timer(chance.uniform(0, 0.4), server.process.kill)
            killer.start()
            with suppress(ClientError):
                client.merge_subject("many", owner, other)
            killer.join()
        with serving(folder) as server, Client(server.url, server.key) as client:
            left = {name: _count(client, name) for name in (owner, other)}
            assert left in ({owner: faces, other: 0}, {owner: None, other: faces})
            assert client.check_gallery("many").ok
            if left[owner] is not None:
                client.delete_subject("many", other)
            else:
                owner = other


def _count(client: Client, name: str) -> int | None:
    found = [subject for subject in client.all_subjects("many", search=name) if subject.id == name]
    return found[0].face_count if found else None
