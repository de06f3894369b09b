"""Two processes' galleries over one database: each answers what the other was told, whatever happened in between."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from app.concurrency.scheduler import Scheduler
from app.db.schema import FACES
from app.errors import NotFound
from app.features.checks.comparing import check_index
from app.gallery.service import Galleries
from app.gallery.store import ChangeReader, Store
from app.gallery.subjects import delete_face, delete_subject
from app.search.follower import CHANGES_AT_ONCE, FIRST_CHANGES
from app.search.index import Index
from app.search.snapshots import Snapshots
from app.search.types import Changes, FaceBlock, GalleryState, IndexSpec, LogPosition
from tests.support.changing import changed
from tests.support.following import engine_of, found, quiet
from tests.support.galleries import DIMENSION, PACKAGE, enroll, face, staff, template
from tests.support.logged import messages
from tests.support.postgres import new_database
from tests.support.waiting import until

SUBJECTS = ("ann", "bob", "cem")


@pytest.fixture
def scheduled(database_url: str) -> Iterator[tuple[Galleries, Galleries]]:
    """Two galleries that follow by themselves, as in two processes."""
    both = Galleries(Store(database_url)), Galleries(Store(database_url))
    with Scheduler() as scheduler:
        for galleries in both:
            galleries.indexes.load()
            galleries.start(scheduler)
        yield both
    for galleries in both:
        galleries.close()


def test_what_one_acknowledged_the_other_answers(scheduled: tuple[Galleries, Galleries]) -> None:
    here, other = scheduled
    here.create_gallery("staff", PACKAGE, DIMENSION)
    made = enroll(here, "ann", 1, 2)
    until(lambda: found(other, 2) == ["ann"])
    enroll(other, "ann", 3)
    until(lambda: found(here, 3) == ["ann"])
    changed(other, "staff", delete_face, "ann", made.faces[0].face_id)
    until(lambda: found(here, 1) == [])
    changed(here, "staff", delete_subject, "ann")
    until(lambda: found(other, 2) == found(other, 3) == [])
    assert (check_index(here, here.store.gallery("staff")).ok, check_index(other, other.store.gallery("staff")).ok) == (
        True,
        True,
    )
    other.delete_gallery(other.store.gallery("staff"))
    with pytest.raises(NotFound):
        found(here, 1)
    here.create_gallery("staff", PACKAGE, DIMENSION)
    assert found(other, 2) == []


def test_an_index_that_is_built_while_the_states_are_read_is_kept(
    pair: tuple[Galleries, Galleries], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = pair
    enroll(here, "ann", 1)
    source = here.store.change_reader
    read = source.states

    def states_of_before() -> dict[int, GalleryState]:
        before = read()
        here.create_gallery("new", PACKAGE, DIMENSION)
        enroll(here, "bob", 2, gallery="new")
        return before

    with monkeypatch.context() as changing:
        changing.setattr(source, "states", states_of_before)
        here.indexes.follow()
    assert here.indexes.indexed().faces == 2


def test_how_far_a_process_is_behind_is_told(pair: tuple[Galleries, Galleries]) -> None:
    here, other = pair
    enroll(here, "ann", 1)
    here.indexes.follow()
    assert here.indexes.followed().behind == 0
    enroll(other, "bob", 2, 3)
    assert here.indexes.followed().behind == 0, "nobody has looked yet"
    with here.indexes.index(staff(here).index_spec).changing():  # a change in progress catches up itself
        here.indexes.follow()
        assert here.indexes.followed().behind == 2
    assert here.indexes.followed().behind == 0
    assert found(here, 3) == ["bob"]
    assert 0 <= here.indexes.followed().age_s < 3600


def test_replaying_the_log_and_reading_sql_make_the_same_index(
    pair: tuple[Galleries, Galleries], database_url: str
) -> None:
    writer, follower = pair
    assert found(follower, 0) == []  # its index begins empty
    for seed in range(40):
        made = enroll(writer, f"s{seed % 7}", seed, seed + 100)
        if seed % 5 == 0:
            changed(writer, "staff", delete_face, f"s{seed % 7}", made.faces[1].face_id)
        if seed % 11 == 0:
            changed(writer, "staff", delete_subject, f"s{seed % 7}")
    follower.indexes.follow()
    restarted = quiet(database_url)
    restarted.indexes.load()
    probes = [template(1000 + seed) for seed in range(10)]
    answers = writer.open_search(writer.store.gallery("staff")).search(probes, 5)
    for galleries in (follower, restarted):
        assert galleries.open_search(galleries.store.gallery("staff")).search(probes, 5) == answers
        report = check_index(galleries, galleries.store.gallery("staff"))
        assert (report.ok, report.subjects, report.faces, report.problems) == (True, 6, 51, ())
        assert report.indexed == report.faces
    restarted.close()


def test_an_index_that_cannot_apply_a_change_is_made_anew(
    pair: tuple[Galleries, Galleries], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the process that changes and in the one that follows: a change that fails, and one that is half done then."""
    here, other = pair
    enroll(here, "ann", 1)
    assert found(other, 1) == ["ann"]
    real_add, real_remove = Index.add, Index.remove_subject
    fails = chain([True, False] * 2, repeat(False))  # the change's, but not that of building anew; in both processes

    def add(self: Index, block: FaceBlock) -> None:
        if next(fails):
            raise MemoryError("no memory for one face")
        real_add(self, block)

    def remove_subject(self: Index, subject: int) -> int:
        real_remove(self, subject)
        raise RuntimeError("half done")

    monkeypatch.setattr(Index, "add", add)
    monkeypatch.setattr(Index, "remove_subject", remove_subject)
    enroll(here, "bob", 2)
    other.indexes.follow()
    assert caplog.text.count("built again") == 2
    assert [found(process, seed) for process in pair for seed in (1, 2)] == [["ann"], ["bob"]] * 2
    assert all(check_index(process, process.store.gallery("staff")).ok for process in pair)
    changed(here, "staff", delete_subject, "ann")
    other.indexes.follow()
    assert caplog.text.count("built again") == 4
    assert [found(process, seed) for process in pair for seed in (1, 2)] == [[], ["bob"]] * 2
    assert all(check_index(process, process.store.gallery("staff")).ok for process in pair)


def test_an_index_that_is_too_far_behind_is_made_anew(
    pair: tuple[Galleries, Galleries], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("app.search.follower.FIRST_CHANGES", 2)
    monkeypatch.setattr("app.search.follower.CHANGES_AT_ONCE", 3)
    here, other = pair
    assert found(other, 1) == []
    for seed in range(10):
        enroll(here, "ann", seed)
    other.indexes.follow()
    assert (found(other, 9), messages(caplog)) == (["ann"], [])
    monkeypatch.setattr("app.search.follower.LAG_LIMIT", 5)
    here.enroll(here.store.gallery("staff"), "ann", [face(seed) for seed in range(10, 40)])
    other.indexes.follow()
    assert found(other, 39) == ["ann"]
    assert "or too far" in caplog.text
    assert check_index(other, other.store.gallery("staff")).ok


def test_few_changes_are_asked_for_at_first(pair: tuple[Galleries, Galleries], monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL expects as many as are asked for, and would read a whole table for thousands."""
    real, asked = ChangeReader.changes, list[int]()

    def changes(
        self: ChangeReader, spec: IndexSpec, since: LogPosition, limit: int, until: LogPosition | None = None
    ) -> Changes | None:
        asked.append(limit)
        return real(self, spec, since, limit, until)

    here, other = pair
    assert found(other, 1) == []
    monkeypatch.setattr(ChangeReader, "changes", changes)
    enroll(here, "ann", 1)
    assert asked == [FIRST_CHANGES]
    here.enroll(here.store.gallery("staff"), "bob", [face(seed) for seed in range(2, 2 * FIRST_CHANGES)])
    asked.clear()
    other.indexes.follow()
    assert asked == [FIRST_CHANGES, CHANGES_AT_ONCE]
    assert check_index(other, other.store.gallery("staff")).ok


class Processes(RuleBasedStateMachine):
    """Random changes through either of two processes, which follow, restart, and lose their indexes at random."""

    faces = Bundle("faces")
    url: str

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.url = self.new_database(Path(self.folder.name))
        self.snapshots = Path(self.folder.name) / "snapshots"
        self.processes = [self.start(), self.start()]
        self.seed = 0
        self.expected: dict[int, str] = {}
        self.processes[0].create_gallery("staff", PACKAGE, DIMENSION)

    def new_database(self, folder: Path) -> str:
        return f"sqlite:///{folder / 'likeness.db'}"

    def start(self) -> Galleries:
        return quiet(self.url, Snapshots(self.snapshots, min_faces=1))

    @rule(target=faces, who=st.integers(0, 1), subject=st.sampled_from(SUBJECTS))
    def enroll(self, who: int, subject: str) -> tuple[str, str, int]:
        self.seed += 1
        made = enroll(self.processes[who], subject, self.seed)
        self.expected[self.seed] = subject
        assert found(self.processes[who], self.seed) == [subject]
        return subject, made.faces[0].face_id, self.seed

    @rule(who=st.integers(0, 1), face=consumes(faces))
    def delete_face(self, who: int, face: tuple[str, str, int]) -> None:
        subject, face_id, seed = face
        if self.expected.pop(seed, None) is None:
            with pytest.raises(NotFound):
                changed(self.processes[who], "staff", delete_face, subject, face_id)
        else:
            changed(self.processes[who], "staff", delete_face, subject, face_id)
            assert found(self.processes[who], seed) == []

    @rule(who=st.integers(0, 1), subject=st.sampled_from(SUBJECTS))
    def delete_subject(self, who: int, subject: str) -> None:
        try:
            changed(self.processes[who], "staff", delete_subject, subject)
        except NotFound:
            assert subject not in self.expected.values()
        self.expected = {seed: whose for seed, whose in self.expected.items() if whose != subject}

    @rule(who=st.integers(0, 1))
    def follow(self, who: int) -> None:
        self.processes[who].indexes.follow()
        for seed, subject in self.expected.items():
            assert found(self.processes[who], seed) == [subject]

    @rule(who=st.integers(0, 1))
    def snapshot(self, who: int) -> None:
        self.processes[who].indexes.save()

    @rule(who=st.integers(0, 1))
    def restart(self, who: int) -> None:
        self.processes[who].close()
        self.processes[who] = self.start()

    @rule(who=st.integers(0, 1))
    def delete_gallery(self, who: int) -> None:
        self.processes[who].delete_gallery(self.processes[who].store.gallery("staff"))
        self.processes[1 - who].create_gallery("staff", PACKAGE, DIMENSION)
        self.expected = {}

    @invariant()
    def sql_is_the_truth(self) -> None:
        if hasattr(self, "processes"):
            counts = self.processes[0].store.counts(self.processes[0].store.gallery("staff"))
            assert counts.faces == len(self.expected)

    def teardown(self) -> None:
        if not hasattr(self, "processes"):
            return
        for galleries in self.processes:
            galleries.indexes.follow()
            report = check_index(galleries, galleries.store.gallery("staff"))
            assert report.ok, report.problems
            assert report.indexed == len(self.expected)
            galleries.close()
        self.folder.cleanup()


STATEFUL = settings(max_examples=8, stateful_step_count=25, suppress_health_check=list(HealthCheck), print_blob=True)


@pytest.mark.long
def test_two_processes_end_equal_to_sql_on_sqlite() -> None:
    run(Processes)


@pytest.mark.long
def test_two_processes_end_equal_to_sql_on_postgresql(postgresql: Path) -> None:
    class OnPostgresql(Processes):
        def new_database(self, folder: Path) -> str:  # noqa: ARG002 (the other kind needs it)
            return new_database(postgresql)

    run(OnPostgresql)


def run(machine: type[Processes]) -> None:
    from hypothesis.stateful import run_state_machine_as_test  # noqa: PLC0415 (long name, one use)

    run_state_machine_as_test(machine, settings=STATEFUL)


def test_a_gallery_changed_behind_the_log_is_told_by_check_of_either(
    pair: tuple[Galleries, Galleries], database_url: str
) -> None:
    enroll(pair[0], "ann", 1)
    assert found(pair[1], 1) == ["ann"]
    with engine_of(database_url).begin() as connection:
        connection.execute(sa.delete(FACES))
    assert [check_index(galleries, galleries.store.gallery("staff")).extra for galleries in pair] == [1, 1]
