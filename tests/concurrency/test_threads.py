"""Turns: never more at once than there are places, first come, first served, fair between callers, none lost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from contextvars import copy_context

import pytest

from app.concurrency.admission import CALLER_SHARE, Admission
from app.concurrency.threads import NICENESS, TASK, Lanes, Task, Turns
from app.errors import LikenessError, Overloaded
from tests.conftest import PROJECT
from tests.support.tasks import working
from tests.support.waiting import until

SOON_S = 60.0


def test_there_are_never_more_at_once_and_none_is_lost() -> None:
    turns, lock = Turns(3), threading.Lock()
    now, most = 0, 0

    def work(number: int) -> None:
        nonlocal now, most
        try:
            with turns.take_turn():
                with lock:
                    now += 1
                    most = max(most, now)
                time.sleep(0)
                with lock:
                    now -= 1
                assert 7 // (number % 7)
        except ZeroDivisionError:
            pass

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(2000)))
    assert now == 0
    assert 1 <= most <= 3
    for _ in range(3):  # all of them are back: this would wait for ever
        turns.take_turn().__enter__()


def test_the_one_who_waited_longest_is_next() -> None:
    turns = Turns(1)
    order: list[int] = []

    def noted(number: int) -> None:
        with turns.take_turn():
            order.append(number)

    with ThreadPoolExecutor(5) as pool:
        with turns.take_turn():
            for number in range(5):
                pool.submit(noted, number)
                until(lambda: turns.waiting > number)  # noqa: B023 - it is waited for at once
        pool.shutdown()
    assert order == [0, 1, 2, 3, 4]


def test_it_says_how_many_are_free() -> None:
    turns = Turns(2)
    assert turns.free == 2
    with turns.take_turn():
        assert turns.free == 1
        with turns.take_turn():
            assert turns.free == 0
    assert turns.free == 2


def test_callers_take_turns() -> None:
    turns, order = Turns(1), list[str]()

    def work(caller: str) -> None:
        with working(Task(caller)), turns.take_turn():
            order.append(caller)

    with ThreadPoolExecutor(12) as pool:
        with working(Task("greedy")), turns.take_turn():
            for caller in ["greedy"] * 9 + ["other"]:
                waiting = turns.waiting
                pool.submit(work, caller)
                until(lambda: turns.waiting > waiting)  # noqa: B023 - it is waited for at once
        pool.shutdown()
    assert order[0] == "other"


def test_a_turn_is_waited_for_no_longer_than_patience_and_the_request_allow() -> None:
    turns = Turns(1)

    def entered(task: Task) -> None:
        with working(task), turns.take_turn(0.05):
            pass

    with turns.take_turn(), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(entered, Task("key", time.monotonic() + 30))
        assert isinstance(asked.exception(), Overloaded)
        late = pool.submit(entered, Task("key", time.monotonic() + 0.01)).exception()
        assert isinstance(late, LikenessError)
        assert late.code == "request_timeout"
    assert (turns.free, turns.waiting) == (1, 0)
    with turns.take_turn():
        pass


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_quick_work_waits_for_no_costly_work() -> None:
    lanes, release = Lanes(1, 1), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        costly = pool.submit(lanes.run, lambda: release.wait(SOON_S), costly=True)
        until(lambda: not lanes.costly.free)
        pool.submit(lanes.run, release.set, costly=False).result(SOON_S)
        assert costly.result(SOON_S)


def test_costly_work_is_done_at_low_priority_and_for_its_request() -> None:
    lanes, usual = Lanes(1, 1), niceness()
    low = min(usual + NICENESS, 19) if sys.platform == "linux" else usual
    assert lanes.run(niceness, costly=True) == low
    assert lanes.run(niceness, costly=False) == usual
    with working(task := Task("key", time.monotonic() + 30)):
        assert lanes.run(TASK.get, costly=True) is task


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_a_process_of_low_priority_does_costly_work_too() -> None:
    script = """
import os
from app.concurrency.threads import Lanes
os.nice(max(0, 15 - os.nice(0)))
print(Lanes(1, 1).run(lambda: os.nice(0), costly=True))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.stdout == "19\n", done.stderr


def test_one_caller_leaves_bytes_to_others() -> None:
    admission = Admission(queue_limit=100, byte_limit=300)
    with admission.admit("other"):
        with admission.admit("greedy"):
            for _ in range(23):
                admission.count_bytes(10)
            with admission.admit("greedy"):
                admission.count_bytes(10)
                with pytest.raises(Overloaded, match="bytes"):
                    admission.count_bytes(10)
                assert admission.bytes == 300 * CALLER_SHARE
            assert admission.bytes == 230
            admission.count_bytes(10)
            with pytest.raises(Overloaded, match="bytes"):
                admission.count_bytes(10)
            with admission.admit("third"):
                admission.count_bytes(60)
                with pytest.raises(Overloaded):
                    admission.count_bytes(1)
        admission.count_bytes(60)
        with admission.admit("third"):
            admission.count_bytes(240)
            assert admission.bytes == 300
    assert admission.bytes == 0


def test_all_that_requests_keep_has_at_most_so_many_bytes() -> None:
    admission, lock = Admission(queue_limit=100, byte_limit=1000), threading.Lock()
    now, most = 0, 0

    def take(size: int) -> None:
        nonlocal now, most
        try:
            admission.count_bytes(size)
        except Overloaded:
            return
        with lock:
            now += size
            most = max(most, now)
        time.sleep(0.001)

    with ThreadPoolExecutor(16) as pool:
        for begin in range(0, 300, 30):
            with ExitStack() as stack:
                visits, contexts = [], []
                for caller in range(3):
                    visits.append(stack.enter_context(admission.admit(f"key-{caller}")))
                    contexts.append(copy_context())
                wait(
                    pool.submit(contexts[number % 3].copy().run, take, 100 + number % 200)
                    for number in range(begin, begin + 30)
                )
                assert sum(visit.held for visit in visits) == now == admission.bytes
            now = 0
    assert 600 < most <= 1000
    assert admission.bytes == 0
