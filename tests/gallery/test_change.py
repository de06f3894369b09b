"""Changes of one gallery by many at once: whole or not at all, in one order, without a circle of locks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.exc import OperationalError

from app.db.opening import translated
from app.errors import DatabaseBusy, NotFound
from app.gallery.change import Change
from app.gallery.moving import delete_faces, merge_subjects
from app.gallery.service import Galleries
from app.gallery.subjects import delete_subject
from app.search.types import GalleryState
from tests.support.changing import changed
from tests.support.galleries import enroll, found

ROUNDS = 6


def test_merging_beside_deleting_ends_well(pair: tuple[Galleries, Galleries]) -> None:
    """Two processes: one takes subjects, then their faces; the other starts from faces."""
    one, other = pair
    for turn in range(ROUNDS):
        faces = [face.face_id for name in "ab" for face in enroll(one, name, *range(8)).faces]
        both: list[tuple[Galleries, Callable[[Change], object]]] = [
            (one, lambda change: merge_subjects(change, "a", "b")),
            (other, lambda change, ids=faces[::-1]: delete_faces(change, ids)),  # type: ignore[misc]
        ]
        with ThreadPoolExecutor(2) as pool:
            done = [pool.submit(changed, galleries, "staff", verb) for galleries, verb in both[:: 1 - 2 * (turn % 2)]]
        for each in done:
            each.result()
        assert one.check("staff").faces == 0
        changed(one, "staff", delete_subject, "b")


def test_new_subjects_in_any_order_end_well(pair: tuple[Galleries, Galleries]) -> None:
    names = [f"s{number}" for number in range(12)]

    def work(number: int) -> None:
        for name in names if number else names[::-1]:
            enroll(pair[number], name, number)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    assert pair[0].check("staff").faces == 24
    assert pair[0].check("staff").subjects == 12


def test_what_fails_inside_a_change_undoes_all_of_it(galleries: Galleries) -> None:
    enroll(galleries, "ann", 1)
    enroll(galleries, "bob", 2)

    def both(change: Change) -> None:
        merge_subjects(change, "ann", "bob")
        delete_subject(change, "nobody")

    with pytest.raises(NotFound):
        changed(galleries, "staff", both)
    assert galleries.store.subject_ids(galleries.store.gallery("staff")) == ["ann", "bob"]
    assert galleries.check("staff").ok


def test_a_deadlock_is_a_busy_database() -> None:
    class Deadlock(Exception):
        sqlstate = "40P01"

    with pytest.raises(DatabaseBusy), translated():
        raise OperationalError("UPDATE", {}, Deadlock())


def test_a_look_at_galleries_that_nobody_changed_reads_none(
    pair: tuple[Galleries, Galleries], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    enroll(one, "ann", 1)
    assert found(other, 1) == ["ann"]
    one.indexes.follow()
    other.indexes.follow()
    real = other.store.change_reader.states
    reads: list[int] = []

    def states() -> dict[int, GalleryState]:
        reads.append(1)
        return real()

    monkeypatch.setattr(other.store.change_reader, "states", states)
    for _ in range(3):
        other.indexes.follow()
    assert reads == []
    enroll(one, "bob", 2)
    other.indexes.follow()
    assert reads == [1]
    assert other.indexes.followed().behind == 0
