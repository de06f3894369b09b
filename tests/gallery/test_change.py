"""Changes of one gallery by many at once: whole or not at all, in one order, without a circle of locks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from app.db.engine import AGAIN, again_if_overtaken
from app.db.opening import open_engine
from app.db.schema import GALLERIES, SUBJECTS
from app.errors import NotFound, TransactionEnded
from app.features.checks.comparing import check_index
from app.features.listing import subject_ids
from app.features.transfers import delete_faces, merge_subjects
from app.gallery.service import Galleries
from app.gallery.store import Change
from app.gallery.subjects import delete_subject
from app.search.types import GalleryState
from tests.support.changing import changed
from tests.support.galleries import enroll, found, staff
from tests.support.postgres import new_database
from tests.support.service import error_of, running
from tests.support.waiting import until

ROUNDS = 6


@pytest.mark.long
def test_merging_beside_deleting_ends_well(pair: tuple[Galleries, Galleries]) -> None:
    """Two processes: one takes subjects, then their faces; the other starts from faces."""
    here, other = pair
    for turn in range(ROUNDS):
        faces = [face.face_id for name in "ab" for face in enroll(here, name, *range(8)).faces]
        both: list[tuple[Galleries, Callable[[Change], object]]] = [
            (here, lambda change: merge_subjects(change, "a", "b")),
            (other, lambda change, ids=faces[::-1]: delete_faces(change, ids)),  # type: ignore[misc]
        ]
        with ThreadPoolExecutor(2) as pool:
            done = [pool.submit(changed, galleries, "staff", verb) for galleries, verb in both[:: 1 - 2 * (turn % 2)]]
        for future in done:
            future.result()
        assert check_index(here, here.store.gallery("staff")).faces == 0
        changed(here, "staff", delete_subject, "b")


def test_new_subjects_in_any_order_end_well(pair: tuple[Galleries, Galleries]) -> None:
    """Each is created by one of two processes that enroll all of them, in two orders each."""
    names = [f"s{number}" for number in range(12)]

    def work(number: int) -> list[str]:
        made = [enroll(pair[number % 2], name, number) for name in (names if number < 2 else names[::-1])]
        return [enrolled.subject for enrolled in made if enrolled.created]

    with ThreadPoolExecutor(4) as pool:
        created = [name for names_made in pool.map(work, range(4)) for name in names_made]
    assert sorted(created) == sorted(names)
    here = pair[0]
    assert {subject.id: subject.face_count for subject in here.store.subjects(staff(here)).items} == dict.fromkeys(
        names, 4
    )
    assert check_index(here, here.store.gallery("staff")).faces == 48


def test_what_fails_inside_a_change_undoes_all_of_it(galleries: Galleries) -> None:
    enroll(galleries, "ann", 1)
    enroll(galleries, "bob", 2)

    def both(change: Change) -> None:
        merge_subjects(change, "ann", "bob")
        delete_subject(change, "nobody")

    with pytest.raises(NotFound):
        changed(galleries, "staff", both)
    assert subject_ids(galleries.store, galleries.store.gallery("staff")) == ["ann", "bob"]
    assert check_index(galleries, galleries.store.gallery("staff")).ok


def in_circles(connection: sa.Connection, begun: threading.Event, times: int) -> None:
    """Hold a subject that a request wants, then wait for the gallery that it holds, so many times."""
    waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    for _ in range(times):
        connection.execute(sa.text("SET deadlock_timeout = '60s'"))  # so that it is the other's transaction that ends
        connection.execute(sa.update(SUBJECTS).values(name="held"))
        begun.set()
        until(lambda: connection.execute(waiting).scalar_one())
        connection.execute(sa.select(GALLERIES.c.key).with_for_update())
        connection.commit()


def test_a_request_whose_transaction_ends_for_anothers_sake_is_done_again(
    postgresql: Path, first_postgresql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two transactions that wait for each other, each time anew; after a third time the client is told to wait."""
    monkeypatch.setattr("app.db.engine.AGAIN_S", 2.0)  # the other is in the way again by then
    engine = open_engine(url := new_database(postgresql, f"TEMPLATE {first_postgresql}"), 1000)
    with (
        running(tmp_path, database_url=url) as api,
        ThreadPoolExecutor(1) as pool,
        engine.connect() as other,
    ):
        api.post("/v1/galleries", json={"id": "staff"}).raise_for_status()
        api.post("/v1/galleries/staff/subjects", json={"id": "ann"}).raise_for_status()

        def ask(times: int) -> httpx.Response:
            """The answer of a request to which the other comes into the way so many times."""
            held = threading.Event()
            circles = pool.submit(in_circles, other, held, times)
            assert held.wait(60)
            answer = api.patch("/v1/galleries/staff/subjects/ann", json={"metadata": {"floor": 2}})
            circles.result()
            assert api.get("/v1/galleries/staff/subjects/ann").json()["name"] == "held"
            return answer

        ask(AGAIN).raise_for_status()
        refused = ask(AGAIN + 1)
        error_of(refused, 503, "database_busy")
        assert "retry-after" in refused.headers
    engine.dispose()


def test_what_was_committed_is_not_done_again(galleries: Galleries) -> None:
    tries: list[int] = []

    def work() -> None:
        tries.append(len(tries))
        if len(tries) == 2:
            enroll(galleries, "ann", 1)
        raise TransactionEnded("for another's sake")

    with pytest.raises(TransactionEnded):
        again_if_overtaken(work)
    assert tries == [0, 1]


def test_a_look_at_galleries_that_nobody_changed_reads_none(
    pair: tuple[Galleries, Galleries], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other = pair
    enroll(here, "ann", 1)
    assert found(other, 1) == ["ann"]
    here.indexes.follow()
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
    enroll(here, "bob", 2)
    other.indexes.follow()
    assert reads == [1]
    assert other.indexes.followed().behind == 0
