"""Two subjects become one, by a merge or by the other's id, in one transaction that another process follows."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from app.db.schema import ANSWERED_REQUESTS
from app.errors import Conflict, LikenessError, NotFound
from app.features.checks.comparing import check_index
from app.features.listing import subject_ids
from app.features.transfers import merge_subjects, rename_subject
from app.gallery.records import Consent, Terms
from app.gallery.service import Galleries
from app.gallery.subjects import create_subject, delete_face, edit_subject
from tests.support.changing import changed, written
from tests.support.following import engine_of, found, let_expire
from tests.support.galleries import enroll, staff, template

SOON, LATER = "2095-01-01T00:00:00.000000Z", "2096-01-01T00:00:00.000000Z"


def ids_of(galleries: Galleries, subject: str) -> list[str]:
    return [row.face_id for row in galleries.store.faces(staff(galleries), subject).items]


def test_a_subject_renamed_to_another_becomes_part_of_it(pair: tuple[Galleries, Galleries]) -> None:
    here, other = pair
    first, second = enroll(here, "ann", 1, 2), enroll(here, "bob", 3)
    written(here.store, staff(here), create_subject, "empty")
    assert found(other, 3) == ["bob"], "its index is there already"
    written(here.store, staff(here), edit_subject, "bob", name="Bob")
    merged = changed(here, "staff", rename_subject, "ann", "bob")
    assert (merged.id, merged.name, merged.face_count) == ("bob", "Bob", 3)
    assert changed(here, "staff", rename_subject, "empty", "bob").face_count == 3
    assert subject_ids(here.store, staff(here)) == ["bob"]
    assert sorted(ids_of(here, "bob")) == sorted(row.face_id for row in (*first.faces, *second.faces))
    for galleries in pair:
        galleries.indexes.follow()
        assert [found(galleries, seed) for seed in (1, 2, 3)] == [["bob"]] * 3
        assert sum(galleries.open_search(staff(galleries)).sizes.values()) == 1
        assert check_index(galleries, galleries.store.gallery("staff")).ok
    changed(here, "staff", delete_face, "bob", first.faces[0].face_id)
    assert here.open_search(here.store.gallery("staff")).verify("bob", template(1)).score < 0.999
    other.indexes.follow()
    assert check_index(other, other.store.gallery("staff")).ok


def test_renamings_that_another_process_missed_it_follows_all_at_once(pair: tuple[Galleries, Galleries]) -> None:
    here, other = pair
    enroll(here, "ann", 1, 2)
    assert found(other, 1) == ["ann"]
    enroll(here, "bob", 3)
    for subject, name in (("ann", "bob"), ("bob", "cat")):
        changed(here, "staff", rename_subject, subject, name)
    enroll(here, "ann", 4)
    changed(here, "staff", rename_subject, "cat", "ann")
    other.indexes.follow()
    assert [found(other, seed) for seed in (1, 2, 3, 4)] == [["ann"]] * 4
    assert check_index(other, other.store.gallery("staff")).ok


def test_a_repeated_request_gets_the_same_answer(pair: tuple[Galleries, Galleries]) -> None:
    here, other = pair
    enroll(here, "ann", 1, 2)
    enroll(here, "bob", 3)
    enroll(here, "cid", 4)
    moved = changed(here, "staff", merge_subjects, "ann", "bob")
    assert changed(other, "staff", merge_subjects, "ann", "bob") == moved
    with pytest.raises(NotFound):
        changed(here, "staff", merge_subjects, "ann", "cid")
    enroll(here, "ann", 5)
    again = changed(here, "staff", merge_subjects, "ann", "bob")
    assert len(again) == 1, "somebody who has come back is merged anew"
    assert changed(here, "staff", merge_subjects, "ann", "bob") == again
    assert here.store.subject(staff(here), "bob").face_count == 4


def test_the_one_that_stays_takes_what_it_lacks_and_the_earlier_end(pair: tuple[Galleries, Galleries]) -> None:
    here, _ = pair
    store, gallery = here.store, staff(here)
    form, other_form = Consent("form", SOON), Consent("other form", SOON)
    written(store, gallery, create_subject, "ann", "Ann", {"team": 1}, terms=Terms(SOON, form))
    written(store, gallery, create_subject, "bob", terms=Terms(LATER))
    written(store, gallery, create_subject, "cid", "Cid", {"team": 2}, terms=Terms(None, other_form))
    changed(here, "staff", merge_subjects, "ann", "bob")
    bob = store.subject(gallery, "bob")
    assert (bob.name, bob.metadata, bob.expires_at, bob.consent) == ("Ann", {"team": 1}, SOON, form)
    assert [subject.id for subject in store.subjects(gallery, search="ann").items] == ["bob"]
    changed(here, "staff", merge_subjects, "bob", "cid")
    cid = store.subject(gallery, "cid")
    assert (cid.name, cid.metadata, cid.expires_at, cid.consent) == ("Cid", {"team": 2}, SOON, other_form)


def test_what_can_not_be_merged_stays_as_it_is(pair: tuple[Galleries, Galleries], database_url: str) -> None:
    here, _ = pair
    enroll(here, "ann", 1)
    enroll(here, "bob", 2)
    for source, target, code in (
        ("ann", "ann", "invalid_request"),
        ("ann", "nobody", "subject_not_found"),
        ("nobody", "ann", "subject_not_found"),
    ):
        with pytest.raises(LikenessError) as caught:
            changed(here, "staff", merge_subjects, source, target)
        assert caught.value.code == code
    let_expire(database_url, "ann")
    for source, target in (("ann", "bob"), ("bob", "ann")):
        with pytest.raises(Conflict) as conflict:
            changed(here, "staff", merge_subjects, source, target)
        assert conflict.value.code == "subject_expired", "the other would be erased with it"
    assert len(ids_of(here, "bob")) == 1
    assert check_index(here, here.store.gallery("staff")).ok


def test_the_kept_answer_names_nobody(pair: tuple[Galleries, Galleries], database_url: str) -> None:
    here, _ = pair
    enroll(here, "ann", 1)
    enroll(here, "bob", 2)
    moved = changed(here, "staff", merge_subjects, "ann", "bob")
    with engine_of(database_url).connect() as connection:
        (row,) = connection.execute(sa.select(ANSWERED_REQUESTS)).all()
    assert json.loads(row.answer) == moved
    assert "ann" not in str(row._mapping)


def test_merges_in_a_circle_end_with_one_of_them(pair: tuple[Galleries, Galleries]) -> None:
    """Each is carried out as a whole or not at all."""
    names = ["a", "b", "c", "d"]
    for seed, name in enumerate(names):
        enroll(pair[0], name, seed)

    def merge(number: int) -> str:
        try:
            changed(pair[number % 2], "staff", merge_subjects, names[number], names[(number + 1) % 4])
        except NotFound:
            return "gone"
        return "merged"

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(merge, range(4)))
    assert "merged" in done
    for galleries in pair:
        galleries.indexes.follow()
        assert check_index(galleries, galleries.store.gallery("staff")).ok
        assert check_index(galleries, galleries.store.gallery("staff")).faces == 4
    left = pair[0].store.subjects(pair[0].store.gallery("staff")).items
    assert sum(subject.face_count for subject in left) == 4
    assert len(left) == 4 - done.count("merged")
