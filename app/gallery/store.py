"""Galleries, subjects, faces and crops in SQL. The indexes are derived from it.

Every public call is one transaction: when it returns, its changes are on disk; when it raises, nothing has changed.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Unpack

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.db.engine import Cache, Database, in_parts
from app.db.opening import BUSY_TIMEOUT_S
from app.db.pagination import Page, read_page
from app.db.schema import FACES, GALLERIES, PACKAGES, REEMBEDDINGS, SUBJECTS
from app.db.sealed_columns import Blobs
from app.errors import Conflict, PackageUnavailable
from app.gallery.change import STAMP_BITS, Change, ChangeReader, begin_log, prune_log, record_changes
from app.gallery.records import (
    GALLERY_ROWS,
    SUBJECT_ROWS,
    Candidate,
    Counts,
    Gallery,
    GalleryChanges,
    GallerySettings,
    StoredFace,
    Subject,
    face_query,
    find_face,
    find_gallery,
    find_subject,
    is_current,
    is_unnamed_row,
    lock_gallery,
    population_column,
    read_crop,
    subject_not_found,
    to_face,
    to_gallery,
    to_subject,
)
from app.gallery.text import MAX_METADATA_BYTES, check_visible, clean_id, clean_search, encode_metadata, fold
from app.package.folders import Package
from app.search.types import Match
from app.types import utc_now

LOG_KEPT = timedelta(days=1)
"""Time that the change log reaches back. A process that was away for longer rebuilds its indexes."""
LABELS_KEPT = 16_384
"""Number of faces whose ids and names are cached until the database changes: about 5 MB."""


class Store:
    """Typed calls over SQL; safe to share between threads. Every call may also raise what `Database` raises.

    `url` and `busy_timeout_s` are `Database`'s; `max_metadata_bytes` limits each metadata object; `blobs` encrypts
    templates and crops, which are plain by default. Raises Unusable ``sealed_unreadable`` if it lacks the right key.
    """

    def __init__(
        self,
        url: str,
        *,
        max_metadata_bytes: int = MAX_METADATA_BYTES,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        blobs: Blobs | None = None,
    ) -> None:
        self.max_metadata_bytes = max_metadata_bytes
        self.blobs = blobs or Blobs()
        """Encrypts templates and crops, or leaves them plain."""
        self.database = Database(url, busy_timeout_s=busy_timeout_s)
        self.change_reader = ChangeReader(self.database, self.blobs)
        """Reads what indexes are built from."""
        self._known_galleries = Cache[str, Gallery](self.database.version)
        self._known_counts = Cache[int, _Counted](self.database.version)
        self._known_subjects = Cache[tuple[int, str], Subject](self.database.version)
        self._known_labels = Cache[int, Row[Any]](self.database.version, LABELS_KEPT)
        try:
            with self.database.read() as connection:
                self.blobs.check(connection)
        except BaseException:
            self.database.close()
            raise

    def close(self) -> None:
        self.database.close()

    @contextmanager
    def change(self, gallery: Gallery) -> Iterator[Change]:
        """Open a transaction that locks the gallery; no index follows it (`Galleries.change` is for that).

        Raises NotFound ``gallery_not_found``.
        """
        with self.database.write() as connection:
            held = lock_gallery(connection, gallery)
            change = Change(held, connection, self.database.insert, self.blobs, self.max_metadata_bytes)
            yield change
            if change.entries:  # at the end of the transaction
                record_changes(change)
        if change.overwrites:
            self.database.request_scrub()

    def create_gallery(
        self, gallery_id: str, embedder: str, dimension: int, **settings: Unpack[GallerySettings]
    ) -> Gallery:
        """Make a gallery. Raises InvalidInput ``invalid_id``, ``invalid_metadata``; Conflict ``gallery_exists``."""
        now, stamp = utc_now(), secrets.randbits(STAMP_BITS)
        cleaned = clean_id(gallery_id, "gallery")
        check_visible(cleaned, "gallery id")
        values = {
            "store": "crop",
            **settings,
            "id": cleaned,
            "embedder": embedder,
            "dimension": dimension,
            "population": population_column(settings.get("population", ())),
            "metadata": encode_metadata(settings.get("metadata", {}), self.max_metadata_bytes),
            "created_at": now,
            "last_stamp": stamp,
        }
        insert = self.database.insert(GALLERIES).values(values).on_conflict_do_nothing().returning(GALLERIES.c.key)
        with self.database.write() as connection:
            key = connection.execute(insert).scalar()
            if key is None:
                raise Conflict(f"There is already a gallery {cleaned!r}.", code="gallery_exists", gallery=cleaned)
            begin_log(connection, key, stamp, now)
            return find_gallery(connection, cleaned)

    def gallery(self, gallery_id: str) -> Gallery:
        """Return the gallery as it is now. Raises InvalidInput ``invalid_id``; NotFound ``gallery_not_found``.

        All other calls, here and of `Galleries`, take the gallery that this returned. If its packages have changed
        since, they raise Conflict ``package_mismatch``: read it again (`app.db.engine.again_if_overtaken`).
        """
        known = self._known_galleries.values()
        if gallery_id not in known:
            with self.database.read_once() as connection:
                known[gallery_id] = find_gallery(connection, gallery_id)
        return known[gallery_id]

    def galleries(
        self, cursor: str | None = None, limit: int = 100, only: Collection[str] | None = None
    ) -> Page[Gallery]:
        """List galleries, or `only` those with these ids. Raises InvalidInput ``invalid_cursor``, as all lists do."""
        query = GALLERY_ROWS
        if only is not None:
            query = query.where(GALLERIES.c.id.in_(only))
        return read_page(
            self.database, query, GALLERIES.c.key, to_gallery, listing="galleries", cursor=cursor, limit=limit
        )

    def update_gallery(self, gallery: Gallery, changes: GalleryChanges) -> Gallery:
        """Change these settings of the gallery. Raises NotFound ``gallery_not_found``."""
        columns: dict[str, object] = {**changes}
        if "population" in changes:
            columns["population"] = population_column(changes["population"])
        with self.change(gallery) as change:
            change.connection.execute(sa.update(GALLERIES).where(GALLERIES.c.key == gallery.key).values(columns))
            return find_gallery(change.connection, gallery)

    def delete_gallery(self, gallery: Gallery) -> Counts:
        """Delete the gallery; return the counts of what it held. Raises NotFound ``gallery_not_found``."""
        with self.change(gallery) as change:
            counts = _count(change.connection, gallery).stored
            change.connection.execute(sa.delete(GALLERIES).where(GALLERIES.c.key == gallery.key))
            change.overwrites = True
        return counts

    def packages(self) -> frozenset[str]:
        return frozenset(self.database.column(sa.select(GALLERIES.c.embedder).distinct()))

    def counts(self, gallery: Gallery, *, expired: bool = False) -> Counts:
        """Return the numbers of the gallery's subjects and faces, cached until something changes.

        With `expired`, those that have expired but are not erased yet are counted, too.
        """
        known = self._known_counts.values()
        counted = known.get(gallery.key)
        if counted is None or (not expired and counted.until is not None and counted.until <= utc_now()):
            with self.database.read_once() as connection:
                counted = known[gallery.key] = _count(connection, gallery)
        return counted.stored if expired else counted.current

    def subject(self, gallery: Gallery, subject_id: str) -> Subject:
        """Return the subject with this id, unless it has expired. Raises InvalidInput ``invalid_id``; NotFound
        ``subject_not_found``."""
        known, key = self._known_subjects.values(), (gallery.key, subject_id)
        if key not in known:
            with self.database.read_once() as connection:
                known[key] = find_subject(connection, gallery, subject_id)
        subject = known[key]
        if subject.expires_at is not None and subject.expires_at <= utc_now():
            raise subject_not_found(gallery, subject.id)
        return subject

    def subjects(
        self,
        gallery: Gallery,
        cursor: str | None = None,
        limit: int = 100,
        search: str | None = None,
        *,
        offset: int = 0,
        expires_before: str | None = None,
        named: bool = False,
    ) -> Page[Subject]:
        """List subjects, or only `named` ones, whose id or name contains `search`, both folded, without the first
        `offset`. Raises InvalidInput ``invalid_search``."""
        query = SUBJECT_ROWS.where(SUBJECTS.c.gallery_key == gallery.key, is_current())
        if named:
            query = query.where(~is_unnamed_row())
        if expires_before is not None:
            query = query.where(SUBJECTS.c.expires_at < expires_before)
        if search:
            # LIKE has wildcards, and folds case differently on each database.
            contains = sa.func.instr if self.database.is_sqlite else sa.func.strpos
            query = query.where(contains(SUBJECTS.c.folded, fold(clean_search(search))) > 0)
        listing = f"subjects/{gallery.key}"
        return read_page(
            self.database,
            query,
            SUBJECTS.c.key,
            to_subject,
            listing=listing,
            cursor=cursor,
            limit=limit,
            offset=offset,
        )

    def faces(self, gallery: Gallery, subject_id: str, cursor: str | None = None, limit: int = 100) -> Page[StoredFace]:
        """List the subject's faces without their crops. Raises NotFound ``subject_not_found``."""
        subject = self.subject(gallery, subject_id)
        query = face_query(gallery.embedder).where(FACES.c.subject_key == subject.key)
        listing, convert = f"faces/{subject.key}", partial(to_face, blobs=self.blobs)
        return read_page(self.database, query, FACES.c.key, convert, listing=listing, cursor=cursor, limit=limit)

    def face(self, gallery: Gallery, face_id: str, subject_id: str | None = None) -> StoredFace:
        """Return a face, of any subject or of this one, with its crop. Raises NotFound ``face_not_found``, and
        ``subject_not_found`` for a missing ``subject_id``."""
        with self.database.read() as connection:
            subject = None if subject_id is None else find_subject(connection, gallery, subject_id)
            row = find_face(connection, gallery, face_id, subject)
            return to_face(row, self.blobs, read_crop(connection, row.key))

    def prune_changes(self, older_than: timedelta = LOG_KEPT) -> int:
        """Delete old entries of the change log, except each gallery's last; return how many. The scheduler calls it."""
        with self.database.write() as connection:
            return prune_log(connection, utc_now(-older_than))

    def candidates(self, rankings: Sequence[Sequence[Match]]) -> list[list[Candidate]]:
        """Return the matches with the ids and names that their keys stand for.

        Faces that were deleted meanwhile are left out, and subjects that have expired.
        """
        labels, now = self._known_labels.values(), utc_now()
        unknown = {match.face for ranking in rankings for match in ranking if match.face not in labels}
        for some in in_parts(sorted(unknown)) if unknown else ():
            labels |= {row.key: row for row in self.database.rows(_LABELS, {"keys": some})}
        return [
            [
                Candidate(
                    label.subject, label.name, label.face_id, match.score, match.mean_score, match.faces, match.length
                )
                for match in ranking
                if (label := labels.get(match.face)) and (label.expires_at is None or label.expires_at > now)
            ]
            for ranking in rankings
        ]


@dataclass(frozen=True, slots=True)
class _Counted:
    """Counts of all that a gallery stores, and of what has not expired."""

    stored: Counts
    current: Counts
    until: str | None
    """The time when the next subject of any gallery expires."""


def _count(connection: Connection, gallery: Gallery) -> _Counted:
    now = utc_now()
    stored = [_rows_of(table, gallery) for table in (SUBJECTS, FACES)]
    # Without `+ 0` SQLite reads all subjects of the gallery, not just the few expired ones of all galleries.
    gone = [count.where(SUBJECTS.c.gallery_key + 0 == gallery.key).scalar_subquery() for count in expired_counts(now)]
    until = sa.select(sa.func.min(SUBJECTS.c.expires_at)).where(SUBJECTS.c.expires_at > now).scalar_subquery()
    counted = [*stored, *gone, until]
    subjects, faces, gone_subjects, gone_faces, end = connection.execute(sa.select(*counted)).one()
    return _Counted(Counts(subjects, faces), Counts(subjects - gone_subjects, faces - gone_faces), end)


def _rows_of(table: sa.Table, gallery: Gallery) -> sa.ColumnElement[int]:
    """Count the gallery's rows; if no other gallery has any, all of the table's, which SQLite does page by page."""
    key, every = table.c.gallery_key, sa.select(sa.func.count()).select_from(table)
    others = sa.or_(sa.exists().where(key < gallery.key), sa.exists().where(key > gallery.key))
    own = every.where(key == gallery.key).scalar_subquery()
    return sa.case((others, own), else_=every.scalar_subquery())


def expired_counts(now: str) -> tuple[sa.Select[int], sa.Select[int]]:
    """Return the queries that count the expired subjects and their faces, which are few, as they are erased soon."""
    count = sa.select(sa.func.count()).select_from
    gone = SUBJECTS.c.expires_at <= now
    return count(SUBJECTS).where(gone), count(SUBJECTS.join(FACES)).where(gone)


# Built once: that takes longer than SQLite takes to run them.
_LABELS = (
    sa.select(FACES.c.key, FACES.c.face_id, SUBJECTS.c.id.label("subject"), SUBJECTS.c.name, SUBJECTS.c.expires_at)
    .join(SUBJECTS)
    .where(FACES.c.key.in_(sa.bindparam("keys", expanding=True)))
)


def bind_package(database: Database, package: Package) -> None:
    """Bind the package's id to its model, unless it is bound; a binding that no gallery needs is replaced.

    A package's id names a version; its digest identifies the file and its preparation. Another file with the same id
    makes other templates, so that comparing them would give meaningless scores.

    Raises PackageUnavailable with the reason ``package_changed`` if galleries have templates of another model.
    """
    digest = package.manifest.recipe_digest
    query = sa.select(PACKAGES.c.digest).where(PACKAGES.c.id == package.id)
    with database.read() as connection:
        bound = connection.execute(query).scalar()
    if bound == digest:
        return
    on_its_way = (REEMBEDDINGS.c.source == package.id) | (REEMBEDDINGS.c.target == package.id)
    moving = GALLERIES.c.key.in_(sa.select(REEMBEDDINGS.c.gallery_key).where(on_its_way))
    needing = sa.select(GALLERIES.c.id).where((GALLERIES.c.embedder == package.id) | moving).limit(1)
    insert = database.insert(PACKAGES).values(id=package.id, digest=digest)
    with database.write() as connection:
        connection.execute(insert.on_conflict_do_nothing())
        if (bound := connection.execute(query).scalar_one()) == digest:
            return
        gallery = connection.execute(needing).scalar()
        if gallery is None:
            connection.execute(sa.update(PACKAGES).where(PACKAGES.c.id == package.id).values(digest=digest))
            return
    message = (
        f"{package.folder} has another model than the one that gallery {gallery!r} has templates of, under the same id "
        f"{package.id}. Put the previous package back; or give this one another version in its manifest and move the "
        f"gallery: likeness reembed start {gallery} NAME@VERSION"
    )
    details = {"package": package.id, "reason": "package_changed", "expected": bound, "found": digest}
    raise PackageUnavailable(message, gallery=gallery, **details)
