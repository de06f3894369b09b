"""Erasing a subject for good, and the receipt that says so.

The deletion and a pending receipt are one transaction; then everything on disk that may still hold what was deleted is
cleared, and the receipt is completed and signed. A server that dies in between leaves the pending receipt, which
another one (or the same, started again) completes: what was deleted is never without one.

A receipt names its subject by a salted digest only: who knows the id can check that it is meant, and nobody else learns
it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.db import signing
from app.db.engine import Database
from app.db.pagination import Page, read_page
from app.db.schema import ANSWERED_REQUESTS, CHANGES, CROPS, FACE_ORIGINS, FACES, RECEIPTS, SECOND_TEMPLATES, SUBJECTS
from app.db.signing import Signer
from app.errors import NotFound, Unusable
from app.gallery.records import Erased
from app.gallery.service import Galleries
from app.timestamps import utc_now

Reason: TypeAlias = Literal["asked", "expired"]
Document: TypeAlias = dict[str, Any]
"""A receipt as JSON; the REST interface's schema describes it."""

PURPOSE = b"erasure receipt"
TABLES = (SUBJECTS, FACES, CROPS, SECOND_TEMPLATES, FACE_ORIGINS, ANSWERED_REQUESTS, CHANGES)
"""What somebody who was erased was in."""
FORMAT = 1
PENDING, DONE = "pending", "done"
SCRUB_S = 10.0
"""How long SQLite's readers are waited for, which keep old pages in the write-ahead log."""
PENDING_S = 60.0
"""After so long, a pending receipt's server has died."""
SALT_BYTES = 16
NOT_REACHED = (
    "backups, exports and other copies made before",
    "uploads, reports and results of jobs, until LIKENESS_JOB_DAYS have passed",
    "snapshots in data folders of servers that are not running, which remove them at their next start",
    "the audit log, which keeps ids (no names, images or vectors) for LIKENESS_AUDIT_DAYS",
    "the file system's and the storage's own copies of files and blocks that were removed or overwritten",
)
NOT_REACHED_POSTGRESQL = "PostgreSQL's write-ahead log, archived segments and replicas, as long as their retention says"
NOT_REACHED_PAGES = "dead space in PostgreSQL's pages, until they are used again or VACUUM FULL rewrites the tables"


class Erasures:
    """Safe to share between threads, and the database between servers."""

    def __init__(self, galleries: Galleries, database: Database, signer: Signer) -> None:
        self._galleries = galleries
        self._database = database
        self._signer = signer

    def erase(self, gallery_id: str, subject_id: str, *, reason: Reason = "asked", rewrite: bool = False) -> Document:
        """Erases the subject and says so. With `rewrite`, PostgreSQL's tables are rewritten, which locks them for as
        long; SQLite needs no such thing.

        Raises NotFound ``gallery_not_found``, ``subject_not_found``.
        """
        return self.complete([self.delete(gallery_id, subject_id, reason=reason, rewrite=rewrite)])[0]

    def delete(self, gallery_id: str, subject_id: str, *, reason: Reason = "asked", rewrite: bool = False) -> str:
        """The first half of it; the id of the receipt, which is pending. One that is said to have `expired` is not
        found where it has not, or not any more. Raises as `erase` does."""
        receipt_id = secrets.token_hex(16)

        def note(connection: Connection, erased: Erased) -> None:
            document = _pending(receipt_id, erased, reason, rewrite=rewrite)
            values = {
                "id": receipt_id,
                "gallery": erased.gallery,
                "state": PENDING,
                "created_at": document["erased_at"],
                "document": json.dumps(document),
            }
            connection.execute(sa.insert(RECEIPTS).values(values))

        expired_by = utc_now() if reason == "expired" else None
        self._galleries.erase_subject(gallery_id, subject_id, note, expired_by=expired_by)
        return receipt_id

    def complete(self, receipt_ids: Sequence[str]) -> list[Document]:
        """The second half, for many at once: clears what the disk may hold, and signs."""
        with self._database.read() as connection:
            query = sa.select(RECEIPTS).where(RECEIPTS.c.id.in_(receipt_ids)).order_by(RECEIPTS.c.key)
            rows = connection.execute(query).all()
        pending = [row for row in rows if row.state == PENDING]
        done = {row.id: _document(row) for row in rows if row.state == DONE}
        if pending:
            rewrite = any(_document(row)["rewrite"] for row in pending)
            cleared = self._clear({row.gallery for row in pending}, rewrite=rewrite)
            done |= {row.id: self._finish(row, cleared) for row in pending}
        return [done[receipt_id] for receipt_id in receipt_ids]

    def receipt(self, receipt_id: str) -> Document:
        """Raises NotFound ``receipt_not_found``, also as long as its erasure is still in work."""
        with self._database.read() as connection:
            query = sa.select(RECEIPTS).where((RECEIPTS.c.id == receipt_id) & (RECEIPTS.c.state == DONE))
            row = connection.execute(query).one_or_none()
        if row is None:
            raise NotFound(f"There is no receipt {receipt_id!r}.", code="receipt_not_found", receipt=receipt_id)
        return _document(row)

    def receipts(self, cursor: str | None = None, limit: int = 100) -> Page[Document]:
        """In the order of the erasures. Raises InvalidInput ``invalid_cursor``."""
        query = sa.select(RECEIPTS).where(RECEIPTS.c.state == DONE)
        return read_page(
            self._database, query, RECEIPTS.c.key, _document, listing="receipts", cursor=cursor, limit=limit
        )

    def complete_pending(self) -> int:
        """Finishes what servers that died have begun; how many receipts."""
        old = (RECEIPTS.c.state == PENDING) & (RECEIPTS.c.created_at < utc_now(-timedelta(seconds=PENDING_S)))
        with self._database.read() as connection:
            ids = list(connection.execute(sa.select(RECEIPTS.c.id).where(old)).scalars())
        self.complete(ids)
        return len(ids)

    def _finish(self, row: Row[Any], cleared: Document) -> Document:
        document = _document(row) | cleared | {"completed_at": utc_now()}
        del document["rewrite"]
        document["signature"] = self._sign(document)
        with self._database.write() as connection:
            mine = (RECEIPTS.c.id == row.id) & (RECEIPTS.c.state == PENDING)
            done = {"state": DONE, "document": json.dumps(document, ensure_ascii=False)}
            connection.execute(sa.update(RECEIPTS).where(mine).values(done))
            return _document(connection.execute(sa.select(RECEIPTS).where(RECEIPTS.c.id == row.id)).one())

    def _clear(self, gallery_ids: Iterable[str], *, rewrite: bool) -> Document:
        """Clears everything on disk that may hold what was deleted, and says what that means."""
        scrubbed = [self._galleries.scrub_index(one) for one in gallery_ids]
        index = all(scrubbed)
        not_reached = list(NOT_REACHED)
        if self._database.is_sqlite:
            clean = self._database.scrub(SCRUB_S)
            tables = "overwritten"
            log = "emptied" if clean else "emptied as soon as no reader uses it"
        else:
            self._database.vacuum([table.name for table in TABLES], full=rewrite)
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

    def _sign(self, document: Document) -> Document:
        signer = self._signer
        return {
            "algorithm": signing.ALGORITHM,
            "key_id": signer.key_id,
            "public_key": signing.encode(signer.public_key),
            "value": signing.encode(signer.sign(signing.canonical(document), PURPOSE)),
        }


def check_receipt(receipt: Mapping[str, Any], public_key: bytes | None = None) -> bool:
    """Whether the receipt was signed with `public_key`; None where that is not known: then only that nobody has
    altered it since it was signed with the key that it names itself.

    Raises Unusable ``signature_wrong``.
    """
    document = dict(receipt)
    signature = document.pop("signature", None)
    try:
        named = signing.decode(signature["public_key"])
        value = signing.decode(signature["value"])
    except (TypeError, KeyError):
        raise Unusable("This is no signed receipt.", code="signature_wrong") from None
    if public_key is not None and not hmac.compare_digest(named, public_key):
        raise Unusable("The receipt was signed with another key.", code="signature_wrong")
    signing.verify(named, value, signing.canonical(document), PURPOSE)
    return public_key is not None


def is_about(receipt: Mapping[str, Any], gallery_id: str, subject_id: str) -> bool:
    """Whether the receipt means this subject."""
    about = receipt["subject"]
    return hmac.compare_digest(str(about["digest"]), subject_digest(str(about["salt"]), gallery_id, subject_id))


def subject_digest(salt: str, gallery_id: str, subject_id: str) -> str:
    """SHA-256, hexadecimal, of the JSON list of the three."""
    text = json.dumps([salt, gallery_id, subject_id], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _pending(receipt_id: str, erased: Erased, reason: Reason, *, rewrite: bool) -> Document:
    salt = secrets.token_hex(SALT_BYTES)
    return {
        "format": FORMAT,
        "id": receipt_id,
        "gallery": erased.gallery,
        "subject": {"salt": salt, "digest": subject_digest(salt, erased.gallery, erased.subject)},
        "reason": reason,
        "erased_at": utc_now(),
        "erased": {"faces": erased.faces, "templates": erased.templates, "crops": erased.crops},
        "rewrite": rewrite,
    }


def _document(row: Row[Any]) -> Document:
    document: Document = json.loads(row.document)
    return document
