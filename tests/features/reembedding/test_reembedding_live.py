"""With real servers and packages: a gallery switches under load, and a killed server's re-embedding continues.

`python -m pytest tests/features/reembedding/test_reembedding_live.py --full -s` uses more people and prints figures.
"""

from __future__ import annotations

import itertools
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from likeness_client import ApiError, Client, answers

from app.features.listing import placed_faces
from app.gallery.store import Store
from tests.conftest import PROJECT
from tests.support import packages
from tests.support.live import LiveServer, serving
from tests.support.service import COLLINS, HOPPER
from tests.support.tarred import tar_of
from tests.support.waiting import until

pytestmark = pytest.mark.long

CLIENTS = 4
FEW, MANY = 12, 200
WAIT_S = 120.0


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, object]:
    """Of servers with the default packages and a small one."""
    models = tmp_path / "models"
    for name in ("yunet", "sface"):
        shutil.copytree(PROJECT / "models" / name, models / name)
    packages.install(models, "small", dimension=32)
    return {"MODELS_DIR": models, "EMBEDDER": "sface", "DATABASE_URL": f"sqlite:///{tmp_path / 'likeness.db'}"}


@pytest.fixture
def server(tmp_path: Path, settings: dict[str, object]) -> Iterator[LiveServer]:
    with serving(tmp_path / "data", settings) as found:
        yield found


def fill(client: Client, count: int) -> None:
    client.create_gallery("staff")
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(lambda number: client.enroll("staff", f"p{number}", [COLLINS]), range(count)))


def wait(client: Client, *states: str) -> answers.Reembedding:
    end = time.monotonic() + WAIT_S
    while (found := client.reembedding("staff")).state not in states and time.monotonic() < end:
        assert found.job is None or found.job.state != "failed", found
        time.sleep(0.05)
    assert found.state in states, found
    return found


def follow(clients: list[Client], package: str) -> None:
    """Waits until every server answers from it: each sees what is in SQL a moment later."""
    end = time.monotonic() + WAIT_S
    for client in clients:
        while (model := client.identify("staff", HOPPER).model.partition("@")[0]) != package:
            assert time.monotonic() < end, model


class Load:
    """Clients that identify and enroll until they are stopped, and what they saw: seconds, model, error."""

    def __init__(self, servers: list[LiveServer]) -> None:
        self.seen: list[tuple[float, float, str, str]] = []
        self._stop = threading.Event()
        self._numbers = itertools.count()
        self._threads = [
            threading.Thread(target=self._run, args=(servers[number % len(servers)], number % 2 == 0))
            for number in range(CLIENTS)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, server: LiveServer, enrolls: bool) -> None:
        with Client(server.url, server.key, retries=0) as client:
            while not self._stop.is_set():
                began = time.monotonic()
                model, error = "", ""
                try:
                    if enrolls:
                        model = client.enroll("staff", f"new{next(self._numbers)}", [HOPPER]).model
                    else:
                        answer = client.identify("staff", HOPPER)
                        model = answer.model
                        score = answer.faces[0].candidates[0].score
                        error = "" if score <= 1 else f"{score}"
                except Exception as problem:  # noqa: BLE001 - whatever it is, it is counted
                    error = repr(problem)
                now = time.monotonic()
                self.seen.append((now, now - began, model, error))

    def report(self, what: str) -> str:
        gaps = [b - a for (a, *_), (b, *_) in itertools.pairwise(sorted(self.seen))]
        slowest = max(seconds for _, seconds, _, _ in self.seen)
        failed = [error for *_, error in self.seen if error]
        return (
            f"{what}: {len(self.seen)} requests by {CLIENTS} clients, {len(failed)} failed, "
            f"longest answer {slowest * 1000:.0f} ms, longest time without any answer {max(gaps) * 1000:.0f} ms"
        )


def test_nobody_notices_a_switch_but_by_the_model_that_answers(
    tmp_path: Path, settings: dict[str, object], server: LiveServer, full: bool
) -> None:
    (tmp_path / "other").mkdir(mode=0o700)
    shutil.copy2(server.data_dir / "vault.key", tmp_path / "other")  # servers of one database share it
    with (
        serving(tmp_path / "other", settings) as other,
        Client(server.url, server.key) as client,
        Client(other.url, other.key) as elsewhere,
    ):
        fill(client, MANY if full else FEW)
        load = Load([server, other])
        steps = []
        try:
            acts: list[tuple[Callable[[], object], str, str]] = [
                (lambda: client.reembed("staff", "small"), "switched", "small"),
                (lambda: client.roll_back_reembedding("staff"), "ready", "sface"),
                (lambda: client.reembed("staff", "small"), "switched", "small"),
            ]
            for act, state, package in acts:
                act()
                wait(client, state)
                follow([client, elsewhere], package)
                steps.append(time.monotonic())
                time.sleep(1)
            client.finish_reembedding("staff")
            until(lambda: any(at - took > steps[-1] for at, took, *_ in list(load.seen)))
        finally:
            load.stop()
        print("\n" + load.report("two servers, there, back, there again, finished"))  # noqa: T201 (with -s)
        assert [error for *_, error in load.seen if error] == []
        models = {model.partition("@")[0] for _, _, model, _ in load.seen}
        assert models == {"sface", "small"}
        last = [model for at, took, model, _ in load.seen if at - took > steps[-1]]
        assert set(last) == {"small@1"}
        for one in (client, elsewhere):
            assert one.check_gallery("staff").ok
            assert one.gallery("staff").embedder == "small@1"
            assert one.identify("staff", HOPPER).faces[0].candidates[0].score > 0.99


def test_a_killed_server_goes_on_with_it(tmp_path: Path, settings: dict[str, object], full: bool) -> None:
    if not full:
        pytest.skip("a lease has to run out, and a server to start twice; pytest --full does it")
    data = tmp_path / "data"
    with serving(data, settings) as server, Client(server.url, server.key) as client:
        fill(client, MANY)
        client.reembed("staff", "small")
        while not (job := client.reembedding("staff").job) or not job.done:
            time.sleep(0.01)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    with serving(data, settings) as server, Client(server.url, server.key) as client:
        found = wait(client, "switched")
        assert client.gallery("staff").embedder == found.target == "small@1"
        assert client.check_gallery("staff").ok
        assert client.identify("staff", COLLINS).faces[0].candidates[0].score > 0.99


def test_photos_come_in_and_an_archive_goes_out_while_there_are_two_packages(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    with serving(tmp_path / "data", settings) as server, Client(server.url, server.key) as client:
        client.create_gallery("staff")
        client.enroll("staff", "eileen", [COLLINS])
        before = exported(client, tmp_path)
        client.reembed("staff", "small")
        wait(client, "switched")
        photos = tar_of({"grace/1.jpg": HOPPER, "nobody/1.jpg": b"no photo"})
        job = client.wait_job(client.import_faces("staff", photos).id, every_s=0.05)
        # The small package may take the two for one person, which is a warning.
        counts = {name: count for name, count in job.counts.items() if name != "warned"}
        assert (job.state, counts) == ("done", {"enrolled": 1, "new_subjects": 1, "refused": 1})
        for gallery, content in ((before, "archive"), (tar_of({"ids.txt": b"x"}), "templates")):
            with pytest.raises(ApiError) as refused:
                client.import_faces("staff", gallery, content=content, package="small@1")
            assert (refused.value.status, refused.value.code) == (409, "two_packages")
        after = exported(client, tmp_path)
        for switched in (True, False):
            assert client.check_gallery("staff").ok
            for photo, name in ((COLLINS, "eileen"), (HOPPER, "grace")):
                (face,) = client.identify("staff", photo).faces
                assert face.candidates[0].subject == name, switched
                assert face.candidates[0].score > 0.99
            if switched:
                client.roll_back_reembedding("staff")
        client.create_gallery("copy", embedder="small")
        job = client.wait_job(client.import_faces("copy", after, content="archive").id, every_s=0.05)
        assert (job.state, job.counts) == ("done", {"enrolled": 2, "new_subjects": 2})
        assert client.check_gallery("copy").ok
    store = Store(str(settings["DATABASE_URL"]))
    first, copy = (store.gallery(name) for name in ("staff", "copy"))
    origins = [placed_faces(store, gallery).items for gallery in (first, copy)]
    store.close()
    assert [one.origin for one in origins[0]] == [one.origin for one in origins[1]]
    assert None not in [one.origin for one in origins[0]]


def exported(client: Client, folder: Path) -> bytes:
    job = client.wait_job(client.export_gallery("staff").id, every_s=0.05)
    assert (job.state, job.error) == ("done", None)
    client.job_result(job.id, folder / "staff.tar")
    content = (folder / "staff.tar").read_bytes()
    (folder / "staff.tar").unlink()
    return content
