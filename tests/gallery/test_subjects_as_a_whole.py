"""Subjects are renamed, merged and all deleted at once; faces are found by their own id."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.errors import NotFound
from app.gallery.moving import delete_face, rename_subject
from app.gallery.records import Counts
from app.gallery.service import Galleries
from app.gallery.store import Store
from app.gallery.subjects import create_subject, delete_subjects, edit_subject
from tests.support.changing import changed, written
from tests.support.galleries import DIMENSION, PACKAGE, enroll, found, staff, template

NEVER_S = 3600.0


@pytest.fixture
def elsewhere(galleries: Galleries, database_url: str) -> Iterator[Galleries]:
    """Another process' view of the same database, which has an index already."""
    enroll(galleries, "zoe", 99)
    other = Galleries(Store(database_url))
    assert found(other, 99) == ["zoe"]
    yield other
    other.close()


def faces_of(galleries: Galleries, subject: str) -> list[str]:
    return [row.face_id for row in galleries.store.faces(staff(galleries), subject).items]


def test_a_renamed_subject_keeps_its_faces_and_words(galleries: Galleries, elsewhere: Galleries) -> None:
    made = enroll(galleries, "ann", 1, 2)
    written(galleries.store, staff(galleries), edit_subject, "ann", name="Ann Ä", metadata={"k": 1})
    renamed = changed(galleries, "staff", rename_subject, "ann", "anna/😀")
    assert (renamed.id, renamed.name, renamed.metadata, renamed.face_count) == ("anna/😀", "Ann Ä", {"k": 1}, 2)
    assert faces_of(galleries, "anna/😀") == [row.face_id for row in made.faces]
    assert found(galleries, 1)[0] == "anna/😀"
    assert [one.id for one in galleries.store.subjects(staff(galleries), search="NA/").items] == ["anna/😀"]
    with pytest.raises(NotFound):
        galleries.store.subject(staff(galleries), "ann")
    elsewhere.indexes.follow()
    assert found(elsewhere, 2)[0] == "anna/😀"
    assert elsewhere.check("staff").ok


def test_a_subject_renamed_to_another_becomes_part_of_it(galleries: Galleries, elsewhere: Galleries) -> None:
    first, second = enroll(galleries, "ann", 1, 2), enroll(galleries, "bob", 3)
    elsewhere.indexes.follow()
    written(galleries.store, staff(galleries), edit_subject, "bob", name="Bob")
    merged = changed(galleries, "staff", rename_subject, "ann", "bob")
    assert (merged.id, merged.name, merged.face_count) == ("bob", "Bob", 3)
    assert sorted(faces_of(galleries, "bob")) == sorted(row.face_id for row in (*first.faces, *second.faces))
    elsewhere.indexes.follow()
    for one in (galleries, elsewhere):
        assert [found(one, seed)[0] for seed in (1, 2, 3)] == ["bob"] * 3
        assert sum(one.sizes(staff(one)).values()) == 2
        assert one.check("staff").ok
    changed(galleries, "staff", delete_face, "bob", first.faces[0].face_id)
    assert galleries.verify("staff", "bob", template(1)).score < 0.999
    elsewhere.indexes.follow()
    assert elsewhere.check("staff").ok


def test_a_subject_without_faces_leaves_nothing_behind(galleries: Galleries) -> None:
    written(galleries.store, staff(galleries), create_subject, "empty")
    enroll(galleries, "bob", 3)
    assert changed(galleries, "staff", rename_subject, "empty", "bob").face_count == 1
    assert galleries.store.subject_ids(staff(galleries)) == ["bob"]
    assert galleries.check("staff").ok


def test_what_another_process_missed_it_follows_all_at_once(galleries: Galleries, elsewhere: Galleries) -> None:
    enroll(galleries, "ann", 1, 2)
    enroll(galleries, "bob", 3)
    changed(galleries, "staff", rename_subject, "ann", "bob")
    changed(galleries, "staff", rename_subject, "bob", "cat")
    enroll(galleries, "ann", 4)
    changed(galleries, "staff", rename_subject, "cat", "ann")
    elsewhere.indexes.follow()
    assert [found(elsewhere, seed)[0] for seed in (1, 2, 3, 4)] == ["ann"] * 4
    assert elsewhere.check("staff").ok


def test_the_same_id_changes_nothing_and_nobody_can_not_be_renamed(galleries: Galleries) -> None:
    enroll(galleries, "ann", 1)
    assert changed(galleries, "staff", rename_subject, "ann", "ann").face_count == 1
    assert found(galleries, 1) == ["ann"]
    for old, new in (("nobody", "ann"), ("nobody", "nobody")):
        with pytest.raises(NotFound, match="nobody") as caught:
            changed(galleries, "staff", rename_subject, old, new)
        assert caught.value.code == "subject_not_found"
    assert galleries.store.counts(staff(galleries)) == Counts(1, 1)


def test_everybody_goes_at_once_and_the_gallery_stays(galleries: Galleries, elsewhere: Galleries) -> None:
    galleries.create_gallery("other", PACKAGE, DIMENSION)
    enroll(galleries, "kept", 5, gallery="other")
    enroll(galleries, "ann", 1, 2)
    written(galleries.store, staff(galleries), create_subject, "empty")
    assert changed(galleries, "staff", delete_subjects) == Counts(3, 3)
    assert galleries.store.subject_ids(staff(galleries)) == []
    assert changed(galleries, "staff", delete_subjects) == Counts(0, 0)
    elsewhere.indexes.follow()
    for one in (galleries, elsewhere):
        assert found(one, 1) == []
        assert one.check("staff").ok
        assert one.store.counts(one.store.gallery("other")) == Counts(1, 1)
    enroll(galleries, "ann", 1)
    assert found(galleries, 1) == ["ann"]


def test_faces_by_number_and_by_their_own_id(galleries: Galleries) -> None:
    ids = [row.face_id for subject in ("ann", "bob", "ann") for row in enroll(galleries, subject, 1, 2).faces]
    whose = ["ann", "ann", "bob", "bob", "ann", "ann"]
    assert galleries.store.subject_ids(staff(galleries)) == ["ann", "bob"]
    everything = list(zip(ids, whose, strict=True))
    assert galleries.store.face_ids(staff(galleries), limit=10) == (everything, 6)
    assert galleries.store.face_ids(staff(galleries), offset=4, limit=1) == (everything[4:5], 6)
    assert galleries.store.face_ids(staff(galleries), offset=9, limit=1) == ([], 6)
    assert galleries.store.face_ids(staff(galleries), "bob") == (everything[2:4], 2)
    assert galleries.store.face_ids(staff(galleries), "nobody") == ([], 0)
    assert galleries.store.find_face(staff(galleries), ids[2]).subject == "bob"
    galleries.create_gallery("other", PACKAGE, DIMENSION)
    for gallery, face_id in (("other", ids[2]), ("staff", "0" * 32), ("staff", "no id")):
        with pytest.raises(NotFound) as caught:
            galleries.store.find_face(galleries.store.gallery(gallery), face_id)
        assert caught.value.code == "face_not_found"
