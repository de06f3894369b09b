"""The change log is complete, has no gaps and holds only keys."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import sqlalchemy as sa

from app.db.schema import CHANGES
from app.errors import Conflict, NotFound
from app.gallery.records import Gallery
from app.gallery.service import Galleries
from app.gallery.store import Store
from app.gallery.subjects import create_subject, delete_face, delete_subject, edit_subject
from app.search.types import FaceBlock, LogPosition
from tests.support.changing import changed, written
from tests.support.following import found, log_of
from tests.support.galleries import DIMENSION, PACKAGE, enroll, staff


def head_of(store: Store, gallery: Gallery) -> LogPosition:
    head = store.change_reader.head(gallery.index_spec)
    assert head is not None
    return head


def test_each_change_of_faces_has_an_entry_of_keys_alone(galleries: Galleries, database_url: str) -> None:
    key = staff(galleries).key
    made = enroll(galleries, "ann", 1, 2)
    home = staff(galleries)
    subject = galleries.store.subject(home, "ann").key
    faces = [galleries.store.face(home, face.face_id).key for face in made.faces]
    written(galleries.store, staff(galleries), create_subject, "bob")  # no face, no entry
    written(galleries.store, staff(galleries), edit_subject, "bob", name="Bob")
    changed(galleries, "staff", delete_face, "ann", made.faces[0].face_id)
    changed(galleries, "staff", delete_subject, "ann")
    assert log_of(database_url) == [
        (key, 0, "begin", None, None),
        (key, 1, "add", subject, faces[0]),
        (key, 2, "add", subject, faces[1]),
        (key, 3, "remove", subject, faces[0]),
        (key, 4, "subject", subject, None),
    ]
    kinds = {column.name: type(column.type) for column in CHANGES.c}
    assert {name for name, kind in kinds.items() if issubclass(kind, sa.String)} == {"kind", "created_at"}
    assert not any(issubclass(kind, sa.LargeBinary) for kind in kinds.values())


def test_what_was_refused_has_none_and_a_deleted_gallery_leaves_none(galleries: Galleries, database_url: str) -> None:
    enroll(galleries, "ann", 1)
    before = log_of(database_url)
    with pytest.raises(Conflict):
        galleries.create_gallery("staff", PACKAGE, DIMENSION)
    for call in (
        lambda: changed(galleries, "staff", delete_subject, "nobody"),
        lambda: changed(galleries, "staff", delete_face, "ann", "0" * 32),
    ):
        with pytest.raises(NotFound):
            call()
    assert log_of(database_url) == before
    galleries.delete_gallery(galleries.store.gallery("staff"))
    assert log_of(database_url) == []


def test_writers_of_several_processes_leave_no_gap_and_readers_never_see_one(database_url: str) -> None:
    stores = [Store(database_url) for _ in range(3)]
    writers = [Galleries(store) for store in stores]
    gallery = writers[0].create_gallery("staff", PACKAGE, DIMENSION)
    done = threading.Event()
    gaps: list[int] = []

    def watch() -> int:
        """Follows the log entry by entry; `None` would be a gap."""
        position = head_of(stores[2], gallery)
        while not (done.is_set() and position == head_of(stores[2], gallery)):
            changes = stores[2].change_reader.changes(gallery.index_spec, position, 3)
            if changes is None:
                gaps.append(position.number)
                break
            position = changes.position
        return position.number

    def write(worker: int) -> None:
        for turn in range(4):
            seed = worker * 100 + turn
            made = enroll(writers[worker % 3], f"s{worker}", seed, seed + 50)
            if turn % 2:
                changed(writers[worker % 3], "staff", delete_face, f"s{worker}", made.faces[0].face_id)

    with ThreadPoolExecutor(7) as pool:
        watcher = pool.submit(watch)
        list(pool.map(write, range(6)))
        done.set()
        assert watcher.result() == 6 * 10
    assert gaps == []
    numbers = [row[1] for row in log_of(database_url)]
    assert numbers == list(range(6 * 10 + 1))
    for galleries in writers:
        galleries.close()


def test_reading_stops_where_it_is_told_and_leaves_out_who_has_gone(galleries: Galleries, database_url: str) -> None:
    store = Store(database_url)
    gallery = staff(galleries)
    begin = head_of(store, gallery)
    enroll(galleries, "ann", 1, 2)
    enroll(galleries, "bob", 3)
    changed(galleries, "staff", delete_subject, "ann")
    first = store.change_reader.changes(gallery.index_spec, begin, 2)
    assert first is not None
    assert (first.steps, first.position.number, first.more) == ((), 2, True)
    rest = store.change_reader.changes(gallery.index_spec, first.position, 10)
    assert rest is not None
    assert (rest.position.number, rest.more) == (4, False)
    assert [type(step).__name__ for step in rest.steps] == ["FaceBlock", "Removed"]
    until = store.change_reader.changes(gallery.index_spec, begin, 10, until=LogPosition(3, 0))
    assert until is not None
    assert (until.position.number, until.more) == (3, False)
    (block,) = until.steps
    assert isinstance(block, FaceBlock)
    assert len(block.faces) == 1
    store.close()


def test_another_history_is_not_followed(galleries: Galleries, database_url: str) -> None:
    """As after a database was restored from an older copy, and then went on otherwise."""
    enroll(galleries, "ann", 1)
    store = Store(database_url)
    gallery = staff(galleries)
    here = head_of(store, gallery)
    assert store.change_reader.changes(gallery.index_spec, here, 10) is not None
    assert store.change_reader.changes(gallery.index_spec, LogPosition(here.number, here.stamp ^ 1), 10) is None
    assert store.change_reader.changes(gallery.index_spec, LogPosition(here.number + 1, here.stamp), 10) is None
    store.close()


def test_old_entries_go_but_the_last_one_stays(galleries: Galleries, database_url: str) -> None:
    store = Store(database_url)
    gallery = staff(galleries)
    begin = head_of(store, gallery)
    for seed in range(4):
        enroll(galleries, "ann", seed)
    assert store.prune_changes(timedelta(hours=1)) == 0
    assert store.prune_changes(timedelta(hours=-1)) == 4
    assert [row[1] for row in log_of(database_url)] == [4]
    assert store.change_reader.changes(gallery.index_spec, begin, 10) is None
    enroll(galleries, "bob", 9)
    assert found(galleries, 9) == ["bob"]
    store.close()
