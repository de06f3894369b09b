"""Admit bodies that must arrive before their key or signature can be checked."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from app.api.components import Components
from app.concurrency.admission import CALLER_SHARE, Admission, Shares, Visit
from app.concurrency.overload import Why

UNPROVEN_S = 10.0
"""Seconds within which a body from an unproven sender must arrive. The largest photo then needs 6 Mbit/s."""
UNPROVEN = 64
"""Maximum requests whose bodies may be arriving, apart from those of callers that have signed before. One more ends the
oldest."""
UNPROVEN_EACH = 4
"""Maximum of such requests from one address."""
UNPROVEN_SHARE = 1 - CALLER_SHARE
"""Share of the memory for requests that the bodies of unproven senders may take. In a server with 1 GiB, this is two
photos of 5 MiB in base64, the maximum of a Rekognition request."""


class UnprovenBodies:
    """Admits requests of unproven senders, which don't take the places of other requests. For one event loop.

    There is always a place: if all are taken, the oldest request is ended with Overloaded. So a new body can always
    arrive, and a body that never arrives doesn't block others.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._unproven, self._signing = Shares(math.inf), Shares(math.inf)
        self._arriving: dict[Visit, asyncio.Timeout] = {}
        """The admitted requests, oldest first, each with the timeout that ends it."""

    @property
    def receiving(self) -> int:
        """Return the number of requests whose body is still arriving."""
        return self._unproven.held + self._signing.held

    @asynccontextmanager
    async def admit(self, address: str, key_id: str | None = None) -> AsyncIterator[Callable[[int], None]]:
        """Admit a request while the block runs; yield a function that counts bytes of its body. Both may raise
        Overloaded.

        ``key_id``: the key that the request names, if this key has signed from this address before. It then gets as
        many places as other requests have.
        """
        if key_id is None:
            caller, place, most = address, self._unproven, UNPROVEN_EACH
        else:
            caller, place, most = f"{key_id} {address}", self._signing, self._admission.limit
        crowds = Counter(visit.callers[0] for visit in self._arriving)
        crowd = caller if crowds[caller] >= most else None
        if crowd is None and len(self._arriving) >= UNPROVEN + self._admission.limit:
            crowd = crowds.most_common(1)[0][0]
        if crowd is not None:
            self._end(next(visit for visit in self._arriving if visit.callers[0] == crowd))
        try:
            async with asyncio.timeout(None) as end:
                with self._admission.admit(caller, place=place) as visit:

                    def count_bytes(size: int) -> None:
                        if place is self._unproven:
                            self._make_room(visit, size)
                        self._admission.count_bytes(size)

                    self._arriving[visit] = end
                    try:
                        yield count_bytes
                    finally:
                        self._arriving.pop(visit, None)
        except TimeoutError:
            raise Why.REQUESTS.error() from None

    def _make_room(self, visit: Visit, size: int) -> None:
        """End the oldest requests until ``size`` more bytes of this request fit. Raises Overloaded if they can't
        fit."""
        left = self._admission.byte_limit * UNPROVEN_SHARE - visit.held - size
        if left < 0:
            raise Why.BYTES.error()
        others = [other for other in self._arriving if other.place is self._unproven and other is not visit]
        held = sum(other.held for other in others)
        while held > left:
            held -= others[0].held
            self._end(others.pop(0))

    def _end(self, visit: Visit) -> None:
        self._arriving.pop(visit).reschedule(asyncio.get_running_loop().time())


def unproven_of(components: Components) -> UnprovenBodies:
    """Return the server's `UnprovenBodies`, which all wire formats share."""
    made: UnprovenBodies = components.parts.setdefault("unproven", UnprovenBodies(components.admission))
    return made
