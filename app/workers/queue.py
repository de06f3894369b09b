"""Give each photo to a worker, in turn and fairly between callers. A worker's death affects only its photo."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock

from app.concurrency.threads import COSTLY_WAIT_S, GIVEN_UP, TASK, Turns, check_deadline
from app.errors import ImageTooLarge, InvalidImage, LikenessError, Unusable
from app.face.align import Cut
from app.machine import memory_in_use
from app.pipeline import COSTLY_MEMORY, COSTLY_PIXELS, count_crops
from app.types import Photo
from app.workers.start import PARENT_ENDED, Ended, Parent, PhotoWorker
from app.workers.worker import WorkerAnswer, WorkerLimits

SMALL_NICENESS = 5
"""Niceness of workers, so that nearly finished work goes first: the server, which makes templates and answers, gets
three quarters of a core that a worker also wants."""
COSTLY_NICENESS = 15
"""Niceness of workers with costly photos: they get a tenth of a core that other workers want."""
IDLE_S = 60.0
"""Seconds that an idle worker for costly photos is kept."""
SMALL_SHARE = 1 / 3
"""Share of the memory for photos that each small one may take."""
SMALL_MEMORY = 256 * 1024**2
RESTING = 24 * 1024**2
"""Bytes that a worker takes between photos, besides memory shared with its parent. Measured: 13 to 20 MiB."""
STUCK = 10
"""Work without a deadline ends after this many times a photo's processor time."""
TOO_LONG = "SIGXCPU"
KILLED = "SIGKILL", "SIGTERM", PARENT_ENDED
"""The ways in which a worker ends that its photo didn't cause."""
MOST_KILLED = 2
"""Maximum workers that one photo may kill."""
UNREADABLE = "The image could not be read."
_log = logging.getLogger(__name__)


class Crew:
    """Workers of one kind, at most ``count``. Safe to share between threads."""

    def __init__(
        self, parent: Parent, count: int, limits: WorkerLimits | None, *, patience_s: float, kept_s: float
    ) -> None:
        """A photo waits at most ``patience_s``, and an idle worker is kept for ``kept_s``."""
        self.turns = Turns(count)
        self._count, self.limits = count, limits
        self._parent, self._patience_s, self._kept_s = parent, patience_s, kept_s
        self._idle: list[tuple[PhotoWorker, float]] = []
        self._lock, self._filling = Lock(), Lock()
        self._closed = False
        self.running: set[PhotoWorker] = set()
        """Every worker that is not known to have ended."""

    def ask(self, image: bytes, cuts: Sequence[Cut]) -> WorkerAnswer:
        """Return a worker's answer, in turn.

        Raises Ended, LikenessError (``request_timeout``), Overloaded, and Unusable ``workers_unusable``.
        """
        with self.turns.take_turn(self._patience_s):
            check_deadline()
            worker = self._take()
            answer = None
            try:
                answer = worker.ask(image, cuts, self._checking())
            except Ended as error:
                raise Ended(TOO_LONG if str(error) == TOO_LONG else self._end(worker)) from error
            finally:
                if answer is not None and answer.outcome not in ("no_memory", "failed"):
                    with self._lock:
                        self._idle.append((worker, time.monotonic()))
                else:
                    self._end(worker)
                    self._fill()
            return answer

    def maintain(self) -> None:
        """Replace idle workers that have ended, and end those that have been idle for too long."""
        now = time.monotonic()
        with self._lock:
            idle, self._idle = self._idle, []
        for worker, since in idle:
            if worker.is_alive() and now - since < self._kept_s:
                with self._lock:
                    self._idle.insert(0, (worker, since))
            else:
                self._end(worker)
        self._fill()

    def close(self) -> None:
        """End all workers; none is started any more."""
        self._closed = True
        with self._filling:  # one that is being started
            for worker in list(self.running):
                self._end(worker)

    def _checking(self) -> Callable[[], None]:
        """Return a function that raises when the work must end: with its request, or because the worker is stuck."""
        latest = time.monotonic() + (STUCK * self.limits.seconds if self.limits else 0)

        def check() -> None:
            check_deadline()
            if time.monotonic() > latest:
                raise Ended(TOO_LONG)

        return check

    def _take(self) -> PhotoWorker:
        while True:
            with self._lock:
                if not self._idle:
                    break
                worker, _ = self._idle.pop()
            if worker.is_alive():
                return worker
            self._end(worker)
        return self._start()

    def _fill(self) -> None:
        """Replace workers that have ended, if workers are kept for ever."""
        if math.isfinite(self._kept_s):
            return
        with self._filling, suppress(Unusable):  # `_take` tries again
            while len(self.running) < self._count and not self._closed:
                worker = self._start()
                with self._lock:
                    self._idle.insert(0, (worker, time.monotonic()))

    def _start(self) -> PhotoWorker:
        if self.limits is None or self._closed:
            raise Unusable("Photo workers have not started.", code="workers_unusable")
        worker = self._parent.start(self.limits)
        self.running.add(worker)
        return worker

    def _end(self, worker: PhotoWorker) -> str:
        if worker not in self.running:
            return "ended"
        self.running.discard(worker)
        worker.close()
        return self._parent.end(worker.process)


class PhotoWorkers:
    """Finds faces as `Pipeline` does, in subprocesses. Safe to share between threads.

    Photos of more than COSTLY_PIXELS, and those for which a worker's memory was too small, go to workers of low
    priority, of which there are half as many, so that nothing else waits for them. A photo whose worker ends is tried
    once more: by a worker of the same kind if the system killed it, else by one with more memory.
    """

    def __init__(self, parent: Parent, count: int, seconds: float, count_bytes: Callable[[int], None]) -> None:
        """`start` starts ``count`` workers; a photo may take ``seconds`` of processor time. ``count_bytes`` is
        called with the bytes of a request's crops, and raises Overloaded if there are too many.
        """
        self._parent, self._count, self._seconds, self._count_bytes = parent, count, max(1, round(seconds)), count_bytes
        self.ended: Counter[str] = Counter()
        """Number of photos that workers gave up, by how the worker ended."""
        self._small = self._costly = Crew(parent, 0, None, patience_s=0, kept_s=0)

    def start(self, memory: float) -> None:
        """Start the workers. ``memory`` is for photos: a small one may take a third, all costly ones together the rest.

        If more small ones at once exceed it, the system kills a worker, but nothing else.
        Raises Unusable ``workers_unusable``.
        """
        rest = memory * (1 - SMALL_SHARE)
        costly = max(1, min(self._count // 2, int(rest / COSTLY_MEMORY)))
        small = WorkerLimits(int(min(SMALL_MEMORY, memory * SMALL_SHARE)), self._seconds, SMALL_NICENESS, COSTLY_PIXELS)
        large = WorkerLimits(int(min(COSTLY_MEMORY, rest / costly)), self._seconds, COSTLY_NICENESS, math.inf)
        self._small = Crew(self._parent, self._count, small, patience_s=math.inf, kept_s=math.inf)
        self._costly = Crew(self._parent, costly, large, patience_s=COSTLY_WAIT_S, kept_s=IDLE_S)
        self._small.maintain()
        self._log_start()

    def memory_at_rest(self) -> int:
        """Return the bytes that the workers and their parent take without photos."""
        return memory_in_use(self._parent.process) + self._count * RESTING

    @property
    def free(self) -> int:
        """Return how many more small photos could be worked on now."""
        return self._small.turns.free

    @property
    def waiting(self) -> int:
        """Return how many photos wait for a worker."""
        return self._small.turns.waiting + self._costly.turns.waiting

    def detect(self, image: bytes, cuts: Sequence[Cut] = ()) -> Photo:
        """Return what `Pipeline.detect` returns.

        Raises what it raises; ImageTooLarge for a photo that needs more memory than a worker has, and InvalidImage for
        one that kills its worker twice, or takes too long.
        """
        photo = self._found(image, cuts)
        count_crops(photo, self._count_bytes)
        return photo

    def maintain(self) -> None:
        """Replace workers that have ended, and end those that are not needed. Call it every few seconds."""
        self._small.maintain()
        self._costly.maintain()

    def close(self) -> None:
        """End all workers, but not their parent."""
        self._small.close()
        self._costly.close()

    def _found(self, image: bytes, cuts: Sequence[Cut]) -> Photo:
        crew, ended = self._small, 0
        while True:
            try:
                answer = self._asked(crew, image, cuts)
            except Ended as error:
                ended += 1
                again = ended < MOST_KILLED and str(error) != TOO_LONG
                self._note(str(error), image, again=again)
                if not again:
                    raise InvalidImage(UNREADABLE) from error
                crew = crew if str(error) in KILLED else self._costly
                continue
            if answer.photo is not None:
                return answer.photo
            if answer.outcome == "refused":
                raise answer.error()
            if answer.outcome != "costly":
                self._note(answer.message or answer.outcome, image, again=crew is not self._costly)
            if crew is self._costly and answer.outcome == "no_memory":
                raise ImageTooLarge("Reading the image takes more memory than this server has for one image.")
            if crew is self._costly:
                raise InvalidImage(UNREADABLE)
            crew = self._costly

    def _asked(self, crew: Crew, image: bytes, cuts: Sequence[Cut]) -> WorkerAnswer:
        try:
            return crew.ask(image, cuts)
        except LikenessError as error:
            if error.code == "request_timeout" and TASK.get().until != GIVEN_UP:
                self._note("request_timeout", image, again=False)
            raise

    def _note(self, reason: str, image: bytes, *, again: bool) -> None:
        """Count and log why a worker gave up a photo; the log names it only by its SHA-256."""
        kind = reason if reason.isupper() or reason in ("no_memory", "request_timeout") else "failed"
        self.ended[kind] += 1
        fields = {"reason": reason, "photo": hashlib.sha256(image).hexdigest(), "again": again}
        _log.warning("a photo worker ended", extra={"fields": fields})

    def _log_start(self) -> None:
        held = sorted({mechanism for worker in self._small.running for mechanism in worker.held})
        fields = {
            "workers": len(self._small.running),
            "sandbox": " and ".join(held) or "none",
            "threads": self._parent.threads,
        }
        _log.log(logging.INFO if held else logging.WARNING, "photo workers", extra={"fields": fields})
