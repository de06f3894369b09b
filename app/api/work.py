"""Handing work to threads: a bounded number of requests in the house, a fixed number of them worked on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from app.errors import LikenessError, Overloaded

T = TypeVar("T")

RETRY_AFTER_S = 1.0
"""About how long a full house takes to have room again."""


class Workers:
    """A thread pool of its own and the count of requests admitted. Used from one event loop."""

    def __init__(self, threads: int, queue_limit: int, seconds: float) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="work")
        self._limit = queue_limit
        self._seconds = seconds
        self._admitted = 0

    @property
    def admitted(self) -> int:
        return self._admitted

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Room for one request while the block runs; raises Overloaded when the house is full."""
        if self._admitted >= self._limit:
            raise Overloaded("too many requests at once", retry_after=RETRY_AFTER_S)
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1

    async def run(self, work: Callable[[], T]) -> T:
        """``work``'s result, computed in a thread. Raises LikenessError (``request_timeout``) after the time limit.

        Work that nobody waits for any more is dropped if no thread has begun it; begun work ends by itself, and
        counts as admitted until then, so that slow work cannot pile up unseen.
        """
        loop = asyncio.get_running_loop()
        future = self._pool.submit(work)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future, loop=loop), self._seconds)
        except TimeoutError:
            raise LikenessError("the work took longer than a request may", code="request_timeout") from None
        finally:
            if not future.done() and not future.cancel():
                self._admitted += 1
                future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._leave))

    def _leave(self) -> None:
        self._admitted -= 1

    def close(self) -> None:
        """Ends begun work, drops the rest."""
        self._pool.shutdown(wait=True, cancel_futures=True)
