"""Erase subjects for good, on request or when they have expired, with signed receipts.

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
from itertools import chain
from typing import Any, Literal, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.api.components import Reached
from app.db.engine import Database
from app.db.pagination import Page, read_page
from app.db.schema import (
    ANSWERED_REQUESTS,
    CHANGES,
    CORRECTIONS,
    CROPS,
    EVENT_NUMBERS,
    FACE_ORIGINS,
    FACES,
    GALLERIES,
    JOB_REFUSALS,
    JOBS,
    RECEIPTS,
    SECOND_TEMPLATES,
    SIGHTINGS,
    SUBJECTS,
)
from app.errors import NotFound
from app.features import signatures
from app.features.listing import templates_of
from app.features.sealed_files import EXPORT
from app.features.signatures import Signer
from app.gallery.corrections import all_rows, unpack
from app.gallery.records import find_subject, from_bytes, subject_not_found
from app.gallery.service import Galleries
from app.gallery.store import ERASE, Change
from app.types import utc_now

ErasureReason: TypeAlias = Literal["asked", "expired"]
Document: TypeAlias = dict[str, Any]
"""A receipt as JSON; the REST interface's schema describes it."""

PURPOSE = b"erasure receipt"
TABLES = (SUBJECTS, FACES, CROPS, SECOND_TEMPLATES, FACE_ORIGINS, CORRECTIONS, ANSWERED_REQUESTS, CHANGES)
"""Tables that held data of an erased subject."""
FORMAT = 1
PENDING, DONE = "pending", "done"
SCRUB_S = 10.0
"""Seconds to wait for SQLite's readers, which prevent the write-ahead log from being emptied."""
PENDING_S = 60.0
"""Seconds after which the server of a pending receipt counts as dead."""
SALT_BYTES = 16
MOST_RESTARTS, RESTARTS = 10, "restarts"
"""How often an export may start over because somebody was erased meanwhile, and the name under which its checkpoint
counts this."""
OUTDATED = (
    f"People of the gallery were erased, or expired, during each of {MOST_RESTARTS + 1} attempts to export it. Try "
    "again when fewer people expire."
)
NOT_REACHED = (
    "backups, exports and other copies made before",
    "uploads, reports and results of jobs, until LIKENESS_JOB_DAYS have passed",
    "memory and snapshots of other servers, which clear them within seconds once they run",
    "the audit log, which keeps ids (no names, images or vectors) for LIKENESS_AUDIT_DAYS",
    "the file system's and the storage's own copies of files and blocks that were removed or overwritten",
)
NOT_REACHED_SIGHTINGS = "sightings of unknown people who resemble the subject: this installation does without watching"
NOT_REACHED_EVENTS = (
    "events that were sent: at webhooks' receivers, at listeners, and at an MQTT broker, whose names and pictures are "
    "cleared within seconds while LIKENESS_MQTT names it, else when it does so again"
)
NOT_REACHED_POSTGRESQL = "PostgreSQL's write-ahead log, archived segments and replicas, as long as their retention says"
NOT_REACHED_PAGES = "dead space in PostgreSQL's pages, until they are used again or VACUUM FULL rewrites the tables"


EXPIRED_AT_ONCE = 100
Least: TypeAlias = Callable[[str], float | None]
"""Returns the score from which on two faces may show one person, for templates of the package with this id; None
without operating points."""
Recorded: TypeAlias = Callable[[str, str], AbstractContextManager[None]]
"""Returns a context in which a subject, given by gallery id and subject id, is erased; it writes the audit log."""


class Erasures:
    """Erases subjects and signs their receipts. Safe to share between threads, and the database between servers."""

    def __init__(
        self,
        galleries: Galleries,
        signer: Signer,
        *,
        least: Least = lambda _: None,
        recorded: Recorded = lambda *_: nullcontext(),
        reached: Sequence[Reached] = (),
    ) -> None:
        """``least``: the score from which on another subject's correction may show the erased subject (`drop_like`).
        ``recorded`` wraps each erasure of an expired subject. ``reached``: what an erasure deletes besides; it is read
        at each erasure, so features may add to it later."""
        self._galleries, self._store = galleries, galleries.store
        self._database: Database = galleries.store.database
        self._least = least
        self._signer = signer
        self._recorded = recorded
        self._reached = reached

    def erase(
        self, gallery_id: str, subject_id: str, *, reason: ErasureReason = "asked", rewrite: bool = False
    ) -> Document:
        """Erase the subject and return the receipt.

        With `rewrite`, PostgreSQL's tables are rewritten, and are locked while that lasts; SQLite doesn't need it.

        Raises NotFound ``gallery_not_found``, ``subject_not_found``.
        """
        return self.complete([self.delete(gallery_id, subject_id, reason=reason, rewrite=rewrite)])[0]

    def delete(
        self, gallery_id: str, subject_id: str, *, reason: ErasureReason = "asked", rewrite: bool = False
    ) -> str:
        """Delete the subject and return the id of a pending receipt, which `complete` completes.

        With the reason ``expired``, a subject that has not expired counts as missing. Raises what `erase` raises.
        """
        receipt_id = secrets.token_hex(16)
        with self._galleries.change(self._store.gallery(gallery_id)) as change:
            corrections = drop_like(change, subject_id, self._least)
            reached = {kind.name: kind.drop(change, subject_id) for kind in self._reached}
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
        """Clear what the disk may still contain of the erased subjects, then sign the receipts and return them."""
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
        """Return a complete receipt. Raises NotFound ``receipt_not_found``, also while the receipt is pending."""
        with self._database.read() as connection:
            query = sa.select(RECEIPTS).where((RECEIPTS.c.id == receipt_id) & (RECEIPTS.c.state == DONE))
            row = connection.execute(query).one_or_none()
        if row is None:
            raise NotFound(f"There is no receipt {receipt_id!r}.", code="receipt_not_found", receipt=receipt_id)
        return _document(row)

    def receipts(self, cursor: str | None = None, limit: int = 100) -> Page[Document]:
        """Return a page of complete receipts, in the order of the erasures. Raises InvalidInput ``invalid_cursor``."""
        query = sa.select(RECEIPTS).where(RECEIPTS.c.state == DONE)
        return read_page(
            self._database, query, RECEIPTS.c.key, _document, listing="receipts", cursor=cursor, limit=limit
        )

    def sweep(self) -> int:
        """Erase all expired subjects and complete the receipts of dead servers; return how many were erased."""
        erased = 0
        while expired := self._expired():
            pending = []
            for gallery, subject in expired:
                with (
                    suppress(NotFound),
                    self._recorded(gallery, subject),
                ):  # NotFound: another server has erased it already, or its expiry was changed
                    pending.append(self.delete(gallery, subject, reason="expired"))
            self.complete(pending)
            erased += len(pending)
            if len(expired) < EXPIRED_AT_ONCE:
                break
        self.complete_pending()
        return erased

    def _expired(self) -> list[tuple[str, str]]:
        """Return gallery id and subject id of expired subjects, at most EXPIRED_AT_ONCE, earliest expiry first."""
        query = sa.select(GALLERIES.c.id, SUBJECTS.c.id).join_from(SUBJECTS, GALLERIES)
        query = query.where(SUBJECTS.c.expires_at <= utc_now()).order_by(SUBJECTS.c.expires_at).limit(EXPIRED_AT_ONCE)
        return [(gallery, subject) for gallery, subject in self._database.rows(query)]

    def complete_pending(self) -> int:
        """Complete the receipts that dead servers left pending; return their number."""
        old = (RECEIPTS.c.state == PENDING) & (RECEIPTS.c.created_at < utc_now(-timedelta(seconds=PENDING_S)))
        ids = self._database.column(sa.select(RECEIPTS.c.id).where(old))
        self.complete(ids)
        return len(ids)

    def _finish(self, row: Row[Any], cleared: Document) -> Document:
        document = _document(row) | cleared | {"completed_at": utc_now()}
        del document["rewrite"]
        document = signatures.signed(document, self._signer, PURPOSE)
        with self._database.write() as connection:
            mine = (RECEIPTS.c.id == row.id) & (RECEIPTS.c.state == PENDING)
            done = {"state": DONE, "document": json.dumps(document, ensure_ascii=False)}
            connection.execute(sa.update(RECEIPTS).where(mine).values(done))
            return _document(connection.execute(sa.select(RECEIPTS).where(RECEIPTS.c.id == row.id)).one())

    def _scrub_index(self, gallery_id: str) -> bool:
        """Remove copies of the index on disk that may contain erased faces. Return False if they belong to another
        server, which will remove them itself."""
        try:
            with self._galleries.indexes.inspecting(self._store.gallery(gallery_id).index_specs) as index:
                return index.scrub()
        except NotFound:
            return True

    def _clear(self, gallery_ids: Iterable[str], *, rewrite: bool) -> Document:
        """Clear everything on disk that may still contain deleted data; return the receipt's fields about this."""
        scrubbed = [self._scrub_index(gallery_id) for gallery_id in gallery_ids]
        index = all(scrubbed)
        not_reached = list(NOT_REACHED)
        if not self._reached and self._database.rows(sa.select(SIGHTINGS.c.key).limit(1)):
            not_reached.append(NOT_REACHED_SIGHTINGS)
        if self._database.rows(sa.select(EVENT_NUMBERS.c.last)):
            not_reached.append(NOT_REACHED_EVENTS)
        if self._database.is_sqlite:
            clean = self._database.scrub(SCRUB_S)
            tables = "overwritten"
            log = "emptied" if clean else "emptied as soon as no reader uses it"
        else:
            tables_of = (TABLES, *(kind.tables for kind in self._reached))
            self._database.vacuum([table.name for table in chain(*tables_of)], full=rewrite)
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
                "index_copies": "removed" if index else "removed within a minute by the server that keeps them",
            },
            "complete": clean and index,
            "not_reached": not_reached,
        }


def _start_exports_over(connection: Connection, jobs: sa.ColumnElement[bool]) -> None:
    """Make the running exports among these jobs start over, since their files may mention an erased subject.

    An export that has started over MOST_RESTARTS times fails, so that it ends even if people expire all the time.
    """
    exporting = jobs & (JOBS.c.kind == EXPORT) & (JOBS.c.state == "running")
    for key, saved in connection.execute(sa.select(JOBS.c.key, JOBS.c.saved).where(exporting)).all():
        restarts = json.loads(saved).get(RESTARTS, 0)
        values: dict[str, Any] = {"lease_owner": None, "lease_until": None}
        if restarts < MOST_RESTARTS:
            values |= {"state": "queued", "attempts": 0, "saved": json.dumps({RESTARTS: restarts + 1})}
        else:
            error = {"error_code": "export_outdated", "error_message": OUTDATED}
            values |= error | {"state": "failed", "finished_at": utc_now(), "secret": None}
        connection.execute(sa.update(JOBS).where(exporting, JOBS.c.key == key).values(values))


def drop_like(change: Change, subject_id: str, least: Least) -> int:
    """Delete other subjects' corrections that may show this subject; return their number. Raises NotFound.

    A correction's probe may show this subject if its best score with the subject's faces is at least `least` for the
    probe's package, or higher than its best score with the faces of the subject that it was taken for.
    """
    if not change.gallery.corrected:
        return 0
    subject = find_subject(change.connection, change.gallery, subject_id, expired=True)
    query = all_rows(change.gallery).where(CORRECTIONS.c.subject_key != subject.key)
    rows = change.connection.execute(query).all()
    doomed: set[str] = set()
    for package in {row.package for row in rows}:
        mine = [row for row in rows if row.package == package]
        faces = templates_of(
            change.connection, change.blobs, package, {subject.key, *(row.subject_key for row in mine)}
        )
        for row in mine if subject.key in faces else ():
            probe = from_bytes(unpack(change.blobs, row)[0])
            score, other = (
                float((faces[key] @ probe).max()) if key in faces else -1.0 for key in (subject.key, row.subject_key)
            )
            floor = least(package)
            if score > other or (floor is not None and score >= floor):
                doomed.add(row.id)
    mine_only = CORRECTIONS.c.gallery_key == change.gallery.key
    change.connection.execute(sa.delete(CORRECTIONS).where(mine_only & CORRECTIONS.c.id.in_(doomed)))
    return len(doomed)


def subject_digest(salt: str, gallery_id: str, subject_id: str) -> str:
    """Return the SHA-256, hexadecimal, of the compact JSON list of the three texts."""
    text = json.dumps([salt, gallery_id, subject_id], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _document(row: Row[Any]) -> Document:
    document: Document = json.loads(row.document)
    return document


def erase_subject(change: Change, subject_id: str, *, expired_by: str | None = None) -> tuple[str, dict[str, int]]:
    """Delete the subject with everything that may mention it; return its id, and counts of what was deleted.

    With `expired_by`, a subject that doesn't expire until then counts as missing. Raises NotFound
    ``subject_not_found``.
    """
    gallery, connection = change.gallery, change.connection
    subject = find_subject(connection, gallery, subject_id, expired=True)
    if expired_by is not None and (subject.expires_at is None or subject.expires_at > expired_by):
        raise subject_not_found(gallery, subject.id)
    mine = FACES.c.subject_key == subject.key
    crops, second = (
        connection.execute(sa.select(sa.func.count()).select_from(table.join(FACES)).where(mine)).scalar_one()
        for table in (CROPS, SECOND_TEMPLATES)
    )
    connection.execute(sa.delete(SUBJECTS).where(SUBJECTS.c.key == subject.key))
    # Stored answers, jobs' files (which can't be read without their keys) and jobs' reports may mention the subject.
    connection.execute(sa.delete(ANSWERED_REQUESTS).where(ANSWERED_REQUESTS.c.gallery_key == gallery.key))
    jobs = JOBS.c.gallery_key == gallery.key
    _start_exports_over(connection, jobs)
    connection.execute(sa.update(JOBS).where(jobs & JOBS.c.result.is_not(None)).values(result=None, secret=None))
    connection.execute(sa.delete(JOB_REFUSALS).where(JOB_REFUSALS.c.job_key.in_(sa.select(JOBS.c.key).where(jobs))))
    change.log(ERASE, [(subject.key, None)])
    faces = subject.face_count
    return subject.id, {"faces": faces, "templates": faces + second, "crops": crops}
