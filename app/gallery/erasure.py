"""Erasure of subjects for good, on request or when they have expired, with signed receipts.

One transaction deletes the subject and writes a pending receipt. Then everything on disk that may still hold deleted
data is cleared, and the receipt is completed and signed. If a server dies in between, another one (or the same after a
restart) completes the pending receipt, so every erasure gets one.

A receipt names its subject by a salted digest only: someone who knows the id can check it, and nobody else learns it.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Row

from app.db import signing
from app.db.engine import Database
from app.db.pagination import Page, read_page
from app.db.schema import (
    ANSWERED_REQUESTS,
    CHANGES,
    CORRECTIONS,
    CROPS,
    FACE_ORIGINS,
    FACES,
    RECEIPTS,
    SECOND_TEMPLATES,
    SUBJECTS,
)
from app.db.signing import Signer
from app.errors import NotFound
from app.gallery.change import Change
from app.gallery.service import Galleries
from app.gallery.subjects import erase_subject
from app.timestamps import utc_now

Reason: TypeAlias = Literal["asked", "expired"]
Document: TypeAlias = dict[str, Any]
"""A receipt as JSON; the REST interface's schema describes it."""

PURPOSE = b"erasure receipt"
TABLES = (SUBJECTS, FACES, CROPS, SECOND_TEMPLATES, FACE_ORIGINS, CORRECTIONS, ANSWERED_REQUESTS, CHANGES)
"""Tables that held data of an erased subject."""
FORMAT = 1
PENDING, DONE = "pending", "done"
SCRUB_S = 10.0
"""How long to wait for SQLite's readers, which keep old pages in the write-ahead log."""
PENDING_S = 60.0
"""The age at which a pending receipt's server is taken for dead."""
SALT_BYTES = 16
NOT_REACHED = (
    "backups, exports and other copies made before",
    "uploads, reports and results of jobs, until LIKENESS_JOB_DAYS have passed",
    "memory and snapshots of other servers, which clear them within seconds if they run, else at their next start",
    "the audit log, which keeps ids (no names, images or vectors) for LIKENESS_AUDIT_DAYS",
    "the file system's and the storage's own copies of files and blocks that were removed or overwritten",
)
NOT_REACHED_POSTGRESQL = "PostgreSQL's write-ahead log, archived segments and replicas, as long as their retention says"
NOT_REACHED_PAGES = "dead space in PostgreSQL's pages, until they are used again or VACUUM FULL rewrites the tables"


EXPIRED_AT_ONCE = 100
Drop: TypeAlias = Callable[[Change, str], int]
"""Deletes other data of a subject, given by its id, and data that may show it; returns how much."""
Recorded: TypeAlias = Callable[[str, str], AbstractContextManager[None]]
"""Returns a context for the erasure of a gallery's subject, both by id, which writes the audit log."""


class Erasures:
    """Erases subjects and signs their receipts. Safe to share between threads, and the database between servers."""

    def __init__(
        self,
        galleries: Galleries,
        signer: Signer,
        drop_like: Callable[[Change, str], int] = lambda *_: 0,
        recorded: Recorded = lambda *_: nullcontext(),
    ) -> None:
        """`drop_like` drops what other subjects' corrections show of a subject, by id, and counts it; `recorded` wraps
        each erasure of a subject that has expired."""
        self._galleries, self._store = galleries, galleries.store
        self._database: Database = galleries.store.database
        self._drop_like = drop_like
        self._signer = signer
        self._tables = list(TABLES)
        self._recorded = recorded
        self._reached: dict[str, Drop] = {}

    def reach(self, what: str, drop: Drop, tables: Sequence[sa.Table]) -> None:
        """Have each erasure call `drop`, whose count the receipt gives as `what`, and clear these tables too."""
        self._reached[what] = drop
        self._tables += tables

    def erase(self, gallery_id: str, subject_id: str, *, reason: Reason = "asked", rewrite: bool = False) -> Document:
        """Erase the subject and return the receipt.

        With `rewrite`, PostgreSQL's tables are rewritten, which locks them meanwhile; SQLite doesn't need that.

        Raises NotFound ``gallery_not_found``, ``subject_not_found``.
        """
        return self.complete([self.delete(gallery_id, subject_id, reason=reason, rewrite=rewrite)])[0]

    def delete(self, gallery_id: str, subject_id: str, *, reason: Reason = "asked", rewrite: bool = False) -> str:
        """Delete the subject and return the id of a pending receipt, which `complete` completes.

        With the reason ``expired``, a subject that hasn't expired isn't found. Raises as `erase` does.
        """
        receipt_id = secrets.token_hex(16)
        with self._galleries.change(self._store.gallery(gallery_id)) as change:
            corrections = self._drop_like(change, subject_id)
            reached = {what: drop(change, subject_id) for what, drop in self._reached.items()}
            expired_by = utc_now() if reason == "expired" else None
            erased_id, erased = erase_subject(change, subject_id, expired_by=expired_by)
            salt, now = secrets.token_hex(SALT_BYTES), utc_now()
            document = {
                "format": FORMAT,
                "id": receipt_id,
                "gallery": change.gallery.id,
                "subject": {"salt": salt, "digest": subject_digest(salt, change.gallery.id, erased_id)},
                "reason": reason,
                "erased_at": now,
                "erased": erased | {"corrections": corrections} | reached,
                "rewrite": rewrite,
            }
            row = {"id": receipt_id, "gallery": change.gallery.id, "state": PENDING, "created_at": now}
            change.connection.execute(sa.insert(RECEIPTS).values(row | {"document": json.dumps(document)}))
        return receipt_id

    def complete(self, receipt_ids: Sequence[str]) -> list[Document]:
        """Clear what the disk may hold of these erasures, sign their receipts and return them."""
        query = sa.select(RECEIPTS).where(RECEIPTS.c.id.in_(receipt_ids)).order_by(RECEIPTS.c.key)
        rows = self._database.rows(query)
        pending = [row for row in rows if row.state == PENDING]
        done = {row.id: _document(row) for row in rows if row.state == DONE}
        if pending:
            rewrite = any(_document(row)["rewrite"] for row in pending)
            cleared = self._clear({row.gallery for row in pending}, rewrite=rewrite)
            done |= {row.id: self._finish(row, cleared) for row in pending}
        return [done[receipt_id] for receipt_id in receipt_ids]

    def receipt(self, receipt_id: str) -> Document:
        """Return a complete receipt. Raises NotFound ``receipt_not_found``, also while the erasure is incomplete."""
        with self._database.read() as connection:
            query = sa.select(RECEIPTS).where((RECEIPTS.c.id == receipt_id) & (RECEIPTS.c.state == DONE))
            row = connection.execute(query).one_or_none()
        if row is None:
            raise NotFound(f"There is no receipt {receipt_id!r}.", code="receipt_not_found", receipt=receipt_id)
        return _document(row)

    def receipts(self, cursor: str | None = None, limit: int = 100) -> Page[Document]:
        """List receipts in the order of the erasures. Raises InvalidInput ``invalid_cursor``."""
        query = sa.select(RECEIPTS).where(RECEIPTS.c.state == DONE)
        return read_page(
            self._database, query, RECEIPTS.c.key, _document, listing="receipts", cursor=cursor, limit=limit
        )

    def sweep(self) -> int:
        """Erase all expired subjects and complete the receipts of dead servers; return how many were erased."""
        erased = 0
        while expired := self._store.expired(EXPIRED_AT_ONCE):
            pending = []
            for gallery, subject in expired:
                with suppress(NotFound), self._recorded(gallery, subject):  # another server first, or a new expiry
                    pending.append(self.delete(gallery, subject, reason="expired"))
            self.complete(pending)
            erased += len(pending)
            if len(expired) < EXPIRED_AT_ONCE:
                break
        self.complete_pending()
        return erased

    def complete_pending(self) -> int:
        """Complete the receipts that dead servers left pending; return how many."""
        old = (RECEIPTS.c.state == PENDING) & (RECEIPTS.c.created_at < utc_now(-timedelta(seconds=PENDING_S)))
        ids = self._database.column(sa.select(RECEIPTS.c.id).where(old))
        self.complete(ids)
        return len(ids)

    def _finish(self, row: Row[Any], cleared: Document) -> Document:
        document = _document(row) | cleared | {"completed_at": utc_now()}
        del document["rewrite"]
        document = signing.signed(document, self._signer, PURPOSE)
        with self._database.write() as connection:
            mine = (RECEIPTS.c.id == row.id) & (RECEIPTS.c.state == PENDING)
            done = {"state": DONE, "document": json.dumps(document, ensure_ascii=False)}
            connection.execute(sa.update(RECEIPTS).where(mine).values(done))
            return _document(connection.execute(sa.select(RECEIPTS).where(RECEIPTS.c.id == row.id)).one())

    def _clear(self, gallery_ids: Iterable[str], *, rewrite: bool) -> Document:
        """Clear everything on disk that may hold deleted data; return the receipt's fields about it."""
        scrubbed = [self._galleries.scrub_index(gallery_id) for gallery_id in gallery_ids]
        index = all(scrubbed)
        not_reached = list(NOT_REACHED)
        if self._database.is_sqlite:
            clean = self._database.scrub(SCRUB_S)
            tables = "overwritten"
            log = "emptied" if clean else "emptied as soon as no reader uses it"
        else:
            self._database.vacuum([table.name for table in self._tables], full=rewrite)
            clean = True
            tables = "rewritten" if rewrite else "vacuumed"
            log = "not reached"
            not_reached.append(NOT_REACHED_POSTGRESQL)
            if not rewrite:
                not_reached.append(NOT_REACHED_PAGES)
        return {
            "cleared": {
                "tables": tables,
                "write_ahead_log": log,
                "index_copies": "removed" if index else "removed within a minute by who keeps them",
            },
            "complete": clean and index,
            "not_reached": not_reached,
        }


def subject_digest(salt: str, gallery_id: str, subject_id: str) -> str:
    """Return the SHA-256, hexadecimal, of the JSON list of the three."""
    text = json.dumps([salt, gallery_id, subject_id], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _document(row: Row[Any]) -> Document:
    document: Document = json.loads(row.document)
    return document
