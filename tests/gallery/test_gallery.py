"""SQL and the index agree, also after failures in between."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import sqlalchemy as sa

from app.db.schema import FACES, GALLERIES, SUBJECTS
from app.errors import Conflict, InvalidInput, LikenessError, NotFound
from app.features.checks.comparing import check_index
from app.gallery.records import Gallery, StoredFace, to_bytes
from app.gallery.service import Galleries
from app.gallery.store import Change, Store
from app.gallery.subjects import create_subject, delete_face, delete_subject, edit_subject
from app.gallery.text import is_unnamed, unnamed_id
from app.types import Box, Quality, Template
from tests.conftest import on_sqlite
from tests.support.changing import changed, written
from tests.support.following import engine_of, let_expire
from tests.support.galleries import DIMENSION, PACKAGE, enroll, face, found, staff, template
from tests.support.indexes import rebuild


def change_sql(url: str, *statements: sa.Executable) -> None:
    """Behind the service's back."""
    engine = engine_of(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(statement)


def test_enrollments_that_come_together_fail_each_by_itself(galleries: Galleries, database_url: str) -> None:
    """Half of them for a subject that has expired: the others are found, and nothing of those is there."""
    written(galleries.store, staff(galleries), create_subject, "gone")
    let_expire(database_url, "gone")

    def outcome(number: int) -> str:
        try:
            return enroll(galleries, "gone" if number % 2 else f"s{number}", number).subject
        except Conflict as error:
            return error.code

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(outcome, range(16)))
    assert told == ["subject_expired" if number % 2 else f"s{number}" for number in range(16)]
    assert [found(galleries, number, 1) for number in range(0, 16, 2)] == [[f"s{n}"] for n in range(0, 16, 2)]
    assert check_index(galleries, galleries.store.gallery("staff")).ok


@on_sqlite
def test_unnamed_faces_hide_no_named_one_from_an_enrollment(galleries: Galleries) -> None:
    near = template(1).vector + 0.3 * template(4).vector
    like = Template((near / np.linalg.norm(near)).astype(np.float32), PACKAGE)
    galleries.enroll(galleries.store.gallery("staff"), "ann", [replace(face(1), template=like)])
    for _ in range(40):
        galleries.enroll(galleries.store.gallery("staff"), unnamed_id(), [face(1)])
    enroll(galleries, "bob", 2)
    alike, other = galleries.open_search(staff(galleries)).search([template(1), template(3)], 1, 0.9, enrolling=True)
    assert "ann" in {candidate.subject for candidate in alike}
    assert {candidate.subject for candidate in alike if not is_unnamed(candidate.subject)} == {"ann"}
    assert other == []


def test_an_enrolled_subject_is_found_at_once_with_its_words(galleries: Galleries) -> None:
    made = galleries.enroll(galleries.store.gallery("staff"), "ann/😀", [face(1, 90), face(2, 10)])
    written(galleries.store, staff(galleries), edit_subject, "ann/😀", "Ann")
    enroll(galleries, "bob", 3)
    assert (made.subject, made.created) == ("ann/😀", True)
    assert galleries.store.subject(staff(galleries), "ann/😀").face_count == 2
    best, second = galleries.open_search(galleries.store.gallery("staff")).search([template(2)], 5)[0]
    assert (best.subject, best.name, best.face_id) == ("ann/😀", "Ann", made.faces[1].face_id)
    assert best.score == pytest.approx(1)
    mean = template(1).vector + template(2).vector
    assert best.template_score == pytest.approx(float(template(2).vector @ mean / np.linalg.norm(mean)), abs=1e-6)
    assert (second.subject, second.name) == ("bob", None)
    assert galleries.open_search(galleries.store.gallery("staff")).verify("ann/😀", template(2)) == best
    assert sum(galleries.open_search(staff(galleries)).sizes.values()) == 2


def test_several_probes_are_answered_in_their_order(galleries: Galleries) -> None:
    for seed in range(12):
        enroll(galleries, f"s{seed}", seed)
    answers = galleries.open_search(galleries.store.gallery("staff")).search(
        [template(seed) for seed in (7, 3, 7, 11)], 1
    )
    assert [row[0].subject for row in answers] == ["s7", "s3", "s7", "s11"]
    assert galleries.open_search(galleries.store.gallery("staff")).search([], 5) == []


def test_searches_share_passes_in_large_galleries_only(galleries: Galleries, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(5):
        enroll(galleries, f"s{seed}", seed)
    alone = [found(galleries, seed) for seed in range(5)]
    assert galleries.searches.batch_sizes == {}
    monkeypatch.setattr("app.search.index.QUICK_NUMBERS", 4 * DIMENSION)
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda place: found(galleries, place % 5), range(40)))
    assert together == 8 * alone
    assert sum(size * count for size, count in galleries.searches.batch_sizes.items()) == 40


def test_templates_of_another_package_are_refused(galleries: Galleries) -> None:
    foreign = template(1, "other@1")
    calls: list[Callable[[], object]] = [
        lambda: galleries.enroll(
            galleries.store.gallery("staff"),
            "ann",
            [face(1), StoredFace("", foreign, Quality(1, ()), Box(0, 0, 1, 1))],
        ),
        lambda: galleries.open_search(galleries.store.gallery("staff")).search([foreign], 1),
        lambda: galleries.open_search(galleries.store.gallery("staff")).verify("ann", foreign),
    ]
    for call in calls:
        with pytest.raises(Conflict) as caught:
            call()
        assert caught.value.code == "package_mismatch"
    assert galleries.store.counts(staff(galleries)).subjects == 0


def test_what_is_no_unit_vector_is_refused(galleries: Galleries) -> None:
    of_numbers = [np.full(DIMENSION, number, np.float32) for number in (np.nan, np.inf, 0)]
    lengths = [2 * template(1).vector, template(1, dimension=DIMENSION + 1).vector, np.empty(0, np.float32)]
    calls: list[Callable[[Template], object]] = [
        lambda bad: galleries.enroll(
            galleries.store.gallery("staff"), "ann", [StoredFace("", bad, Quality(1, ()), Box(0, 0, 1, 1))]
        ),
        lambda bad: galleries.open_search(galleries.store.gallery("staff")).search([bad], 1),
    ]
    for vector, call in product([*of_numbers, *lengths], calls):
        with pytest.raises(InvalidInput) as caught:
            call(Template(vector, PACKAGE))
        assert caught.value.code == "invalid_template"
    assert check_index(galleries, galleries.store.gallery("staff")).faces == 0


def test_check_names_what_disagrees_and_rebuild_mends_it(galleries: Galleries, database_url: str) -> None:
    made = [enroll(galleries, f"s{seed}", seed).faces[0] for seed in range(5)]
    rows = [galleries.store.face(staff(galleries), face.face_id) for face in made]
    damaged, gone, _, _, added = rows
    copy: dict[str, sa.ColumnElement[object]] = {column.name: sa.literal_column(column.name) for column in FACES.c}
    copy |= {"key": sa.literal(1000), "face_id": sa.literal("f" * 32)}
    change_sql(
        database_url,
        sa.update(FACES).where(FACES.c.key == damaged.key).values(template=to_bytes(rows[2].template)),
        sa.delete(FACES).where(FACES.c.key == gone.key),
        sa.insert(FACES).from_select(list(copy), sa.select(*copy.values()).where(FACES.c.key == added.key)),
    )
    report = check_index(galleries, galleries.store.gallery("staff"))
    assert not report.ok
    assert (report.faces, report.indexed) == (5, 5)
    assert (report.missing, report.different, report.extra) == (1, 1, 1)
    assert sorted(report.examples) == sorted([damaged.face_id, "f" * 32])
    assert len(report.problems) == 3
    rebuild(galleries, galleries.store.gallery("staff"))
    assert check_index(galleries, galleries.store.gallery("staff")).ok


def test_a_commit_whose_answer_was_lost_is_found_out(galleries: Galleries, monkeypatch: pytest.MonkeyPatch) -> None:
    enroll(galleries, "ann", 1)
    real_change = Store.change

    @contextmanager
    def commit_and_lose_the_connection(self: Store, gallery: Gallery) -> Iterator[Change]:
        with real_change(self, gallery) as change:
            yield change
        raise ConnectionError("gone before the answer")

    monkeypatch.setattr(Store, "change", commit_and_lose_the_connection)
    with pytest.raises(ConnectionError):
        enroll(galleries, "bob", 2)
    assert found(galleries, 2)[0] == "bob"
    assert check_index(galleries, galleries.store.gallery("staff")).ok


def test_eight_callers_at_once_leave_sql_and_index_agreed(galleries: Galleries) -> None:
    start = threading.Barrier(8)
    expected: dict[str, int] = {}

    def work(worker: int) -> None:
        mine = f"s{worker}"
        start.wait()
        kept = []
        for turn in range(6):
            seed = 1000 + worker * 100 + turn
            enroll(galleries, "shared", seed + 50)
            kept.append((seed, enroll(galleries, mine, seed).faces[0].face_id))
            assert found(galleries, seed)[0] == mine  # acknowledged is found
            if turn % 2:
                gone, face_id = kept.pop(0)
                changed(galleries, "staff", delete_face, mine, face_id)
                assert (
                    galleries.open_search(galleries.store.gallery("staff")).verify(mine, template(gone)).score < 0.9999
                )  # acknowledged is gone
        expected[mine] = len(kept)
        if worker % 4 == 0:
            changed(galleries, "staff", delete_subject, mine)
            del expected[mine]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    report = check_index(galleries, galleries.store.gallery("staff"))
    assert report.ok
    assert report.faces == report.indexed == 8 * 6 + sum(expected.values())
    counts = {subject.id: subject.face_count for subject in galleries.store.subjects(staff(galleries)).items}
    assert counts == {**expected, "shared": 48}


def test_galleries_deleted_and_made_again_under_everyones_feet(galleries: Galleries, database_url: str) -> None:
    """By two processes, one of which deletes subjects too; no row is left behind."""
    unexpected: list[LikenessError] = []
    other = Galleries(Store(database_url))

    def work(worker: int) -> None:
        for turn in range(10):
            try:
                if worker == 0:
                    galleries.delete_gallery(galleries.store.gallery("staff"))
                    galleries.create_gallery("staff", PACKAGE, DIMENSION)
                elif worker == 1:
                    found(galleries, turn)
                elif worker == 2:
                    check_index(other, other.store.gallery("staff"))
                elif worker == 3:
                    changed(other, "staff", delete_subject, f"s{turn}")
                else:
                    enroll(other if worker % 2 else galleries, f"s{turn}", worker * 100 + turn)
            except NotFound as error:
                if error.code not in {"gallery_not_found", "subject_not_found"}:
                    unexpected.append(error)

    with ThreadPoolExecutor(7) as pool:
        list(pool.map(work, range(7)))
    other.close()
    assert unexpected == []
    assert check_index(galleries, galleries.store.gallery("staff")).ok
    galleries.delete_gallery(galleries.store.gallery("staff"))
    engine = engine_of(database_url)
    with engine.connect() as connection:
        for table in (GALLERIES, SUBJECTS, FACES):
            assert connection.execute(sa.select(sa.func.count()).select_from(table)).scalar() == 0


def test_a_subject_gone_from_sql_only_is_left_out_of_answers(galleries: Galleries, database_url: str) -> None:
    enroll(galleries, "ann", 1)
    enroll(galleries, "bob", 2)
    change_sql(
        database_url,
        sa.delete(FACES).where(FACES.c.subject_key == galleries.store.subject(staff(galleries), "ann").key),
    )
    assert found(galleries, 1) == ["bob"]
