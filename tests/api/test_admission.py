"""Nobody holds what others need: slots, bodies and threads, by key and by address, and less before a key is proven."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import anyio
import httpx
import pytest

from app.access.grants import ADMIN_KEY_ID
from app.concurrency.admission import (
    PATIENCE_S,
    RECEIVING,
    REFUSAL_S,
    Admission,
    Shares,
    WorkerPool,
)
from app.concurrency.threads import check_deadline
from app.errors import LikenessError, Overloaded
from tests.support.connections import begun, bodies_held, opened, unsigned
from tests.support.live import ANSWER_S, LiveServer, serving
from tests.support.service import COLLINS, running_here
from tests.support.waiting import until

SLOTS = 8


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    settings = {"QUEUE_LIMIT": SLOTS, "FAILED_KEYS": "1000/s"}
    with serving(tmp_path_factory.mktemp("small") / "data", settings) as server:
        yield server


@pytest.mark.long
def test_bodies_without_a_valid_signature_take_no_slot_and_no_signers_place(small: LiveServer) -> None:
    aws = pytest.importorskip("tests.support.aws", reason="the dev extra brings boto3")
    with small.client() as admin, ExitStack() as stack:
        made = admin.post("/v1/keys", json={"id": "camera", "scopes": ["recognize"], "aws": True}).json()
        access_key = made["aws_access_key_id"]
        slow = [stack.enter_context(begun(small, unsigned(access_key))) for _ in range(300)]
        assert admin.get("/v1/galleries").status_code == 200
        assert admin.post("/v1/detect", files={"image": COLLINS}).status_code == 200
        camera = aws.client(small.url, access_key, made["aws_secret_access_key"])
        for _ in range(3):  # as a stranger from the same address, then as one that has signed before
            assert camera.detect_faces(Image={"Bytes": COLLINS})["FaceDetails"]
            slow += [stack.enter_context(begun(small, unsigned(access_key))) for _ in range(100)]
        assert b"ThrottlingException" in slow[0].recv(65536), "it gave way"


@pytest.mark.long
def test_bodies_of_one_key_that_arrive_slowly_take_no_slot(small: LiveServer) -> None:
    with small.client() as admin, ExitStack() as stack:
        made = admin.post("/v1/keys", json={"id": "slow", "scopes": ["recognize"]})
        head = ("POST /v1/detect HTTP/1.1", "content-type: image/jpeg", f"x-api-key: {made.json()['secret']}")
        for _ in range(8 * SLOTS):
            stack.enter_context(begun(small, head))
        time.sleep(0.5)
        assert admin.get("/v1/galleries").status_code == 200
        assert admin.post("/v1/detect", files={"image": COLLINS}).status_code == 200


@pytest.mark.anyio
async def test_one_caller_leaves_slots_bytes_and_threads_for_others() -> None:
    admission = Admission(queue_limit=10, byte_limit=300)
    workers = WorkerPool(threads=2, seconds=30, admission=admission)
    release = threading.Event()
    waiting = anyio.Event()

    async def hold(caller: str) -> None:
        with admission.admit(caller, f"@{caller}"):
            admission.count_bytes(25)
            await workers.run(release.wait)

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(hold, "greedy")
        with anyio.fail_after(ANSWER_S):
            while admission.admitted < 8:
                await anyio.sleep(0.01)
        with pytest.raises(Overloaded), admission.admit("greedy", "@other"):
            pass
        with admission.admit("other", "@other"):
            admission.count_bytes(60)
            assert await workers.run(lambda: "done") == "done", "all of one caller's threads are busy"
        waiting.set()
        release.set()
    assert (admission.admitted, admission.receiving, admission.bytes, workers.waiting) == (0, 0, 0, 0)
    workers.close()


def test_a_request_that_finds_no_place_for_its_body_takes_no_slot() -> None:
    admission = Admission(queue_limit=1)
    with ExitStack() as stack:
        for _ in range(RECEIVING):
            stack.enter_context(admission.admit("key"))
        with pytest.raises(Overloaded), admission.admit("other"):
            pass
        assert (admission.admitted, admission.receiving) == (0, RECEIVING)
        with pytest.raises(Overloaded), admission.admit("other", place=Shares(0)):
            pass
    assert (admission.admitted, admission.receiving) == (0, 0)


@pytest.mark.anyio
async def test_bytes_that_a_requests_thread_takes_count_until_it_ends() -> None:
    admission = Admission(queue_limit=2, byte_limit=300)
    workers = WorkerPool(threads=1, seconds=30, admission=admission)
    with admission.admit("key"):
        admission.count_bytes(100)
        await workers.run(lambda: admission.count_bytes(140))
        with pytest.raises(Overloaded, match="bytes"):
            await workers.run(lambda: admission.count_bytes(1))
        assert admission.bytes == 240
    assert admission.bytes == 0
    with pytest.raises(RuntimeError):
        await workers.run(lambda: admission.count_bytes(1))
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
async def test_work_that_was_given_up_ends_at_its_next_stage() -> None:
    admission = Admission(queue_limit=2)
    workers = WorkerPool(threads=1, seconds=0.05, admission=admission)
    stages: list[int] = []

    def work() -> None:
        for stage in range(1000):
            check_deadline()
            stages.append(stage)
            time.sleep(0.02)

    with admission.admit("key"), pytest.raises(LikenessError, match="too long"):
        await workers.run(work)
    with anyio.fail_after(ANSWER_S):
        while admission.admitted:
            await anyio.sleep(0.01)
    assert len(stages) < 100
    workers.close()


@pytest.mark.anyio
async def test_a_caller_that_is_refused_again_and_again_is_answered_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.concurrency.admission.PATIENCE_S", 0.5)
    monkeypatch.setattr("app.concurrency.admission.REFUSAL_S", 1.0)
    async with running_here(tmp_path) as (app, client):
        admission = app.state.components.admission
        admission.byte_limit = 300
        begin = time.monotonic()
        refused = await client.post("/v1/detect", content=COLLINS, headers={"content-type": "image/jpeg"})
        assert refused.status_code == 429
        assert time.monotonic() - begin >= 0.5
        assert admission._refused.keys() == {ADMIN_KEY_ID}
        await client.get("/v1/galleries", headers={"x-api-key": "lk_wrong"})
        assert admission._refused.keys() == {ADMIN_KEY_ID}, "a wrong key is no such refusal"


@pytest.mark.anyio
async def test_debts_of_refused_callers_are_bounded_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = 0.0, list[float]()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("app.concurrency.admission.MOST_REFUSED", 2)
    # Not of the modules themselves: other services' threads wait by them.
    monkeypatch.setattr("app.concurrency.admission.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr("app.concurrency.admission.asyncio", SimpleNamespace(sleep=sleep))
    admission = Admission(queue_limit=2)
    for _ in range(100):
        await admission.pause("greedy")
    assert waits[: int(PATIENCE_S / REFUSAL_S)] == pytest.approx([0.0] * int(PATIENCE_S / REFUSAL_S))
    assert waits[-1] == max(waits) == pytest.approx(PATIENCE_S)
    await admission.pause("other")
    now += 2 * PATIENCE_S
    await admission.pause("greedy")
    assert waits[-2:] == [0.0, 0.0]
    for caller in ("a", "b"):
        await admission.pause(caller)
    assert set(admission._refused) == {"a", "b"}


@pytest.mark.long
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
        key = {"x-api-key": small.key}
        assert httpx.get(f"{small.url}/v1/galleries", headers=key, timeout=ANSWER_S).status_code == 200


@pytest.mark.long
def test_a_request_in_work_is_answered_before_the_server_ends(small: LiveServer) -> None:
    """SIGTERM arrives in the middle of an upload: the last test of this server."""

    def upload() -> Iterator[bytes]:
        yield COLLINS[:1000]
        until(lambda: bodies_held(small) == 1000)
        small.process.terminate()
        until(takes_nobody)
        yield COLLINS[1000:]

    def takes_nobody() -> bool:
        try:
            opened(small).close()
        except ConnectionRefusedError:
            return True
        return False

    with small.client() as client:
        client.get("/livez")
        answer = client.post("/v1/detect", content=upload(), headers={"content-type": "image/jpeg"})
    assert len(answer.raise_for_status().json()["faces"]) == 1
    assert small.process.wait(30) == 0
