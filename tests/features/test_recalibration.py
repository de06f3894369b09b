"""A gallery's own calibration is measured by a job, decides where it is switched on, and is kept current."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from app.concurrency.scheduler import Scheduler
from app.db.schema import CALIBRATION_PAIRS, GALLERY_CALIBRATIONS
from app.errors import NotFound
from app.features.bulk.rows import write_many
from app.features.calibration.job import KIND, CalibrationState, Calibrator
from app.features.calibration.store import Calibrations
from app.features.checks.comparing import check_index
from app.features.transfers import merge_subjects, rename_subject
from app.gallery.records import StoredFace
from app.gallery.service import Galleries
from app.gallery.store import Store
from app.gallery.subjects import delete_subject
from app.gallery.text import unnamed_id
from app.inference.embedders import Embedder, Embedders
from app.jobs.records import Job
from app.jobs.runner import Runner
from app.jobs.store import JobStore
from app.models.packages import write_manifest
from app.package.folders import Package, find_packages
from app.types import Quality, Template, Vectors
from tests.support import packages
from tests.support.changing import changed
from tests.support.following import let_expire
from tests.support.waiting import until

DIMENSION = 64
POINTS = {1e-2: 0.29, 1e-3: 0.38, 1e-4: 0.45, 1e-6: 0.58}


@pytest.fixture(scope="module")
def embedders(tmp_path_factory: pytest.TempPathFactory) -> Embedders:
    models = tmp_path_factory.mktemp("models")
    for name in ("tiny", "other"):
        made = packages.install(models, name, dimension=DIMENSION)
        points = (packages.calibration(POINTS),)
        write_manifest(made.folder, made.manifest.model_copy(update={"calibrations": points, "version": "1"}))

    def never(package: Package) -> Embedder:
        raise AssertionError(f"{package.id} is not needed: the templates are there")

    return Embedders(find_packages(models)["tiny@1"], lambda: find_packages(models), never, kept=1)


def photographed(subjects: int, faces: int, *, people: int, photos: int) -> Vectors:
    """(subjects x faces, DIMENSION) templates of people, those of the seed ``people``, in photos of another seed."""
    vectors = np.random.default_rng(people).standard_normal((subjects, DIMENSION)).repeat(faces, axis=0)
    vectors += 0.5 * np.random.default_rng([photos, 1]).standard_normal(vectors.shape)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


class Server:
    """What a server process has, without HTTP."""

    def __init__(self, url: str, embedders: Embedders, *, runs: bool = True) -> None:
        self.store = Store(url)
        self.galleries = Galleries(self.store)
        self.scheduler = Scheduler()
        self.jobs = JobStore(self.store.database)
        self.embedders = embedders
        self.audited: list[str] = []
        self.calibrations = Calibrations(self.store)
        self.calibrator = Calibrator(self.galleries, embedders, self.jobs, self.calibrations, recorded=self._recorded)
        self.runner = Runner(self.jobs, look_s=0.02, renew_s=0.1)
        if runs:
            self.runner.start({KIND: self.calibrator.work}, self.scheduler)

    @contextmanager
    def _recorded(self, gallery: str) -> Iterator[None]:
        self.audited.append(gallery)
        yield

    def close(self) -> None:
        self.runner.close()
        self.scheduler.close()
        self.galleries.close()

    def fill(self, subjects: int, *, first: int = 0, faces: int = 2, twice: bool = False) -> None:
        """Enroll random people; with ``twice`` the first one under another name, too."""
        names = [f"s{first + number}" for number in range(subjects) for _ in range(faces)]
        if twice:
            names[1] = "alias"
        self.write(names, photographed(subjects, faces, people=first, photos=first + 1))

    def unname(self, subjects: int, faces: int) -> None:
        """Enroll more photos of the people that `fill` made first, each as an unnamed subject's."""
        unnamed = [unnamed_id() for _ in range(subjects * faces)]
        self.write(unnamed, photographed(subjects, faces, people=0, photos=2))

    def write(self, subjects: Sequence[str], vectors: Vectors) -> None:
        rows = [
            StoredFace(one, Template(vector, "tiny@1"), Quality(50.0, ()))
            for one, vector in zip(subjects, vectors, strict=True)
        ]
        changed(self.galleries, "staff", write_many, "tiny@1", [], rows)

    def measured(self) -> CalibrationState:
        """Measure, and wait for the job."""
        job = self.calibrator.begin("staff").standing.job
        assert job is not None
        until(lambda: self.jobs.job(job).finished)
        done = self.jobs.job(job)
        assert done.state == "done", done.error_message
        return self.calibrator.find("staff")

    def use(self, *, allow_laxer: bool = False) -> None:
        self.galleries.update_gallery(
            self.galleries.store.gallery("staff"), calibration="gallery", allow_laxer=allow_laxer
        )

    def threshold(self, fmr: float) -> tuple[float, str, str | None]:
        """What decides now, as an identification would find it."""
        gallery = self.store.gallery("staff")
        found = self.calibrations.thresholds(gallery, self.embedders.thresholds(gallery.embedder))
        by = found.decided_by(fmr)
        return round(found.threshold(fmr), 6), by.source, by.fallback


@pytest.fixture
def server(database_url: str, embedders: Embedders) -> Iterator[Server]:
    made = Server(database_url, embedders)
    made.galleries.create_gallery("staff", "tiny@1", DIMENSION, store="none")
    yield made
    made.close()


def test_unnamed_faces_are_no_evidence_of_different_people(server: Server) -> None:
    server.fill(150)
    alone = server.measured().standing.measured
    server.unname(100, 10)
    beside = server.measured().standing.measured
    assert alone is not None
    assert beside is not None
    assert alone.calibration is not None
    assert beside.calibration is not None
    assert beside.calibration.points == alone.calibration.points
    assert (beside.figures.compared_subjects, beside.figures.subjects) == (150, 1_150)


def test_another_model_than_it_was_measured_with_is_not_decided_by_it(server: Server) -> None:
    server.fill(120)
    server.measured()
    server.use(allow_laxer=True)
    assert server.threshold(1e-3)[1] == "gallery"
    gallery = server.store.gallery("staff")
    other = server.calibrations.thresholds(gallery, server.embedders.thresholds("other@1"))
    assert other.decided_by(1e-3).fallback == "other_model"


def test_the_server_measures_by_itself_and_again_when_the_gallery_has_changed(server: Server) -> None:
    server.calibrator.begin_due()
    assert server.audited == [], "no gallery has its own switched on"
    server.use()
    server.fill(100)
    server.calibrator.begin_due()
    until(lambda: server.calibrator.find("staff").standing.measured is not None)
    assert server.audited == ["staff"]
    server.fill(15, first=100)
    server.calibrator.begin_due()
    assert server.audited == ["staff"], "30 faces of 200 are no fifth"
    assert not server.calibrator.find("staff").standing.is_due
    server.fill(15, first=200)
    assert server.calibrator.find("staff").standing.is_due
    server.calibrator.begin_due()
    until(lambda: not server.calibrator.find("staff").standing.is_due)
    assert server.audited == ["staff", "staff"]
    measured = server.calibrator.find("staff").standing.measured
    assert measured is not None
    assert measured.figures.subjects == 130


def test_whole_subjects_that_go_count_with_all_their_faces(server: Server) -> None:
    """Or a gallery that has lost half of its people goes on deciding by what was measured among them."""
    server.fill(35, faces=5)
    server.use()
    assert server.measured().standing.measured is not None
    assert server.threshold(1e-2)[1] == "gallery"
    for number in range(6):
        changed(server.galleries, "staff", delete_subject, f"s{number}")
    assert not server.calibrator.find("staff").standing.is_due, "30 faces of 175 are no fifth"
    changed(server.galleries, "staff", delete_subject, "s6")
    changed(server.galleries, "staff", delete_subject, "s7")
    assert server.calibrator.find("staff").standing.changed == 40 / 175
    server.calibrator.begin_due()
    until(lambda: server.threshold(1e-2)[2] == "too_few_subjects")
    assert not server.calibrator.find("staff").standing.is_due


def test_one_measurement_runs_at_a_time_and_a_stopped_servers_goes_on(database_url: str, embedders: Embedders) -> None:
    first = Server(database_url, embedders, runs=False)
    first.galleries.create_gallery("staff", "tiny@1", DIMENSION, store="none")
    first.fill(100)
    begun = first.calibrator.begin("staff").standing.job
    again = first.calibrator.begin("staff").standing.job
    assert begun is not None
    assert begun == again
    first.close()
    second = Server(database_url, embedders)
    until(lambda: second.jobs.job(begun).finished)
    assert second.calibrator.find("staff").standing.measured is not None
    second.close()


def test_two_servers_that_are_asked_at_once_create_one_job(
    database_url: str, embedders: Embedders, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Server(database_url, embedders, runs=False)) as one:
        one.galleries.create_gallery("staff", "tiny@1", DIMENSION, store="none")
        with closing(Server(database_url, embedders, runs=False)) as other:
            create, answers = one.jobs.create, list[CalibrationState]()

            def create_after_other(*arguments: Any, **named: Any) -> Job:
                answers.append(other.calibrator.begin("staff"))
                return create(*arguments, **named)

            monkeypatch.setattr(one.jobs, "create", create_after_other)
            answers.append(one.calibrator.begin("staff"))
            (job,) = one.jobs.jobs().items
            assert [answer.standing.job for answer in answers] == [job.id, job.id]


def test_suspicious_pairs_stand_in_nobodys_way(server: Server) -> None:
    server.fill(120, twice=True)
    ((first, second),) = [{one.first.subject, one.second.subject} for one in server.measured().pairs]
    for target in ("s7", "s8"):
        for source in {first, second, "s7"} - {target}:
            with suppress(NotFound):
                changed(server.galleries, "staff", merge_subjects, source, target)
    assert check_index(server.galleries, server.galleries.store.gallery("staff")).ok


def test_a_suspicious_pair_does_not_name_who_has_expired(server: Server, database_url: str) -> None:
    server.fill(120, twice=True)
    (pair,) = server.measured().pairs
    let_expire(database_url, pair.second.subject)
    assert server.calibrator.find("staff").pairs == []


def test_suspicious_pairs_go_with_their_subjects_and_everything_with_the_gallery(server: Server) -> None:
    server.fill(120, twice=True)
    assert len(server.measured().pairs) == 1
    changed(server.galleries, "staff", rename_subject, "alias", "s0")
    assert server.calibrator.find("staff").pairs == [], "the two are one subject now"
    server.fill(1, first=500, twice=True)
    changed(server.galleries, "staff", delete_subject, "s0")
    with server.store.database.read() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(CALIBRATION_PAIRS)).scalar() == 0
    server.galleries.delete_gallery(server.galleries.store.gallery("staff"))
    with server.store.database.read() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(GALLERY_CALIBRATIONS)).scalar() == 0
    with pytest.raises(NotFound):
        server.calibrator.find("staff")


def test_the_figures_that_are_stored_name_nobody(server: Server) -> None:
    server.fill(100, twice=True)
    server.measured()
    with server.store.database.read() as connection:
        row = connection.execute(sa.select(GALLERY_CALIBRATIONS)).one()
    assert "alias" not in row.document + row.calibration
