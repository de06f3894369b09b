"""Galleries, subjects, faces and crops in SQL, the only place that may not be lost; indexes are derived from it.

Every public call is one transaction: what it returned is on disk, and if it raised nothing was changed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
from typing import Unpack

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.db.cache import Cache
from app.db.engine import BUSY_TIMEOUT_S, Database
from app.db.pagination import Page, read_page
from app.db.schema import FACES, GALLERIES, SUBJECTS
from app.db.sealed_columns import Blobs
from app.errors import Conflict
from app.gallery import bulk, change_log
from app.gallery.bulk import BulkFace, BulkSubject, Enrolled, Enrollment, Everything, Written
from app.gallery.change_log import ChangeReader
from app.gallery.face_rows import face_query, find_face, read_crop, read_labels, to_face
from app.gallery.gallery_rows import GALLERY_ROWS, find_gallery, lock_gallery, population_column, reread, to_gallery
from app.gallery.records import (
    NO_TERMS,
    UNSET,
    Counts,
    Erased,
    FaceRow,
    Gallery,
    GalleryChanges,
    GallerySettings,
    Metadata,
    Subject,
    Terms,
    Totals,
    Unset,
)
from app.gallery.subject_rows import (
    SUBJECT_ROWS,
    erase_rows,
    find_subject,
    find_unexpired,
    has_expired,
    lock_subject,
    make_subjects,
    subject_not_found,
    subject_values,
    terms_columns,
    to_subject,
    touch_subjects,
    update_subject,
)
from app.gallery.text import (
    MAX_METADATA_BYTES,
    check_visible,
    clean_id,
    clean_name,
    clean_search,
    encode_metadata,
    fold,
)
from app.timestamps import utc_now


class Store:
    """Typed calls over SQL; safe to share between threads. Every call may also raise what `Database` does.

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
        self._max_metadata_bytes = max_metadata_bytes
        self.blobs = blobs or Blobs()
        """Encrypts templates and crops, or leaves them plain."""
        self.database = Database(url, busy_timeout_s=busy_timeout_s)
        self.change_reader = ChangeReader(self.database, self.blobs)
        """Reads what indexes are built from."""
        self._known_galleries = Cache[str, Gallery](self.database.version)
        self._known_counts = Cache[int, Counts](self.database.version)
        self._known_subjects = Cache[tuple[int, str], Subject](self.database.version)
        try:
            with self.database.read() as connection:
                self.blobs.check(connection)
        except BaseException:
            self.database.close()
            raise

    def close(self) -> None:
        self.database.close()

    def create_gallery(
        self,
        gallery_id: str,
        embedder: str,
        dimension: int,
        **settings: Unpack[GallerySettings],
    ) -> Gallery:
        """Make a gallery. Raises InvalidInput ``invalid_id``, ``invalid_metadata``; Conflict ``gallery_exists``."""
        now, stamp = utc_now(), change_log.begin_stamp()
        cleaned = clean_id(gallery_id, "gallery")
        check_visible(cleaned, "gallery id")
        values = {
            "store": "crop",
            **settings,
            "id": cleaned,
            "embedder": embedder,
            "dimension": dimension,
            "population": population_column(settings.get("population", ())),
            "metadata": self._encode(settings.get("metadata", {})),
            "created_at": now,
            "last_stamp": stamp,
        }
        insert = self.database.insert(GALLERIES).values(values).on_conflict_do_nothing().returning(GALLERIES.c.key)
        with self.database.write() as connection:
            key = connection.execute(insert).scalar()
            if key is None:
                message = f"There is already a gallery {values['id']!r}."
                raise Conflict(message, code="gallery_exists", gallery=values["id"])
            change_log.begin(connection, key, stamp, now)
            return find_gallery(connection, str(values["id"]))

    def gallery(self, gallery_id: str) -> Gallery:
        """Return the gallery of this id. Raises InvalidInput ``invalid_id``; NotFound ``gallery_not_found``."""
        cleaned = clean_id(gallery_id, "gallery")
        return self._known_galleries.get(cleaned, lambda: self._read_gallery(cleaned))

    def galleries(
        self, cursor: str | None = None, limit: int = 100, only: Collection[str] | None = None
    ) -> Page[Gallery]:
        """List galleries, or `only` those of these ids. Raises InvalidInput ``invalid_cursor``, as all lists do."""
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
        with self.database.write() as connection:
            lock_gallery(connection, gallery)
            connection.execute(sa.update(GALLERIES).where(GALLERIES.c.key == gallery.key).values(columns))
            return reread(connection, gallery)

    def delete_gallery(self, gallery: Gallery) -> Counts:
        """Delete the gallery; return how much it held. Raises NotFound ``gallery_not_found``."""
        with self.database.write() as connection:
            lock_gallery(connection, gallery, exclusively=True)
            counts = _count(connection, gallery)
            connection.execute(sa.delete(GALLERIES).where(GALLERIES.c.key == gallery.key))
        self.database.request_scrub()
        return counts

    def packages(self) -> frozenset[str]:
        """Return the ids of the packages that galleries have templates of."""
        with self.database.read() as connection:
            return frozenset(connection.execute(sa.select(GALLERIES.c.embedder).distinct()).scalars())

    def counts(self, gallery: Gallery) -> Counts:
        """Count the gallery's subjects and faces, unless nothing has changed since the last time."""

        def count() -> Counts:
            with self.database.read() as connection:
                return _count(connection, gallery)

        return self._known_counts.get(gallery.key, count)

    def totals(self) -> Totals:
        """Count everything: some 50 ms for a million faces."""
        with self.database.read() as connection:
            counts = (sa.select(sa.func.count()).select_from(table) for table in (GALLERIES, SUBJECTS, FACES))
            return Totals(*(connection.execute(count).scalar_one() for count in counts))

    def create_subject(
        self,
        gallery: Gallery,
        subject_id: str | None = None,
        name: str | None = None,
        metadata: Metadata | None = None,
        *,
        terms: Terms = NO_TERMS,
        note: Callable[[Connection], None] = lambda _: None,
    ) -> Subject:
        """Make a subject without faces, with a random id if none is given. ``note`` writes in the same transaction.

        Raises InvalidInput ``invalid_id``, ``invalid_name``, ``invalid_metadata``, ``invalid_expiry``,
        ``invalid_consent``; NotFound ``gallery_not_found``; Conflict ``subject_exists``.
        """
        columns = terms_columns(terms)
        cleaned = clean_id(subject_id if subject_id is not None else uuid.uuid4().hex, "subject")
        check_visible(cleaned, "subject id")
        cleaned_name = None if name is None else clean_name(name)
        encoded = self._encode(metadata or {})
        with self.database.write() as connection:
            lock_gallery(connection, gallery)
            note(connection)
            row = subject_values(gallery, cleaned, utc_now(), name=cleaned_name, metadata=encoded, **columns)
            if not make_subjects(connection, self.database, [row]):
                message = f"Gallery {gallery.id!r} already has a subject {cleaned!r}."
                raise Conflict(message, code="subject_exists", gallery=gallery.id, subject=cleaned)
            return find_subject(connection, gallery, cleaned)

    def subject(self, gallery: Gallery, subject_id: str) -> Subject:
        """Return the subject of this id. Raises InvalidInput ``invalid_id``; NotFound ``subject_not_found``."""
        cleaned = clean_id(subject_id, "subject")

        def read() -> Subject:
            with self.database.read() as connection:
                return find_subject(connection, gallery, cleaned)

        return self._known_subjects.get((gallery.key, cleaned), read)

    def current_subject(self, gallery: Gallery, subject_id: str) -> Subject:
        """Return the subject as `subject` does, unless it has expired."""
        subject = self.subject(gallery, subject_id)
        if has_expired(subject, utc_now()):
            raise subject_not_found(gallery, subject.id)
        return subject

    def subjects(
        self,
        gallery: Gallery,
        cursor: str | None = None,
        limit: int = 100,
        search: str | None = None,
        *,
        expires_before: str | None = None,
    ) -> Page[Subject]:
        """List subjects whose id or name contains `search`, both folded. Raises InvalidInput ``invalid_search``."""
        query = SUBJECT_ROWS.where(SUBJECTS.c.gallery_key == gallery.key)
        if expires_before is not None:
            query = query.where(SUBJECTS.c.expires_at < expires_before)
        if search:
            # Not LIKE: it has wildcards, and folds case differently on each database.
            contains = sa.func.instr if self.database.is_sqlite else sa.func.strpos
            query = query.where(contains(SUBJECTS.c.folded, fold(clean_search(search))) > 0)
        listing = f"subjects/{gallery.key}"
        return read_page(self.database, query, SUBJECTS.c.key, to_subject, listing=listing, cursor=cursor, limit=limit)

    def update_subject(
        self,
        gallery: Gallery,
        subject_id: str,
        name: str | Unset | None = UNSET,
        metadata: Metadata | Unset = UNSET,
        *,
        terms: Terms = NO_TERMS,
        cover: str | Unset | None = UNSET,
    ) -> Subject:
        """Replace what is given, metadata as a whole; a `name` or `cover` of None removes it.

        Raises InvalidInput ``invalid_id``, ``invalid_name``, ``invalid_metadata``, ``invalid_expiry``,
        ``invalid_consent``; NotFound ``subject_not_found``, ``face_not_found``.
        """
        cleaned = clean_id(subject_id, "subject")
        updates = self._updates(cleaned, name, metadata) | terms_columns(terms)
        if cover is not UNSET:
            updates["cover"] = None if cover is None else self.face(gallery, cleaned, cover).face_id
        with self.database.write() as connection:
            lock_gallery(connection, gallery)
            update_subject(connection, lock_subject(connection, gallery, cleaned).key, updates)
            subject = find_subject(connection, gallery, cleaned)
        self.database.request_scrub()
        return subject

    def delete_subject(self, gallery: Gallery, subject_id: str) -> Subject:
        """Delete the subject; return it as it was. Raises NotFound ``subject_not_found``."""
        cleaned = clean_id(subject_id, "subject")
        with self.database.write() as connection:
            lock_gallery(connection, gallery)
            subject = lock_subject(connection, gallery, cleaned)
            connection.execute(sa.delete(SUBJECTS).where(SUBJECTS.c.key == subject.key))
            change_log.record(connection, gallery.key, [(change_log.REMOVE_SUBJECT, subject.key, None)])
        self.database.request_scrub()
        return subject

    def erase_subject(
        self,
        gallery: Gallery,
        subject_id: str,
        note: Callable[[Connection, Erased], None],
        *,
        expired_by: str | None = None,
    ) -> Erased:
        """Delete the subject with everything that may mention it; `note` writes in the same transaction.

        With `expired_by`, a subject that hasn't expired by then isn't found. Raises as `delete_subject` does.
        """
        cleaned = clean_id(subject_id, "subject")
        with self.database.write() as connection:
            lock_gallery(connection, gallery)
            subject = lock_subject(connection, gallery, cleaned)
            if expired_by is not None and not has_expired(subject, expired_by):
                raise subject_not_found(gallery, cleaned)
            erased = erase_rows(connection, gallery, subject)
            note(connection, erased)
            change_log.record(connection, gallery.key, [(change_log.ERASE, subject.key, None)])
        self.database.request_scrub()
        return erased

    def enroll(self, gallery: Gallery, wanted: Sequence[Enrollment]) -> list[Enrolled]:
        """Carry out several enrollments, all or none.

        Raises InvalidInput ``invalid_id``, ``invalid_expiry``, ``invalid_consent``; Conflict ``subject_expired``;
        NotFound ``gallery_not_found``; Conflict ``package_mismatch`` if a face lacks a template that the gallery takes.
        """
        now = utc_now()
        names = [clean_id(one.subject, "subject") for one in wanted]
        subjects = [(name, terms_columns(one.terms)) for name, one in zip(names, wanted, strict=True)]
        with self.database.write() as connection:
            held = self._locked(connection, gallery)
            faces = [one.bulk_faces(name, held.templates) for name, one in zip(names, wanted, strict=True)]
            keys, made = bulk.write_subjects(connection, self.database, gallery, subjects, now)
            for name in made:
                check_visible(name, "subject id")
            touch_subjects(connection, [key for name, key in keys.items() if name not in made], now)
            pairs = bulk.write_faces(connection, held, keys, list(chain(*faces)), now, blobs=self.blobs)
            bulk.record_added(connection, gallery, pairs)
            current = find_unexpired(connection, gallery, list(keys.values()))
        return [
            Enrolled(current[keys[name]], tuple(some), created=name in made and name not in names[:place])
            for place, (name, some) in enumerate(zip(names, faces, strict=True))
        ]

    def check_subject(self, subject: BulkSubject) -> None:
        """Check what `write_many` checks, and raise what it would."""
        check_visible(bulk.subject_columns(subject, self._max_metadata_bytes)[0], "subject id")

    def write_many(
        self,
        gallery: Gallery,
        subjects: Sequence[BulkSubject],
        faces: Sequence[BulkFace],
        *,
        also: Callable[[Connection, Written], None] = lambda *_: None,
    ) -> Written:
        """Write subjects and faces in one transaction; `also` writes in it, too.

        Subjects that only `faces` name are made if missing. Faces whose ids the gallery has already are skipped.
        Raises InvalidInput ``invalid_id``, ``invalid_name``, ``invalid_metadata``; NotFound ``gallery_not_found``;
        Conflict ``package_mismatch``, ``two_packages`` if a face lacks a template that the gallery takes by now.
        """
        given = {subject.id for subject in subjects}
        others = dict.fromkeys(face.subject for face in faces if face.subject not in given)
        wanted = [*subjects, *(BulkSubject(subject_id) for subject_id in others)]
        checked = [bulk.subject_columns(one, self._max_metadata_bytes) for one in wanted]
        now = utc_now()
        with self.database.write() as connection:
            faces = bulk.fit_bulk(gallery, faces, self._locked(connection, gallery).templates)
            found, made = bulk.write_subjects(connection, self.database, gallery, checked, now)
            keys = {raw.id: found[clean] for raw, (clean, _) in zip(wanted, checked, strict=True)}
            new, taken = bulk.place_ids(connection, gallery, faces)
            pairs = bulk.write_faces(connection, gallery, keys, new, now, blobs=self.blobs) if new else []
            written = Written(len(made), len(new), taken)
            also(connection, written)
            if pairs:
                touch_subjects(connection, sorted({key for key, _ in pairs}), now)
                bulk.record_added(connection, gallery, pairs)
        return written

    @contextmanager
    def everything(self, gallery: Gallery, *, crops: bool) -> Iterator[Everything]:
        """Open a consistent view of the gallery; read its subjects before its faces.

        Raises NotFound ``gallery_not_found``.
        """
        with self.database.read(one_moment=True) as connection:
            now = reread(connection, gallery)
            subjects = bulk.read_subjects(connection, now)
            faces = bulk.read_faces(connection, now, self.blobs, crops=crops)
            counts, there = _count(connection, now), bulk.count_faces(connection, now)
            yield Everything(now, Counts(counts.subjects, there), counts.faces - there, subjects, faces)

    def faces(self, gallery: Gallery, subject_id: str, cursor: str | None = None, limit: int = 100) -> Page[FaceRow]:
        """List the subject's faces without their crops. Raises NotFound ``subject_not_found``."""
        subject = self.subject(gallery, subject_id)
        query = face_query(gallery.embedder).where(FACES.c.subject_key == subject.key)
        return read_page(
            self.database,
            query,
            FACES.c.key,
            lambda row: to_face(row, self.blobs),
            listing=f"faces/{subject.key}",
            cursor=cursor,
            limit=limit,
        )

    def face(self, gallery: Gallery, subject_id: str, face_id: str) -> FaceRow:
        """Return the face with its crop. Raises NotFound ``subject_not_found``, ``face_not_found``."""
        with self.database.read() as connection:
            subject = find_subject(connection, gallery, clean_id(subject_id, "subject"))
            row = find_face(connection, gallery, face_id, subject)
            return to_face(row, self.blobs, read_crop(connection, row.key))

    def find_face(self, gallery: Gallery, face_id: str) -> FaceRow:
        """Return a face of any subject with its crop. Raises NotFound ``face_not_found``."""
        with self.database.read() as connection:
            row = find_face(connection, gallery, face_id)
            return to_face(row, self.blobs, read_crop(connection, row.key))

    def delete_face(self, gallery: Gallery, subject_id: str, face_id: str) -> None:
        """Delete the face with its crop. Raises NotFound ``subject_not_found``, ``face_not_found``."""
        with self.database.write() as connection:
            lock_gallery(connection, gallery)
            subject = find_subject(connection, gallery, clean_id(subject_id, "subject"))
            key: int = find_face(connection, gallery, face_id, subject, lock=True).key
            connection.execute(sa.delete(FACES).where(FACES.c.key == key))
            update_subject(connection, subject.key, {})
            change_log.record(connection, gallery.key, [(change_log.REMOVE, subject.key, key)])
        self.database.request_scrub()

    def prune_changes(self, older_than: timedelta) -> int:
        """Delete old entries of the change log, except each gallery's last; return how many."""
        with self.database.write() as connection:
            return change_log.prune(connection, utc_now(-older_than))

    def expired(self, limit: int) -> list[tuple[str, str]]:
        """Return the gallery's and the subject's id of expired subjects, longest ago first."""
        query = sa.select(GALLERIES.c.id, SUBJECTS.c.id).join_from(SUBJECTS, GALLERIES)
        query = query.where(SUBJECTS.c.expires_at <= utc_now()).order_by(SUBJECTS.c.expires_at).limit(limit)
        with self.database.read() as connection:
            return [(gallery, subject) for gallery, subject in connection.execute(query)]

    def labels(self, face_keys: Sequence[int], *, current: bool = False) -> dict[int, tuple[str, str, str | None]]:
        """Return the id, the subject's id and the subject's name of each face that exists, by key.

        With `current`, faces of expired subjects are left out.
        """
        if not face_keys:
            return {}
        with self.database.read() as connection:
            return read_labels(connection, face_keys, current=current)

    def _read_gallery(self, gallery_id: str) -> Gallery:
        with self.database.read() as connection:
            return find_gallery(connection, gallery_id)

    def _locked(self, connection: Connection, gallery: Gallery) -> Gallery:
        """Lock the gallery and return it as it is from then on. Raises NotFound ``gallery_not_found``."""
        if not self.database.is_sqlite:  # its write transactions never overlap
            lock_gallery(connection, gallery)
        # A statement of its own: one that waits for the gallery's row sees other tables as they were before.
        return reread(connection, gallery)

    def _updates(self, subject_id: str, name: str | Unset | None, metadata: Metadata | Unset) -> dict[str, object]:
        """Return the columns to change. Raises InvalidInput ``invalid_name``, ``invalid_metadata``."""
        updates: dict[str, object] = {}
        if name is not UNSET:
            cleaned = None if name is None else clean_name(name)
            updates |= {"name": cleaned, "folded": fold(subject_id, cleaned)}
        if metadata is not UNSET:
            updates["metadata"] = self._encode(metadata)
        return updates

    def _encode(self, metadata: Metadata) -> str:
        return encode_metadata(metadata, self._max_metadata_bytes)


def _count(connection: Connection, gallery: Gallery) -> Counts:
    subjects, faces = (
        sa.select(sa.func.count()).select_from(table).where(table.c.gallery_key == gallery.key).scalar_subquery()
        for table in (SUBJECTS, FACES)
    )
    return Counts(*connection.execute(sa.select(subjects, faces)).one())
