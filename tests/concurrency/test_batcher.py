"""The batcher's contract: every caller gets its own answer exactly once, whatever the others do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.concurrency.batcher import Batcher
from app.errors import LikenessError, Overloaded
from tests.support.waiting import until

SOON_S = 60.0
"""How long a test waits for what must happen."""


class Gate:
    """A function over lists that waits until it is let through, and remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self, items: list[int]) -> list[int]:
        self.batches.append(items)
        self.entered.release()
        assert self.open.wait(SOON_S)
        return [-item for item in items]

    def wait_until_entered(self) -> None:
        assert self.entered.acquire(timeout=SOON_S)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open.set()


def batcher(
    fn: Callable[[list[int]], Sequence[int]],
    *,
    max_batch: int = 8,
    max_wait_s: float = 0.0,
    queue_limit: int = 100,
    workers: int = 1,
    enough: int | None = None,
    spare: Callable[[int], bool] = lambda _busy: False,
) -> Batcher[int, int]:
    return Batcher(
        fn,
        max_batch=max_batch,
        max_wait_s=max_wait_s,
        queue_limit=queue_limit,
        workers=workers,
        enough=enough,
        spare=spare,
    )


def submit(made: Batcher[int, int], item: int) -> Future[tuple[int, int]]:
    return made.submit_all([item])[0]


@given(
    callers=st.lists(st.lists(st.integers(0, 10**6), max_size=12), min_size=1, max_size=6),
    max_batch=st.integers(1, 5),
    workers=st.integers(1, 3),
    max_wait_s=st.sampled_from([0.0, 0.002]),
    queue_limit=st.integers(60, 80),
)
def test_everybody_gets_their_own_results_in_order(
    callers: list[list[int]], max_batch: int, workers: int, max_wait_s: float, queue_limit: int
) -> None:
    sizes: list[int] = []

    def square(items: list[int]) -> list[int]:
        sizes.append(len(items))
        time.sleep(0.0002)
        return [item * item for item in items]

    with (
        closing(
            batcher(square, max_batch=max_batch, workers=workers, max_wait_s=max_wait_s, queue_limit=queue_limit + 12)
        ) as made,
        ThreadPoolExecutor(len(callers)) as pool,
    ):
        answers = list(pool.map(made.run, callers))
    assert answers == [[item * item for item in items] for items in callers]
    assert sum(sizes) == sum(map(len, callers))
    assert max(sizes, default=0) <= max_batch


@given(
    fates=st.lists(st.sampled_from(["good", "bad", "cancel"]), min_size=1, max_size=30),
    max_batch=st.integers(1, 4),
    workers=st.integers(1, 3),
)
def test_every_future_ends_exactly_once_whatever_happens(fates: list[str], max_batch: int, workers: int) -> None:
    def work(items: list[int]) -> list[int]:
        if any(fates[item] == "bad" for item in items):
            raise ValueError(items)
        return items

    made = batcher(work, max_batch=max_batch, workers=workers)
    calls: list[int] = []
    futures = []
    for number, fate in enumerate(fates):
        future = submit(made, number)
        future.add_done_callback(partial(lambda number, _done: calls.append(number), number))
        if fate == "cancel":
            future.cancel()
        futures.append(future)
    made.close()
    assert wait(futures, SOON_S).not_done == set()
    assert sorted(calls) == list(range(len(fates)))
    for number, future in enumerate(futures):
        if not future.cancelled() and future.exception() is None:
            assert future.result()[0] == number


def test_a_result_carries_the_size_of_its_batch(gate: Gate) -> None:
    with closing(batcher(gate)) as made:
        first = submit(made, 1)
        gate.wait_until_entered()
        others = made.submit_all([2, 3, 4])
        gate.open.set()
        assert first.result(SOON_S) == (-1, 1)
        assert [future.result(SOON_S) for future in others] == [(-2, 3), (-3, 3), (-4, 3)]


def test_with_a_spare_core_a_second_worker_sets_in_at_once(gate: Gate) -> None:
    asked: list[int] = []

    def spare(busy: int) -> bool:
        asked.append(busy)
        return busy < 2

    with closing(batcher(gate, max_batch=2, workers=3, spare=spare)) as made:
        for item in (1, 2):
            submit(made, item)
            gate.wait_until_entered()
        submit(made, 3)
        until(lambda: 2 in asked)
        assert not gate.entered.acquire(timeout=0.1)
        assert gate.batches == [[1], [2]]
        assert set(asked) == {1, 2}
        gate.open.set()


def test_it_sets_in_where_enough_wait_and_takes_all_of_them(gate: Gate) -> None:
    with closing(batcher(gate, max_batch=8, workers=2, enough=3)) as made:
        submit(made, 1)
        gate.wait_until_entered()
        made.submit_all([2, 3, 4])
        gate.wait_until_entered()
        assert gate.batches == [[1], [2, 3, 4]]
        gate.open.set()


def test_without_one_it_sets_in_for_a_full_batch_only(gate: Gate) -> None:
    with closing(batcher(gate, max_batch=2, workers=2)) as made:
        submit(made, 1)
        gate.wait_until_entered()
        submit(made, 2)
        assert not gate.entered.acquire(timeout=0.1)
        submit(made, 3)
        gate.wait_until_entered()
        assert gate.batches == [[1], [2, 3]]
        gate.open.set()


def test_more_than_a_batch_is_shared_by_idle_workers(gate: Gate) -> None:
    with closing(batcher(gate, max_batch=2, workers=3)) as made:
        made.submit_all([1, 2, 3, 4, 5])
        gate.wait_until_entered()
        gate.wait_until_entered()
        assert not gate.entered.acquire(timeout=0.1)
        gate.open.set()
    assert sorted(gate.batches) == [[1, 2], [3, 4], [5]]


def test_with_a_wait_items_are_joined_until_the_batch_is_full(gate: Gate) -> None:
    gate.open.set()
    with closing(batcher(gate, max_batch=3, max_wait_s=SOON_S)) as made:
        futures = [submit(made, number) for number in (1, 2, 3)]
        assert [future.result(SOON_S)[1] for future in futures] == [3, 3, 3]


def test_a_full_queue_refuses_and_says_when_to_come_back(gate: Gate) -> None:
    with closing(batcher(gate, max_batch=1, queue_limit=2)) as made:
        submit(made, 0)
        gate.wait_until_entered()
        waiting = made.submit_all([1, 2])
        assert made.waiting == 2
        with pytest.raises(Overloaded) as caught:
            submit(made, 3)
        retry_after = caught.value.details["retry_after"]
        assert isinstance(retry_after, float)
        assert retry_after > 0
        gate.open.set()
        assert [future.result(SOON_S)[0] for future in waiting] == [-1, -2]
        assert submit(made, 4).result(SOON_S)[0] == -4
    assert gate.batches == [[0], [1], [2], [4]]


def test_several_items_are_taken_together_or_not_at_all(gate: Gate) -> None:
    with closing(batcher(gate, max_batch=1, queue_limit=2)) as made:
        submit(made, 0)
        gate.wait_until_entered()
        submit(made, 1)
        with pytest.raises(Overloaded):
            made.submit_all([2, 3])
        assert made.waiting == 1
        gate.open.set()


def test_cancelled_items_are_dropped_and_make_room(gate: Gate) -> None:
    with closing(batcher(gate, queue_limit=2)) as made:
        submit(made, 0)
        gate.wait_until_entered()
        for future in made.submit_all([1, 2]):
            assert future.cancel()
        kept = made.submit_all([3, 4])
        kept[0].cancel()
        gate.open.set()
        assert kept[1].result(SOON_S) == (-4, 1)
    assert gate.batches == [[0], [4]]


def test_more_items_than_the_queue_holds_go_one_queueful_after_the_other(gate: Gate) -> None:
    gate.open.set()
    with closing(batcher(gate, max_batch=2, queue_limit=3)) as made:
        assert made.run(range(10)) == [-number for number in range(10)]
        assert made.run([]) == []


def _reject_odd(items: list[int]) -> list[int]:
    if items[0] % 2:
        raise ValueError("odd")
    return items


def test_an_error_fails_its_own_batch_only() -> None:
    with closing(batcher(_reject_odd, max_batch=1)) as made:
        futures = [submit(made, number) for number in range(6)]
        wait(futures, SOON_S)
    assert [type(future.exception()) for future in futures] == [type(None), ValueError] * 3


@pytest.mark.parametrize("results", [[], [1], [1, 2, 3]])
def test_a_wrong_number_of_results_fails_the_batch(results: list[int]) -> None:
    with closing(batcher(lambda items: results if items[0] == 7 else items)) as made:
        futures = made.submit_all([7, 8])
        assert [type(future.exception(SOON_S)) for future in futures] == [LikenessError] * 2
        assert submit(made, 9).result(SOON_S)[0] == 9


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_an_exit_inside_the_function_ends_neither_the_worker_nor_the_caller(kind: type[BaseException]) -> None:
    def work(items: list[int]) -> list[int]:
        if items == [1]:
            raise kind
        return items

    with closing(batcher(work)) as made:
        with pytest.raises(LikenessError, match=kind.__name__):
            made.run([1])
        assert made.run([2]) == [2]


def test_after_an_error_the_rest_of_a_callers_items_is_not_worked_on(gate: Gate) -> None:
    def work(items: list[int]) -> list[int]:
        if items == [0]:
            raise ValueError(items)
        return gate(items)

    with closing(batcher(work, max_batch=1)) as made:
        with pytest.raises(ValueError, match="0"):
            made.run([0, 1, 2, 3])
        gate.open.set()
        assert made.run([9]) == [-9]
    assert gate.batches in ([[9]], [[1], [9]])  # the second item may have been begun before the error was seen


def test_a_closed_batcher_takes_nothing_and_may_be_closed_again() -> None:
    made = batcher(lambda items: items)
    made.close()
    made.close()
    with pytest.raises(Overloaded) as caught:
        submit(made, 1)
    assert caught.value.code == "shutting_down"
