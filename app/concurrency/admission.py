"""Admits requests: how many may arrive and be in work at once, in total and by caller, and what their bodies hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from app.concurrency.budget import Budget
from app.concurrency.overload import Why

RECEIVING = 4
"""Requests whose bodies may be arriving, for each slot."""
UNPROVEN = 16
"""Requests that may be read before their key is known: they are small and short, or their address has failed before."""
GREED = (4, 16)
"""Places that a key, and an address, may hold for each free one: alone, a key gets four fifths and an address, which
may be many people's, 16 of 17. Others find some free."""


class Shares:
    """Counts the holders of a limited number of places. No caller gets so many that others find none."""

    def __init__(self, limit: int) -> None:
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


@dataclass(slots=True)
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
        self._unproven = Shares(UNPROVEN)
        self._visit: ContextVar[Visit | None] = ContextVar("visit", default=None)

    @property
    def limit(self) -> int:
        """Return the number of slots."""
        return self._slots.limit

    @property
    def admitted(self) -> int:
        """Return the number of requests in work, with those given up whose work still runs."""
        return self._slots.held

    @property
    def receiving(self) -> int:
        """Return the number of requests whose body is still arriving."""
        return self._receiving.held + self._unproven.held

    @contextmanager
    def admit(self, *callers: str) -> Iterator[None]:
        """Count a request while the block runs; ``callers`` are its key and its address.

        Raises Overloaded if there are too many, of all callers or of these.
        """
        self._slots.check(callers)  # read no body that there is no slot for
        with self._entered(Visit(callers, self._receiving)):
            yield

    @contextmanager
    def admit_unproven(self, address: str) -> Iterator[None]:
        """Count a request whose key is not known yet, in a small pool of its own. Raises Overloaded."""
        with self._entered(Visit((address,), self._unproven)):
            yield

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
