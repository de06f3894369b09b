"""Nobody holds what others need: slots, bodies and threads, by key and by address, and less before a key is proven."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import httpx
import pytest

from app.concurrency.admission import UNPROVEN, Admission, Shares
from app.concurrency.budget import Budget
from app.concurrency.deadline import check_deadline
from app.concurrency.worker_pool import WorkerPool
from app.errors import LikenessError, Overloaded
from tests.support.connections import begun, unsigned
from tests.support.live import LiveServer, serving
from tests.support.service import COLLINS

SLOTS = 8


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    settings = {"QUEUE_LIMIT": SLOTS, "FAILED_KEYS": "1000/s"}
    with serving(tmp_path_factory.mktemp("small") / "data", settings) as server:
        yield server


def test_bodies_without_a_valid_signature_take_no_slot(small: LiveServer) -> None:
    with small.client() as admin, ExitStack() as stack:
        made = admin.post("/v1/keys", json={"id": "camera", "scopes": ["recognize"], "aws": True})
        access_key = made.raise_for_status().json()["aws_access_key_id"]
        for _ in range(4 * SLOTS):
            stack.enter_context(begun(small, unsigned(access_key)))
        time.sleep(0.5)
        assert admin.get("/v1/galleries").status_code == 200
        assert admin.post("/v1/detect", files={"image": COLLINS}).status_code == 200
        refused = unsigned(access_key)
        with begun(small, refused) as connection:
            assert b"ThrottlingException" in connection.recv(65536), "their own pool is full"


def test_bodies_of_one_key_that_arrive_slowly_take_no_slot(small: LiveServer) -> None:
    with small.client() as admin, ExitStack() as stack:
        made = admin.post("/v1/keys", json={"id": "slow", "scopes": ["recognize"]})
        head = ("POST /v1/detect HTTP/1.1", "content-type: image/jpeg", f"x-api-key: {made.json()['secret']}")
        for _ in range(8 * SLOTS):
            stack.enter_context(begun(small, head))
        time.sleep(0.5)
        assert admin.get("/v1/galleries").status_code == 200
        assert admin.post("/v1/detect", files={"image": COLLINS}).status_code == 200


def test_bodies_that_do_not_arrive_count_as_failures_of_their_address(tmp_path: Path) -> None:
    settings = {"FAILED_KEYS": "2/m", "REQUEST_TIMEOUT": 1}
    with serving(tmp_path / "data", settings) as server, server.client() as admin:
        access_key = admin.post("/v1/keys", json={"id": "camera", "aws": True, "scopes": ["recognize"]}).json()[
            "aws_access_key_id"
        ]
        answers = []
        for _ in range(3):
            with begun(server, unsigned(access_key)) as connection:
                answers.append(connection.recv(65536))
        assert answers[0].startswith(b"HTTP/1.1 400 "), "body_timeout"
        assert answers[2].startswith(b"HTTP/1.1 500 "), "ThrottlingException, before another body is read"
        assert admin.get("/v1/galleries").status_code == 200


@pytest.mark.anyio
async def test_one_caller_leaves_slots_bytes_and_threads_for_others() -> None:
    budget = Budget(2, 1000)
    admission = Admission(budget, queue_limit=10)
    workers = WorkerPool(threads=2, seconds=30, admission=admission)
    release = threading.Event()
    waiting = anyio.Event()

    async def hold(caller: str) -> None:
        with admission.admit(caller, f"@{caller}"):
            admission.take(25)
            await workers.run(release.wait)

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(hold, "greedy")
        with anyio.fail_after(10):
            while admission.admitted < 8:
                await anyio.sleep(0.01)
        with pytest.raises(Overloaded), admission.admit("greedy", "@other"):
            pass
        with admission.admit("other", "@other"):
            admission.take(60)
            assert await workers.run(lambda: "done") == "done", "all of one caller's threads are busy"
        waiting.set()
        release.set()
    assert (admission.admitted, admission.receiving, budget.held, workers.waiting) == (0, 0, 0, 0)
    workers.close()


def test_many_keys_of_one_address_leave_places_for_others() -> None:
    places = Shares(64)
    for number in range(60):  # a network whose people share an address gets nearly all
        places.enter((f"key-{number}", "@attacker"))
    places.enter(("one-more", "@attacker"))
    with pytest.raises(Overloaded):
        places.enter(("and-another", "@attacker"))
    places.enter(("key", "@somebody"))


@pytest.mark.anyio
async def test_unproven_requests_are_few_and_leave_room_for_other_addresses() -> None:
    admission = Admission(Budget(1), queue_limit=4)
    with ExitStack() as stack:
        for _ in range(UNPROVEN * 4 // 5 + 1):
            stack.enter_context(admission.admit_unproven("@attacker"))
        with pytest.raises(Overloaded):
            stack.enter_context(admission.admit_unproven("@attacker"))
        with admission.admit_unproven("@somebody"), admission.admit("key", "@attacker"):
            pass


@pytest.mark.anyio
async def test_work_that_was_given_up_ends_at_its_next_stage() -> None:
    admission = Admission(Budget(1), queue_limit=2)
    workers = WorkerPool(threads=1, seconds=0.05, admission=admission)
    stages: list[int] = []

    def work() -> None:
        for stage in range(1000):
            check_deadline()
            stages.append(stage)
            time.sleep(0.02)

    with admission.admit("key"), pytest.raises(LikenessError, match="too long"):
        await workers.run(work)
    with anyio.fail_after(10):
        while admission.admitted:
            await anyio.sleep(0.01)
    assert len(stages) < 100
    workers.close()


def test_a_slow_upload_takes_no_slot(small: LiveServer) -> None:
    with small.client() as admin, ExitStack() as stack:
        admin.post("/v1/galleries", json={"id": "uploads"}).raise_for_status()
        head = (
            "POST /v1/galleries/uploads/import HTTP/1.1",
            "content-type: application/x-tar",
            f"x-api-key: {small.key}",
        )
        for _ in range(2 * SLOTS):
            stack.enter_context(begun(small, head))
        time.sleep(1)
        assert httpx.get(f"{small.url}/v1/galleries", headers={"x-api-key": small.key}).status_code == 200
