"""Budget: never more cores and bytes than there are, first come, first served, none lost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from app.concurrency.admission import (
    COSTLY_PARSE,
    COSTLY_PIXELS,
    KEPT_SHARE,
    LARGE_PIXELS,
    NICENESS,
    Budget,
    Task,
    _Waiter,
    working,
)
from app.errors import LikenessError, Overloaded
from tests.conftest import PROJECT
from tests.support.waiting import until

SOON_S = 20


def test_there_are_never_more_at_once_and_none_is_lost() -> None:
    turns, lock = Budget(3), threading.Lock()
    now, most = 0, 0

    def work(number: int) -> None:
        nonlocal now, most
        try:
            with turns.hold():
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
        turns.hold().__enter__()


def test_the_one_who_waited_longest_is_next() -> None:
    turns = Budget(1)
    order: list[int] = []
    with ThreadPoolExecutor(5) as pool:
        with turns.hold():
            for number in range(5):
                pool.submit(_noted, turns, order, number)
                until(lambda: len(turns._waiting) > number)  # noqa: B023 - it is waited for at once
        pool.shutdown()
    assert order == [0, 1, 2, 3, 4]


def _noted(turns: Budget, order: list[int], number: int) -> None:
    with turns.hold():
        order.append(number)


def test_it_says_how_many_are_free() -> None:
    turns = Budget(2)
    assert turns.free == 2
    with turns.hold():
        assert turns.free == 1
        with turns.hold():
            assert turns.free == 0
    assert turns.free == 2


def test_all_that_requests_hold_has_at_most_so_many_bytes() -> None:
    budget, lock = Budget(8, 1000), threading.Lock()
    now, most = 0, 0

    def count(size: int) -> None:
        nonlocal now, most
        with lock:
            now += size
            most = max(most, now)

    def work(number: int) -> None:
        body, photo, caller = number % 50, 300 + number % 400, f"key-{number % 3}"
        try:
            budget.keep(caller, body)
        except Overloaded:
            return
        count(body)
        with budget.hold(photo):
            count(photo)
            time.sleep(0.001)
            count(-photo)
        count(-body)
        budget.give_back(caller, body)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(300)))
    assert 600 < most <= 1000
    assert (budget.held, budget.kept, budget.free, now) == (0, 0, 8, 0)


def test_kept_bytes_leave_room_for_the_largest_work_and_for_other_callers() -> None:
    budget = Budget(2, 1000)
    for _ in range(24):
        budget.keep("greedy", 10)
    with pytest.raises(Overloaded, match="bytes"):
        budget.keep("greedy", 10)
    budget.keep("other", 60)
    with pytest.raises(Overloaded):
        budget.keep("third", 1)
    assert budget.kept == 1000 * KEPT_SHARE
    with budget.hold(int(budget.most_work), pixels=LARGE_PIXELS):
        assert budget.held == budget.most_work + 1000 * KEPT_SHARE


def test_a_small_photo_does_not_wait_for_the_bytes_of_a_large_one() -> None:
    budget = Budget(4, 1000)
    with budget.hold(int(budget.most_work), pixels=LARGE_PIXELS):
        _entered(budget, 0, Task("other", time.monotonic() + 1), 100)
        assert not budget._fits(_Waiter("greedy", 1, 1, COSTLY_PIXELS))


def test_work_waits_until_its_bytes_are_free() -> None:
    budget = Budget(4, 1000)
    with ThreadPoolExecutor(1) as pool:
        with budget.hold(600):
            asked = pool.submit(lambda: _entered(budget, 0, Task("key", time.monotonic() + 30), 400))
            while not budget._waiting:
                time.sleep(0.001)
            _entered(budget, 0, Task("other"), 100)
        asked.result(SOON_S)


def test_large_photos_leave_cores_to_small_ones() -> None:
    cores, release = Budget(2), threading.Event()

    def large() -> None:
        with cores.hold(pixels=LARGE_PIXELS):
            release.wait()

    with ThreadPoolExecutor(8) as pool:
        for _ in range(8):
            pool.submit(large)
        with cores.hold(pixels=LARGE_PIXELS - 1):
            release.set()


def test_costly_photos_of_one_caller_leave_a_core_to_others() -> None:
    cores, costly = Budget(2), Task("greedy", time.monotonic() + 600)
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        stack.enter_context(working(costly))
        with cores.hold(pixels=COSTLY_PIXELS), cores.hold(pixels=COSTLY_PIXELS):
            pass  # alone, it has all cores
        pool.submit(_entered, cores, 1, Task("other")).result()
        stack.enter_context(cores.hold(pixels=COSTLY_PIXELS))
        second = pool.submit(_entered, cores, COSTLY_PIXELS, costly)
        while not cores._waiting:
            assert not second.done()
            time.sleep(0.001)
        pool.submit(_entered, cores, COSTLY_PIXELS, Task("other")).result(SOON_S)
        assert not second.done()
        stack.close()
        second.result(SOON_S)


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_a_small_photo_waits_for_no_costly_one() -> None:
    budget, release = Budget(1), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        costly = pool.submit(budget.run, lambda: release.wait(SOON_S), 1, pixels=COSTLY_PIXELS)
        until(lambda: budget.held == 1)
        pool.submit(budget.run, lambda: None, 1, pixels=COSTLY_PIXELS - 1).result(SOON_S)
        pool.submit(budget.run, release.set, 2 * COSTLY_PARSE, threads=0).result(SOON_S)
        assert costly.result(SOON_S)


def test_costly_work_is_done_at_low_priority() -> None:
    budget, own = Budget(1), niceness()
    low = min(own + NICENESS, 19) if sys.platform == "linux" else own
    assert budget.run(niceness, 1, pixels=COSTLY_PIXELS) == low
    assert budget.run(niceness, 1, pixels=COSTLY_PIXELS - 1) == own
    assert budget.run(niceness, COSTLY_PARSE, threads=0) == low
    assert budget.run(niceness, COSTLY_PARSE - 1, threads=0) == own
    assert budget.run(niceness, COSTLY_PARSE) == own


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_a_process_of_low_priority_works_on_costly_photos_too() -> None:
    script = """
import os
from app.concurrency.admission import COSTLY_PIXELS, Budget
os.nice(max(0, 15 - os.nice(0)))
print(Budget(1).run(lambda: os.nice(0), 1, pixels=COSTLY_PIXELS))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.stdout == "19\n", done.stderr


def test_callers_take_turns() -> None:
    cores, order = Budget(1), list[str]()

    def work(caller: str) -> None:
        with working(Task(caller)), cores.hold():
            order.append(caller)

    with ThreadPoolExecutor(12) as pool:
        with working(Task("greedy")), cores.hold():
            for caller in ["greedy"] * 9 + ["other"]:
                waiting = len(cores._waiting)
                pool.submit(work, caller)
                while len(cores._waiting) == waiting:
                    time.sleep(0.001)
            for _ in range(2):  # a second core would be the other's
                cores._running[False, "greedy"] += 1
        pool.shutdown()
    assert order[0] == "other"


def test_a_large_photo_waits_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.concurrency.admission.LARGE_WAIT_S", 0.05)
    cores = Budget(2)
    with cores.hold(pixels=LARGE_PIXELS), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(_entered, cores, LARGE_PIXELS, Task("key", time.monotonic() + 30))
        assert isinstance(asked.exception(), Overloaded)
        late = pool.submit(_entered, cores, LARGE_PIXELS, Task("key", time.monotonic() + 0.01)).exception()
        assert isinstance(late, LikenessError)
        assert late.code == "request_timeout"
    assert (cores.free, len(cores._waiting)) == (2, 0)
    with cores.hold(pixels=LARGE_PIXELS):
        pass


def _entered(budget: Budget, pixels: int, task: Task, size: int = 0) -> None:
    with working(task), budget.hold(size, pixels=pixels):
        pass
