"""The audit log: entries are written in the background, many in a transaction.

An operation that changes something waits for its entry (`write`): it is in the database before the work begins, and
gets its outcome before the answer goes out, so that a killed process leaves no change without an entry. The entry of an
operation that only reads is queued (`note`) and written within FLUSH_S; a killed process may lose it.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

from app.access.audit_sink import AuditSink
from app.access.audit_store import AuditEntry, AuditStore
from app.concurrency.scheduler import FailureLog
from app.errors import DatabaseBusy, LikenessError, NotFound
from app.timestamps import utc_text

FLUSH_S = 0.5
MAX_WAITING = 10_000
"""Entries queued while the database is unavailable; further ones of reading operations are dropped and counted."""
BATCH = 500
RETRY_S = 1.0
DAY_S = 86_400.0
DONE, NOT_FOUND = 204, 404
"""HTTP statuses, also for the server's own work."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Waiting:
    entry: AuditEntry
    done: Future[None] | None
    """Resolved when the entry is written; None: no caller waits."""


class AuditLog:
    """Writes the audit log. Safe to share between threads. Entries are kept for `days`; 0: forever.

    Entries go to the `sink` when they are committed, before a caller that waits goes on.
    """

    def __init__(
        self,
        store: AuditStore,
        *,
        days: float = 0,
        sink: AuditSink | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self._sink = sink
        self._days = days
        self._clock = clock
        self._condition = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._dropped = 0
        self._urgent = False
        self._closing = False
        self._failures = FailureLog("the audit log")
        self._thread = threading.Thread(target=self._work, name="audit", daemon=True)
        self._thread.start()

    def entry(self, key: str | None, operation: str, request_id: str) -> AuditEntry:
        """Return a new entry with the current time, not written yet."""
        return AuditEntry(utc_text(self._clock()), key, operation, request_id)

    @contextmanager
    def recorded(self, operation: str, gallery: str | None = None, subject: str | None = None) -> Iterator[None]:
        """Record work that the server does by itself, without a key. Exceptions pass through."""
        entry = self.entry(None, operation, secrets.token_hex(16))
        entry.gallery, entry.subject = gallery, subject
        self.write(entry).result()
        try:
            yield
        except NotFound:
            entry.status = NOT_FOUND
            raise
        else:
            entry.status = DONE
        finally:
            if entry.status is not None:
                self.write(entry).result()

    def write(self, entry: AuditEntry) -> Future[None]:
        """Write the entry, or its changes, at once. The future raises what the database raises."""
        done: Future[None] = Future()
        with self._condition:
            if self._closing:
                done.set_exception(LikenessError("The server is stopping.", code="shutting_down"))
                return done
            if len(self._waiting) >= 2 * MAX_WAITING:
                done.set_exception(DatabaseBusy("The audit log can't be written."))
                return done
            self._waiting.append(_Waiting(entry, done))
            self._urgent = True
            self._condition.notify_all()
        return done

    def note(self, entry: AuditEntry) -> None:
        """Queue the entry, to be written soon."""
        with self._condition:
            if self._closing or len(self._waiting) >= MAX_WAITING:
                self._dropped += 1
                return
            self._waiting.append(_Waiting(entry, None))
            if len(self._waiting) == 1:  # with others queued the thread is awake already
                self._condition.notify_all()

    def prune(self) -> int:
        """Delete the entries that are older than the log keeps them; return how many. The scheduler calls it."""
        return self.store.prune(utc_text(self._clock() - self._days * DAY_S)) if self._days else 0

    def close(self) -> None:
        """Write what is queued, and end the thread."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._waiting or self._closing)
                self._condition.wait_for(lambda: self._urgent or self._closing, FLUSH_S if self._waiting else 0)
                self._urgent = False
                batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
                self._urgent = bool(self._waiting)
                closing, dropped, self._dropped = self._closing, self._dropped, 0
            if dropped:
                _log.error("audit entries lost", extra={"fields": {"entries": dropped}})
            if batch and not self._write(batch) and not closing:
                with self._condition:
                    self._condition.wait_for(lambda: self._closing or self._urgent, RETRY_S)
            if closing and not self._waiting:
                return

    def _write(self, batch: list[_Waiting]) -> bool:
        for one in batch:
            if one.done and not one.done.set_running_or_notify_cancel():
                one.done = None  # cancelled
        entries = list({id(one.entry): one.entry for one in batch}.values())
        try:
            self.store.write(entries)
        except Exception as error:  # noqa: BLE001 (a worker's edge: every waiting caller gets it)
            self._failed(batch, error)
            return False
        self._failures.succeeded()
        if self._sink:
            self._sink.write(entries)
        for one in batch:
            if one.done:
                one.done.set_result(None)
        return True

    def _failed(self, batch: list[_Waiting], error: Exception) -> None:
        self._failures.failed(error)
        for one in batch:
            if one.done:
                one.done.set_exception(error)
        with self._condition:
            if self._closing:
                self._dropped += sum(one.done is None for one in batch)
            else:
                self._waiting = [one for one in batch if one.done is None] + self._waiting
