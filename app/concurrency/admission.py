"""Who may work, on what and for how long: every limit, and one table of why a request is told to come again.

A request is admitted (`Admission`), its work runs in threads for a bounded time (`WorkerPool`, `Task`), and what its
body, its photos and its crops take comes out of one budget of memory and cores (`Budget`).
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from enum import Enum
from traceback import clear_frames
from typing import TypeVar
from weakref import WeakValueDictionary

from app.errors import LikenessError, Overloaded

T = TypeVar("T")


class Why(Enum):
    """A message, the error's code, and `Retry-After` in seconds where the caller of `error` knows no better."""

    REQUESTS = "Too many requests at once.", "overloaded", 1.0
    """All places are taken, or this key's or address's share of them (`Admission`). A request takes about a second."""
    BYTES = "Too many bytes at once.", "overloaded", 1.0
    """The bodies and crops of requests in progress have their share of the memory (`Budget.keep`)."""
    PHOTOS = "Too many large photos at once.", "overloaded", 5.0
    """A large photo has waited too long for memory and a core (`Budget.hold`)."""
    MEMORY = "There is not enough memory now.", "overloaded", 5.0
    """The system gave less memory than the budget counts on."""
    FACES = "Too many items are waiting.", "overloaded", 0.05
    """The queue of a model or of the search is full (`Batcher`), whose speed says when to come again."""
    UPLOADS = "This key's uploads that wait have too many bytes.", "overloaded", 60.0
    """They lie on the disk until a job has read them."""
    KEY_RATE = "This key sends too many requests.", "rate_limited", 1.0
    VECTOR_RATE = "This key sends too many embeddings.", "rate_limited", 1.0
    FAILURES = "Too many wrong keys came from this address.", "too_many_failures", 1.0
    CONNECTIONS = "The server has no connection or file left.", "too_many_connections", 1.0
    """All connections are busy, or the process has no file descriptor left. Answered with 503."""
    STOPPING = "The service is shutting down.", "shutting_down", 1.0
    """Answered with 503."""

    def __init__(self, message: str, code: str, retry_after_s: float) -> None:
        self.message, self.code, self.retry_after_s = message, code, retry_after_s

    def error(self, retry_after_s: float | None = None) -> Overloaded:
        """Return the error to raise."""
        seconds = self.retry_after_s if retry_after_s is None else max(retry_after_s, 0.0)
        return Overloaded(self.message, code=self.code, retry_after=seconds)


@dataclass(slots=True)
class Task:
    """Work for one request. ``until`` is in monotonic seconds; ``given_up`` says that no client waits any more."""

    caller: str = ""
    until: float = math.inf
    given_up: bool = False
    kept: int = 0
    """Bytes of crops that its answer is made of, taken from the budget."""

    @property
    def seconds_left(self) -> float:
        """Return 0 or less once the work is too late or given up."""
        return 0.0 if self.given_up else self.until - time.monotonic()


_NO_REQUEST = Task()
_task: ContextVar[Task] = ContextVar("task", default=_NO_REQUEST)


def current_task() -> Task:
    """Return the task of this thread; one without a caller and an end for work that is no request's."""
    return _task.get()


@contextmanager
def working(task: Task) -> Iterator[None]:
    """Make ``task`` this thread's while the block runs."""
    token = _task.set(task)
    try:
        yield
    finally:
        _task.reset(token)


def check_deadline() -> None:
    """Raise LikenessError (``request_timeout``) if the current work is too late; call it between its stages."""
    if _task.get().seconds_left <= 0:
        raise timed_out()


def timed_out() -> LikenessError:
    return LikenessError("The request took too long.", code="request_timeout")


LARGE_PIXELS = 8_000_000
"""From this size on, decoding and searching a photo takes a core for a second and more."""
COSTLY_PIXELS = 4_000_000
"""From this size on, searching a photo without a face takes a core for half a second and more."""
COSTLY_PARSE = 4 * 1024**2
"""Bytes from which on parsing a body counts as costly."""
NICENESS = 10
"""Added to the process's for threads of costly work: they get a tenth of the core that its other threads want."""
RECENT_S = 5.0
"""How long after its last photo a caller still counts as another one."""
LARGE_WAIT_S = 10.0
"""How long a large photo waits for cores and memory before its request is answered with 429."""
KEPT_SHARE = 0.3
"""Of the bytes, for what lasts as long as its request, bodies and crops: photos in work leave it to them, as a body is
not let wait. The rest is for work, which waits for nothing while it holds bytes: it ends and lets the next one in."""
CALLER_SHARE = 0.8
"""Of the kept bytes, for one caller."""
SMALL_SHARE = 0.15
"""Of the bytes for work, for photos below COSTLY_PIXELS alone: they don't wait until a large one's are given back."""


@dataclass(slots=True)
class _Waiter:
    caller: str
    size: int
    threads: int
    pixels: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    entered: bool = False

    @property
    def costly(self) -> bool:
        return self.pixels >= COSTLY_PIXELS


class Budget:
    """Lets ``threads`` threads work on photos at the same time, and all requests hold ``size`` bytes together.

    Kept bytes (`keep`) are granted at once or never. Work (`run`, `hold`) waits: the next is one that fits, of the
    caller with the fewest running; among those, the one that has waited longest. Costly photos have as many threads of
    their own, of low priority, so that no other waits for one to end: at most half of them, but one, for large photos,
    and not all for one caller. They leave bytes to smaller ones. Safe to share between threads.
    """

    def __init__(self, threads: int, size: float = math.inf) -> None:
        self.size = size
        self._count = threads
        self._free = {False: threads, True: threads}  # by whether the work is costly
        self._large_left = max(1, threads // 2)
        self._lock = threading.Lock()
        self._aside = ThreadPoolExecutor(2 * threads, "costly", _lower_priority)
        self._working = 0
        self._kept: Counter[str] = Counter()
        self._running: Counter[tuple[bool, str]] = Counter()
        """Threads, by whether the work is costly, and caller."""
        self._waiting: deque[_Waiter] = deque()
        self._recent: dict[str, float] = {}
        """When each caller last came or left, in monotonic seconds."""

    @property
    def free(self) -> int:
        """Return how many more threads could work on photos that are not costly now."""
        return self._free[False]

    @property
    def held(self) -> int:
        """Return the bytes that are taken, for work and of what is kept."""
        return self._working + self._kept.total()

    @property
    def kept(self) -> int:
        """Return the bytes of bodies and crops."""
        return self._kept.total()

    @property
    def most_work(self) -> float:
        """Return the bytes that one piece of work may ask for, and that costly photos hold together."""
        return self.size * (1 - KEPT_SHARE) * (1 - SMALL_SHARE)

    @property
    def most_kept(self) -> float:
        """Return the bytes that one caller may keep."""
        return self.size * KEPT_SHARE * CALLER_SHARE

    def keep(self, caller: str, size: int) -> None:
        """Take bytes until `give_back`. Raises Overloaded if there are not so many left, of all or for this caller."""
        with self._lock:
            if self._kept.total() + size > self.size * KEPT_SHARE or self._kept[caller] + size > self.most_kept:
                raise Why.BYTES.error()
            self._kept[caller] += size

    def give_back(self, caller: str, size: int) -> None:
        """Give back what `keep` took."""
        with self._lock:
            self._kept[caller] -= size
            if not self._kept[caller]:
                del self._kept[caller]

    def run(self, work: Callable[[], T], size: int, *, pixels: int = 0, threads: int = 1) -> T:
        """Return what ``work`` returns, done within `hold`, and in a thread of low priority if it is costly.

        What it calls must have freed its memory when it returns, and has when it raises: the next one is let in before
        an error arrives where it is caught.
        """
        with self.hold(size, pixels=pixels, threads=threads):
            try:
                if pixels >= COSTLY_PIXELS or (not threads and size >= COSTLY_PARSE):
                    return self._aside.submit(copy_context().run, work).result()
                return work()
            except BaseException as error:
                clear_frames(error.__traceback__)
                raise

    @contextmanager
    def hold(self, size: int = 0, *, pixels: int = 0, threads: int = 1) -> Iterator[None]:
        """Run the block when ``size`` bytes, at most `most_work`, and a core for a photo of ``pixels`` are free.

        With ``threads=0`` it needs no core. Raises LikenessError (``request_timeout``) if the request's time ends
        first, and Overloaded if a large photo of a request waits for LARGE_WAIT_S.
        """
        task = current_task()
        mine = _Waiter(task.caller, size, threads, pixels)
        with self._lock:
            self._recent[mine.caller] = time.monotonic()
            self._waiting.append(mine)
            mine.lock.acquire()
            self._let_in()
        seconds = min(task.seconds_left, LARGE_WAIT_S if pixels >= LARGE_PIXELS else math.inf)
        # Work of no request has no deadline; who leaves releases the lock.
        if not mine.lock.acquire(timeout=-1 if math.isinf(task.seconds_left) else max(0.0, seconds)):
            with self._lock:
                if not mine.entered:
                    self._waiting.remove(mine)
                    raise timed_out() if task.seconds_left <= 0 else Why.PHOTOS.error()
        try:
            yield
        finally:
            with self._lock:
                self._recent[mine.caller] = time.monotonic()
                self._count_in(mine, -1)
                self._let_in()

    def _let_in(self) -> None:
        while fitting := [waiter for waiter in self._waiting if self._fits(waiter)]:
            chosen = min(fitting, key=lambda waiter: self._running[waiter.costly, waiter.caller])
            self._waiting.remove(chosen)
            self._count_in(chosen, 1)
            chosen.entered = True
            chosen.lock.release()

    def _fits(self, waiter: _Waiter) -> bool:
        left = (self.most_work if waiter.costly else self.size * (1 - KEPT_SHARE)) - self._working
        if self._free[waiter.costly] < waiter.threads or waiter.size > left:
            return False
        if waiter.pixels >= LARGE_PIXELS and not self._large_left:
            return False
        if not waiter.costly or self._running[True, waiter.caller] < max(1, self._count - 1):
            return True
        since = time.monotonic() - RECENT_S  # a core is left to other callers if there are any now
        self._recent = {caller: at for caller, at in self._recent.items() if at >= since}
        return self._recent.keys() <= {waiter.caller}

    def _count_in(self, waiter: _Waiter, sign: int) -> None:
        key = waiter.costly, waiter.caller
        self._running[key] += sign * waiter.threads
        if not self._running[key]:
            del self._running[key]
        self._free[waiter.costly] -= sign * waiter.threads
        self._large_left -= sign * (waiter.pixels >= LARGE_PIXELS)
        self._working += sign * waiter.size


def _lower_priority() -> None:
    if sys.platform == "linux":  # where each thread has a priority of its own
        with suppress(OSError):  # forbidden: the thread keeps the process's priority
            os.nice(NICENESS)  # added to the process's own, which may be lower still


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
REFUSAL_S, PATIENCE_S = 0.2, 2.0
"""What each refusal of a caller adds to its debt, in seconds that pass; its answer waits for what is above PATIENCE_S,
at most as long again."""
MOST_REFUSED = 10_000
"""Callers whose debt is remembered."""


class Shares:
    """Counts the holders of a limited number of places. No caller gets so many that others find none."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.held = 0
        self._by_caller: Counter[str] = Counter()

    def check(self, callers: tuple[str, ...]) -> None:
        """Raise Overloaded if there is no place for a request of ``callers``: its key and its address."""
        free = self.limit - self.held
        for caller, greed in zip(callers, GREED, strict=False):
            if free <= 0 or self._by_caller[caller] >= greed * free:
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
        self.limit = queue_limit
        self._slots = Shares(queue_limit)
        self._receiving = Shares(queue_limit * RECEIVING)
        self._unproven, self._signing = Shares(math.inf), Shares(math.inf)
        self._arriving: dict[Visit, asyncio.Timeout] = {}
        """Unproven requests, the oldest first, and what ends each of them."""
        self._visit: ContextVar[Visit | None] = ContextVar("visit", default=None)
        self._refused: dict[str, float] = {}
        """When the debt of each caller that was refused is over, in monotonic seconds; the last refused one last."""

    @property
    def admitted(self) -> int:
        """Return the number of requests in work, with those given up whose work still runs."""
        return self._slots.held

    @property
    def receiving(self) -> int:
        """Return the number of requests whose body is still arriving."""
        return self._receiving.held + self._unproven.held + self._signing.held

    @contextmanager
    def admit(self, *callers: str, place: Shares | None = None) -> Iterator[Visit]:
        """Count a request while the block runs; ``callers`` are its key and its address.

        Raises Overloaded if there are too many, of all callers or of these.
        """
        if place is None:
            self._slots.check(callers)  # read no body that there is no slot for
        visit = Visit(callers, place or self._receiving)
        visit.place.enter(callers)
        token = self._visit.set(visit)
        try:
            yield visit
        finally:
            self._visit.reset(token)
            self.leave(visit)

    @asynccontextmanager
    async def admit_unproven(self, address: str, key_id: str | None = None) -> AsyncIterator[None]:
        """Count a request whose signature can be checked when its body is there, in a pool of its own.

        ``key_id`` is the key it names if that has signed from this address before: it then has as many places as there
        are slots. There is always a place: where all are taken, the oldest request is ended with Overloaded. A body
        that has just begun arrives, and one that does not come holds nobody up.
        """
        if key_id is None:
            caller, place, most = address, self._unproven, UNPROVEN_EACH
        else:
            caller, place, most = f"{key_id} {address}", self._signing, self.limit
        crowds = Counter(visit.callers[0] for visit in self._arriving)
        crowd = caller if crowds[caller] >= most else None
        if crowd is None and len(self._arriving) >= UNPROVEN + self.limit:
            crowd = crowds.most_common(1)[0][0]
        if crowd is not None:
            self._end(next(visit for visit in self._arriving if visit.callers[0] == crowd))
        try:
            async with asyncio.timeout(None) as end:
                with self.admit(caller, place=place) as visit:
                    self._arriving[visit] = end
                    try:
                        yield
                    finally:
                        self._arriving.pop(visit, None)
        except TimeoutError:
            raise Why.REQUESTS.error() from None

    def _end(self, visit: Visit) -> None:
        self._arriving.pop(visit).reschedule(asyncio.get_running_loop().time())

    def take(self, size: int) -> None:
        """Count bytes of the admitted request's body. Raises Overloaded if there are too many.

        The oldest unproven requests are ended until those of another one fit.
        """
        visit = self._visit.get()
        if visit is None:
            raise RuntimeError("Bytes are counted for an admitted request only.")
        if visit.place is self._unproven:
            left = self.budget.size * KEPT_SHARE * UNPROVEN_SHARE - visit.held - size
            if left < 0:
                raise Why.BYTES.error()
            others = [other for other in self._arriving if other.place is self._unproven and other is not visit]
            held = sum(other.held for other in others)
            while held > left:
                held -= others[0].held
                self._end(others.pop(0))
        self.budget.keep(visit.callers[0], size)
        visit.held += size

    def receive(self) -> None:
        """Give the request's slot back until its next work, to receive a long body. Raises Overloaded."""
        self.begin(self._receiving)

    def begin(self, place: Shares | None = None) -> Visit | None:
        """Return the request that work begins for, if any; it is in a slot from now on. Raises Overloaded."""
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
            self.budget.give_back(visit.callers[0], visit.held)

    async def pause(self, caller: str) -> None:
        """Wait before a refusal is answered if the caller was refused again and again.

        A refusal costs a few milliseconds of the interpreter. A caller that comes back at once, whatever Retry-After
        says, gets some in a second for each of its connections.
        """
        now = time.monotonic()
        debt = min(max(self._refused.pop(caller, now) - now, 0.0) + REFUSAL_S, 2 * PATIENCE_S)
        self._refused[caller] = now + debt
        if len(self._refused) > MOST_REFUSED:
            del self._refused[next(iter(self._refused))]
        await asyncio.sleep(max(0.0, debt - PATIENCE_S))


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
