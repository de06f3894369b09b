"""Write the audit log in the background, many entries in a transaction.

An operation that changes something waits for its entry (`write`): it is in the database before the work begins, and
gets its outcome before the answer goes out, so that a killed process leaves no change without an entry. An enrollment's
outcome is written with its change (`AuditEntry.finish`), which saves a commit; so is a sign-in's whole entry
(`AuditEntry.insert`), which saves two. The entry of an operation that only reads is queued (`note`) and written within
FLUSH_S; a killed process may lose it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.concurrency.threads import FailureLog, Worker
from app.db.clock import DAY_S
from app.db.engine import Database
from app.db.schema import AUDIT
from app.errors import DatabaseBusy, InvalidInput, LikenessError, NotFound, Overloaded
from app.gallery.text import clean_id
from app.types import utc_now, utc_text

PRUNED_AT_ONCE = 5_000
"""Maximum old rows deleted in one transaction, so that no writer waits long."""


@dataclass(slots=True, kw_only=True)
class AuditEntry:
    """One call of an operation. ``status``: None until it ends; ``target``: the id of its face, key, job or
    receipt, or its subject's new id."""

    at: str = field(default_factory=utc_now)
    key: str | None
    """The id of the API key; None: the server itself, or no valid key."""
    operation: str
    request_id: str
    gallery: str | None = None
    subject: str | None = None
    target: str | None = None
    status: int | None = None
    row: int | None = None
    """The row's primary key; None until it is written."""

    def finish(self, status: int, connection: Connection) -> None:
        """Write the status in the transaction of the change itself. An answer of another status corrects it later."""
        self.status = status
        connection.execute(_UPDATE, {"of": self.row, **_values(self)})

    def insert(self, status: int, connection: Connection) -> int:
        """Write the entry, with its status, in the transaction of the change itself. Return its ``row``, to be set
        after the commit."""
        row: int = connection.execute(_INSERT, {**_values(self), "status": status}).scalar_one()
        return row


def fit_id(text: str | None) -> str | None:
    """Return ``text`` if it is a possible id; else None, so that callers can't write arbitrary text to the log."""
    try:
        return None if text is None else clean_id(text, "record")
    except InvalidInput:
        return None


class AuditStore:
    def __init__(self, database: Database) -> None:
        self.database = database

    def write(self, entries: Sequence[AuditEntry]) -> None:
        """Insert the entries that have no ``row`` yet, and set it; update the others."""
        new: list[AuditEntry] = []
        inserted, updated = [], []
        for entry in entries:
            if entry.row is None:
                new.append(entry)
                inserted.append(_values(entry))
            else:
                updated.append({"of": entry.row, **_values(entry)})
        with self.database.write(cached=False) as connection:
            rows = connection.execute(_INSERT, inserted).scalars().all() if inserted else ()
            if updated:
                connection.execute(_UPDATE, updated)
        for entry, row in zip(new, rows, strict=True):
            entry.row = row

    def prune(self, before: str) -> int:
        """Delete the entries older than `before`; return how many."""
        old_keys = sa.select(AUDIT.c.key).where(AUDIT.c.at < before).limit(PRUNED_AT_ONCE)
        total = 0
        while True:
            with self.database.write() as connection:
                deleted = connection.execute(sa.delete(AUDIT).where(AUDIT.c.key.in_(old_keys))).rowcount
            total += deleted
            if deleted < PRUNED_AT_ONCE:
                break
        if total:
            self.database.request_scrub()
        return total


_INSERT = sa.insert(AUDIT).returning(AUDIT.c.key, sort_by_parameter_order=True)
_UPDATE = (
    sa.update(AUDIT)
    .where(AUDIT.c.key == sa.bindparam("of"))
    .values({column.name: sa.bindparam(column.name) for column in AUDIT.c if column is not AUDIT.c.key})
)


def _values(entry: AuditEntry) -> dict[str, Any]:
    return {column: getattr(entry, name) for column, name in _COLUMNS.items()}


_COLUMNS = {
    column.name: "key" if column is AUDIT.c.who else column.name for column in AUDIT.c if column is not AUDIT.c.key
}
"""The attribute of an entry for each column."""

FLUSH_S = 0.5
"""Maximum seconds that the entry of a reading operation is queued."""
MAX_WAITING = 10_000
"""Entries queued while the database is unavailable; further ones of reading operations are dropped and counted."""
BATCH = 500
"""Maximum entries written in one transaction."""
RETRY_S = 1.0
"""Seconds before a failed write is repeated."""
DONE, NOT_FOUND = 204, 404
"""HTTP statuses, also for the server's own work."""

_BAD_KEY = frozenset({"expired_key", "revoked_key"})
_NOT_RECORDED = frozenset({429})
"""Statuses that the audit log leaves out: such a request did nothing and is repeated, and many of them must not fill
the log."""

_log = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes a copy of the entries that have been committed. `write` and `retry` raise nothing."""

    available: bool
    """False after a failure, until writing works again."""
    lost: int
    """Number of entries that the sink did not get; the database has them."""

    def write(self, entries: Sequence[AuditEntry]) -> None: ...

    def retry(self) -> None:
        """Check, after a failure, whether the sink works again."""


_QueuedEntry: TypeAlias = "tuple[AuditEntry, Future[None] | None]"
"""A queued entry, and a future that is resolved when it is written; None if no caller waits."""


class AuditLog:
    """Writes the audit log. Safe to share between threads. Entries are kept for `days`, with 0 forever.

    Committed entries go to the `sink` before waiting callers continue.
    """

    def __init__(
        self,
        store: AuditStore,
        *,
        days: float = 0,
        sink: Sink | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.sink = sink
        self._days = days
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: list[_QueuedEntry] = []
        self._dropped = 0
        self._closing = False
        self._failures = FailureLog("the audit log")
        self._worker = Worker("audit", self._work, retry_s=RETRY_S, failures=self._failures)

    @property
    def sink_available(self) -> bool:
        """Return whether the sink takes entries, or there is none."""
        return self.sink is None or self.sink.available

    def retry_sink(self) -> None:
        """Check whether a sink that failed works again. The scheduler calls it."""
        if self.sink:
            self.sink.retry()

    @contextmanager
    def recorded(self, operation: str, gallery: str | None = None, subject: str | None = None) -> Iterator[None]:
        """Record the block's work, which the server does by itself, without a key. Exceptions pass through."""
        request_id = secrets.token_hex(16)
        entry = AuditEntry(key=None, operation=operation, request_id=request_id, gallery=gallery, subject=subject)
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
        """Write the entry, or its changes, at once. The returned future raises what the database raises."""
        done: Future[None] = Future()
        with self._lock:
            if self._closing:
                done.set_exception(LikenessError("The server is stopping.", code="shutting_down"))
                return done
            if len(self._waiting) >= 2 * MAX_WAITING:
                done.set_exception(DatabaseBusy("The audit log can't be written."))
                return done
            self._waiting.append((entry, done))
        self._worker.wake()
        return done

    def note(self, entry: AuditEntry) -> None:
        """Queue the entry, to be written soon."""
        with self._lock:
            if self._closing or len(self._waiting) >= MAX_WAITING:
                self._dropped += 1
                return
            self._waiting.append((entry, None))
            is_first = len(self._waiting) == 1
        if is_first:  # if others are queued, the thread is awake
            self._worker.wake(FLUSH_S)

    def prune(self) -> int:
        """Delete entries that are older than `days`; return how many. The scheduler calls it."""
        return self.store.prune(utc_text(self._clock() - self._days * DAY_S)) if self._days else 0

    def close(self) -> None:
        """Write the queued entries, and end the thread."""
        with self._lock:
            self._closing = True
        self._worker.close()
        while self._waiting or self._dropped:
            try:
                self._work()
            except Exception as error:  # noqa: BLE001 (what could not be written is lost, and counted)
                self._failures.failed(error)

    def _work(self) -> float | None:
        """Write a batch of queued entries. Raises what the database raises."""
        with self._lock:
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            dropped, self._dropped = self._dropped, 0
        if dropped:
            _log.error("audit entries lost", extra={"fields": {"entries": dropped}})
        waiting = [done for _, done in batch if done and done.set_running_or_notify_cancel()]
        written = list({id(entry): entry for entry, _ in batch}.values())
        if not batch:
            return None
        try:
            self.store.write(written)
        except Exception as error:
            for done in waiting:
                done.set_exception(error)
            noted: list[_QueuedEntry] = [(entry, None) for entry, done in batch if done is None or done.cancelled()]
            with self._lock:
                if self._closing:
                    self._dropped += len(noted)
                else:
                    self._waiting = noted + self._waiting
            raise
        if self.sink:
            self.sink.write(written)
        for done in waiting:
            done.set_result(None)
        return 0.0 if self._waiting else None


class AuditTrail:
    """Records a request in the audit log, when the module says. Refusals are noted if the request has a key, even a
    wrong one. Monitoring is not recorded."""

    def __init__(
        self, audit: AuditLog, operation: str, ids: Mapping[str, str], request_id: str, *, monitoring: bool
    ) -> None:
        others = [ids[name] for name in ids if name not in {"gallery", "subject"}]
        self.entry = AuditEntry(
            key=None,
            operation=operation,
            request_id=request_id,
            gallery=fit_id(ids.get("gallery")),
            subject=fit_id(ids.get("subject")),
            target=fit_id(others[0]) if others else None,
        )
        self.is_recorded = monitoring  # there is nothing to record
        self._audit = audit

    def refuse(self, error: LikenessError) -> None:
        """Note a refusal. Requests without a key are not recorded, since their number is not limited."""
        if error.code in _BAD_KEY:
            self.entry.key = str(error.details["key"])
        is_try_again = isinstance(error, Overloaded) and self.entry.row is None  # wire formats give it several statuses
        self.is_recorded |= is_try_again or error.code == "missing_key"

    async def record(self, status: int) -> None:
        """Write the outcome of a change, before the answer goes out; note the outcome of any other request.

        If an answer fails before it begins, the outcome is that of the error sent in its place. If the database fails
        now, the change is done, but its entry stays without an outcome.
        """
        if self.is_recorded and self.entry.status in {None, status}:
            return
        is_written = self.entry.status == status  # by the handler, with the change
        self.entry.status, self.is_recorded = status, True
        if self.entry.row is None:
            if status not in _NOT_RECORDED:
                self._audit.note(self.entry)
        elif not is_written or self._audit.sink:
            try:
                await asyncio.wrap_future(self._audit.write(self.entry))
            except LikenessError:
                self._audit.note(self.entry)

    def abandon(self, status: int) -> None:
        """Note, with this status, a request that has ended without an answer."""
        self.entry.status, self.is_recorded = status, True
        self._audit.note(self.entry)
