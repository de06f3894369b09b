"""The audit log: entries are written in the background, many in a transaction.

An operation that changes something waits for its entry (`write`): it is in the database before the work begins, and
gets its outcome before the answer goes out, so that a killed process leaves no change without an entry. An enrollment's
outcome is written with its change (`AuditEntry.finish`), which saves a commit. The entry of an operation that only
reads is queued (`note`) and written within FLUSH_S; a killed process may lose it.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.concurrency.worker import FailureLog, Worker
from app.db.engine import Database
from app.db.pagination import Page, read_page
from app.db.schema import AUDIT
from app.errors import DatabaseBusy, InvalidInput, LikenessError, NotFound, Unusable
from app.files import PRIVATE
from app.gallery.text import clean_id
from app.timestamps import utc_text

PRUNED_AT_ONCE = 5_000
"""Old rows deleted in one transaction, so that no writer waits long."""


@dataclass(slots=True)
class AuditEntry:
    """One call of an operation. ``status``: None until it ends; ``target``: the id of its face, key, job or
    receipt, or its subject's new id."""

    at: str
    key: str | None
    """The id of the API key; None: the server itself, or no valid key."""
    operation: str
    request_id: str
    gallery: str | None = None
    subject: str | None = None
    target: str | None = None
    status: int | None = None
    row: int | None = None
    """The row's primary key, once there is one."""

    def finish(self, status: int, connection: Connection) -> None:
        """Write the status in the transaction of the change itself; an answer of another status corrects it."""
        self.status = status
        connection.execute(_UPDATE, {"of": self.row, **_values(self)})


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Selects entries of the log; None: all. ``since`` is included, ``until`` is not."""

    key: str | None = None
    operation: str | None = None
    gallery: str | None = None
    subject: str | None = None
    since: str | None = None
    until: str | None = None
    without: frozenset[str] = frozenset()
    """Operations to leave out."""


def fit_id(text: str | None) -> str | None:
    """Return ``text`` if it can be an id; else None, so that callers can write nothing else to the log."""
    try:
        return None if text is None else clean_id(text, "record")
    except InvalidInput:
        return None


class AuditStore:
    def __init__(self, database: Database) -> None:
        self.database = database

    def write(self, entries: Sequence[AuditEntry]) -> None:
        """Insert the entries that have no ``row`` yet, which they get, and update the others."""
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

    def entries(
        self, wanted: AuditFilter, cursor: str | None = None, limit: int = 100, *, newest_first: bool = True
    ) -> Page[AuditEntry]:
        """Return a page of entries. Raises InvalidInput ``invalid_cursor``."""
        return read_page(
            self.database,
            sa.select(AUDIT).where(*_conditions(wanted)),
            AUDIT.c.key,
            _entry,
            listing=f"audit/{newest_first}",
            cursor=cursor,
            limit=limit,
            newest_first=newest_first,
        )

    def prune(self, before: str) -> int:
        """Delete the entries older than `before`; return how many."""
        some = sa.select(AUDIT.c.key).where(AUDIT.c.at < before).limit(PRUNED_AT_ONCE)
        total = 0
        while True:
            with self.database.write() as connection:
                deleted = connection.execute(sa.delete(AUDIT).where(AUDIT.c.key.in_(some))).rowcount
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
    values = asdict(entry)
    del values["row"]
    return values | {"who": values.pop("key")}


def _entry(row: Row[Any]) -> AuditEntry:
    fields = row._asdict()
    return AuditEntry(row=fields.pop("key"), key=fields.pop("who"), **fields)


def _conditions(wanted: AuditFilter) -> Iterator[sa.ColumnElement[bool]]:
    columns = {"key": AUDIT.c.who} | {name: AUDIT.c[name] for name in ("operation", "gallery", "subject")}
    for field, column in columns.items():
        if (value := getattr(wanted, field)) is not None:
            yield column == value
    if wanted.since is not None:
        yield AUDIT.c.at >= wanted.since
    if wanted.until is not None:
        yield AUDIT.c.at < wanted.until
    if wanted.without:
        yield AUDIT.c.operation.not_in(wanted.without)


STDOUT = "stdout"


SINK_S = 2.0
"""How long changes wait for the reader of a pipe that is full; once, since entries are lost to it from then on."""
_PAUSE_S = 0.01


class AuditSink:
    """Appends lines to standard output, or to a file or pipe that is opened for each batch, so that it can be rotated.

    Raises Unusable ``audit_sink_unusable`` if it can't be written at the start.
    """

    def __init__(self, target: str) -> None:
        self._path = None if target == STDOUT else Path(target)
        self._failures = FailureLog("the audit sink")
        self._rest = b""  # of a line that was cut
        self.available = True
        """False after a failure, until it can be written again."""
        self.lost = 0
        """Entries that it did not get; the database has them."""
        try:
            self._append(b"", 0)
        except OSError as error:
            raise Unusable(f"{target}: {error.strerror or error}", code="audit_sink_unusable") from None

    def write(self, entries: Sequence[AuditEntry]) -> None:
        """Append entries that have been committed. A failure is logged and counted."""
        lines = [json.dumps({"audit": asdict(entry)}, separators=(",", ":")) for entry in entries]
        self._write("".join(f"{line}\n" for line in lines).encode())

    def retry(self) -> None:
        """Look whether it can be written again after a failure."""
        if not self.available:
            self._write(b"")

    def _write(self, lines: bytes) -> None:
        content, sent = self._rest + lines, 0
        try:
            sent = self._append(content, SINK_S if self.available else 0)
            if sent < len(content):
                raise TimeoutError("it is full and nobody reads it")
        except OSError as error:
            self._failures.failed(error)
            self.available = False
            sent = max(sent, 0)
            unsent = content[sent:]
            is_cut = bool(self._rest) if not sent else content[sent - 1 : sent] != b"\n"
            self._rest, _, lost = unsent.partition(b"\n") if is_cut else (b"", b"", unsent)
            self._rest += b"\n" if is_cut else b""
            self.lost += lost.count(b"\n")
        else:
            self._rest, self.available = b"", True
            self._failures.succeeded()

    def _append(self, content: bytes, wait_s: float) -> int:
        """Return how many bytes were written; -1 if not even none could be."""
        if self._path is None:
            return _send(sys.stdout.fileno(), content, wait_s)
        # A pipe whose reader is gone or slow must not hold up changes.
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, PRIVATE)
        try:
            return _send(handle, content, wait_s)
        finally:
            os.close(handle)


def _send(handle: int, content: bytes, wait_s: float) -> int:
    """Write to a file or pipe without waiting longer than ``wait_s`` for room; return how many bytes were written, -1
    if there was no room at all."""
    poll = select.poll()
    poll.register(handle, select.POLLOUT)
    until, sent = time.monotonic() + wait_s, -1
    while poll.poll(max(0.0, until - time.monotonic()) * 1000):
        sent = max(sent, 0)
        if sent == len(content):
            break
        try:
            sent += os.write(handle, content[sent : sent + select.PIPE_BUF])
        except BlockingIOError:  # there is some room, but less
            if time.monotonic() >= until:
                break
            time.sleep(_PAUSE_S)
    return sent


FLUSH_S = 0.5
MAX_WAITING = 10_000
"""Entries queued while the database is unavailable; further ones of reading operations are dropped and counted."""
BATCH = 500
RETRY_S = 1.0
DAY_S = 86_400.0
DONE, NOT_FOUND = 204, 404
"""HTTP statuses, also for the server's own work."""

_log = logging.getLogger(__name__)


_Waiting: TypeAlias = "tuple[AuditEntry, Future[None] | None]"
"""A queued entry, and what is resolved when it is written; None: no caller waits."""


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
        self.sink = sink
        self._days = days
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._dropped = 0
        self._closing = False
        self._failures = FailureLog("the audit log")
        self._worker = Worker("audit", self._work, retry_s=RETRY_S, failures=self._failures)

    @property
    def sink_available(self) -> bool:
        """Return whether the sink takes entries, or there is none."""
        return self.sink is None or self.sink.available

    def retry_sink(self) -> None:
        """Look whether a sink that failed can be written again. The scheduler calls it."""
        if self.sink:
            self.sink.retry()

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
        if is_first:  # with others queued the thread will be awake
            self._worker.wake(FLUSH_S)

    def prune(self) -> int:
        """Delete the entries that are older than the log keeps them; return how many. The scheduler calls it."""
        return self.store.prune(utc_text(self._clock() - self._days * DAY_S)) if self._days else 0

    def close(self) -> None:
        """Write what is queued, and end the thread."""
        with self._lock:
            self._closing = True
        self._worker.close()
        while self._waiting or self._dropped:
            try:
                self._work()
            except Exception as error:  # noqa: BLE001 (what could not be written is lost, and counted)
                self._failures.failed(error)

    def _work(self) -> float | None:
        """Write a batch of what is queued. Raises what the database raises."""
        with self._lock:
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            dropped, self._dropped = self._dropped, 0
        if dropped:
            _log.error("audit entries lost", extra={"fields": {"entries": dropped}})
        if batch:
            self._write(batch)
        return 0.0 if self._waiting else None

    def _write(self, batch: list[_Waiting]) -> None:
        entries: dict[int, AuditEntry] = {}
        waiting: list[Future[None]] = []
        for entry, done in batch:
            entries[id(entry)] = entry
            if done and done.set_running_or_notify_cancel():
                waiting.append(done)
        written = list(entries.values())
        try:
            self.store.write(written)
        except Exception as error:
            for done in waiting:
                done.set_exception(error)
            noted: list[_Waiting] = [(entry, None) for entry, done in batch if done is None or done.cancelled()]
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
