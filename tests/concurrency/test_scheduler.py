"""Background tasks: each at its interval, none stopped or delayed by another, and a close that returns."""

from __future__ import annotations

import threading
import time

import pytest

from app.concurrency.scheduler import Scheduler
from app.concurrency.threads import FailureLog
from app.errors import Overloaded
from tests.support.logged import logged, messages
from tests.support.waiting import until

SOON_S = 60.0


def test_tasks_run_again_and_again() -> None:
    runs: list[str] = []
    with Scheduler() as scheduler:
        scheduler.every(0.01, "often", lambda: runs.append("often"))
        scheduler.every(3600, "at once", lambda: runs.append("at once"), at_once=True)
        scheduler.every(3600, "later", lambda: runs.append("later"))
        until(lambda: runs.count("often") >= 3 and "at once" in runs)
    count = len(runs)
    time.sleep(0.05)
    assert len(runs) == count, "nothing runs after close"
    assert (runs.count("at once"), "later" in runs) == (1, False)


def test_an_error_stops_neither_its_task_nor_others(caplog: pytest.LogCaptureFixture) -> None:
    runs: list[str] = []

    def fail() -> None:
        runs.append("failing")
        if len(runs) < 4:
            raise Overloaded("The database is busy.", code="database_busy")

    with Scheduler() as scheduler:
        scheduler.every(0.01, "failing", fail)
        until(lambda: len(runs) >= 5)
    said = logged(caplog, "background failing")
    assert [record.message for record in said] == ["failing: The database is busy.", "failing: works again"]
    assert not any(record.exc_info for record in said)


def test_only_unexpected_errors_have_a_stack_trace(caplog: pytest.LogCaptureFixture) -> None:
    log = FailureLog("work")
    log.failed(OSError("no space"))
    log.failed(KeyError("a"))
    log.failed(KeyError("a"))
    log.failed(KeyError("b"))
    assert [bool(record.exc_info) for record in logged(caplog)] == [False, True, True]


def test_tasks_that_take_long_delay_no_other_and_never_run_twice_at_once() -> None:
    go_on = threading.Event()
    slow, quick = [0, 0], [0]

    def work(which: int) -> None:
        slow[which] += 1
        go_on.wait(SOON_S)

    def count() -> None:
        quick[0] += 1

    with Scheduler() as scheduler:
        scheduler.every(0.01, "slow", lambda: work(0))
        scheduler.every(0.01, "also slow", lambda: work(1))
        scheduler.every(0.01, "quick", count)
        until(lambda: slow == [1, 1])
        before = quick[0]
        until(lambda: quick[0] >= before + 5)
        assert slow == [1, 1]
        go_on.set()
        until(lambda: min(slow) > 1)


def test_close_waits_for_a_running_task_but_not_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(SOON_S)
        ended.set()

    scheduler = Scheduler()
    scheduler.every(0.001, "stuck", work)
    assert begun.wait(SOON_S)
    scheduler.close(timeout_s=0.05)
    assert not ended.is_set()
    assert messages(caplog) == ["Background tasks did not end in time: stuck"]
    go_on.set()
    scheduler.close()
    assert ended.is_set()
