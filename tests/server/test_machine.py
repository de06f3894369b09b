"""How the system schedules threads that compute."""

from __future__ import annotations

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.concurrency.batcher import Batcher
from app.concurrency.worker_pool import WorkerPool
from app.machine import schedule_as_batch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux schedules a thread so")


def test_only_the_thread_that_says_so_computes() -> None:
    with ThreadPoolExecutor(1, initializer=schedule_as_batch) as computing, ThreadPoolExecutor(1) as other:
        assert computing.submit(os.sched_getscheduler, 0).result() == os.SCHED_BATCH
        assert other.submit(os.sched_getscheduler, 0).result() == os.SCHED_OTHER
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_requests_and_batches_are_worked_on_by_threads_that_compute() -> None:
    workers = WorkerPool(1, 1, 10.0, bytes_limit=1)
    try:
        assert asyncio.run(workers.run(lambda: os.sched_getscheduler(0))) == os.SCHED_BATCH
    finally:
        workers.close()
    with Batcher[int, int](
        lambda items: [os.sched_getscheduler(0) for _ in items], max_batch=1, max_wait_s=0, queue_limit=1
    ) as batcher:
        assert batcher.run([0]) == [os.SCHED_BATCH]


def test_where_the_system_refuses_it_computes_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_pid: int, _policy: int, _param: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refused)
    schedule_as_batch()
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
