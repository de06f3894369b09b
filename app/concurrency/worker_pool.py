"""Runs the work of requests in threads, and bounds what requests hold: bodies, slots and threads, in total and by
caller."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakValueDictionary

from app.concurrency.deadline import Task, timed_out, working
from app.errors import Overloaded

T = TypeVar("T")

RETRY_AFTER_S = 1.0
"""`retry_after` of an error, in seconds: about how long a request takes."""
RECEIVING = 4
"""Requests whose bodies may be arriving, for each slot."""
UNPROVEN = 16
"""Requests that may be read before their key is known: they are small and short, or their address has failed before."""
UNPROVEN_BYTES = 16 * 1024 * 1024
"""Of all their bodies together: two photos of 5 MiB in base64, the most that one request of Rekognition needs."""
GREED = (4, 16)
"""Places that a key, and an address, may hold for each free one: alone, a key gets four fifths and an address, which
may be many people's, 16 of 17. Others find some free."""
BYTES_SHARE = 0.8
"""Of the bytes of bodies, for one key."""


class _Tally:
    """Counts what is held of a limit, in total and by caller."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._by_caller: Counter[str] = Counter()

    def _add(self, callers: tuple[str, ...], amount: int) -> None:
        self.held += amount
        for caller in callers:
            self._by_caller[caller] += amount
            if not self._by_caller[caller]:
                del self._by_caller[caller]


class Shares(_Tally):
    """Counts the holders of a limited number of places. No caller gets so many that others find none."""

    def check(self, callers: tuple[str, ...]) -> None:
        """Raise Overloaded if there is no place for a request of ``callers``: its key and its address."""
        free = self.limit - self.held
        if free <= 0 or any(self._by_caller[one] >= greed * free for one, greed in zip(callers, GREED, strict=False)):
            raise Overloaded("Too many requests at once.", retry_after=RETRY_AFTER_S)

    def enter(self, callers: tuple[str, ...]) -> None:
        """Take a place. Raises Overloaded."""
        self.check(callers)
        self._add(callers, 1)

    def leave(self, callers: tuple[str, ...]) -> None:
        self._add(callers, -1)


class _Bodies(_Tally):
    """Bounds the bytes of bodies, in total and by key; a key's only request may use all of them."""

    def take(self, room: _Room, size: int) -> None:
        others = self._by_caller[room.callers[0]] - room.held
        share = self.limit * BYTES_SHARE if others else self.limit
        if self.held + size > self.limit or others + room.held + size > share:
            raise Overloaded("Too many bytes at once.", retry_after=RETRY_AFTER_S)
        room.held += size
        self._add(room.callers[:1], size)

    def give_back(self, room: _Room) -> None:
        self._add(room.callers[:1], -room.held)


class WorkerPool:
    """A thread pool, and the counts of requests and of the bytes of their bodies; for one event loop.

    A request holds one of ``queue_limit`` slots from its first work on, so that a body which arrives slowly holds none;
    meanwhile it holds one of RECEIVING times as many places. ``bytes_limit`` bounds the bytes received of all bodies
    together: ``queue_limit`` requests with the largest body each would not fit into memory. One caller's requests use
    at most ``threads`` threads; a quarter more are there for other callers.
    """

    def __init__(self, threads: int, queue_limit: int, seconds: float, *, bytes_limit: int) -> None:
        self._threads = threads + max(1, threads // 4)
        self._share = threads
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="work")
        self._seconds = seconds
        self._slots = Shares(queue_limit)
        self._receiving = Shares(queue_limit * RECEIVING)
        self._unproven = Shares(UNPROVEN)
        self._bodies = _Bodies(bytes_limit)
        self._unproven_bodies = _Bodies(UNPROVEN_BYTES)
        self._uncounted = 0
        self._unfinished = 0
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._room: ContextVar[_Room | None] = ContextVar("room", default=None)

    @property
    def limit(self) -> int:
        return self._slots.limit

    @property
    def bytes_limit(self) -> int:
        return self._bodies.limit

    @property
    def admitted(self) -> int:
        """Return the number of requests in work, with those given up whose work still runs."""
        return self._slots.held + self._uncounted

    @property
    def receiving(self) -> int:
        """Return the number of requests whose body is still arriving."""
        return self._receiving.held + self._unproven.held

    @property
    def held(self) -> int:
        """Return the bytes of the bodies."""
        return self._bodies.held + self._unproven_bodies.held

    @property
    def waiting(self) -> int:
        """Return how much work no thread has begun."""
        return max(0, self._unfinished - self._threads)

    @contextmanager
    def admit(self, *callers: str) -> Iterator[None]:
        """Count a request while the block runs; ``callers`` are its key and its address.

        Raises Overloaded if there are too many, of all callers or of these.
        """
        room = _Room(callers or ("",), self._receiving, self._bodies)
        self._slots.check(room.callers)  # read no body that there is no slot for
        with self._entered(room):
            yield

    @contextmanager
    def admit_unproven(self, address: str) -> Iterator[None]:
        """Count a request whose key is not known yet, in a small pool of its own. Raises Overloaded."""
        with self._entered(_Room((address,), self._unproven, self._unproven_bodies)):
            yield

    @contextmanager
    def _entered(self, room: _Room) -> Iterator[None]:
        room.place.enter(room.callers)
        token = self._room.set(room)
        try:
            yield
        finally:
            self._room.reset(token)
            self._leave(room)

    def take(self, size: int) -> None:
        """Count bytes of the admitted request's body. Raises Overloaded if there are too many."""
        room = self._room.get()
        if room is None:
            raise RuntimeError("Bytes are counted for an admitted request only.")
        room.bodies.take(room, size)

    @contextmanager
    def receive(self) -> Iterator[None]:
        """Give the request's slot back while the block receives a long body. Raises Overloaded."""
        room = self._room.get()
        if room is None or room.place is not self._slots:
            yield
            return
        self._move(room, self._receiving)
        yield

    async def run(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread and return its result.

        Raises LikenessError (``request_timeout``) after the limit, and Overloaded if there is no slot for the request.
        Work that is given up is dropped if no thread has begun it. Work that has begun ends at its next
        `check_deadline`, and its request and body are counted until then, so that slow work can't pile up unseen.
        """
        room = self._room.get()
        if room is not None and room.place is not self._slots:
            self._move(room, self._slots)
        task = Task(room.callers[0] if room else "", time.monotonic() + self._seconds)
        self._unfinished += 1
        future: Future[T] | None = None
        turn = self._turns.get(task.caller)
        if turn is None:
            turn = self._turns[task.caller] = asyncio.Semaphore(self._share)
        try:
            async with asyncio.timeout(self._seconds):
                await turn.acquire()
                future = self._pool.submit(_run, task, work)
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise timed_out() from None
        finally:
            if future is not None and not future.done() and not future.cancel():
                task.given_up = True
                self._count_until_done(future, room, turn)
            else:
                self._unfinished -= 1
                if future is not None:
                    turn.release()

    def _count_until_done(self, future: Future[T], room: _Room | None, turn: asyncio.Semaphore) -> None:
        if room is None:
            self._uncounted += 1
        else:
            room.uses += 1

        def end() -> None:
            self._unfinished -= 1
            turn.release()
            if room is None:
                self._uncounted -= 1
            else:
                self._leave(room)

        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(end))

    def _move(self, room: _Room, place: Shares) -> None:
        place.enter(room.callers)
        room.place.leave(room.callers)
        room.place = place

    def _leave(self, room: _Room) -> None:
        room.uses -= 1
        if not room.uses:
            room.place.leave(room.callers)
            room.bodies.give_back(room)

    def close(self) -> None:
        """Finish the work that has begun, and drop the rest."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _run(task: Task, work: Callable[[], T]) -> T:
    with working(task):
        return work()


@dataclass(slots=True)
class _Room:
    """One request's counts. ``uses`` are the request itself, and work of it that was given up but still runs."""

    callers: tuple[str, ...]
    place: Shares
    bodies: _Bodies
    uses: int = 1
    held: int = 0
