"""Admits requests: how many may arrive and be in work at once, in total and by caller, and what their bodies hold.

Their work runs in threads, for a bounded time, and not in all threads for one caller.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakValueDictionary

from app.concurrency.budget import CALLER_SHARE, KEPT_SHARE, Budget
from app.concurrency.overload import Task, Why, timed_out, working

RECEIVING = 4
"""Requests whose bodies may be arriving, for each slot."""
UNPROVEN = 64
"""Requests whose bodies may be arriving before their signature can be checked, without those of callers that have
signed before. One more takes the place of the oldest."""
UNPROVEN_EACH = 4
"""Of them, for one address."""
UNPROVEN_SHARE = 1 - CALLER_SHARE
"""Of the bytes that are kept, for their bodies: two photos of 5 MiB in base64, the most that a request of Rekognition
needs, in a server of 1 GiB."""
LOOKUPS = 16
"""Keys that have not worked before and may be looked up at once."""
GREED = (4, 16)
"""Places that a key, and an address, may hold for each free one: alone, a key gets four fifths and an address, which
may be many people's, 16 of 17. Others find some free."""


class Shares:
    """Counts the holders of a limited number of places. No caller gets so many that others find none."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.held = 0
        self._by_caller: Counter[str] = Counter()

    def check(self, callers: tuple[str, ...]) -> None:
        """Raise Overloaded if there is no place for a request of ``callers``: its key and its address."""
        free = self.limit - self.held
        if free <= 0 or any(self._by_caller[one] >= greed * free for one, greed in zip(callers, GREED, strict=False)):
            raise Why.REQUESTS.error()

    def enter(self, callers: tuple[str, ...]) -> None:
        """Take a place. Raises Overloaded."""
        self.check(callers)
        self.held += 1
        self._by_caller.update(callers)

    def leave(self, callers: tuple[str, ...]) -> None:
        self.held -= 1
        for caller in callers:
            self._by_caller[caller] -= 1
            if not self._by_caller[caller]:
                del self._by_caller[caller]


@dataclass(slots=True, eq=False)
class Visit:
    """One admitted request. ``uses`` are the request itself, and work of it that was given up but still runs."""

    callers: tuple[str, ...]
    place: Shares
    uses: int = 1
    held: int = 0
    """Bytes of its body."""


class Admission:
    """The places and bodies of requests; for one event loop.

    A request holds one of ``queue_limit`` slots from its first work on, so that a body which arrives slowly holds none;
    meanwhile it holds one of RECEIVING times as many places.
    """

    def __init__(self, budget: Budget, queue_limit: int) -> None:
        self.budget = budget
        self._slots = Shares(queue_limit)
        self._receiving = Shares(queue_limit * RECEIVING)
        self._unproven, self._signing = Shares(math.inf), Shares(math.inf)
        self._arriving: dict[Visit, asyncio.Timeout] = {}
        """Unproven requests, the oldest first, and what ends each of them."""
        self._visit: ContextVar[Visit | None] = ContextVar("visit", default=None)

    @property
    def limit(self) -> int:
        """Return the number of slots."""
        return int(self._slots.limit)

    @property
    def admitted(self) -> int:
        """Return the number of requests in work, with those given up whose work still runs."""
        return self._slots.held

    @property
    def receiving(self) -> int:
        """Return the number of requests whose body is still arriving."""
        return self._receiving.held + self._unproven.held + self._signing.held

    @contextmanager
    def admit(self, *callers: str) -> Iterator[None]:
        """Count a request while the block runs; ``callers`` are its key and its address.

        Raises Overloaded if there are too many, of all callers or of these.
        """
        self._slots.check(callers)  # read no body that there is no slot for
        with self._entered(Visit(callers, self._receiving)):
            yield

    @asynccontextmanager
    async def admit_unproven(self, address: str, key_id: str | None = None) -> AsyncIterator[None]:
        """Count a request whose signature can be checked when its body is there, in a pool of its own.

        ``key_id`` is the key it names if that has signed from this address before: it then has as many places as there
        are slots. There is always a place: where all are taken, the oldest request is ended with Overloaded. A body
        that has just begun arrives, and one that does not come holds nobody up.
        """
        if key_id is None:
            visit, places = Visit((address,), self._unproven), UNPROVEN_EACH
        else:
            visit, places = Visit((f"{key_id} {address}",), self._signing), self.limit
        self._make_way(visit, places)
        try:
            async with asyncio.timeout(None) as end:
                self._arriving[visit] = end
                with self._entered(visit):
                    yield
        except TimeoutError:
            raise Why.REQUESTS.error() from None
        finally:
            self._arriving.pop(visit, None)

    def _make_way(self, visit: Visit, places: int) -> None:
        crowds = Counter(one.callers for one in self._arriving)
        if crowds[visit.callers] >= places:
            self._end(next(one for one in self._arriving if one.callers == visit.callers))
        elif len(self._arriving) >= UNPROVEN + self.limit:
            crowd = crowds.most_common(1)[0][0]
            self._end(next(one for one in self._arriving if one.callers == crowd))

    def _make_room(self, visit: Visit, size: int) -> None:
        """End the oldest unproven requests until so many bytes more of this one fit. Raises Overloaded."""
        most = self.budget.size * KEPT_SHARE * UNPROVEN_SHARE
        if visit.held + size > most:
            raise Why.BYTES.error()
        others = [one for one in self._arriving if one.place is self._unproven and one is not visit]
        held = sum(one.held for one in others)
        while visit.held + size + held > most:
            oldest = others.pop(0)
            held -= oldest.held
            self._end(oldest)

    def _end(self, visit: Visit) -> None:
        self._arriving.pop(visit).reschedule(asyncio.get_running_loop().time())

    @contextmanager
    def _entered(self, visit: Visit) -> Iterator[None]:
        visit.place.enter(visit.callers)
        token = self._visit.set(visit)
        try:
            yield
        finally:
            self._visit.reset(token)
            self.leave(visit)

    def take(self, size: int) -> None:
        """Count bytes of the admitted request's body. Raises Overloaded if there are too many."""
        visit = self._visit.get()
        if visit is None:
            raise RuntimeError("Bytes are counted for an admitted request only.")
        if visit.place is self._unproven:
            self._make_room(visit, size)
        self.budget.keep(visit.callers[0], size)
        visit.held += size

    @contextmanager
    def receive(self) -> Iterator[None]:
        """Give the request's slot back while the block receives a long body. Raises Overloaded."""
        visit = self._visit.get()
        if visit is not None and visit.place is self._slots:
            self._move(visit, self._receiving)
        yield

    def begin(self) -> Visit | None:
        """Return the request that work begins for, in a slot from now on, if any. Raises Overloaded."""
        visit = self._visit.get()
        if visit is not None and visit.place is not self._slots:
            self._move(visit, self._slots)
        return visit

    def leave(self, visit: Visit) -> None:
        """End one of the visit's uses, and the visit with its last one."""
        visit.uses -= 1
        if not visit.uses:
            visit.place.leave(visit.callers)
            self.budget.give_back(visit.callers[0], visit.held)

    def _move(self, visit: Visit, place: Shares) -> None:
        place.enter(visit.callers)
        visit.place.leave(visit.callers)
        visit.place = place


T = TypeVar("T")


class WorkerPool:
    """A thread pool for one event loop.

    One caller's requests use at most ``threads`` threads; a quarter more are there for other callers.
    """

    def __init__(self, threads: int, seconds: float, admission: Admission) -> None:
        self._threads = threads + max(1, threads // 4)
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
                self._admission.budget.give_back(task.caller, task.kept)

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
