"""Runs the work of requests in threads: bounds the requests in progress, and the bytes of their bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from app.errors import LikenessError, Overloaded

T = TypeVar("T")

RETRY_AFTER_S = 1.0
"""`retry_after` of an error, in seconds: about how long a request takes."""


class WorkerPool:
    """A thread pool, and the counts of admitted requests and of the bytes of their bodies; for one event loop.

    ``bytes_limit`` bounds the bytes received of all bodies together: ``queue_limit`` requests with the largest body
    each would not fit into memory.
    """

    def __init__(self, threads: int, queue_limit: int, seconds: float, *, bytes_limit: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="work")
        self.limit = queue_limit
        self.bytes_limit = bytes_limit
        self._seconds = seconds
        self._admitted = 0
        self._held = 0
        self._unfinished = 0
        self._threads = threads
        self._room: ContextVar[_Room | None] = ContextVar("room", default=None)

    @property
    def admitted(self) -> int:
        """Return the number of requests in progress, with those given up whose work still runs."""
        return self._admitted

    @property
    def held(self) -> int:
        """Return the bytes of their bodies."""
        return self._held

    @property
    def waiting(self) -> int:
        """Return how much work no thread has begun."""
        return max(0, self._unfinished - self._threads)

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Count a request while the block runs. Raises Overloaded if there are too many."""
        if self._admitted >= self.limit:
            raise Overloaded("Too many requests at once.", retry_after=RETRY_AFTER_S)
        room = self._enter()
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
        if self._held + size > self.bytes_limit:
            raise Overloaded("Too many bytes at once.", retry_after=RETRY_AFTER_S)
        room.held += size
        self._held += size

    async def run(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread and return its result. Raises LikenessError (``request_timeout``) after the limit.

        Work that is given up is dropped if no thread has begun it. Work that has begun ends by itself, and its request
        and body are counted until then, so that slow work can't pile up unseen.
        """
        loop = asyncio.get_running_loop()
        future = self._pool.submit(work)
        self._unfinished += 1
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future, loop=loop), self._seconds)
        except TimeoutError:
            raise LikenessError("The request took too long.", code="request_timeout") from None
        finally:
            if not future.done() and not future.cancel():
                room = self._room.get()
                if room is None:
                    room = self._enter()
                else:
                    room.uses += 1
                future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._end, room))
            else:
                self._unfinished -= 1

    def _enter(self) -> _Room:
        self._admitted += 1
        return _Room()

    def _end(self, room: _Room) -> None:
        """Count the end of work that was given up."""
        self._unfinished -= 1
        self._leave(room)

    def _leave(self, room: _Room) -> None:
        room.uses -= 1
        if not room.uses:
            self._admitted -= 1
            self._held -= room.held

    def close(self) -> None:
        """Finish the work that has begun, and drop the rest."""
        self._pool.shutdown(wait=True, cancel_futures=True)


@dataclass(slots=True)
class _Room:
    """One request's counts: ``uses`` are the request itself, and work of it that was given up but still runs."""

    uses: int = 1
    held: int = 0
