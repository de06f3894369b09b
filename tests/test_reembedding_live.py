"""Real servers, real packages: a gallery switches under load, and a killed server's re-embedding goes on.

`python -m pytest tests/test_reembedding_live.py --full -s` does it with more people, and prints the figures.
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

from app.api import schemas
from app.client import Client
from tests import packages
from tests.conftest import PROJECT
from tests.live import LiveServer, serving
from tests.service import COLLINS, HOPPER

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


def wait(client: Client, *states: str) -> schemas.Reembedding:
    end = time.monotonic() + WAIT_S
    while (found := client.reembedding("staff")).state not in states and time.monotonic() < end:
        assert found.job is None or found.job.state != "failed", found
        time.sleep(0.05)
    assert found.state in states, found
    return found


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
            acts: list[tuple[Callable[[], object], str]] = [
                (lambda: client.reembed("staff", "small"), "switched"),
                (lambda: client.roll_back_reembedding("staff"), "ready"),
                (lambda: client.reembed("staff", "small"), "switched"),
            ]
            for act, state in acts:
                act()
                wait(client, state)
                steps.append(time.monotonic())
                time.sleep(1)
            client.finish_reembedding("staff")
            time.sleep(1)
        finally:
            load.stop()
        print("\n" + load.report("two servers, there, back, there again, finished"))  # noqa: T201 (with -s)
        assert [error for *_, error in load.seen if error] == []
        models = {model.partition("@")[0] for _, _, model, _ in load.seen}
        assert models == {"sface", "small"}
        last = [model for at, _, model, _ in load.seen if at > steps[-1] + 1]
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
