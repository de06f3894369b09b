"""Subjects are renamed, merged and all deleted at once; faces are found by their own id."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.gallery.moving import delete_face, rename_subject
from app.gallery.service import Galleries
from app.gallery.store import Store
from app.gallery.subjects import create_subject, edit_subject
from tests.support.changing import changed, written
from tests.support.galleries import enroll, found, staff, template


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
