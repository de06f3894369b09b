"""Admit requests and run their work in threads, all from one event loop.

The requests at once and the bytes that they hold are limited, per caller and in total.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakValueDictionary

from app.concurrency.overload import Why
from app.concurrency.threads import GIVEN_UP, TASK, Task, timed_out

T = TypeVar("T")

CALLER_SHARE = 0.8
"""Maximum share of the bytes for one caller."""
RECEIVING = 4
"""Number of requests whose bodies may be arriving, for each slot."""
LOOKUPS = 16
"""Maximum unknown keys that are looked up at the same time."""
GREED = (4, 16)
"""Number of places that a key, and an address, may hold for each free place. So a key that is alone gets four fifths of
the places, and an address, which many people may share, 16 of 17; the rest is free for others."""
REFUSAL_S, PATIENCE_S = 0.2, 2.0
"""Seconds that each refusal adds to a caller's debt, which falls with time. The answer is delayed by the debt above
PATIENCE_S, by at most PATIENCE_S."""
MOST_REFUSED = 10_000
"""Maximum callers whose debt is remembered."""


class Shares:
    """Counts the holders of a limited number of places. A caller can't take so many that others find none."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.held = 0
        self._by_caller: Counter[str] = Counter()

    def enter(self, callers: tuple[str, ...]) -> None:
        """Take a place for a request of ``callers``: its key and its address. Raises Overloaded if there is none."""
        free = self.limit - self.held
        for caller, greed in zip(callers, GREED, strict=False):
            if free <= 0 or self._by_caller[caller] >= greed * free:
                raise Why.REQUESTS.error()
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
    """An admitted request. ``uses`` counts the request itself, and its work that was given up but still runs."""

    callers: tuple[str, ...]
    place: Shares
    uses: int = 1
    held: int = 0
    """Bytes of its body and of the crops from which its answer is made."""


class Admission:
    """The places of requests, and the bytes that they hold; for one event loop.

    A request holds one of ``queue_limit`` slots from its first work on. While its body arrives, perhaps slowly, it
    holds none, but one of RECEIVING times as many places. All together hold at most ``byte_limit`` bytes.
    """

    def __init__(self, queue_limit: int, byte_limit: float = math.inf) -> None:
        self.limit, self.byte_limit = queue_limit, byte_limit
        self._slots = Shares(queue_limit)
        self._receiving = Shares(queue_limit * RECEIVING)
        self._lock = threading.Lock()
        self._bytes: Counter[str] = Counter()
        """The bytes that each caller's requests hold; threads add to them."""
        self._visit: ContextVar[Visit | None] = ContextVar("visit", default=None)
        self._refused: dict[str, float] = {}
        """When each refused caller's debt is over, in monotonic seconds; in the order of the last refusals."""

    @property
    def bytes(self) -> int:
        """Return how many bytes requests hold now."""
        return self._bytes.total()

    @property
    def admitted(self) -> int:
        """Return the number of requests in work, including those given up whose work still runs."""
        return self._slots.held

    @property
    def receiving(self) -> int:
        """Return the number of requests whose body is still arriving."""
        return self._receiving.held

    @contextmanager
    def admit(self, *callers: str, place: Shares | None = None) -> Iterator[Visit]:
        """Count a request while the block runs; ``callers`` are its key and its address.

        Raises Overloaded if there are too many, of all callers or of these.
        """
        visit = Visit(callers, place or self._slots)
        visit.place.enter(callers)
        token = self._visit.set(visit)
        try:
            if place is None:  # without a free slot, refuse before the body is read; hold none while it arrives
                self.begin(self._receiving)
            yield visit
        finally:
            self._visit.reset(token)
            self.leave(visit)

    def count_bytes(self, size: int) -> None:
        """Count bytes of the admitted request, until it ends. Its threads may call this, too.

        Raises Overloaded if there are too many, of all callers or of this one.
        """
        visit = self._visit.get()
        if visit is None:
            raise RuntimeError("Bytes are counted for an admitted request only.")
        caller = visit.callers[0]
        with self._lock:
            total, of_caller = self._bytes.total() + size, self._bytes[caller] + size
            if total > self.byte_limit or of_caller > CALLER_SHARE * self.byte_limit:
                raise Why.BYTES.error()
            self._bytes[caller] += size
            visit.held += size

    def receive(self) -> None:
        """Give the request's slot back until its next work, to receive a long body. Raises Overloaded."""
        self.begin(self._receiving)

    def begin(self, place: Shares | None = None) -> Visit | None:
        """Move the current request, if there is one, to `place`, by default a slot; return it. Raises Overloaded."""
        visit, place = self._visit.get(), place or self._slots
        if visit is not None and visit.place is not place:
            place.enter(visit.callers)
            visit.place.leave(visit.callers)
            visit.place = place
        return visit

    def leave(self, visit: Visit) -> None:
        """End one of the visit's uses, and the visit with its last one."""
        visit.uses -= 1
        if not visit.uses:
            visit.place.leave(visit.callers)
            caller = visit.callers[0]
            with self._lock:
                self._bytes[caller] -= visit.held
                if not self._bytes[caller]:
                    del self._bytes[caller]

    async def pause(self, caller: str) -> None:
        """Wait before a refusal is answered if the caller was refused repeatedly.

        A refusal costs a few milliseconds of the GIL. A caller that ignores Retry-After and comes back at once gets
        only a few per second on each of its connections.
        """
        now = time.monotonic()
        debt = min(max(self._refused.pop(caller, now) - now, 0.0) + REFUSAL_S, 2 * PATIENCE_S)
        self._refused[caller] = now + debt
        if len(self._refused) > MOST_REFUSED:
            del self._refused[next(iter(self._refused))]
        await asyncio.sleep(max(0.0, debt - PATIENCE_S))


class WorkerPool:
    """A thread pool for one event loop.

    One caller's requests use at most ``threads`` threads; the same number is reserved for other callers.
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
        """Return the number of calls of `run` whose work has not begun."""
        return max(0, self._unfinished - self._threads)

    async def run(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread and return its result.

        Raises LikenessError (``request_timeout``) after the limit, and Overloaded if there is no slot for the request.
        When it is given up, work that has not begun is dropped. Work that has begun ends at its next
        `check_deadline`; until then its request and body are counted, so that slow work can't pile up unseen.
        """
        visit = self._admission.begin()
        task = Task(visit.callers[0] if visit else "", time.monotonic() + self._seconds)
        context = copy_context()
        context.run(TASK.set, task)
        self._unfinished += 1
        future: Future[T] | None = None
        turn = self._turns.get(task.caller)
        if turn is None:
            turn = self._turns[task.caller] = asyncio.Semaphore(self.share)
        try:
            async with asyncio.timeout(self._seconds):
                await turn.acquire()
                future = self._pool.submit(context.run, work)
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise timed_out() from None
        finally:
            if future is not None and not future.done() and not future.cancel():
                task.until = GIVEN_UP
                self._count_until_done(future, visit, turn)
            else:
                self._unfinished -= 1
                if future is not None:
                    turn.release()

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
