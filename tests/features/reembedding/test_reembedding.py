"""A gallery is re-embedded: it switches at once, can be rolled back, and misses no change in between."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from PIL import Image

from app.choices import JobStateName
from app.concurrency.scheduler import Scheduler
from app.db.encryption import Sealer, new_key
from app.db.engine import Database, again_if_overtaken
from app.db.schema import CROPS, FACES, GALLERIES, REEMBEDDINGS, SECOND_TEMPLATES
from app.db.sealed_columns import Blobs
from app.errors import Conflict, LikenessError, NotFound, PackageUnavailable
from app.features.bulk.rows import write_many
from app.features.checks.comparing import check_index
from app.features.milvus.indexes import MilvusBackend
from app.features.reembedding.job import KIND, Reembedder
from app.features.reembedding.steps import Reembedding, Reembeddings
from app.features.transfers import Move, move_faces
from app.features.vault.reseal import reseal
from app.gallery.records import Gallery, StoredFace, encode_crop
from app.gallery.service import Galleries
from app.gallery.store import Store
from app.gallery.subjects import create_subject, delete_face, delete_subject
from app.inference.embedders import Embedder, Embedders
from app.jobs.records import Job
from app.jobs.runner import Runner
from app.jobs.store import JobStore
from app.models.opening import open_embedder
from app.package.folders import Package, find_packages
from app.package.thresholds import fuse_templates
from app.search.follower import LocalBackend
from app.search.snapshots import Snapshots
from app.types import Box, Pixels, Quality, Template
from tests.conftest import later_on_postgresql
from tests.support import packages
from tests.support.changing import changed, written
from tests.support.milvus import lite
from tests.support.postgres import new_database
from tests.support.waiting import until

OLD, NEW = "old@1", "new@1"
OLD_DIMENSION, NEW_DIMENSION = 8, 12
WAIT_S = 60.0
BATCH = 8
"""Faces that are embedded at once here."""
TERMS: dict[str, Any] = {"without_crop": "refuse", "keep_days": 7.0}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.features.reembedding.job.BATCH", BATCH)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    packages.install(folder, "old", dimension=OLD_DIMENSION, seed=1)
    packages.install(folder, "new", dimension=NEW_DIMENSION, seed=2)
    return folder


@pytest.fixture(scope="module")
def embedders(models: Path) -> Iterator[Embedders]:
    with closing(embedders_of(models, OLD)) as made:
        yield made


def embedders_of(models: Path, default: str) -> Embedders:
    """Open the embedders of the packages in the folder."""

    def open_one(package: Package) -> Embedder:
        return Embedder(open_embedder(package, models, "cpu"), workers=1)

    return Embedders(find_packages(models)[default], lambda: find_packages(models), open_one, kept=4)


class Server:
    """What a server process has, without HTTP."""

    def __init__(
        self,
        url: str,
        embedders: Embedders,
        *,
        blobs: Blobs | None = None,
        runs: bool = True,
        milvus: Path | None = None,
        snapshots: Path | None = None,
    ) -> None:
        self.store = Store(url, blobs=blobs)
        reader = self.store.change_reader
        kept = Snapshots(snapshots, min_faces=1) if snapshots else None
        remote = MilvusBackend(reader, self.store.database, lite(milvus)) if milvus else None
        self.galleries = Galleries(self.store, remote or LocalBackend(reader, kept))
        self.scheduler = Scheduler()
        self.galleries.start(self.scheduler, follow_s=0.05)
        self.embedders = embedders
        self.reembeddings = Reembeddings(self.store)
        self.jobs = JobStore(self.store.database)
        self.reembedder = Reembedder(self.galleries, self.reembeddings, embedders, self.jobs)
        self.runner = Runner(self.jobs, look_s=0.05, renew_s=0.1)
        if runs:
            self.runner.start({KIND: self.reembedder.work}, self.scheduler)

    @property
    def staff(self) -> Gallery:
        """The gallery as it is now."""
        return self.store.gallery("staff")

    def close(self) -> None:
        self.runner.close()
        self.scheduler.close()
        self.galleries.close()

    def template(self, number: int, package: str) -> Template:
        with self.embedders.use(package) as used:
            (template,), _ = used.embedder.embed([crop(number)])
        return template

    def new(self, number: int, *taken: str, keep_crop: bool = True) -> StoredFace:
        own, *others = (self.template(number, package) for package in taken or self.staff.packages)
        face = StoredFace("", own, Quality(50, ()), Box(0, 0, 9, 9), encode_crop(crop(number)))
        face = replace(face, second=others[0]) if others else face
        return face if keep_crop else replace(face, crop=None)

    def enroll(self, *numbers: int, keep_crop: bool = True) -> None:
        for number in numbers:
            self.galleries.enroll(
                self.galleries.store.gallery("staff"), f"s{number}", [self.new(number, keep_crop=keep_crop)]
            )

    def found(self, number: int, package: str | None = None) -> tuple[str, float] | None:
        probe = self.template(number, package or self.galleries.probed_by(self.staff))
        (candidates,) = self.galleries.open_search(self.galleries.store.gallery("staff"), probe.package).search(
            [probe], 1
        )
        return (candidates[0].subject, candidates[0].score) if candidates else None

    def answers_by(self, package: str) -> bool:
        return self.galleries.probed_by(self.staff) == package

    def is_fused(self, subject: str, number: int) -> bool:
        """Whether the subject is answered by the mean of its faces' templates, as the database has them."""
        gallery = self.staff
        probe = self.template(number, self.galleries.probed_by(gallery))
        own = [face.template.vector for face in self.store.faces(gallery, subject).items]
        vector, length = fuse_templates(np.stack(own))
        expected = (len(own), float(vector @ probe.vector), length)
        found = [
            one
            for one in self.galleries.open_search(gallery, probe.package).search([probe], 9)[0]
            if one.subject == subject
        ]
        return any(np.allclose((one.faces, one.template_score, one.length), expected, atol=1e-5) for one in found)

    def finds(self, *numbers: int) -> bool:
        """Each as itself; a crop that went through JPEG is not quite what it was."""
        found = {number: self.found(number) for number in numbers}
        return all(one is not None and one[0] == f"s{number}" and one[1] > 0.99 for number, one in found.items())

    def follows_move(self, number: int, subject: str) -> None:
        """What another server has changed is followed a moment later."""
        until(lambda: (self.found(number) or ("",))[0] == subject)

    def ended(self, state: JobStateName = "done") -> Job:
        """The re-embedding's job once it has ended."""
        job_id = self.reembedder.find("staff").job
        assert job_id is not None
        until(lambda: self.jobs.job(job_id).finished)
        job = self.jobs.job(job_id)
        assert job.state == state, job
        return job

    def over(self) -> None:
        """Once nothing is left of it but the gallery's package."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            try:
                self.reembedder.find("staff")
            except NotFound:
                break
            time.sleep(0.01)
        with self.store.database.read() as connection:
            assert connection.execute(sa.select(sa.func.count()).select_from(SECOND_TEMPLATES)).scalar_one() == 0
            found = set(connection.execute(sa.select(FACES.c.package)).scalars())
        assert found == {self.staff.embedder}
        assert self.staff.packages == (self.galleries.probed_by(self.staff),)

    def move(self, target: str = "new", **terms: Any) -> Job:
        self.reembedder.begin("staff", target, **terms)
        return self.ended()

    def finish(self) -> Job:
        self.reembedder.finish("staff")
        job = self.ended()
        self.over()
        return job

    def cancel(self) -> None:
        self.reembedder.cancel("staff")
        self.ended()
        self.over()


def crop(number: int) -> Pixels:
    """(112, 112, 3) stripes of colours, each number's own."""
    colours = np.random.default_rng(number).integers(0, 256, (16, 1, 3), np.uint8)
    return np.ascontiguousarray(np.broadcast_to(colours.repeat(7, axis=0), (112, 112, 3)))


MILVUS = pytest.param("milvus", marks=pytest.mark.long)
"""The steps are the same there; that Milvus answers as FAISS does is tried in tests/features/milvus."""
on_faiss = pytest.mark.parametrize("server", ["faiss"], indirect=True)
"""For steps that other tests take with Milvus, too."""


@pytest.fixture(params=["faiss", MILVUS])
def server(tmp_path: Path, embedders: Embedders, request: pytest.FixtureRequest) -> Iterator[Server]:
    milvus = tmp_path if request.param == "milvus" else None
    with serving(f"sqlite:///{tmp_path / 'likeness.db'}", embedders, milvus=milvus) as made:
        yield made


@contextmanager
def serving(url: str, embedders: Embedders, **options: object) -> Iterator[Server]:
    server = Server(url, embedders, **options)  # type: ignore[arg-type]
    try:
        if not [one for one in server.galleries.store.galleries().items if one.id == "staff"]:
            server.galleries.create_gallery("staff", OLD, OLD_DIMENSION)
        yield server
    finally:
        server.close()


@pytest.fixture
def two_servers(database_url: str, embedders: Embedders) -> Iterator[tuple[Server, Server]]:
    with serving(database_url, embedders) as one, serving(database_url, embedders, runs=False) as other:
        yield one, other


@later_on_postgresql
def test_every_face_is_embedded_again_then_the_gallery_switches_everywhere(two_servers: tuple[Server, Server]) -> None:
    one, other = two_servers
    numbers = range(BATCH + 5)
    one.enroll(*numbers)
    assert other.finds(0)
    one.move()
    assert one.reembedder.find("staff").state == "switched"
    for server in two_servers:
        assert server.staff.embedder == NEW
        assert server.finds(*numbers[::7])
        server.enroll(1000 + id(server) % 100)
        assert check_index(server.galleries, server.galleries.store.gallery("staff")).ok
    until(lambda: other.answers_by(NEW))
    (face,) = other.galleries.store.faces(other.staff, "s3").items
    expected = other.template(3, NEW).vector
    assert (face.template.package, len(face.template.vector)) == (NEW, NEW_DIMENSION)
    assert float(face.template.vector @ expected) > 0.99
    job = one.ended()
    assert (job.done, job.total, job.counts) == (len(numbers), len(numbers), {"embedded": len(numbers)})


@later_on_postgresql
def test_what_changes_after_the_switch_is_so_after_a_rollback_too(two_servers: tuple[Server, Server]) -> None:
    one, other = two_servers
    one.enroll(1, 2, 3, 4)
    one.move()
    other.enroll(5)
    changed(one.galleries, "staff", delete_subject, "s1")
    (face,) = other.galleries.store.faces(other.staff, "s2").items
    written(one.galleries.store, one.staff, create_subject, "s6")
    changed(other.galleries, "staff", move_faces, [Move(face.face_id, "s2", "s6")])
    for package in (NEW, OLD):
        for server in two_servers:
            assert server.staff.embedder == package
            assert server.finds(3, 4), package
            server.follows_move(2, "s6")
            assert server.finds(5), package
            gone = server.found(1)
            assert gone is not None
            assert gone[0] != "s1"
            assert check_index(server.galleries, server.galleries.store.gallery("staff")).ok
        if package == NEW:
            state = one.reembedder.rollback("staff")
            assert (state.state, state.keep_until) == ("ready", None)


@later_on_postgresql
@pytest.mark.parametrize("index", ["faiss", MILVUS])
def test_several_faces_are_one_template_of_the_package_that_answers(
    database_url: str, embedders: Embedders, tmp_path: Path, index: str
) -> None:
    """On both servers, while the gallery is moved, moved back and moved again, and a face comes and another goes."""
    options: dict[str, Any] = {"milvus": tmp_path} if index == "milvus" else {}
    with (
        serving(database_url, embedders, **options) as one,
        serving(database_url, embedders, runs=False, **options) as other,
    ):
        one.enroll(2, 3)
        one.galleries.enroll(one.staff, "s1", [one.new(number) for number in (1, 11, 12)])
        for step, package in (
            (one.move, NEW),
            (lambda: one.reembedder.rollback("staff"), OLD),
            (lambda: other.galleries.enroll(other.staff, "s1", [other.new(13)]), OLD),
            (lambda: one.reembedder.begin("staff", "new", **TERMS), NEW),
            (lambda: changed(one.galleries, "staff", delete_face, "s1", first_face(other)), NEW),
            (one.finish, NEW),
        ):
            until(lambda: one.is_fused("s1", 1) and other.is_fused("s1", 1))
            step()
            for server in (one, other):
                until(partial(server.answers_by, package))
        until(lambda: one.is_fused("s1", 1) and other.is_fused("s1", 1))
        for server in (one, other):
            assert check_index(server.galleries, server.staff).ok


def first_face(server: Server) -> str:
    return server.store.faces(server.staff, "s1").items[0].face_id


@later_on_postgresql
@pytest.mark.parametrize("step", ["begin", "cancel"])
def test_two_servers_that_are_asked_at_once_create_one_job(
    database_url: str, embedders: Embedders, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        serving(database_url, embedders, runs=False) as one,
        serving(database_url, embedders, runs=False) as other,
    ):
        one.enroll(1)
        if step == "cancel":
            one.reembedder.begin("staff", "new")
        create, answers = one.jobs.create, list[Reembedding]()
        given = ("staff", "new") if step == "begin" else ("staff",)
        before = {job.id for job in one.jobs.jobs().items}

        def create_after_other(*arguments: Any, **named: Any) -> Job:
            answers.append(getattr(other.reembedder, step)(*given))
            return create(*arguments, **named)

        monkeypatch.setattr(one.jobs, "create", create_after_other)
        answers.append(getattr(one.reembedder, step)(*given))
        created = {job.id for job in one.jobs.jobs().items} - before
        assert created == {answer.job for answer in answers}
        assert len(created) == 1


def test_new_faces_get_both_templates_and_no_others(server: Server) -> None:
    server.enroll(1)
    gallery = server.staff
    server.reembeddings.begin(gallery, NEW, NEW_DIMENSION, without_crop="refuse", keep_days=1)
    assert server.staff.packages == (OLD, NEW)
    with pytest.raises(Conflict) as caught:
        server.galleries.enroll(server.galleries.store.gallery("staff"), "s2", [server.new(2, OLD)])
    assert (caught.value.code, caught.value.details["expected"]) == ("package_mismatch", [OLD, NEW])
    server.enroll(2)
    assert server.reembeddings.left(gallery, NEW) == 1, "only the face that was there before"
    assert server.answers_by(OLD)
    with pytest.raises(Conflict):
        server.found(2, NEW)
    server.cancel()
    server.galleries.enroll(
        server.galleries.store.gallery("staff"), "s3", [server.new(3, OLD, NEW)]
    )  # who embedded before it was over
    server.over()
    assert server.finds(1, 2, 3)


@on_faiss
def test_photos_that_are_imported_when_a_move_begins_are_embedded_once_more(server: Server) -> None:
    gallery = server.staff
    tried: list[int] = []

    def write() -> None:
        face = server.new(1)
        if not tried:
            server.reembeddings.begin(gallery, NEW, NEW_DIMENSION, without_crop="refuse", keep_days=1)
        tried.append(len(server.staff.packages))
        changed(server.galleries, "staff", write_many, face.template.package, [], [replace(face, subject="s1")])

    again_if_overtaken(write)
    assert tried == [2, 2]
    assert server.reembeddings.left(gallery, NEW) == 0
    assert server.finds(1)


def test_after_the_end_the_gallery_can_move_again(server: Server) -> None:
    server.enroll(1, 2)
    for target, package in (("new", NEW), ("old", OLD)):
        server.move(target)
        server.enroll(3 if package == NEW else 4)
        faces = server.galleries.store.counts(server.staff).faces
        job = server.finish()
        assert (job.done, job.total) == (faces, faces)
        assert server.staff.embedder == package
        assert server.finds(1, 2, 3)
    with pytest.raises(Conflict) as caught:
        server.reembedder.begin("staff", "old")
    assert caught.value.code == "package_unchanged"


def test_faces_without_crop_are_refused_or_left_behind_until_the_end(server: Server) -> None:
    server.enroll(1, 2)
    server.enroll(3, keep_crop=False)
    with pytest.raises(Conflict) as caught:
        server.reembedder.begin("staff", "new")
    assert caught.value.code == "crops_missing"
    assert caught.value.details == {"faces": 3, "without_crop": 1}
    with pytest.raises(NotFound):
        server.reembedder.find("staff")
    assert server.move(without_crop="drop").counts == {"embedded": 2, "without_crop": 1}
    state = server.reembedder.find("staff")
    assert (state.state, state.missing) == ("switched", 1)
    lost = server.found(3)
    assert lost is not None
    assert lost[0] != "s3"
    assert server.galleries.store.counts(server.staff).faces == 3
    assert check_index(server.galleries, server.galleries.store.gallery("staff")).ok
    server.reembedder.rollback("staff")
    assert server.finds(1, 2, 3)
    server.move(without_crop="drop")
    assert server.finish().counts == {"dropped": 1}
    assert server.galleries.store.counts(server.staff).faces == 2
    assert server.galleries.store.subject(server.staff, "s3").face_count == 0


@pytest.mark.parametrize("kind", ["snapshots", MILVUS])
def test_what_was_derived_from_templates_that_were_removed_is_not_used_again(
    tmp_path: Path, embedders: Embedders, kind: str
) -> None:
    (tmp_path / "derived").mkdir(mode=0o700)

    def served() -> AbstractContextManager[Server]:
        return serving(f"sqlite:///{tmp_path / 'likeness.db'}", embedders, **{kind: tmp_path / "derived"})

    with served() as server:
        server.enroll(1, 2)
        server.reembeddings.begin(server.staff, NEW, NEW_DIMENSION, **TERMS)
        server.enroll(3, keep_crop=False)  # one template of each package, and nothing to make either from again
        server.move()
        assert server.finds(1, 2, 3)
    with served() as server:  # its end, above, left what was derived of the new package's templates
        server.reembedder.rollback("staff")
        server.cancel()
    with served() as server:
        server.move(without_crop="drop")
        assert server.staff.embedder == NEW
        assert server.finds(1, 2)
        assert not server.finds(3)
        assert check_index(server.galleries, server.galleries.store.gallery("staff")).ok


def test_after_a_rollback_the_snapshot_is_of_the_package_that_answers(tmp_path: Path, embedders: Embedders) -> None:
    url, folder = f"sqlite:///{tmp_path / 'likeness.db'}", tmp_path / "snapshots"
    with serving(url, embedders, snapshots=folder) as server:
        server.enroll(1, 2)
        server.galleries.indexes.save()
        server.move()
        server.galleries.indexes.save()
        server.reembedder.rollback("staff")
        server.galleries.indexes.save()
    with closing(Snapshots(folder, min_faces=1)) as kept, closing(Store(url)) as store:
        gallery = store.gallery("staff")
        found = kept.open(gallery.index_spec)
        assert found is not None
        assert found.faces.vectors.shape == (2, OLD_DIMENSION)
        assert kept.open(gallery.view(NEW).index_spec) is None


def test_after_a_restart_a_rollback_waits_for_the_index_that_answers(tmp_path: Path, embedders: Embedders) -> None:
    url = f"sqlite:///{tmp_path / 'likeness.db'}"
    with serving(url, embedders) as server:
        server.enroll(1, 2)
        server.move()
    with serving(url, embedders, runs=False) as server:
        server.scheduler.close()
        server.galleries.indexes.load()
        server.reembedder.rollback("staff")
        assert server.answers_by(OLD)


def test_there_is_no_way_back_to_a_package_that_is_gone(tmp_path: Path, embedders: Embedders) -> None:
    """The gallery answered `package_unavailable` from then on."""
    url = f"sqlite:///{tmp_path / 'likeness.db'}"
    with serving(url, embedders) as server:
        server.enroll(1)
        server.move()
    packages.install(tmp_path / "models", "new", dimension=NEW_DIMENSION, seed=2)
    with closing(embedders_of(tmp_path / "models", NEW)) as without_old, serving(url, without_old) as server:
        with pytest.raises(PackageUnavailable):
            server.reembedder.rollback("staff")
        assert server.staff.embedder == NEW
        assert server.finds(1)
        server.reembedder.finish("staff")
        server.ended()
        server.enroll(2)


@on_faiss
def test_a_damaged_crop_counts_as_none(server: Server) -> None:
    server.enroll(1, 2, 3)
    small = io.BytesIO()
    Image.new("RGB", (5, 5)).save(small, "JPEG")
    with server.store.database.write() as connection:
        keys = list(connection.execute(sa.select(CROPS.c.face_key).order_by(CROPS.c.face_key)).scalars())
        for key, jpeg in ((keys[0], b"\xff\xd8damaged"), (keys[1], small.getvalue())):
            connection.execute(sa.update(CROPS).where(CROPS.c.face_key == key).values(jpeg=jpeg))
    server.reembedder.begin("staff", "new")
    job = server.ended("failed")
    assert (job.error_code, job.counts) == ("crops_missing", {"embedded": 1, "unreadable": 2, "refused": 2})
    assert server.finds(1, 2, 3)
    assert server.reembedder.find("staff").state == "embedding"
    assert server.move(without_crop="drop").counts["unreadable"] == 2
    assert server.reembedder.find("staff").missing == 2
    assert server.finds(3)


@on_faiss
def test_only_one_move_at_a_time_and_only_the_steps_that_fit(server: Server, models: Path) -> None:
    server.enroll(1)
    steps: list[Callable[[str], Reembedding]] = [
        server.reembedder.find,
        server.reembedder.rollback,
        server.reembedder.finish,
        server.reembedder.cancel,
    ]
    for step in steps:
        with pytest.raises(NotFound) as missing:
            step("staff")
        assert missing.value.code == "reembedding_not_found"
    server.move()
    packages.install(models, "third", dimension=4, seed=3)
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: server.reembedder.begin("staff", "third"), "reembedding_exists"),
        (lambda: server.reembedder.begin("staff", "new"), "reembedding_exists"),
        (lambda: server.reembedder.cancel("staff"), "reembedding_switched"),
    ]
    for act, code in refused:
        with pytest.raises(Conflict) as caught:
            act()
        assert caught.value.code == code
    server.reembedder.rollback("staff")
    with pytest.raises(Conflict) as caught:
        server.reembedder.finish("staff")
    assert caught.value.code == "reembedding_not_switched"
    server.cancel()
    assert server.staff.embedder == OLD
    assert server.finds(1)


@on_faiss
def test_the_way_back_closes_by_itself(server: Server) -> None:
    server.enroll(1)
    server.move(keep_days=1)
    server.reembedder.finish_due()
    assert server.reembedder.find("staff").state == "switched", "a day is not over"
    server.reembedder.rollback("staff")
    server.move(keep_days=0)
    server.reembedder.finish_due()
    server.over()
    assert server.finds(1)


@on_faiss
def test_a_job_that_was_stopped_goes_on_where_it_was(server: Server) -> None:
    numbers = range(3 * BATCH)
    server.enroll(*numbers)
    gallery = server.staff
    server.reembeddings.begin(gallery, NEW, NEW_DIMENSION, without_crop="refuse", keep_days=1)
    first = server.reembeddings.crops(gallery, NEW, 0, BATCH)
    server.reembeddings.add(gallery, [(face, server.template(0, NEW)) for face in first])  # and then it was killed
    changed(server.galleries, "staff", delete_subject, f"s{BATCH + 2}")
    server.reembedder.begin("staff", "new")
    job = server.ended()
    assert job.counts == {"embedded": 2 * BATCH - 1}
    assert server.staff.embedder == NEW
    assert server.finds(BATCH, 2 * BATCH, 3 * BATCH - 1)


def test_what_moves_and_goes_while_it_is_embedded_is_not_lost(server: Server) -> None:
    """Faces that move get new keys, behind the one that the job has come to."""
    numbers = range(6 * BATCH)
    server.enroll(*numbers)
    written(server.galleries.store, server.staff, create_subject, "s1000")
    stop = threading.Event()
    trouble: list[LikenessError] = []

    def disturb() -> None:
        for number in numbers:
            if stop.is_set():
                return
            try:
                (face,) = server.galleries.store.faces(server.staff, f"s{number}").items
                if number % 2:
                    changed(server.galleries, "staff", move_faces, [Move(face.face_id, f"s{number}", "s1000")])
                else:
                    changed(server.galleries, "staff", delete_face, f"s{number}", face.face_id)
            except LikenessError as error:
                trouble.append(error)

    thread = threading.Thread(target=disturb)
    thread.start()
    server.move()
    stop.set()
    thread.join()
    assert trouble == []
    assert check_index(server.galleries, server.galleries.store.gallery("staff")).ok
    assert server.reembedder.find("staff").missing == 0
    server.finish()
    counts = server.galleries.store.counts(server.staff)
    assert check_index(server.galleries, server.galleries.store.gallery("staff")).indexed == counts.faces


def test_an_enrollment_that_waited_for_the_beginning_of_a_move_knows_of_it(
    postgresql: Path, first_postgresql: str, embedders: Embedders
) -> None:
    """Its statement began before the other transaction ended."""
    url = new_database(postgresql, f"TEMPLATE {first_postgresql}")
    with serving(url, embedders) as server, ThreadPoolExecutor(1) as pool:
        gallery, face = server.staff, server.new(1)
        database = server.store.database
        with database.write() as connection:
            connection.execute(sa.select(GALLERIES.c.key).where(GALLERIES.c.key == gallery.key).with_for_update())
            move = {"gallery_key": gallery.key, "source": OLD, "source_dimension": OLD_DIMENSION, "target": NEW}
            move |= {"target_dimension": NEW_DIMENSION, "state": "embedding", "without_crop": "refuse", "keep_days": 1}
            connection.execute(sa.insert(REEMBEDDINGS).values(move | {"started_at": "2026-01-01T00:00:00Z"}))
            enrolled = pool.submit(server.galleries.enroll, gallery, "s1", [face])
            while not enrolled.done() and not _somebody_waits(database):
                time.sleep(0.01)
        with pytest.raises(Conflict) as refused:
            enrolled.result(WAIT_S)
        assert refused.value.code == "package_mismatch"
        server.enroll(1)


def _somebody_waits(database: Database) -> bool:
    with database.read() as connection:
        return bool(connection.exec_driver_sql("SELECT count(*) FROM pg_locks WHERE NOT granted").scalar())


def test_second_templates_are_sealed_too(tmp_path: Path, embedders: Embedders) -> None:
    keys = [new_key(), new_key()]
    url = f"sqlite:///{tmp_path / 'likeness.db'}"
    with serving(url, embedders, blobs=Blobs(Sealer(keys[:1]))) as server:
        server.enroll(1)
        server.move()
        server.enroll(2)
        plain = [server.template(number, package).vector.tobytes() for number in (1, 2) for package in (OLD, NEW)]
        with server.store.database.read() as connection:
            stored = [bytes(one) for one in connection.execute(sa.select(SECOND_TEMPLATES.c.template)).scalars()]
        assert len(stored) == 2
        assert not any(one in stored for one in plain)
        assert list(reseal(server.store.database, Blobs(Sealer(keys[::-1]))))
    with serving(url, embedders, blobs=Blobs(Sealer(keys[1:]))) as server:
        assert server.finds(1, 2)
        server.reembedder.rollback("staff")
        assert server.finds(1, 2)
        server.move()
        server.finish()
        assert server.finds(1, 2)


@later_on_postgresql
def test_what_still_clears_when_another_has_ended_touches_no_new_beginning(
    database_url: str, embedders: Embedders
) -> None:
    server = Server(database_url, embedders, runs=False)
    server.galleries.create_gallery("staff", OLD, OLD_DIMENSION)
    server.enroll(1, 2)
    staff, steps = server.store.gallery("staff"), server.reembeddings

    def begin() -> None:
        steps.begin(staff, NEW, NEW_DIMENSION, without_crop="refuse", keep_days=1)
        crops = steps.crops(staff, NEW, 0, 10)
        steps.add(staff, [(one, server.template(number, NEW)) for number, one in enumerate(crops, 1)])

    begin()
    steps.cancel(staff)
    first = steps.clear(staff, 0, 10)[0]
    assert steps.clear(staff, first[-1], 10) == ([], [])
    assert steps.forget(staff)
    begin()
    assert steps.clear(staff, 0, 10) == ([], []), "the second job, still at it"
    assert steps.forget(staff)
    assert steps.complete(staff, 0).missing == 0
    server.close()
