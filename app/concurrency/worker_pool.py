"""Handing work to threads: a bounded number of requests and of bytes in the house, a fixed number worked on."""

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
"""About how long a full house takes to have room again."""


class WorkerPool:
    """A thread pool of its own, and the count of requests admitted and of their bodies' bytes; for one event loop.

    ``bytes_limit`` bounds what has arrived of all bodies together: where every request of a full house sent the
    largest body, there would be more of them than memory.
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
        """Requests in the house now, those given up whose work has not ended included."""
        return self._admitted

    @property
    def held(self) -> int:
        """Bytes of their bodies."""
        return self._held

    @property
    def waiting(self) -> int:
        """Pieces of work that no thread has begun."""
        return max(0, self._unfinished - self._threads)

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Room for one request while the block runs; raises Overloaded when the house is full."""
        if self._admitted >= self.limit:
            raise Overloaded("too many requests at once", retry_after=RETRY_AFTER_S)
        room = self._enter()
        token = self._room.set(room)
        try:
            yield
        finally:
            self._room.reset(token)
            self._leave(room)

    def take(self, size: int) -> None:
        """Counts bytes of the body of the request that was admitted; raises Overloaded where they are too many."""
        room = self._room.get()
        if room is None:
            raise RuntimeError("bytes are counted for an admitted request only")
        if self._held + size > self.bytes_limit:
            raise Overloaded("too many bytes at once", retry_after=RETRY_AFTER_S)
        room.held += size
        self._held += size

    async def run(self, work: Callable[[], T]) -> T:
        """``work``'s result, computed in a thread. Raises LikenessError (``request_timeout``) after the time limit.

        Work that nobody waits for any more is dropped if no thread has begun it; begun work ends by itself, and its
        request counts as admitted until then, with its body, so that slow work cannot pile up unseen.
        """
        loop = asyncio.get_running_loop()
        future = self._pool.submit(work)
        self._unfinished += 1
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future, loop=loop), self._seconds)
        except TimeoutError:
            raise LikenessError("the work took longer than a request may", code="request_timeout") from None
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
        """Of work that was given up."""
        self._unfinished -= 1
        self._leave(room)

    def _leave(self, room: _Room) -> None:
        room.uses -= 1
        if not room.uses:
            self._admitted -= 1
            self._held -= room.held

    def close(self) -> None:
        """Ends begun work, drops the rest."""
        self._pool.shutdown(wait=True, cancel_futures=True)


@dataclass(slots=True)
class _Room:
    """One request's: ``uses`` counts the request itself and work of it that was given up but has not ended."""

    uses: int = 1
    held: int = 0
