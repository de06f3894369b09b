"""Threads that requests are worked on in, each for a bounded time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakValueDictionary

from app.concurrency.admission import Admission, Visit
from app.concurrency.tasks import Task, timed_out, working

T = TypeVar("T")


class WorkerPool:
    """A thread pool for one event loop.

    One caller's requests use at most ``threads`` threads; as many more are there for other callers.
    """

    def __init__(self, threads: int, seconds: float, admission: Admission) -> None:
        self._threads = 2 * threads
        self.share = threads
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="work")
        self._seconds = seconds
        self._admission = admission
        self._unfinished = 0
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @property
    def waiting(self) -> int:
        """Return how much work no thread has begun."""
        return max(0, self._unfinished - self._threads)

    async def run(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread and return its result.

        Raises LikenessError (``request_timeout``) after the limit, and Overloaded if there is no slot for the request.
        Work that is given up is dropped if no thread has begun it. Work that has begun ends at its next
        `check_deadline`, and its request and body are counted until then, so that slow work can't pile up unseen.
        """
        visit = self._admission.begin()
        task = Task(visit.callers[0] if visit else "", time.monotonic() + self._seconds)
        self._unfinished += 1
        future: Future[T] | None = None
        turn = self._turns.get(task.caller)
        if turn is None:
            turn = self._turns[task.caller] = asyncio.Semaphore(self.share)
        try:
            async with asyncio.timeout(self._seconds):
                await turn.acquire()
                future = self._pool.submit(self._run, task, work)
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise timed_out() from None
        finally:
            if future is not None and not future.done() and not future.cancel():
                task.given_up = True
                self._count_until_done(future, visit, turn)
            else:
                self._unfinished -= 1
                if future is not None:
                    turn.release()

    def _run(self, task: Task, work: Callable[[], T]) -> T:
        with working(task):
            try:
                return work()
            finally:
                self._admission.bytes.give_back(task.caller, task.kept)

    def _count_until_done(self, future: Future[T], visit: Visit | None, turn: asyncio.Semaphore) -> None:
        if visit is not None:
            visit.uses += 1

        def end() -> None:
            self._unfinished -= 1
            turn.release()
            if visit is not None:
                self._admission.leave(visit)

        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(end))

    def close(self) -> None:
        """Finish the work that has begun, and drop the rest."""
        self._pool.shutdown(wait=True, cancel_futures=True)
