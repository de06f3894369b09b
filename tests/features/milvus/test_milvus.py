"""Galleries in Milvus: what one server acknowledged every other one finds, whoever dies when, whatever Milvus forgets.

Milvus here is milvus-lite. What holds for FAISS too is in `test_index_contract`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from app.db.schema import CHANGES, COLLECTIONS
from app.errors import Conflict, NotFound, Unusable
from app.features.checks.comparing import check_index
from app.features.milvus import indexes as module
from app.features.milvus.client import CollectionLost, Milvus, parse_address
from app.features.milvus.collections import Collections
from app.features.transfers import Move, move_faces
from app.gallery.service import Galleries
from app.gallery.store import Store
from app.gallery.subjects import delete_face, delete_subject
from app.search.types import FaceBlock, LogPosition
from tests.conftest import PROJECT
from tests.support.changing import changed
from tests.support.following import engine_of, found
from tests.support.galleries import DIMENSION, PACKAGE, enroll, staff, template
from tests.support.indexes import rebuild
from tests.support.milvus import lite, milvus_server, need_milvus, remote
from tests.support.service import COLLINS, error_of, running
from tests.support.waiting import until

SOON_S = 60.0


@dataclass(frozen=True, slots=True)
class Place:
    """A database and a Milvus, and what opens galleries over both."""

    url: str
    folder: Path

    def open(self) -> Galleries:
        return remote(self.url, lite(self.folder))

    def milvus(self) -> Milvus:
        return lite(self.folder)

    def collections(self) -> list[tuple[str, str]]:
        """The names of the collections that SQL knows, with their states."""
        with engine_of(self.url).connect() as connection:
            rows = connection.execute(sa.select(COLLECTIONS.c.name, COLLECTIONS.c.state).order_by(COLLECTIONS.c.state))
            return [(name, state) for name, state in rows]

    def name(self) -> str:
        """Of the only collection that is searched."""
        return current_collection(self.url)

    def keys(self) -> list[int]:
        """Of the faces that Milvus holds."""
        return [key for block in self.milvus().blocks(self.name(), 0, None, DIMENSION) for key in block.faces.tolist()]

    def in_milvus(self) -> list[str]:
        """The names of the collections there are."""
        return sorted(self.milvus()._client.list_collections())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    need_milvus()
    return Place(f"sqlite:///{tmp_path / 'likeness.db'}", tmp_path)


@pytest.fixture
def one(place: Place) -> Iterator[Galleries]:
    galleries = place.open()
    galleries.create_gallery("staff", PACKAGE, DIMENSION)
    yield galleries
    galleries.close()


@pytest.fixture
def other(place: Place, one: Galleries) -> Iterator[Galleries]:  # noqa: ARG001 (which makes the gallery)
    galleries = place.open()
    yield galleries
    galleries.close()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for others to finish what they began: tests begin where they are dead."""
    monkeypatch.setattr(module, "SETTLE_S", 0.0)


def settle(galleries: Galleries) -> None:
    galleries.indexes.follow()
    galleries.indexes.follow()


def block(*keys: int, subject: int = 1) -> FaceBlock:
    """Faces as `enroll` would make them of seeds that are their keys."""
    vectors = np.stack([template(key).vector for key in keys])
    return FaceBlock(
        np.array(keys, np.int64), np.full(len(keys), subject, np.int64), np.zeros(len(keys), np.float32), vectors
    )


def test_what_one_acknowledged_the_other_answers_at_once(one: Galleries, other: Galleries) -> None:
    assert found(other, 1) == []  # before there is a collection
    made = enroll(one, "ann", 1, 2)
    assert found(other, 2) == ["ann"]
    enroll(other, "ann", 3)
    assert found(one, 3) == ["ann"]
    changed(other, "staff", delete_face, "ann", made.faces[0].face_id)
    assert found(one, 1) == []
    rebuild(one, one.store.gallery("staff"))
    enroll(other, "bob", 4)  # which still knew the old collection
    assert (found(one, 4), found(other, 4)) == (["bob"], ["bob"])
    rebuild(other, other.store.gallery("staff"))
    assert (found(one, 4), found(one, 2)) == (["bob"], ["ann"])
    changed(one, "staff", delete_subject, "ann")
    assert (found(other, 2), found(other, 3), found(other, 4)) == ([], [], ["bob"])
    assert (check_index(one, one.store.gallery("staff")).ok, check_index(other, other.store.gallery("staff")).ok) == (
        True,
        True,
    )
    other.delete_gallery(other.store.gallery("staff"))
    with pytest.raises(NotFound):
        found(one, 4)
    one.create_gallery("staff", PACKAGE, DIMENSION)
    assert found(other, 4) == []


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], *, added: bool = False) -> None:
    """Have another server act while the next faces are on their way to Milvus, or have just been `added` there."""
    real_add = Milvus.add

    def add(self: Milvus, name: str, block: FaceBlock) -> None:
        monkeypatch.setattr(Milvus, "add", real_add)
        if not added:
            act()
        real_add(self, name, block)
        if added:
            act()

    monkeypatch.setattr(Milvus, "add", add)


def test_a_face_moved_while_another_server_still_adds_it_is_its_new_subjects(
    one: Galleries, other: Galleries, monkeypatch: pytest.MonkeyPatch
) -> None:
    enroll(one, "ann", 1)
    enroll(one, "bob", 2)
    assert found(other, 2) == ["bob"]

    def move() -> None:
        moved = [face.face_id for face in other.store.faces(staff(other), "ann").items]
        assert len(moved) == 2
        changed(other, "staff", move_faces, [Move(face, "ann", "bob") for face in moved])

    meanwhile(monkeypatch, move)
    enroll(one, "ann", 3)
    assert found(one, 3) == ["bob"]
    assert check_index(one, one.store.gallery("staff")).ok
    assert check_index(other, other.store.gallery("staff")).ok


def test_two_first_faces_at_once_end_in_one_collection(
    one: Galleries, other: Galleries, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    making = Milvus.make

    def make(milvus: Milvus, name: str, dimension: int) -> None:
        """While the one makes the collection, the other does too, and is done with it first."""
        making(milvus, name, dimension)
        monkeypatch.setattr(Milvus, "make", making)
        enroll(other, "bob", 2)

    monkeypatch.setattr(Milvus, "make", make)
    enroll(one, "ann", 1)
    for galleries in (one, other):
        assert (found(galleries, 1), found(galleries, 2)) == (["ann"], ["bob"])
        assert check_index(galleries, galleries.store.gallery("staff")).ok
    assert sorted(state for _, state in place.collections()) == ["current", "old"]


def test_a_collection_that_is_replaced_while_another_server_writes_to_it(
    one: Galleries, other: Galleries, monkeypatch: pytest.MonkeyPatch
) -> None:
    enroll(one, "ann", 1)
    enroll(other, "bob", 2)
    meanwhile(monkeypatch, lambda: rebuild(one, one.store.gallery("staff")), added=True)
    enroll(other, "cem", 3)
    assert (found(one, 3), found(other, 3)) == (["cem"], ["cem"])
    assert check_index(one, one.store.gallery("staff")).ok


def test_a_face_deleted_by_one_while_another_still_adds_it_does_not_come_back(
    one: Galleries, other: Galleries, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    enroll(one, "ann", 1)
    enroll(other, "bob", 2)
    meanwhile(monkeypatch, lambda: changed(other, "staff", delete_subject, "cem"))
    enroll(one, "cem", 3)
    assert found(one, 3) == []
    assert len(place.keys()) == 2
    assert check_index(one, one.store.gallery("staff")).ok


KILLED = """
import os, signal, sys
from app.features.milvus.client import Milvus, parse_address
from app.gallery.subjects import delete_subject
from tests.support.changing import changed
from tests.support.galleries import enroll
from tests.support.milvus import remote

class Deadly(Milvus):
    def add(self, name, block):
        os.kill(os.getpid(), signal.SIGKILL)

    def remove_subjects(self, name, subjects):
        if subjects:
            os.kill(os.getpid(), signal.SIGKILL)

galleries = remote(sys.argv[1], Deadly(parse_address(sys.argv[2])))
if sys.argv[3] == "enroll":
    enroll(galleries, "bob", 2)
else:
    changed(galleries, "staff", delete_subject, "ann")
print("acknowledged")
"""


@pytest.mark.long
def test_killed_between_the_commit_and_milvus(tmp_path: Path, port: int) -> None:
    """What it had committed, the others bring to Milvus."""
    url = f"sqlite:///{tmp_path / 'likeness.db'}"
    with milvus_server(tmp_path / "milvus", port):
        address = f"milvus://127.0.0.1:{port}"
        survivor = remote(url, Milvus(parse_address(address)))
        survivor.create_gallery("staff", PACKAGE, DIMENSION)
        enroll(survivor, "ann", 1)
        die(url, address, "enroll")
        assert found(survivor, 2) == []
        settle(survivor)
        assert found(survivor, 2) == ["bob"]
        die(url, address, "delete")
        assert (len(held(url, address)), found(survivor, 1)) == (2, [])
        started = remote(url, Milvus(parse_address(address)))  # one that starts does the same
        assert (found(started, 1), found(started, 2)) == ([], ["bob"])
        assert len(held(url, address)) == 1
        for galleries in (survivor, started):
            assert check_index(galleries, galleries.store.gallery("staff")).ok
            galleries.close()


def die(url: str, address: str, what: str) -> None:
    command = [sys.executable, "-c", KILLED, url, address, what]
    dead = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (dead.returncode, dead.stdout) == (-9, ""), dead.stderr


def held(url: str, address: str) -> list[int]:
    """The keys of the faces in Milvus."""
    milvus = Milvus(parse_address(address))
    blocks = milvus.blocks(current_collection(url), 0, None, DIMENSION)
    keys = [key for found in blocks for key in found.faces.tolist()]
    milvus.close()
    return keys


def test_what_a_dead_server_added_too_late_is_removed_later(one: Galleries, place: Place) -> None:
    enroll(one, "ann", 1)
    face = one.store.face(staff(one), enroll(one, "bob", 2).faces[0].face_id)
    subject = one.store.subject(staff(one), enroll(one, "cem", 3).subject)
    changed(one, "staff", delete_face, "bob", face.face_id)
    changed(one, "staff", delete_subject, "cem")
    settle(one)
    late = block(face.key, face.key + 1, subject=subject.key)
    place.milvus().add(place.name(), late)
    assert (found(one, 2), found(one, 3)) == ([], [])  # SQL is asked
    assert check_index(one, one.store.gallery("staff")).extra == 2
    one.indexes.save()
    one.indexes.save()
    assert check_index(one, one.store.gallery("staff")).ok
    assert len(place.keys()) == 1


def test_collections_that_nobody_needs_are_dropped_and_no_others(
    one: Galleries, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    enroll(one, "ann", 1)
    place.milvus().make("somebody_elses", DIMENSION)
    rebuild(one, one.store.gallery("staff"))
    one.indexes.save()
    assert len(place.in_milvus()) == 3  # the one replaced is kept for those who are just searching it
    monkeypatch.setattr(module, "REPLACED_KEPT", timedelta())
    one.indexes.save()
    assert place.in_milvus() == sorted([place.name(), "somebody_elses"])

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(Milvus, "add", interrupt)
        with pytest.raises(KeyboardInterrupt):
            rebuild(one, one.store.gallery("staff"))
    one.indexes.save()
    assert len(place.in_milvus()) == 3
    monkeypatch.setattr(module, "ABANDONED", timedelta())
    one.indexes.save()
    assert place.in_milvus() == sorted([place.name(), "somebody_elses"])
    assert found(one, 1) == ["ann"]
    one.delete_gallery(one.store.gallery("staff"))
    assert (place.in_milvus(), place.collections()) == (["somebody_elses"], [])


def wrong_history(place: Place) -> None:
    place.milvus().mark(place.name(), LogPosition(1, 12345), DIMENSION)


def no_mark(place: Place) -> None:
    place.milvus().remove(place.name(), [-1])


def dropped(place: Place) -> None:
    place.milvus().drop(place.name())


def other_form(place: Place) -> None:
    name = place.name()
    place.milvus().drop(name)
    place.milvus().make(name, DIMENSION + 1)


def pruned(place: Place) -> None:
    """The log leads on from another place than the one marked."""
    with engine_of(place.url).begin() as connection:
        last = sa.select(sa.func.max(CHANGES.c.number)).scalar_subquery()
        connection.execute(sa.delete(CHANGES).where(CHANGES.c.number < last))
    place.milvus().remove(place.name(), place.keys()[-1:])


@pytest.mark.parametrize("harm", [wrong_history, no_mark, dropped, other_form, pruned])
def test_whatever_is_odd_about_a_collection_it_is_made_anew(
    one: Galleries, place: Place, harm: Callable[[Place], None], caplog: pytest.LogCaptureFixture
) -> None:
    enroll(one, "ann", 1)
    settle(one)
    enroll(one, "bob", 2)
    before = place.name()
    harm(place)
    started = place.open()
    assert (found(started, 1), found(started, 2)) == (["ann"], ["bob"])
    assert check_index(started, started.store.gallery("staff")).ok
    assert place.name() != before
    assert "written again" in caplog.text
    started.close()
    assert (found(one, 1), found(one, 2)) == (["ann"], ["bob"])


def test_a_collection_dropped_under_a_running_server_is_made_anew(one: Galleries, place: Place) -> None:
    enroll(one, "ann", 1)
    dropped(place)
    assert found(one, 1) == ["ann"]
    dropped(place)
    enroll(one, "bob", 2)
    assert found(one, 2) == ["bob"]
    dropped(place)
    changed(one, "staff", delete_subject, "ann")
    dropped(place)
    assert check_index(one, one.store.gallery("staff")).ok
    dropped(place)
    enroll(one, "cem", 3)
    settle(one)
    dropped(place)
    settle(one)
    one.indexes.save()
    one.indexes.save()
    assert (found(one, 1), found(one, 2), found(one, 3)) == ([], ["bob"], ["cem"])


def test_check_names_what_disagrees_and_rebuild_mends_it(one: Galleries, place: Place) -> None:
    faces = enroll(one, "ann", 1, 2, 3, 4).faces
    keys = [one.store.face(staff(one), face.face_id).key for face in faces]
    milvus, name = place.milvus(), place.name()
    milvus.remove(name, keys[:1])
    milvus.add(name, block(keys[1] + 100, 999))  # one that SQL doesn't know, and another
    milvus.add(name, replace(block(keys[1] + 100), faces=np.array(keys[1:2])))
    milvus.remove(name, [keys[1] + 100])
    report = check_index(one, one.store.gallery("staff"))
    assert (report.missing, report.different, report.extra, report.indexed) == (1, 1, 1, 4)
    assert set(report.examples) == {faces[0].face_id, faces[1].face_id}
    rebuild(one, one.store.gallery("staff"))
    assert check_index(one, one.store.gallery("staff")).ok


@pytest.mark.long
def test_without_milvus_with_it_again_and_with_an_older_copy_of_it(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, folder = f"sqlite:///{tmp_path / 'likeness.db'}", tmp_path / "milvus"
    address = parse_address(f"milvus://127.0.0.1:{port}")
    with milvus_server(folder, port):
        milvus = Milvus(address)
        galleries = remote(url, milvus)
        galleries.create_gallery("staff", PACKAGE, DIMENSION)
        galleries.create_gallery("guests", PACKAGE, DIMENSION)
        ann = enroll(galleries, "ann", 1, 2).faces[0]
        enroll(galleries, "bob", 3)
        enroll(galleries, "gil", 9, gallery="guests")
        settle(galleries)
        assert comes_to(galleries, available=True)
    shutil.copytree(folder, tmp_path / "copy")
    with monkeypatch.context() as short:
        short.setattr(milvus, "_timeout_s", 2)  # for what has to fail
        for work in (
            lambda: found(galleries, 1),
            lambda: enroll(galleries, "cem", 4),
            lambda: changed(galleries, "staff", delete_face, "ann", ann.face_id),
            lambda: rebuild(galleries, galleries.store.gallery("staff")),
        ):
            with pytest.raises(Unusable) as caught:
                work()
            assert caught.value.code == "index_unavailable"
        assert galleries.store.subject(staff(galleries), "ann").face_count == 2  # nothing was written any more
        assert galleries.open_search(galleries.store.gallery("guests")).verify("gil", template(9)).score > 0.999
        galleries.delete_gallery(galleries.store.gallery("guests"))
        assert comes_to(galleries, available=False)
    with milvus_server(folder, port):
        assert comes_to(galleries, available=True)
        assert (found(galleries, 1), found(galleries, 3), found(galleries, 4)) == (["ann"], ["bob"], ["cem"])
        enroll(galleries, "dan", 5)
        assert found(galleries, 5) == ["dan"]
        assert check_index(galleries, galleries.store.gallery("staff")).ok
        galleries.indexes.save()
        with engine_of(url).connect() as connection:
            left = connection.execute(sa.select(COLLECTIONS.c.gallery_key).distinct()).scalars().all()
        assert left == [staff(galleries).key]
        changed(galleries, "staff", delete_subject, "ann")
        settle(galleries)
        galleries.close()
    searched = current_collection(url)
    with milvus_server(tmp_path / "copy", port):
        started = remote(url, Milvus(address))
        assert [found(started, seed) for seed in (1, 3, 4, 5)] == [[], ["bob"], ["cem"], ["dan"]]
        assert check_index(started, started.store.gallery("staff")).ok
        assert current_collection(url) == searched, "it was brought up to date, not made anew"
        started.close()


def current_collection(url: str) -> str:
    with engine_of(url).connect() as connection:
        name = sa.select(COLLECTIONS.c.name).where(COLLECTIONS.c.state == "current")
        return str(connection.execute(name).scalar_one())


def comes_to(galleries: Galleries, *, available: bool) -> bool:
    """Looks until it is, for a while."""
    end = time.monotonic() + SOON_S
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PING_S", 0.0)
        while time.monotonic() < end:
            with suppress(Unusable):
                galleries.indexes.follow()
            if galleries.indexes.backend.available == available:
                return True
            time.sleep(0.05)
    return False


@pytest.mark.long
def test_a_server_answers_from_milvus_and_says_when_that_is_gone(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PING_TIMEOUT_S", 20.0)  # while it is there, however slow the machine
    folder = tmp_path / "milvus"
    with milvus_server(folder, port) as process, running(tmp_path / "data", index=f"milvus://127.0.0.1:{port}") as api:
        api.post("/v1/galleries", json={"id": "crew"}).raise_for_status()
        api.post("/v1/galleries/crew/subjects/eileen/faces", files={"images": COLLINS}).raise_for_status()
        faces = api.post("/v1/galleries/crew/identify", files={"image": COLLINS}).raise_for_status().json()["faces"]
        assert faces[0]["candidates"][0]["subject"] == "eileen"
        assert api.get("/v1/galleries/crew/check").raise_for_status().json()["ok"]
        assert api.get("/readyz").json() == {"status": "ok"}
        monkeypatch.undo()
        process.kill()
        process.wait()
        until(lambda: not api.get("/readyz").is_success)
        assert api.get("/readyz").json() == {"status": "index_unavailable"}
        error_of(api.post("/v1/galleries/crew/identify", files={"image": COLLINS}), 503, "index_unavailable")
        api.post("/v1/galleries/crew/subjects/eileen/verify", files={"image": COLLINS}).raise_for_status()


@pytest.mark.parametrize(
    ("text", "uri", "database", "kind", "name"),
    [
        ("milvus://host", "http://host:19530", "", "FLAT", "milvus://host:19530/"),
        ("milvus://host:1/db", "http://host:1", "db", "FLAT", "milvus://host:1/db"),
        ("milvus+tls://host/db?index=hnsw", "https://host:19530", "db", "HNSW", "milvus+tls://host:19530/db"),
        ("milvus://[::1]:2/", "http://[::1]:2", "", "FLAT", "milvus://[::1]:2/"),
        ("milvus:///a/b.db?index=flat", "/a/b.db", "", "FLAT", "milvus:///a/b.db"),
    ],
)
def test_addresses(text: str, uri: str, database: str, kind: str, name: str) -> None:
    address = parse_address(text)
    assert (address.uri, address.database, address.kind, address.name) == (uri, database, kind, name)


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "http://host",
        "milvus://",
        "milvus://host:port",
        "milvus://host:99999",
        "milvus://user:secret@host",
        "milvus://host/a/b",
        "milvus://host/a b",
        "milvus://host?index=ivf",
        "milvus://host?index=flat&index=hnsw",
        "milvus://host?index",
        "milvus://host?nothing=1",
        "milvus://host#there",
        "milvus:///a/b",
        "milvus+tls:///a/b.db",
    ],
)
def test_addresses_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_address(text)


def test_a_wrong_address_is_said_so_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(Unusable) as caught, running(tmp_path, index="milvus://user:secret@host"):
        pass
    assert caught.value.code == "invalid_setting"
    assert caught.value.message.startswith("LIKENESS_INDEX: ")
    assert "secret" not in caught.value.message


def test_without_milvus_no_start(tmp_path: Path, port: int) -> None:
    need_milvus()
    with pytest.raises(Unusable) as caught, running(tmp_path, index=f"milvus://127.0.0.1:{port}"):
        pass
    assert caught.value.code == "index_unavailable"


@pytest.mark.parametrize("missing", ["pymilvus", "milvus_lite"])
def test_a_missing_client_is_said_so(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_milvus()
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(Unusable, match=missing) as caught:
        Milvus(parse_address(f"milvus://{tmp_path / 'vectors.db'}"))
    assert caught.value.code == "index_driver_missing"


def test_an_approximate_collection_answers_too(tmp_path: Path) -> None:
    need_milvus()
    milvus = Milvus(parse_address(f"milvus://{tmp_path / 'vectors.db'}?index=hnsw"))
    galleries = remote(f"sqlite:///{tmp_path / 'likeness.db'}", milvus)
    galleries.create_gallery("staff", PACKAGE, DIMENSION)
    for seed in range(20):
        enroll(galleries, f"subject {seed}", seed)
    assert [found(galleries, seed) for seed in range(20)] == [[f"subject {seed}"] for seed in range(20)]
    assert check_index(galleries, galleries.store.gallery("staff")).ok
    galleries.close()


def test_a_collection_that_is_not_there_is_told_from_a_milvus_that_is_not(place: Place) -> None:
    milvus = place.milvus()
    probes = np.stack([template(1).vector])
    calls: Sequence[Callable[[], object]] = (
        lambda: milvus.search("nothing", probes, 3),
        lambda: milvus.position("nothing"),
        lambda: milvus.add("nothing", block(1)),
        lambda: milvus.remove("nothing", [1]),
        lambda: milvus.remove_subjects("nothing", [1]),
        lambda: milvus.owners("nothing", [1]),
        lambda: list(milvus.blocks("nothing", 0, None, DIMENSION)),
    )
    for call in calls:
        with pytest.raises(CollectionLost):
            call()
    milvus.drop("nothing")
    assert not milvus.open("nothing", DIMENSION)


def test_the_catalogue_keeps_apart_what_is_whose(database_url: str) -> None:
    store = Store(database_url)
    home, guests = (store.create_gallery(name, PACKAGE, DIMENSION) for name in ("staff", "guests"))
    here, there = Collections(store.database, "here"), Collections(store.database, "there")
    first, second = (here.begin(home.index_spec.key) for _ in range(2))
    foreign, third = there.begin(home.index_spec.key), here.begin(guests.index_spec.key)
    assert here.current(home.index_spec.key) is None
    here.switch(home.index_spec, first)
    there.switch(home.index_spec, foreign)
    here.switch(guests.index_spec, third)
    here.switch(home.index_spec, second)
    found = [place.current(home.index_spec.key) for place in (here, there)]
    assert [*found, here.current(guests.index_spec.key)] == [second, foreign, third]
    late, soon = timedelta(hours=1), timedelta()
    assert list(here.unwanted(replaced=late, abandoned=late)) == []
    assert list(here.unwanted(replaced=soon, abandoned=late)) == [first]
    here.forget(first)
    making = here.begin(home.index_spec.key)
    assert list(here.unwanted(replaced=soon, abandoned=soon)) == [making]
    assert list(here.orphans(guests.key)) == []
    store.delete_gallery(guests)
    assert list(here.orphans(guests.key)) == [third]
    assert list(here.unwanted(replaced=late, abandoned=late)) == [third]
    with pytest.raises(NotFound):
        here.switch(guests.index_spec, third)
    store.close()


def test_milvus_has_its_own_kinds_of_search(one: Galleries) -> None:
    with pytest.raises(Conflict) as caught:
        one.create_gallery("guests", PACKAGE, DIMENSION, search="int8")
    assert (caught.value.code, caught.value.details["known"]) == ("search_unavailable", ["fp32"])
    with pytest.raises(Conflict, match="has no kind"):
        one.update_gallery(one.store.gallery("staff"), search="int8")
    assert one.update_gallery(one.store.gallery("staff"), search="fp32").search == "fp32"
