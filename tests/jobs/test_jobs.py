"""Jobs: each done once, by one process at a time, whatever becomes of the processes."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from app.choices import JobStateName
from app.concurrency.scheduler import Scheduler
from app.errors import DatabaseBusy, DatabaseUnavailable, NotFound, PackageMismatch
from app.features.bulk.service import UPLOADS
from app.gallery.records import Gallery
from app.gallery.store import Store
from app.jobs import files, runner
from app.jobs.files import JobFiles
from app.jobs.records import Job, Refusal, Result
from app.jobs.runner import Runner, Running, Work
from app.jobs.store import JobLost, JobStore
from tests.conftest import PROJECT
from tests.support.commands import Done, run
from tests.support.connections import begun
from tests.support.jobs import NOBODYS, waiting_job
from tests.support.live import LiveServer
from tests.support.service import error_of
from tests.support.waiting import until

LEASE = timedelta(seconds=30)
KIND = {"count"}
SOON_S = 120.0
"""How long a test waits for what must happen: two interpreters may have to be started for it."""


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    opened = Store(database_url)
    yield opened
    opened.close()


@pytest.fixture
def jobs(store: Store) -> JobStore:
    return JobStore(store.database)


@pytest.fixture
def gallery(store: Store) -> Gallery:
    return store.create_gallery("staff", "sface@1", 128)


@contextmanager
def running(jobs: JobStore, work: Work, **options: Any) -> Iterator[Runner]:
    made = Runner(jobs, look_s=0.02, renew_s=0.05, **options)
    with Scheduler() as scheduler:
        made.start({"count": work}, scheduler)
        try:
            yield made
        finally:
            made.close()


def ended(jobs: JobStore, job: Job) -> Job:
    until(lambda: jobs.job(job.id).finished, SOON_S)
    return jobs.job(job.id)


def test_a_job_is_run_and_keeps_what_it_counted(jobs: JobStore, gallery: Gallery) -> None:
    def work(job: Running) -> None:
        job.counts["seen"] += 3
        job.refuse(1, "b.jpg", "low_quality", "too dark", ["low_brightness"])
        job.progress(3, 3)
        job.checkpoint({"next": 3})

    made = jobs.create("count", gallery, {"of": "three"}, who="door")
    assert (made.state, made.gallery, made.params, made.who) == ("queued", "staff", {"of": "three"}, "door")
    with running(jobs, work) as by:
        job = ended(jobs, made)
        until(lambda: not by.running)
        assert by.ended == {("count", "done"): 1}
    assert (job.state, job.done, job.total, job.counts) == ("done", 3, 3, {"seen": 3, "refused": 1})
    assert job.saved == {"next": 3}
    assert jobs.refusals(job) == [Refusal(1, "b.jpg", "low_quality", "too dark", ("low_brightness",))]
    assert job.started_at is not None
    assert job.finished_at is not None
    assert job.created_at <= job.started_at <= job.finished_at


def test_a_job_that_fails_says_why(jobs: JobStore, gallery: Gallery) -> None:
    def refused(_: Running) -> None:
        raise PackageMismatch("not of this package")

    def broken(_: Running) -> None:
        raise ZeroDivisionError("secret words")

    for work, code in ((refused, "package_mismatch"), (broken, "internal_error")):
        with running(jobs, work):
            job = ended(jobs, jobs.create("count", gallery))
        assert (job.state, job.error_code) == ("failed", code)
        assert "secret" not in (job.error_message or "")


def test_what_passes_by_itself_is_tried_again_from_the_checkpoint(
    jobs: JobStore, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "RETRY", timedelta())
    seen = []

    def work(job: Running) -> None:
        seen.append(dict(job.saved))
        if len(seen) < 3:
            job.checkpoint({"at": len(seen)})
            raise DatabaseBusy("busy")

    with running(jobs, work):
        assert ended(jobs, jobs.create("count", gallery)).state == "done"
    assert seen == [{}, {"at": 1}, {"at": 2}]


def test_a_job_that_gets_nowhere_is_given_up(jobs: JobStore, gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "RETRY", timedelta())
    begun = []

    def work(_: Running) -> None:
        begun.append(1)
        raise DatabaseBusy("busy")

    with running(jobs, work):
        job = ended(jobs, jobs.create("count", gallery))
    assert (job.state, job.error_code, len(begun)) == ("failed", "database_busy", runner.MAX_RETRIES)


def test_all_jobs_are_handed_back_once_the_database_is_there_again(
    jobs: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "RETRY", timedelta())
    real, failures, both = jobs.release, [1, 1, 1], threading.Barrier(2)
    begun: set[str] = set()

    def release(job: Job, *, again_in: timedelta = timedelta()) -> None:
        if failures:
            failures.pop()
            raise DatabaseUnavailable("away")
        real(job, again_in=again_in)

    def work(job: Running) -> None:
        if job.job.id not in begun:
            begun.add(job.job.id)
            both.wait(SOON_S)
            raise DatabaseUnavailable("away")

    monkeypatch.setattr(jobs, "release", release)
    made = [jobs.create("count") for _ in range(2)]
    with running(jobs, work, workers=2, lease=timedelta(hours=1)):
        assert [ended(jobs, job).state for job in made] == ["done"] * 2


@pytest.mark.parametrize(("deaths", "state"), [(1, "done"), (2, "failed")])
def test_a_job_whose_process_ended_twice_is_set_aside(
    jobs: JobStore, gallery: Gallery, deaths: int, state: JobStateName
) -> None:
    made = jobs.create("count", gallery)
    for _ in range(deaths):
        assert jobs.claim("dead", KIND, -LEASE) is not None
    done: list[int] = []
    with running(jobs, lambda _: done.append(1)):
        job = ended(jobs, made)
    failed = state == "failed"
    assert (job.state, job.error_code, len(done)) == (state, "job_crashed" if failed else None, 0 if failed else 1)
    assert not failed or "memory limit" in (job.error_message or "")


def test_neither_a_checkpoint_nor_a_hand_back_counts_as_a_death(jobs: JobStore, gallery: Gallery) -> None:
    made = jobs.create("count", gallery)
    for number in range(5):
        claimed = jobs.claim("me", KIND, LEASE)
        assert claimed is not None
        if number % 2:
            jobs.save(claimed, saved={"at": number}, counts={}, done=0, total=None, refusals=[])
        jobs.release(claimed)
    assert jobs.job(made.id).attempts == 0
    for number in range(5):
        claimed = jobs.claim("dead", KIND, -LEASE)
        assert claimed is not None
        jobs.save(claimed, saved={"at": number}, counts={}, done=0, total=None, refusals=[])
    with running(jobs, lambda _: None):
        assert ended(jobs, made).state == "done"


def test_a_report_ends_where_it_would_fill_the_disk(
    jobs: JobStore, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "MAX_REPORTED", 3)

    def work(job: Running) -> None:
        for number in range(job.saved.get("next", 0), job.saved.get("next", 0) + 4):
            job.refuse(number, "x" * 10_000, "no_face", "none")
        job.checkpoint({"next": 4})

    with running(jobs, work):
        job = ended(jobs, jobs.create("count", gallery))
    assert job.counts == {"refused": 4, "not_reported": 1}
    assert [refusal.item for refusal in jobs.refusals(job)] == [0, 1, 2]


def test_a_waiting_job_is_cancelled_at_once_and_a_running_one_soon(jobs: JobStore, gallery: Gallery) -> None:
    waiting = jobs.cancel(jobs.create("count", gallery).id)
    assert (waiting.state, waiting.finished_at is not None) == ("cancelled", True)

    def work(job: Running) -> None:
        job.checkpoint({"got": "here"})
        until(lambda: job.cancelled)

    with running(jobs, work):
        made = jobs.create("count", gallery)
        until(lambda: bool(jobs.job(made.id).saved))
        assert not jobs.cancel(made.id).finished
        assert ended(jobs, made).state == "cancelled"
    assert jobs.cancel(made.id) == jobs.job(made.id), "what has ended stays as it is"


def test_a_job_that_nobody_holds_any_more_is_cancelled_at_once(jobs: JobStore, gallery: Gallery) -> None:
    """Its process was killed, and no other may run it: its folder is lost, or its feature was taken out."""
    made = jobs.create("count", gallery, place="lost", secret=b"key")
    held = jobs.claim("killed", KIND, LEASE, "lost")
    assert held is not None
    assert not jobs.cancel(made.id).finished, "its process may be alive"
    jobs.renew(held, -LEASE, 1, 2)
    cancelled = jobs.cancel(made.id)
    assert (cancelled.state, cancelled.done, jobs.secret(cancelled)) == ("cancelled", 1, None)
    with pytest.raises(JobLost):
        jobs.renew(held, LEASE, 2, 2)


def test_a_server_that_stops_hands_its_jobs_back(jobs: JobStore, gallery: Gallery) -> None:
    def waits(job: Running) -> None:
        job.checkpoint({"got": "here"})
        until(lambda: job.cancelled)

    made = jobs.create("count", gallery)
    with running(jobs, waits):
        until(lambda: bool(jobs.job(made.id).saved))
    assert jobs.job(made.id).state == "queued"
    found: list[Any] = []
    with running(jobs, lambda job: found.append(job.saved)):
        assert ended(jobs, made).state == "done"
    assert found == [{"got": "here"}]


def test_a_lease_keeps_others_away_until_it_ends(jobs: JobStore, gallery: Gallery) -> None:
    made = jobs.create("count", gallery)
    mine = jobs.claim("me", KIND, LEASE)
    assert mine is not None
    assert mine.id == made.id
    assert jobs.claim("you", KIND, LEASE) is None
    assert jobs.renew(mine, -LEASE, 1, 2) is False
    yours = jobs.claim("you", KIND, LEASE)
    assert yours is not None
    assert (yours.id, yours.done, yours.total, yours.attempts) == (made.id, 1, 2, 2)
    with pytest.raises(JobLost):
        jobs.renew(mine, LEASE, 0, None)
    with pytest.raises(JobLost):
        jobs.save(mine, saved={}, counts={}, done=0, total=None, refusals=[])
    with pytest.raises(JobLost):
        jobs.finish(mine, "done", done=0, total=None)
    jobs.finish(yours, "done", done=0, total=None)


def test_processes_that_look_at_once_take_one_job_of_a_gallery(database_url: str) -> None:
    stores = [Store(database_url) for _ in range(4)]
    ready = threading.Barrier(len(stores))
    for turn in range(8):
        gallery = stores[0].create_gallery(str(turn), "sface@1", 128)
        made = [JobStore(stores[0].database).create("count", gallery) for _ in stores]

        def look(store: Store) -> Job | None:
            ready.wait()
            return JobStore(store.database).claim("me", KIND, LEASE)

        with ThreadPoolExecutor(len(stores)) as pool:
            taken = [job for job in pool.map(look, stores) if job is not None]
        assert [job.id for job in taken] == [made[0].id]
    for store in stores:
        store.close()


def test_a_key_and_a_gallery_have_one_worker(store: Store, jobs: JobStore, gallery: Gallery) -> None:
    galleries = [store.create_gallery(str(number), "sface@1", 128) for number in range(3)]
    first, *others = [jobs.create("count", gallery, who="greedy") for gallery in galleries]
    jobs.create("count", galleries[0], who="other")
    yours = jobs.create("count", gallery, who="honest")
    nobodys = jobs.create("count", None)
    taken = [jobs.claim("me", KIND, LEASE) for _ in range(4)]
    assert [job and job.id for job in taken] == [first.id, yours.id, nobodys.id, None]
    assert taken[0]
    jobs.finish(taken[0], "done", done=0, total=None)
    following = jobs.claim("me", KIND, LEASE)
    assert following
    assert following.id == others[0].id


def test_long_work_apart_keeps_no_other_job_waiting(jobs: JobStore, gallery: Gallery) -> None:
    """Also of the key that began it, and where all workers but that one are busy."""
    over = threading.Event()

    def long(_: Running) -> None:
        over.wait(SOON_S)

    made = Runner(jobs, look_s=0.02, renew_s=0.05, workers=1)
    with Scheduler() as scheduler:
        made.start({"count": lambda _: None, "long": long}, scheduler, apart={"long"})
        try:
            first, second = (jobs.create("long", None, who="door") for _ in range(2))
            until(lambda: jobs.job(first.id).state == "running", SOON_S)
            assert ended(jobs, jobs.create("count", gallery, who="door")).state == "done"
            assert [jobs.job(job.id).state for job in (first, second)] == ["running", "queued"]
            over.set()
            assert ended(jobs, second).state == "done"
        finally:
            over.set()
            made.close()


def test_jobs_of_another_folder_or_kind_are_left_alone(jobs: JobStore, gallery: Gallery) -> None:
    here = jobs.create("count", gallery, place="here")
    assert jobs.claim("me", {"other"}, LEASE, "here") is None
    assert jobs.claim("me", KIND, LEASE, "there") is None
    assert jobs.claim("me", KIND, LEASE) is None
    found = jobs.claim("me", KIND, LEASE, "here")
    assert found is not None
    assert found.id == here.id


def test_a_job_goes_with_its_gallery_and_its_work_ends(store: Store, jobs: JobStore, gallery: Gallery) -> None:
    lost = []

    def work(job: Running) -> None:
        job.checkpoint({"got": "here"})
        until(lambda: job.cancelled)
        lost.append(job.lost)

    with running(jobs, work) as by:
        made = jobs.create("count", gallery)
        until(lambda: bool(jobs.job(made.id).saved))
        store.delete_gallery(gallery)
        until(lambda: not by.running)
    assert lost == [True]
    with pytest.raises(NotFound, match="no job"):
        jobs.job(made.id)
    with pytest.raises(NotFound) as caught:
        jobs.create("count", gallery)
    assert caught.value.code == "gallery_not_found"


def test_secrets_go_with_the_end_unless_a_result_needs_them(jobs: JobStore, gallery: Gallery) -> None:
    seen: list[bytes | None] = []

    def leaves(job: Running) -> None:
        seen.append(jobs.secret(job.job))
        job.result = Result(3, "00", "text/plain", "a.txt") if job.params["leaves"] else None

    with running(jobs, leaves):
        for leaving in (True, False):
            job = ended(jobs, jobs.create("count", gallery, {"leaves": leaving}, secret=b"k" * 32))
            assert seen.pop() == b"k" * 32
            assert jobs.secret(job) == (b"k" * 32 if leaving else None)
            assert job.result == (Result(3, "00", "text/plain", "a.txt") if leaving else None)


def test_old_jobs_go_and_their_files_with_them(jobs: JobStore, gallery: Gallery, tmp_path: Path) -> None:
    folder = JobFiles(tmp_path / "jobs")
    assert folder.place == JobFiles(tmp_path / "jobs").place

    def leaves(job: Running) -> None:
        folder.result(job.job.id).write_text("result")
        job.result = Result(6, "00", "text/plain", "a.txt")

    made = jobs.create("count", gallery)
    folder.upload(made.id).write_text("upload")
    with running(jobs, leaves, files=folder) as by:
        ended(jobs, made)
        until(lambda: not by.running)
        assert not folder.upload(made.id).exists()
        by.prune()
        assert jobs.job(made.id).result is not None
    again = Runner(jobs, files=folder, kept=timedelta())
    again.prune()
    assert folder.result(made.id).exists(), "written lately"
    with pytest.raises(NotFound):
        jobs.job(made.id)


def test_files_that_no_job_needs_are_removed_after_a_while(
    jobs: JobStore, gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = JobFiles(tmp_path / "jobs")
    needed = folder.upload(jobs.create("count", gallery).id)
    needless = (folder.upload("0" * 32), folder.result("0" * 32), folder.draft())
    for path in (needed, *needless):
        path.write_text("x")
    folder.keep_only(jobs.with_files)
    assert all(path.exists() for path in needless)
    monkeypatch.setattr(files, "DRAFT_S", -1.0)
    folder.keep_only(jobs.with_files)
    assert needed.exists()
    assert not any(path.exists() for path in needless)
    assert folder.place == JobFiles(tmp_path / "jobs").place


def test_jobs_are_listed_newest_first_page_by_page(store: Store, jobs: JobStore, gallery: Gallery) -> None:
    other = store.create_gallery("other", "sface@1", 128)
    made = [jobs.create("count", home).id for home in (gallery, other, None, gallery)]
    first = jobs.jobs(limit=3)
    rest = jobs.jobs(first.next_cursor, 3)
    assert [job.id for job in (*first.items, *rest.items)] == made[::-1]
    assert rest.next_cursor is None
    assert [job.id for job in jobs.jobs(only={"staff"}).items] == [made[3], made[0]]
    assert [job.id for job in jobs.jobs(gallery="other").items] == [made[1]]
    jobs.cancel(made[2])
    assert [job.id for job in jobs.jobs(state="cancelled").items] == [made[2]]


COUNTING = """
import sys, time
from datetime import timedelta
import sqlalchemy as sa
from app.gallery.store import Store
from app.features.bulk.service import UPLOADS
from app.concurrency.scheduler import Scheduler
from app.jobs.runner import Runner
from app.jobs.store import JobStore

store = Store(sys.argv[1])
numbers = sa.table("numbers", sa.column("number"))

def work(job):
    for number in range(job.saved.get("next", 0), job.params["until"]):
        with store.database.write() as connection:
            connection.execute(sa.insert(numbers).values(number=number))
            job.progress(number + 1, job.params["until"])
            job.counts["numbers"] += 1
            job.refuse(number, str(number), "no_face", "none")
            job.checkpoint({"next": number + 1}, connection)
        time.sleep(0.01)

runner = Runner(JobStore(store.database), lease=timedelta(seconds=0.5), renew_s=0.1, look_s=0.05)
runner.start({"count": work}, Scheduler())
time.sleep(600)
"""


@pytest.mark.long
def test_killed_processes_do_nothing_twice_and_leave_nothing_out(
    jobs: JobStore, store: Store, gallery: Gallery, database_url: str
) -> None:
    numbers = sa.table("numbers", sa.column("number"))
    with store.database.write() as connection:
        connection.execute(sa.text("CREATE TABLE numbers (number INTEGER)"))
    made = jobs.create("count", gallery, {"until": 60})

    def begin() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", COUNTING, database_url], cwd=PROJECT)

    others = [begin(), begin()]
    try:
        for far in (10, 30):
            until(lambda far=far: jobs.job(made.id).done >= far)  # type: ignore[misc]  # bound now
            for process in others:
                process.send_signal(signal.SIGKILL)
                process.wait()
            others = [begin(), begin()]
        job = ended(jobs, made)
    finally:
        for process in others:
            process.kill()
            process.wait()
    with store.database.read() as connection:
        found = list(connection.execute(sa.select(numbers.c.number)).scalars())
    assert sorted(found) == list(range(60))
    assert (job.state, job.counts) == ("done", {"numbers": 60, "refused": 60})
    assert [refusal.item for refusal in jobs.refusals(job)] == list(range(60))


def test_jobs_over_http(shared_server: LiveServer) -> None:
    with shared_server.client() as api:
        api.post("/v1/galleries", json={"id": "jobs"}).raise_for_status()
        made = waiting_job(shared_server.data_dir, "jobs")
        shown = api.get(f"/v1/jobs/{made.id}").raise_for_status().json()
        assert (shown["kind"], shown["gallery"], shown["state"]) == (NOBODYS, "jobs", "queued")
        assert [job["id"] for job in api.get("/v1/jobs?gallery=jobs&state=queued").json()["jobs"]] == [made.id]
        cancelled = api.post(f"/v1/jobs/{made.id}/cancel").raise_for_status().json()
        assert cancelled["state"] == "cancelled"
        for path in ("/v1/jobs/none", f"/v1/jobs/{'0' * 32}", "/v1/jobs/%00/report"):
            error_of(api.get(path), 404, "job_not_found")


def test_a_report_as_lines_and_as_csv(shared_server: LiveServer) -> None:
    with shared_server.client() as api:
        api.post("/v1/galleries", json={"id": "reports"}).raise_for_status()
        made = waiting_job(shared_server.data_dir, "reports")
        store = Store(f"sqlite:///{shared_server.data_dir / 'likeness.db'}")
        jobs = JobStore(store.database)
        claimed = jobs.claim("me", {NOBODYS}, LEASE)
        assert claimed is not None
        refused = [
            Refusal(0, "a,\n.jpg", "no_face", "none"),
            Refusal(7, "=1+1", "low_quality", "poor", ("a", "b"), enrolled=True),
        ]
        many = [Refusal(item, "é", "no_face", "none") for item in range(10, 2_500)]
        jobs.save(claimed, saved={}, counts={}, done=0, total=None, refusals=[*refused, *many])
        store.close()
        lines = api.get(f"/v1/jobs/{made.id}/report").raise_for_status().text.splitlines()
        assert [json.loads(line) for line in lines[:2]] == [
            {"item": 0, "name": "a,\n.jpg", "code": "no_face", "message": "none", "reasons": [], "enrolled": False},
            {
                "item": 7,
                "name": "=1+1",
                "code": "low_quality",
                "message": "poor",
                "reasons": ["a", "b"],
                "enrolled": True,
            },
        ]
        assert len(lines) == 2 + len(many)
        table = api.get(f"/v1/jobs/{made.id}/report?format=csv").raise_for_status()
        assert table.headers["content-type"].startswith("text/csv")
        assert table.text.startswith(
            'item,name,code,message,reasons,enrolled\r\n0,"a,\n.jpg",no_face,none,,false\r\n7,\'=1+1,low'
        )


def test_a_restricted_key_sees_the_jobs_of_its_galleries_alone(shared_server: LiveServer) -> None:
    with shared_server.client() as api:
        for name in ("mine", "yours"):
            api.post("/v1/galleries", json={"id": name}).raise_for_status()
        mine, yours, everybodys = (waiting_job(shared_server.data_dir, name) for name in ("mine", "yours", None))
        key = api.post("/v1/keys", json={"scopes": ["admin"], "galleries": ["mine"]}).json()["secret"]
        headers = {"x-api-key": key}
        assert [job["id"] for job in api.get("/v1/jobs", headers=headers).json()["jobs"]] == [mine.id]
        assert api.get("/v1/jobs?gallery=yours", headers=headers).json()["jobs"] == []
        for job in (yours, everybodys):
            for path in ("", "/report"):
                error_of(api.get(f"/v1/jobs/{job.id}{path}", headers=headers), 404, "job_not_found")
            error_of(api.post(f"/v1/jobs/{job.id}/cancel", headers=headers), 404, "job_not_found")
            assert api.get(f"/v1/jobs/{job.id}").json()["state"] == "queued"
        assert api.post(f"/v1/jobs/{mine.id}/cancel", headers=headers).json()["state"] == "cancelled"
        entries = api.get("/v1/audit?operation=cancel_job&gallery=mine").json()["entries"]
        assert [entry["target"] for entry in entries] == [mine.id]


def test_a_keys_uploads_have_a_quota(shared_server: LiveServer) -> None:
    with shared_server.client() as client, ExitStack() as stack:
        client.post("/v1/galleries", json={"id": "uploads"})
        key = client.post("/v1/keys", json={"scopes": ["admin"], "galleries": ["uploads"]}).json()["secret"]
        path, tar = "/v1/galleries/uploads/import?content=photos", {"content-type": "application/x-tar"}
        head = (f"POST {path} HTTP/1.1", "content-type: application/x-tar", f"x-api-key: {key}")
        folder = shared_server.data_dir / "jobs"
        before = set(folder.glob("*.draft"))
        for _ in range(UPLOADS):
            stack.enter_context(begun(shared_server, head))

        def ask() -> httpx.Response:
            return client.post(path, headers=tar | {"x-api-key": key}, content=b"x")

        until(lambda: len(set(folder.glob("*.draft")) - before) == UPLOADS)
        refused = ask()
        error_of(refused, 429, "overloaded")
        assert "uploads" in refused.text
        assert client.post(path, headers=tar, content=b"x").status_code == 202, "another key's"
        stack.close()
        until(lambda: ask().status_code == 202)


def test_restricted_keys_name_no_signers_to_trust(shared_server: LiveServer) -> None:
    with shared_server.client() as client:
        client.post("/v1/galleries", json={"id": "trusting"})
        key = client.post("/v1/keys", json={"scopes": ["admin"], "galleries": ["trusting"]}).json()["secret"]
        headers = {"content-type": "application/x-tar"}
        path = "/v1/galleries/trusting/import?content=archive&trust=AAAA"
        answer = client.post(path, headers=headers | {"x-api-key": key}, content=b"x")
        error_of(answer, 403, "gallery_restricted")
        assert client.post(path, headers=headers, content=b"x").status_code == 202


def test_jobs_on_the_command_line(shared_server: LiveServer, tmp_path: Path) -> None:
    def likeness(*words: str) -> Done:
        return run(tmp_path, "jobs", *words, "--server", shared_server.url, "--key", shared_server.key)

    made = waiting_job(shared_server.data_dir)
    assert made.id in likeness("list", "--state", "queued").stdout
    assert likeness("show", made.id, "--json").rows[0]["state"] == "queued"
    assert "cancelled" in likeness("cancel", made.id).stdout
    waited = likeness("wait", made.id)
    assert (waited.returncode, "cancelled" in waited.stdout) == (4, True)
    reported = likeness("report", made.id, "--csv")
    assert (reported.returncode, reported.stdout) == (0, "item,name,code,message,reasons,enrolled\r\n")


def test_a_deleted_folder_of_files_is_made_again(tmp_path: Path) -> None:
    files = JobFiles(tmp_path / "jobs")
    shutil.rmtree(tmp_path / "jobs")
    files.draft().write_bytes(b"an upload")
    assert JobFiles(tmp_path / "jobs").place == files.place
    shutil.rmtree(tmp_path / "jobs")
    files.keep_only(lambda: (set(), set()))
