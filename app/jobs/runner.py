"""Run jobs in threads of this process, each under a lease. A killed process's jobs continue from their checkpoint."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

from sqlalchemy.engine import Connection

from app.choices import JobStateName
from app.concurrency.scheduler import Scheduler
from app.concurrency.threads import FailureLog, Worker
from app.errors import DatabaseUnavailable, LikenessError, Overloaded, Unusable
from app.jobs.files import JobFiles
from app.jobs.records import MAX_REFUSED_NAME, Job, Refusal, Result
from app.jobs.store import JobLost, JobStore
from app.machine import release_memory

LEASE = timedelta(seconds=20)
"""The time after which another process may claim a killed process's job."""
RENEW_S = 2.0
"""Seconds between renewals of leases, which also write the progress and read cancellations."""
LOOK_S = 1.0
"""Seconds between looks for jobs that other processes created or left."""
RETRY = timedelta(seconds=5)
RETRIED = (Overloaded, DatabaseUnavailable)
"""Errors after which a job is tried again, RETRY later."""
MAX_RETRIES = 10
"""Maximum retries of a job by one process without a checkpoint in between."""
MAX_DEATHS = 2
"""A job fails after this many deaths of its process without a checkpoint, since it may be what kills the process."""
MAX_REPORTED = 100_000
"""Maximum rejected items in a job's report; others are only counted."""
KEPT = timedelta(days=7)
"""Default time that finished jobs are kept."""
CRASHED = (
    f"The server's process ended {MAX_DEATHS} times while it did this job, so the job is not begun again. "
    "Look into the server's log and its memory limit before you send the upload once more."
)
_log = logging.getLogger(__name__)


class Running:
    """A running job, as its work sees it. For one thread."""

    def __init__(self, store: JobStore, job: Job, closing: threading.Event) -> None:
        self._store = store
        self.job = job
        """The job as it was when this process claimed it."""
        self._closing = closing
        self._refusals: list[Refusal] = []
        self.saved: Mapping[str, Any] = job.saved
        """The last checkpoint; empty at the first start."""
        self.counts: Counter[str] = Counter(job.counts)
        """The work's counts; checkpoints write them, and a resumed job continues them."""
        self.done = job.done
        self.total = job.total
        self.result: Result | None = None
        """The file that the work has made."""
        self.cancel_asked = job.cancel_asked
        self.lost = False

    @property
    def params(self) -> Mapping[str, Any]:
        return self.job.params

    @property
    def cancelled(self) -> bool:
        """Return whether the work must end now: the job is cancelled, the server stops, or another process claimed it.

        In the last two cases the job continues later from its last checkpoint.
        """
        return self.cancel_asked or self.lost or self._closing.is_set()

    @property
    def secret(self) -> bytes:
        """Return the key of the job's files. Raises Unusable ``upload_missing``, ``sealed_unreadable``."""
        secret = self._store.secret(self.job)
        if secret is None:
            raise Unusable("The key of the job's files is gone.", code="upload_missing")
        return secret

    def progress(self, done: int, total: int | None = None) -> None:
        """Set the progress of the work, which is written within RENEW_S, not at once."""
        self.done = done
        self.total = self.total if total is None else total

    def refuse(
        self, item: int, name: str, code: str, message: str, reasons: Sequence[str] = (), *, enrolled: bool = False
    ) -> None:
        """Add an item to the job's report and to its count `refused`, or `warned` if it was `enrolled` nevertheless.

        It is written with the next checkpoint. Items after MAX_REPORTED are only counted, as `not_reported`.
        """
        self.counts["warned" if enrolled else "refused"] += 1
        if self.counts["refused"] + self.counts["warned"] > MAX_REPORTED:
            self.counts["not_reported"] += 1
            return
        self._refusals.append(Refusal(item, name[:MAX_REFUSED_NAME], code, message, tuple(reasons), enrolled))

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Wrap work that may be repeated after a failure, so that a failed attempt counts and reports nothing."""
        counts, refusals = Counter(self.counts), list(self._refusals)
        try:
            yield
        except BaseException:
            self.counts, self._refusals = counts, refusals
            raise

    def checkpoint(self, saved: Mapping[str, Any], connection: Connection | None = None) -> None:
        """Write the state that a resumed job needs to continue from here.

        With a `connection`, it is written in its transaction, so that nothing is done twice. If this fails, the work
        must end with the error. Raises JobLost.
        """
        refusals, self._refusals = self._refusals, []
        self._store.save(
            self.job,
            saved=saved,
            counts=+self.counts,  # without zeros
            done=self.done,
            total=self.total,
            refusals=refusals,
            connection=connection,
        )
        self.saved = dict(saved)


Work: TypeAlias = Callable[[Running], None]
"""Runs a job of one kind, from its last checkpoint, `Running.saved`."""


class Runner:
    """Claims jobs and runs them, `workers` at a time, from `start` to `close`, which hands unfinished ones back.

    Jobs of some kinds run separately: one at a time, in their own worker.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        files: JobFiles | None = None,
        workers: int = 1,
        lease: timedelta = LEASE,
        renew_s: float = RENEW_S,
        look_s: float = LOOK_S,
        kept: timedelta = KEPT,
    ) -> None:
        """`files` are deleted when no job needs them, finished jobs after `kept` (see `prune`)."""
        self._store = store
        self._works: dict[str, Work] = {}
        self._apart: frozenset[str] = frozenset()
        self._files = files
        self._lease = lease
        self._look_s = look_s
        self._renew_s = renew_s
        self._kept = kept
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._running: dict[str, Running] = {}
        self._ended: Counter[tuple[str, str]] = Counter()
        self._retries: Counter[str] = Counter()
        self._unreleased: list[Job] = []  # jobs that could not be handed back
        failures = FailureLog("jobs")
        self._workers = [
            Worker(name, partial(self._run, apart=apart), retry_s=look_s, failures=failures)
            for name, apart in [*((f"jobs-{number}", False) for number in range(workers)), ("jobs-apart", True)]
        ]

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def ended(self) -> Mapping[tuple[str, str], int]:
        """Return the number of jobs that have ended in this process, by kind and state."""
        with self._lock:
            return dict(self._ended)

    def start(self, works: Mapping[str, Work], scheduler: Scheduler, apart: Collection[str] = ()) -> None:
        """Begin to run jobs; `works` has the work for each kind. Jobs of the kinds `apart` have their own worker.

        The scheduler renews the leases, so it must be closed after the runner.
        """
        self._works, self._apart = dict(works), frozenset(apart)
        self._store.on_created = self.wake
        scheduler.every(self._renew_s, "jobs-lease", self._renew)
        self.wake()

    def close(self) -> None:
        self._closing.set()
        for worker in self._workers:
            worker.close()

    def wake(self) -> None:
        """Look for a new job at once."""
        for worker in self._workers:
            worker.wake()

    def prune(self) -> None:
        """Delete jobs that finished long ago, and files that no job needs. The scheduler calls it."""
        self._store.prune(self._kept)
        if self._files is not None:
            self._files.keep_only(self._store.with_files)

    def _run(self, *, apart: bool) -> float:
        """Run the next job, if there is one; return the seconds until the next look."""
        kinds = self._apart if apart else self._works.keys() - self._apart
        if self._closing.is_set() or not kinds:
            return self._look_s
        with self._lock:
            left = self._unreleased.pop() if self._unreleased else None
            running = list(self._running)
        if left is not None:
            self._release(left)
        owner = secrets.token_hex(16)  # new each time, so that an expired lease is not taken for the next one
        place = None if self._files is None else self._files.place
        job = self._store.claim(owner, kinds, self._lease, place, skip=running)
        if job is None:
            return self._look_s
        self._do(job)
        return 0.0

    def _do(self, job: Job) -> None:
        running = Running(self._store, job, self._closing)
        with self._lock:
            self._running[job.id] = running
        try:
            if job.cancel_asked:
                self._finish(running, "cancelled")
            elif job.attempts > MAX_DEATHS:
                _log.error("A job is set aside", extra={"fields": {"job": job.id, "kind": job.kind}})
                self._finish(running, "failed", ("job_crashed", CRASHED))
            else:
                self._work(running)
        except JobLost:
            _log.warning("A job was claimed by another process, or deleted", extra={"fields": {"job": job.id}})
        finally:
            with self._lock:
                del self._running[job.id]

    def _work(self, running: Running) -> None:
        """Run a job, and end it or hand it back. Raises JobLost."""
        job = running.job
        try:
            self._works[job.kind](running)
        except JobLost:
            raise
        except LikenessError as error:
            if isinstance(error, RETRIED) and self._may_retry(running):
                self._release(job, again_in=RETRY)
            else:
                self._finish(running, "failed", (error.code, error.message))
        except Exception as error:  # noqa: BLE001 - the thread's edge
            _log.error("A job failed", exc_info=error, extra={"fields": {"job": job.id, "kind": job.kind}})
            self._finish(running, "failed", ("internal_error", "The server failed; its log says more."))
        else:
            if running.lost:
                raise JobLost(job.id)
            if running.cancel_asked:
                self._finish(running, "cancelled")
            elif self._closing.is_set():
                self._release(job)
            else:
                self._finish(running, "done")

    def _may_retry(self, running: Running) -> bool:
        """Count the retry, and return whether it is allowed. A checkpoint since the last retry resets the count."""
        with self._lock:
            if running.saved != running.job.saved:
                del self._retries[running.job.id]
            self._retries[running.job.id] += 1
            return self._retries[running.job.id] < MAX_RETRIES and not running.cancel_asked

    def _release(self, job: Job, *, again_in: timedelta = timedelta()) -> None:
        """Hand the job back, later if the database is unavailable, so that its start is not counted as a crash."""
        try:
            self._store.release(job, again_in=again_in)
        except RETRIED:
            with self._lock:
                self._unreleased.append(job)
            raise

    def _finish(self, running: Running, state: JobStateName, error: tuple[str, str] | None = None) -> None:
        job = running.job
        release_memory()  # a job leaves its freed memory fragmented
        result = running.result if state == "done" else None
        self._store.finish(job, state, done=running.done, total=running.total, error=error, result=result)
        if self._files is not None:
            self._files.upload(job.id).unlink(missing_ok=True)
        with self._lock:
            del self._retries[job.id]
            self._ended[job.kind, state] += 1

    def _renew(self) -> None:
        with self._lock:
            held = list(self._running.values())
        for running in held:
            try:
                running.cancel_asked = self._store.renew(running.job, self._lease, running.done, running.total)
            except JobLost:
                running.lost = True
