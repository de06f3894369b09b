"""Reviews of small galleries in SQL and an index: what they find, remember and forget."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from app.db.schema import DISMISSALS, FINDINGS, REVIEWS
from app.errors import NotFound, OperatingPointUnavailable
from app.features.review import job as review_job
from app.features.transfers import Move, move_faces
from app.gallery.subjects import create_subject, delete_face, delete_subject
from app.gallery.text import unnamed_id
from app.jobs.runner import Running
from app.package.thresholds import Thresholds
from tests.conftest import on_sqlite
from tests.support.changing import changed, written
from tests.support.following import let_expire
from tests.support.packages import manifest
from tests.support.reviewing import BAD, GOOD, Reviewing, between, vector


@pytest.fixture
def reviewing(database_url: str) -> Iterator[Reviewing]:
    made = Reviewing(database_url)
    yield made
    made.close()


@pytest.fixture
def planted(reviewing: Reviewing) -> Reviewing:
    """Forty people with three faces each, and one of every kind of finding."""
    reviewing.people(range(40))
    plant(reviewing)
    return reviewing


def plant(reviewing: Reviewing) -> None:
    reviewing.enroll("twice", [vector(1, photo) for photo in (10, 11)])
    reviewing.enroll("p2", [vector(3, 10)])
    reviewing.enroll("p4", [vector(100, 1)])
    reviewing.enroll("p5", [between(5, 6, 0)], BAD)
    reviewing.enroll("poor", [vector(101, photo) for photo in (1, 2)], BAD)


PLANTED = {
    ("same_person", "p1", "twice"),
    ("misplaced_face", "p2", "p3"),
    ("outlier", "p4", "p4"),
    ("poor_face", "p5", "p6"),
    ("no_good_face", "poor", None),
}


def test_every_kind_is_found_with_what_can_be_done_and_nothing_else(planted: Reviewing) -> None:
    job = planted.review()
    assert planted.found() == PLANTED
    assert (job.done, job.total) == (3 * 40 + 7, 3 * 40 + 7)
    assert job.counts == {"subjects": 42, "findings": 5}
    strengths = [one.strength for one in planted.findings()]
    assert strengths == sorted(strengths, reverse=True)
    by_kind = {one.kind: one for one in planted.findings()}
    done = {kind: [(action.do, action.subject, action.to) for action in one.actions] for kind, one in by_kind.items()}
    assert done == {
        "same_person": [("merge", "twice", "p1")],
        "misplaced_face": [("move", "p2", "p3"), ("delete", "p2", None)],
        "outlier": [("delete", "p4", None)],
        "poor_face": [("delete", "p5", None)],
        "no_good_face": [("enroll", "poor", None)],
    }
    pair = by_kind["same_person"].evidence
    assert pair.matching == 1
    assert pair.score is not None
    assert pair.threshold is not None
    assert pair.score > pair.threshold
    misplaced = by_kind["misplaced_face"].evidence
    assert misplaced.score is not None
    assert misplaced.own_score is not None
    assert misplaced.score > 0.5 > misplaced.own_score
    summary = planted.reviews.find(planted.gallery).summary
    assert summary is not None
    assert (summary.package, summary.subjects, summary.faces) == ("tiny@1", 42, 127)
    assert summary.fnmr is not None
    assert summary.fpir is not None
    misses, taken = counted(planted, summary.verify.threshold, summary.identify.threshold)
    assert summary.fnmr.value == misses / 127
    assert summary.fpir.value == taken / 127
    assert summary.fnmr.low < summary.fnmr.value < summary.fnmr.high


def counted(reviewing: Reviewing, verify: float, identify: float) -> tuple[int, int]:
    """Faces that their subject's other faces miss, and faces that another subject would be taken for, in a loop."""
    with reviewing.store.change_reader.read_all(reviewing.gallery.index_spec) as (_, blocks):
        faces = [
            (int(subject), template)
            for block in blocks
            for subject, template in zip(block.subjects, block.vectors, strict=True)
        ]
    misses = taken = 0
    for place, (subject, template) in enumerate(faces):
        scores = [
            (subject == other, float(template @ vector)) for at, (other, vector) in enumerate(faces) if at != place
        ]
        misses += max((score for own, score in scores if own), default=1.0) < verify
        taken += max(score for own, score in scores if not own) >= identify
    return misses, taken


@on_sqlite
def test_two_people_under_one_id_are_found_and_parted(planted: Reviewing) -> None:
    planted.enroll("bob", [vector(who, photo) for who in (110, 111) for photo in (1, 2, 3)])
    planted.review()
    assert planted.found() == PLANTED | {("two_people", "bob", "bob")}
    (finding,) = planted.findings("two_people")
    (part,) = finding.actions
    assert (part.do, part.subject, len(part.faces)) == ("part", "bob", 3)
    assert part.to is not None
    moves = [Move(face, "bob", part.to) for face in part.faces]
    changed(planted.galleries, "staff", move_faces, moves, create=True)
    planted.review()
    assert planted.found() == PLANTED


def test_a_face_like_a_recorded_wrong_probe_is_found(planted: Reviewing) -> None:
    planted.correct("p7", vector(102, 0))
    planted.enroll("p7", [vector(102, 1)])
    planted.correct("single", vector(103, 0), first=vector(103, 1))
    planted.review()
    corrected = {("corrected_face", subject, None) for subject in ("p7", "single")}
    assert planted.found() == PLANTED | corrected
    one, other = planted.findings("corrected_face")
    assert [action.do for action in one.actions] == ["delete"]
    assert {one.evidence.own_score is None, other.evidence.own_score is None} == {True, False}
    assert one.evidence.score is not None
    assert one.evidence.threshold is not None
    assert one.evidence.score > one.evidence.threshold


@on_sqlite
def test_whom_corrections_tell_apart_is_not_asked_about(planted: Reviewing) -> None:
    planted.people(range(40))  # the same photos again: everybody is most like their own faces
    before = planted.review_summary().fpir
    planted.correct("p1", vector(1, 10), vector(1, 11))
    planted.correct("p3", vector(3, 10))
    planted.correct("p6", between(5, 6, 0))
    after = planted.review_summary().fpir
    told_apart = {("same_person", "p1", "twice"), ("misplaced_face", "p2", "p3"), ("poor_face", "p5", "p6")}
    assert planted.found() == PLANTED - told_apart | {("outlier", "p2", "p2")}
    assert before is not None
    assert after is not None
    assert after.value < before.value


@on_sqlite
def test_whom_a_misplaced_face_belongs_to_is_not_moved_after_it(reviewing: Reviewing) -> None:
    reviewing.people(range(20))
    reviewing.enroll("one", [vector(50, 0), vector(60, 0)])
    reviewing.enroll("other", [vector(51, 0), vector(51, 1), vector(50, 1)])
    reviewing.enroll("third", [vector(60, 1), vector(60, 2)])
    reviewing.review()
    assert ("misplaced_face", "one", "third") in reviewing.found()
    assert ("misplaced_face", "one", "other") not in reviewing.found()


def test_what_is_right_is_not_asked_again_unless_other_faces_are_its_evidence(planted: Reviewing) -> None:
    planted.review()
    for one in planted.findings():
        planted.reviews.dismiss(planted.gallery, one.id)
    assert planted.findings() == []
    planted.review()
    assert planted.findings() == []
    assert len(planted.findings(dismissed=True)) == len(PLANTED)
    assert planted.reviews.find(planted.gallery).dismissed == len(PLANTED)
    planted.enroll("twice", [vector(1, 0)])  # the same photo as a face of p1's: now the best of all pairs
    planted.review()
    assert planted.found() == {("same_person", "p1", "twice")}


def test_a_dismissal_can_be_taken_back(planted: Reviewing) -> None:
    planted.review()
    one = planted.findings("outlier")[0]
    planted.reviews.dismiss(planted.gallery, one.id)
    planted.reviews.dismiss(planted.gallery, one.id)
    planted.reviews.dismiss(planted.gallery, one.id, dismissed=False)
    assert planted.found() == PLANTED
    planted.review()
    assert planted.found() == PLANTED


def test_work_takes_its_findings_along(planted: Reviewing) -> None:
    planted.review()
    by_kind = {one.kind: one for one in planted.findings()}
    planted.reviews.dismiss(planted.gallery, by_kind["no_good_face"].id)
    moved = by_kind["misplaced_face"]
    changed(planted.galleries, "staff", move_faces, [Move(moved.face.face_id, "p2", "p3")])
    changed(planted.galleries, "staff", delete_face, "p4", by_kind["outlier"].face.face_id)
    changed(planted.galleries, "staff", delete_subject, "twice")
    changed(planted.galleries, "staff", delete_subject, "poor")
    assert planted.found() == {("poor_face", "p5", "p6")}
    assert rows(planted, DISMISSALS) == 0
    with pytest.raises(NotFound) as caught:
        planted.reviews.dismiss(planted.gallery, moved.id)
    assert caught.value.code == "finding_not_found"
    planted.review()
    assert planted.found() == {("poor_face", "p5", "p6")}


def test_nothing_is_left_of_a_deleted_gallery(planted: Reviewing) -> None:
    planted.review()
    planted.reviews.dismiss(planted.gallery, planted.findings()[0].id)
    planted.galleries.delete_gallery(planted.galleries.store.gallery("staff"))
    assert [rows(planted, table) for table in (REVIEWS, FINDINGS, DISMISSALS)] == [0, 0, 0]


def test_unnamed_and_expired_people_are_left_out(reviewing: Reviewing, database_url: str) -> None:
    reviewing.people(range(3))
    for _ in range(2):
        reviewing.enroll(unnamed_id(), [vector(1, 20)])
    reviewing.enroll("gone", [vector(2, 30)])
    let_expire(database_url, "gone")
    job = reviewing.review()
    assert reviewing.found() == set()
    assert job.counts == {"subjects": 3}


def test_who_has_expired_is_in_no_finding(planted: Reviewing, database_url: str) -> None:
    """Neither as the one that it is about nor as the other, from the end on: the sweep comes later."""
    planted.review()
    ids = {(one.kind, one.face.subject): one.id for one in planted.findings()}
    let_expire(database_url, "twice", "p3", "poor")
    assert planted.found() == {found for found in PLANTED if not {"twice", "p3", "poor"} & {*found}}
    with pytest.raises(NotFound):
        planted.reviews.dismiss(planted.gallery, ids["no_good_face", "poor"])


@on_sqlite
def test_unnamed_faces_hide_no_finding(planted: Reviewing) -> None:
    for photo in range(20, 30):
        planted.enroll(unnamed_id(), [vector(1, photo, alike=0.95)])
    planted.review()
    assert planted.found() == PLANTED


def test_one_review_runs_at_a_time(database_url: str) -> None:
    with closing(Reviewing(database_url, runs=False)) as reviewing:
        reviewing.people(range(2))
        with pytest.raises(NotFound):
            reviewing.reviews.find(reviewing.gallery)
        first = reviewing.reviewer.begin("staff")
        assert reviewing.reviewer.begin("staff").id == first.id
        found = reviewing.reviews.find(reviewing.gallery)
        assert (found.job, found.summary) == (first.id, None)
        reviewing.jobs.cancel(first.id)
        assert reviewing.reviewer.begin("staff").id != first.id


@on_sqlite
def test_a_stopped_review_goes_on_from_its_checkpoint(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(review_job, "FACES_AT_ONCE", 10)
    seen: list[int] = []

    class Stopping(Reviewing):
        """Its process ends in the middle, once after each part."""

        def work(self, running: Running) -> None:
            seen.append(running.saved.get("faces", 0))
            running.done = 0  # so a renewal that waited for the checkpoint leaves it
            checkpoint = running.checkpoint

            def stop_after(*args: object, **kwargs: object) -> None:
                checkpoint(*args, **kwargs)  # type: ignore[arg-type]
                if running.done < 127:
                    running.lost = True

            running.checkpoint = stop_after  # type: ignore[method-assign]
            super().work(running)
            if running.lost:
                self.jobs.release(running.job)

    with closing(Stopping(database_url)) as reviewing:
        reviewing.people(range(40))
        plant(reviewing)
        parts = reviewing.review_summary()
        assert reviewing.found() == PLANTED
    assert len(seen) > 5
    assert seen == sorted(set(seen)), "no part is done twice"
    assert (parts.subjects, parts.faces) == (42, 127)


@on_sqlite
def test_findings_of_the_last_review_are_shown_until_the_next_has_ended(reviewing: Reviewing) -> None:
    reviewing.people(range(10))
    reviewing.enroll("twice", [vector(1, 10)])
    reviewing.review()
    shown = reviewing.findings()
    reviewing.runner.close()
    reviewing.reviewer.begin("staff")
    assert reviewing.findings() == shown
    assert reviewing.reviews.find(reviewing.gallery).summary is not None


@on_sqlite
def test_a_package_without_operating_points_is_refused(reviewing: Reviewing) -> None:
    reviewing.people(range(2))
    reviewing.thresholds = Thresholds(manifest(dimension=128))
    with pytest.raises(OperatingPointUnavailable):
        reviewing.reviewer.begin("staff")


@on_sqlite
def test_an_empty_gallery_has_no_findings(reviewing: Reviewing) -> None:
    written(reviewing.store, reviewing.gallery, create_subject, "nobody")
    summary = reviewing.review_summary()
    assert (summary.subjects, summary.faces, summary.fnmr, summary.fpir) == (0, 0, None, None)


@pytest.mark.long
def test_milvus_is_searched_too(tmp_path: Path) -> None:
    with closing(Reviewing(f"sqlite:///{tmp_path / 'likeness.db'}", milvus=tmp_path)) as reviewing:
        reviewing.people(range(40))
        plant(reviewing)
        reviewing.review()
        assert reviewing.found() == PLANTED


@on_sqlite
def test_many_faces_of_two_subjects_are_compared_by_their_best(
    reviewing: Reviewing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.features.review.examine.MOST_FACES", 5)
    reviewing.people(range(3))
    reviewing.enroll("p0", [vector(0, photo) for photo in range(10, 40)], GOOD)
    reviewing.enroll("again", [vector(0, photo) for photo in range(40, 80)], GOOD)
    reviewing.review()
    assert reviewing.found() == {("same_person", "again", "p0")}


def rows(reviewing: Reviewing, table: sa.Table) -> int:
    with reviewing.store.database.read() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())
