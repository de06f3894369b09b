"""Send events to browsers and programs as they happen, as server-sent events (WHATWG HTML, 9.2)."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

from app.db.engine import Database
from app.errors import Overloaded
from app.features.watching.events import Event, aged, last_number, read_events
from app.features.watching.rows import Where

POLL_S: Final = 0.5
KEEP_ALIVE_S: Final = 15.0
"""Seconds between comments, so that no proxy closes a silent connection."""
AT_ONCE: Final = 100
MOST: Final = 32
"""Maximum number of listeners of one server at a time."""
RETRY_MS: Final = 2_000
"""Milliseconds that a listener waits before it connects again."""


class Listeners:
    """Limits the number of listeners, and reads events for them. Safe to share between threads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._places = threading.Semaphore(MOST)

    def begin(self, after: int | None) -> int:
        """Take a listener's place; return the number of the event after which it continues. With None it is the newest
        event's, and 0 if ``after`` is higher than that, which happens after an older backup was restored. Raises
        Overloaded if there are MOST listeners."""
        with self._database.read() as connection:
            newest = last_number(connection)
        if not self._places.acquire(blocking=False):
            raise Overloaded(f"{MOST} listeners are there already.", retry_after=KEEP_ALIVE_S)
        return newest if after is None else after if after <= newest else 0

    async def stream(
        self,
        after: int,
        where: Sequence[Where],
        ends: float,
        goes_on: Callable[[], bool],
        may_hear: Callable[[], Awaitable[bool]],
    ) -> AsyncIterator[str]:
        """Yield new events with numbers above ``after`` for which ``where`` holds, while ``goes_on`` returns True and
        until ``ends`` on the monotonic clock. Then give the listener's place back.

        ``may_hear`` looks the listener's session and key up again before each piece; the stream ends if it returns
        False.
        """
        try:
            yield f"retry: {RETRY_MS}\n\n"
            version: object = object()
            heard = time.monotonic()
            while goes_on():
                now = self._database.version()
                events: list[Event] = []
                if now is None or now != version:
                    events = await asyncio.to_thread(read_events, self._database, after, AT_ONCE, where)
                    version = now if len(events) < AT_ONCE else object()
                is_silent = time.monotonic() - heard > KEEP_ALIVE_S
                if (events or is_silent) and not await may_hear():
                    return
                for event in events:
                    data = json.dumps(aged(event, time.time()), ensure_ascii=False)
                    yield f"id: {event['number']}\nevent: {event['event']}\ndata: {data}\n\n"
                    after, heard = event["number"], time.monotonic()
                if is_silent and not events:
                    yield ": \n\n"
                    heard = time.monotonic()
                if len(events) < AT_ONCE and time.monotonic() >= ends:
                    return
                await asyncio.sleep(0 if len(events) == AT_ONCE else min(POLL_S, max(0.0, ends - time.monotonic())))
        finally:
            self._places.release()
