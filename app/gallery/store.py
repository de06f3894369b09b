"""The truth: galleries, subjects, faces and crops in SQL.

Every public call is one transaction: what it returned is on disk, what it raised changed nothing.
Rows go in and come out as the frozen values of `app.gallery.records`.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import timedelta
from itertools import chain, islice
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.db.cache import Memo
from app.db.engine import BUSY_TIMEOUT_S, Database, in_parts
from app.db.pagination import Page, read_page
from app.db.schema import ANSWERED_REQUESTS, CROPS, FACES, GALLERIES, JOB_REFUSALS, JOBS, SECOND_TEMPLATES, SUBJECTS
from app.db.sealed_columns import Blobs
from app.errors import Conflict, FaceNotFound, GalleryExists, InvalidInput, NotFound, PackageMismatch, SubjectNotFound
from app.gallery import bulk, change_log
from app.gallery.bulk import BulkFace, BulkSubject, Everything, Written
from app.gallery.change_reader import ChangeReader
from app.gallery.enrollment import Enrolling, face_rows, placed
from app.gallery.gallery_rows import GALLERY_ROWS, find_gallery, lock_gallery, reread, to_gallery
from app.gallery.records import (
    NO_TERMS,
    UNSET,
    Consent,
    Counts,
    CropPolicy,
    Enrolled,
    Erased,
    FaceRow,
    Gallery,
    Metadata,
    Subject,
    Terms,
    Totals,
    Unset,
    two_packages,
)
from app.gallery.subject_rows import ensure_subjects, make_subjects, subject_row, touch_subjects
from app.gallery.templates import TemplatePlan, face_columns, join_templates
from app.gallery.text import (
    MAX_METADATA_BYTES,
    clean_consent,
    clean_id,
    clean_name,
    clean_search,
    encode_metadata,
    fold,
)
from app.search.types import IndexKind
from app.timestamps import utc_now
from app.types import Box, Quality, Reason

_FACE_ID = re.compile("[0-9a-f]{32}")


class Store:
    """SQL behind typed calls; safe to share between threads. Every call may also raise what `Database` does.

    `url` and `busy_timeout_s` are `Database`'s; `max_metadata_bytes` limits each metadata object; `blobs` is how
    templates and crops are stored, plain by default. Raises Unusable ``sealed_unreadable`` where its keys don't open
    what the database holds.
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
        self._blobs = blobs or Blobs()
        self._database = Database(url, busy_timeout_s=busy_timeout_s)
        self._change_reader = ChangeReader(self._database, self._blobs)
        self._known_galleries = Memo[str, Gallery](self._database.version)
        self._known_counts = Memo[int, Counts](self._database.version)
        self._known_subjects = Memo[tuple[int, str], Subject](self._database.version)
        try:
            with self._database.read() as connection:
                self._blobs.check(connection)
        except BaseException:
            self._database.close()
            raise

    @property
    def database(self) -> Database:
        """For what else is kept in it."""
        return self._database

    @property
    def blobs(self) -> Blobs:
        """How templates and crops lie in it."""
        return self._blobs

    @property
    def change_reader(self) -> ChangeReader:
        """What indexes are built from."""
        return self._change_reader

    def close(self) -> None:
        self._database.close()

    def scrub(self, timeout_s: float = 10.0) -> bool:
        """Waits until nothing of what was deleted is left in SQLite's files; False where that took too long."""
        return self._database.scrub(timeout_s)

    # Galleries

    def create_gallery(
        self,
        gallery_id: str,
        embedder: str,
        dimension: int,
        store: CropPolicy = "crop",
        metadata: Metadata | None = None,
        *,
        search: IndexKind = "fp32",
    ) -> Gallery:
        """Raises InvalidInput ``invalid_id``, ``invalid_metadata``; Conflict ``gallery_exists``."""
        now, stamp = utc_now(), change_log.begin_stamp()
        values = {
            "id": clean_id(gallery_id, "gallery"),
            "embedder": embedder,
            "dimension": dimension,
            "store": store,
            "search": search,
            "metadata": self._encode(metadata or {}),
            "created_at": now,
            "last_stamp": stamp,
        }
        insert = self._database.insert(GALLERIES).values(values).on_conflict_do_nothing().returning(GALLERIES.c.key)
        with self._database.write() as connection:
            key = connection.execute(insert).scalar()
            if key is None:
                message = f"There is already a gallery {values['id']!r}."
                raise GalleryExists(message, gallery=values["id"])
            change_log.begin(connection, key, stamp, now)
            return find_gallery(connection, str(values["id"]))

    def gallery(self, gallery_id: str) -> Gallery:
        """Raises InvalidInput ``invalid_id``; NotFound ``gallery_not_found``."""
        cleaned = clean_id(gallery_id, "gallery")
        return self._known_galleries.get(cleaned, lambda: self._read_gallery(cleaned))

    def galleries(
        self, cursor: str | None = None, limit: int = 100, only: Collection[str] | None = None
    ) -> Page[Gallery]:
        """`only` those of these ids. Raises InvalidInput ``invalid_cursor``, as all lists."""
        query = GALLERY_ROWS
        if only is not None:
            query = query.where(GALLERIES.c.id.in_(only))
        return read_page(
            self._database, query, GALLERIES.c.key, to_gallery, listing="galleries", cursor=cursor, limit=limit
        )

    def update_gallery(self, gallery: Gallery, search: IndexKind) -> Gallery:
        """Raises NotFound ``gallery_not_found``."""
        with self._database.write() as connection:
            lock_gallery(connection, gallery)
            connection.execute(sa.update(GALLERIES).where(GALLERIES.c.key == gallery.key).values(search=search))
            return reread(connection, gallery)

    def delete_gallery(self, gallery: Gallery) -> Counts:
        """What went with it. Raises NotFound ``gallery_not_found``."""
        with self._database.write() as connection:
            lock_gallery(connection, gallery, exclusively=True)
            counts = _count(connection, gallery)
            connection.execute(sa.delete(GALLERIES).where(GALLERIES.c.key == gallery.key))
        self._database.request_scrub()
        return counts

    def packages(self) -> frozenset[str]:
        """Ids of the packages whose templates any gallery holds."""
        with self._database.read() as connection:
            return frozenset(connection.execute(sa.select(GALLERIES.c.embedder).distinct()).scalars())

    def counts(self, gallery: Gallery) -> Counts:
        """Counts rows, where nothing has changed since the last time not even that."""

        def count() -> Counts:
            with self._database.read() as connection:
                return _count(connection, gallery)

        return self._known_counts.get(gallery.key, count)

    def totals(self) -> Totals:
        """Counts rows: some 50 ms for a million faces."""
        with self._database.read() as connection:
            return Totals(
                *(
                    connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
                    for table in (GALLERIES, SUBJECTS, FACES)
                )
            )

    # Subjects

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
        """A subject without faces; its id is made where none is given. ``note`` writes in the same transaction.

        Raises InvalidInput ``invalid_id``, ``invalid_name``, ``invalid_metadata``, ``invalid_expiry``,
        ``invalid_consent``; NotFound ``gallery_not_found``; Conflict ``subject_exists``.
        """
        agreed = _terms(terms)
        cleaned = clean_id(subject_id if subject_id is not None else uuid.uuid4().hex, "subject")
        cleaned_name = None if name is None else clean_name(name)
        encoded = self._encode(metadata or {})
        with self._database.write() as connection:
            lock_gallery(connection, gallery)
            note(connection)
            row = subject_row(gallery, cleaned, utc_now(), name=cleaned_name, metadata=encoded, **agreed)
            if not make_subjects(connection, self._database, [row]):
                message = f"Gallery {gallery.id!r} already has a subject {cleaned!r}."
                raise Conflict(message, code="subject_exists", gallery=gallery.id, subject=cleaned)
            return _read_subject(connection, gallery, cleaned)

    def subject(self, gallery: Gallery, subject_id: str) -> Subject:
        """Raises InvalidInput ``invalid_id``; NotFound ``subject_not_found``."""
        cleaned = clean_id(subject_id, "subject")

        def read() -> Subject:
            with self._database.read() as connection:
                return _read_subject(connection, gallery, cleaned)

        return self._known_subjects.get((gallery.key, cleaned), read)

    def current_subject(self, gallery: Gallery, subject_id: str) -> Subject:
        """As `subject`; one that has expired is not found."""
        subject = self.subject(gallery, subject_id)
        if has_expired(subject, utc_now()):
            raise _subject_not_found(gallery, subject.id)
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
        """`search` keeps those whose id or name contains it, case folded. Raises InvalidInput ``invalid_search``."""
        query = _SUBJECTS_COUNTED.where(SUBJECTS.c.gallery_key == gallery.key)
        if expires_before is not None:
            query = query.where(SUBJECTS.c.expires_at < expires_before)
        if search:
            # A plain substring function: LIKE has wildcards, and folds case differently on each database.
            contains = sa.func.instr if self._database.is_sqlite else sa.func.strpos
            query = query.where(contains(SUBJECTS.c.folded, fold(clean_search(search))) > 0)
        listing = f"subjects/{gallery.key}"
        return read_page(self._database, query, SUBJECTS.c.key, _subject, listing=listing, cursor=cursor, limit=limit)

    def update_subject(
        self,
        gallery: Gallery,
        subject_id: str,
        name: str | Unset | None = UNSET,
        metadata: Metadata | Unset = UNSET,
        *,
        terms: Terms = NO_TERMS,
    ) -> Subject:
        """Replaces what is given, metadata as a whole; a `name` of None removes it.

        Raises InvalidInput ``invalid_id``, ``invalid_name``, ``invalid_metadata``, ``invalid_expiry``,
        ``invalid_consent``; NotFound ``subject_not_found``.
        """
        cleaned = clean_id(subject_id, "subject")
        updates = self._updates(cleaned, name, metadata) | _terms(terms)
        with self._database.write() as connection:
            lock_gallery(connection, gallery)
            _update_subject(connection, _is_subject(gallery, cleaned), updates)
            subject = _read_subject(connection, gallery, cleaned)
        self._database.request_scrub()
        return subject

    def delete_subject(self, gallery: Gallery, subject_id: str) -> Subject:
        """The subject as it was. Raises InvalidInput ``invalid_id``; NotFound ``subject_not_found``."""
        cleaned = clean_id(subject_id, "subject")
        with self._database.write() as connection:
            lock_gallery(connection, gallery)
            connection.execute(sa.select(SUBJECTS.c.key).where(_is_subject(gallery, cleaned)).with_for_update())
            subject = _read_subject(connection, gallery, cleaned)
            connection.execute(sa.delete(SUBJECTS).where(SUBJECTS.c.key == subject.key))
            change_log.record(
                connection, gallery.key, change_log.REMOVE_SUBJECT, subject_key=subject.key, faces=[None], now=utc_now()
            )
        self._database.request_scrub()
        return subject

    def erase_subject(
        self,
        gallery: Gallery,
        subject_id: str,
        note: Callable[[Connection, Erased], None],
        *,
        expired_by: str | None = None,
    ) -> Erased:
        """As `delete_subject`, with everything about them; `note` writes what it has to in the same transaction. With
        `expired_by`, one that has not expired by then is not found."""
        cleaned = clean_id(subject_id, "subject")
        with self._database.write() as connection:
            lock_gallery(connection, gallery)
            connection.execute(sa.select(SUBJECTS.c.key).where(_is_subject(gallery, cleaned)).with_for_update())
            subject = _read_subject(connection, gallery, cleaned)
            if expired_by is not None and not has_expired(subject, expired_by):
                raise _subject_not_found(gallery, cleaned)
            mine = FACES.c.subject_key == subject.key
            crops, others = (
                connection.execute(sa.select(sa.func.count()).select_from(table.join(FACES)).where(mine)).scalar_one()
                for table in (CROPS, SECOND_TEMPLATES)
            )
            erased = Erased(gallery.id, cleaned, subject.face_count, subject.face_count + others, crops)
            connection.execute(sa.delete(SUBJECTS).where(SUBJECTS.c.key == subject.key))
            # Answers kept for callers that ask again may speak of anybody.
            connection.execute(sa.delete(ANSWERED_REQUESTS).where(ANSWERED_REQUESTS.c.gallery_key == gallery.key))
            _forget_in_jobs(connection, gallery)
            note(connection, erased)
            change_log.record(
                connection, gallery.key, change_log.ERASE, subject_key=subject.key, faces=[None], now=utc_now()
            )
        self._database.request_scrub()
        return erased

    # Faces

    def enroll(self, gallery: Gallery, wanted: Sequence[Enrolling]) -> list[Enrolled]:
        """Several enrollments, all or none of them.

        Raises InvalidInput ``invalid_id``, ``invalid_name``, ``invalid_metadata``, ``invalid_expiry``,
        ``invalid_consent``; Conflict ``subject_expired``; NotFound ``gallery_not_found``;
        Conflict ``package_mismatch`` where a face lacks a template of a package that the gallery takes by now.
        """
        now = utc_now()
        names = [clean_id(one.subject, "subject") for one in wanted]
        updates = [self._enrolled_updates(name, one) for name, one in zip(names, wanted, strict=True)]
        rows = {name: subject_row(gallery, name, now) for name in names}
        with self._database.write() as connection:
            held = self._locked(connection, gallery)
            faces = [placed(one, name, held.templates) for name, one in zip(names, wanted, strict=True)]
            keys, made = ensure_subjects(connection, self._database, gallery, rows)
            for name, changed in zip(names, updates, strict=True):
                if changed:
                    _update_subject(connection, SUBJECTS.c.key == keys[name], changed)
            touch_subjects(connection, [key for name, key in keys.items() if name not in made], now)
            pairs = bulk.write_faces(connection, held, keys, list(chain(*faces)), now, blobs=self._blobs)
            bulk.record_added(connection, gallery, pairs, now)
            subjects = self._unexpired(connection, gallery, list(keys.values()))
        left = (key for _, key in pairs)
        return [
            Enrolled(
                subjects[keys[name]],
                face_rows(one, list(zip(some, islice(left, len(some)), strict=True)), held.embedder, now),
                created=name in made and name not in names[:place],
            )
            for place, (name, one, some) in enumerate(zip(names, wanted, faces, strict=True))
        ]

    def check_subject(self, subject: BulkSubject) -> None:
        """Raises what `write_many` would."""
        bulk.check_subject(subject, self._max_metadata_bytes)

    def write_many(
        self,
        gallery: Gallery,
        subjects: Sequence[BulkSubject],
        faces: Sequence[BulkFace],
        *,
        also: Callable[[Connection, Written], None] = lambda *_: None,
    ) -> Written:
        """All of it in one transaction, `also` included, which is called last but for the change log.

        Faces of subjects that are not among `subjects` need no more than their id. Faces that the gallery has
        already, by their id, are left out. Raises InvalidInput ``invalid_id``, ``invalid_name``,
        ``invalid_metadata``; NotFound ``gallery_not_found``; Conflict ``package_mismatch``, ``two_packages`` where
        faces lack a template of a package that the gallery takes by now.
        """
        told = {subject.id for subject in subjects}
        untold = dict.fromkeys(face.subject for face in faces if face.subject not in told)
        wanted = [*subjects, *(BulkSubject(name) for name in untold)]
        checked = [bulk.check_subject(one, self._max_metadata_bytes) for one in wanted]
        now = utc_now()
        with self._database.write() as connection:
            faces = _fit_bulk(gallery, faces, self._locked(connection, gallery).templates)
            found, made = bulk.write_subjects(connection, self._database, gallery, checked, now)
            keys = {raw.id: found[clean.id] for raw, clean in zip(wanted, checked, strict=True)}
            new, taken = bulk.place_ids(connection, gallery, faces)
            pairs = bulk.write_faces(connection, gallery, keys, new, now, blobs=self._blobs) if new else []
            written = Written(made, len(new), taken)
            also(connection, written)
            if pairs:
                touch_subjects(connection, sorted({key for key, _ in pairs}), now)
                bulk.record_added(connection, gallery, pairs, now)
        return written

    @contextmanager
    def everything(self, gallery: Gallery, *, crops: bool) -> Iterator[Everything]:
        """The gallery, its subjects and faces as one moment saw them; to be read one after the other.

        Raises NotFound ``gallery_not_found``.
        """
        with self._database.read(one_moment=True) as connection:
            now = reread(connection, gallery)
            subjects = bulk.read_subjects(connection, now)
            faces = bulk.read_faces(connection, now, self._blobs, crops=crops)
            counts, there = _count(connection, now), bulk.count_faces(connection, now)
            yield Everything(now, Counts(counts.subjects, there), counts.faces - there, subjects, faces)

    def faces(self, gallery: Gallery, subject_id: str, cursor: str | None = None, limit: int = 100) -> Page[FaceRow]:
        """The subject's faces, without their crops. Raises NotFound ``subject_not_found``."""
        subject = self.subject(gallery, subject_id)
        query = _faces_named(gallery.embedder).where(FACES.c.subject_key == subject.key)
        listing = f"faces/{subject.key}"
        return read_page(self._database, query, FACES.c.key, self._face, listing=listing, cursor=cursor, limit=limit)

    def face(self, gallery: Gallery, subject_id: str, face_id: str) -> FaceRow:
        """With its crop. Raises NotFound ``subject_not_found``, ``face_not_found``."""
        with self._database.read() as connection:
            subject = _read_subject(connection, gallery, clean_id(subject_id, "subject"))
            row = _find_face(connection, gallery, subject, face_id)
            crop = connection.execute(sa.select(CROPS.c.jpeg).where(CROPS.c.face_key == row.key)).scalar()
        return self._face(row, crop)

    def find_face(self, gallery: Gallery, face_id: str) -> FaceRow:
        """A face of any subject, with its crop. Raises NotFound ``face_not_found``."""
        with self._database.read() as connection:
            row = None
            if _FACE_ID.fullmatch(face_id):
                query = _faces_named(gallery.embedder).where(
                    (FACES.c.gallery_key == gallery.key) & (FACES.c.face_id == face_id)
                )
                row = connection.execute(query).one_or_none()
            if row is None:
                message = f"Gallery {gallery.id!r} has no face {face_id!r}."
                raise FaceNotFound(message, gallery=gallery.id, face_id=face_id)
            crop = connection.execute(sa.select(CROPS.c.jpeg).where(CROPS.c.face_key == row.key)).scalar()
        return self._face(row, crop)

    def delete_face(self, gallery: Gallery, subject_id: str, face_id: str) -> tuple[int, int]:
        """The keys of the face and its subject. Raises NotFound ``subject_not_found``, ``face_not_found``."""
        with self._database.write() as connection:
            lock_gallery(connection, gallery)
            subject = _read_subject(connection, gallery, clean_id(subject_id, "subject"))
            face_key: int = _find_face(connection, gallery, subject, face_id, lock=True).key
            connection.execute(sa.delete(FACES).where(FACES.c.key == face_key))
            _update_subject(connection, SUBJECTS.c.key == subject.key, {})
            change_log.record(
                connection, gallery.key, change_log.REMOVE, subject_key=subject.key, faces=[face_key], now=utc_now()
            )
        self._database.request_scrub()
        return face_key, subject.key

    # What time does

    def prune_changes(self, older_than: timedelta) -> int:
        """Removes the change log's old entries, but each gallery's last; says how many."""
        with self._database.write() as connection:
            return change_log.prune(connection, utc_now(-older_than))

    def expired(self, limit: int) -> list[tuple[str, str]]:
        """Galleries' and subjects' ids of those that have expired, those longest ago first."""
        query = sa.select(GALLERIES.c.id, SUBJECTS.c.id).join_from(SUBJECTS, GALLERIES)
        query = query.where(SUBJECTS.c.expires_at <= utc_now()).order_by(SUBJECTS.c.expires_at).limit(limit)
        with self._database.read() as connection:
            return [(gallery, subject) for gallery, subject in connection.execute(query)]

    def labels(self, face_keys: Sequence[int], *, current: bool = False) -> dict[int, tuple[str, str, str | None]]:
        """Of each face that there (still) is: its face_id, its subject's id and name. With `current`, of those whose
        subjects have not expired."""
        if not face_keys:
            return {}
        query = _CURRENT_LABELS if current else _LABELS
        found: dict[int, tuple[str, str, str | None]] = {}
        with self._database.read() as connection:
            for some in in_parts(face_keys):
                asked = {"keys": some, "now": utc_now()}
                for key, face_id, subject_id, name in connection.execute(query, asked):
                    found[key] = (face_id, subject_id, name)
        return found

    # Inside

    def _read_gallery(self, gallery_id: str) -> Gallery:
        with self._database.read() as connection:
            return find_gallery(connection, gallery_id)

    def _locked(self, connection: Connection, gallery: Gallery) -> Gallery:
        """Lock the gallery and return it as it is from then on. Raises NotFound ``gallery_not_found``."""
        if not self._database.is_sqlite:  # its write transactions never overlap
            lock_gallery(connection, gallery)
        # A statement of its own: one that waits for the gallery's row sees other tables as they were before.
        return reread(connection, gallery)

    def _unexpired(self, connection: Connection, gallery: Gallery, keys: Sequence[int]) -> dict[int, Subject]:
        """Raises Conflict ``subject_expired``: what is acknowledged must not go with the next sweep."""
        subjects = {row.key: _subject(row) for row in connection.execute(_SUBJECTS_BY_KEY, {"keys": keys})}
        now = utc_now()
        for subject in subjects.values():
            if has_expired(subject, now):
                message = f"Subject {subject.id!r} has expired and is about to be erased."
                raise Conflict(message, code="subject_expired", gallery=gallery.id, subject=subject.id)
        return subjects

    def _enrolled_updates(self, subject_id: str, one: Enrolling) -> dict[str, object]:
        name = UNSET if one.name is None else one.name
        metadata = UNSET if one.metadata is None else one.metadata
        return self._updates(subject_id, name, metadata) | _terms(one.terms)

    def _updates(self, subject_id: str, name: str | Unset | None, metadata: Metadata | Unset) -> dict[str, object]:
        """Checked before the transaction begins; `_update_subject` writes them."""
        updates: dict[str, object] = {}
        if name is not UNSET:
            cleaned = None if name is None else clean_name(name)
            updates |= {"name": cleaned, "folded": fold(subject_id, cleaned)}
        if metadata is not UNSET:
            updates["metadata"] = self._encode(metadata)
        return updates

    def _encode(self, metadata: Metadata) -> str:
        return encode_metadata(metadata, self._max_metadata_bytes)

    def _face(self, row: Row[Any], crop: bytes | None = None) -> FaceRow:
        """`crop` as it is stored."""
        return FaceRow(
            key=row.key,
            face_id=row.face_id,
            subject=row.subject,
            quality=Quality(row.quality, tuple(Reason(reason) for reason in json.loads(row.reasons))),
            box=Box(row.x, row.y, row.width, row.height),
            package=row.package,
            template=self._blobs.unpack("template", row.face_id, bytes(row.template)),
            crop=None if crop is None else self._blobs.unpack("crop", row.face_id, bytes(crop)),
            created_at=row.created_at,
        )


def _subject_not_found(gallery: Gallery, subject_id: str) -> NotFound:
    message = f"Gallery {gallery.id!r} has no subject {subject_id!r}."
    return SubjectNotFound(message, gallery=gallery.id, subject=subject_id)


def _count(connection: Connection, gallery: Gallery) -> Counts:
    counts = [
        connection.execute(
            sa.select(sa.func.count()).select_from(table).where(table.c.gallery_key == gallery.key)
        ).scalar_one()
        for table in (SUBJECTS, FACES)
    ]
    return Counts(*counts)


_SUBJECTS_COUNTED = sa.select(
    SUBJECTS,
    sa.select(sa.func.count())
    .select_from(FACES)
    .where(FACES.c.subject_key == SUBJECTS.c.key)
    .scalar_subquery()
    .label("face_count"),
)
_SUBJECTS_BY_KEY = _SUBJECTS_COUNTED.where(SUBJECTS.c.key.in_(sa.bindparam("keys", expanding=True)))
# Built once: that takes longer than what SQLite does with them.
_LABELS = (
    sa.select(FACES.c.key, FACES.c.face_id, SUBJECTS.c.id, SUBJECTS.c.name)
    .join(SUBJECTS)
    .where(FACES.c.key.in_(sa.bindparam("keys", expanding=True)))
)
_CURRENT_LABELS = _LABELS.where(SUBJECTS.c.expires_at.is_(None) | (SUBJECTS.c.expires_at > sa.bindparam("now")))


def _faces_named(package: str) -> sa.Select[Any]:
    """Faces with their template of the package, and their subjects' ids."""
    faces = join_templates(FACES.join(SUBJECTS), package)
    return sa.select(*face_columns(package), SUBJECTS.c.id.label("subject")).select_from(faces)


def _is_subject(gallery: Gallery, subject_id: str) -> sa.ColumnElement[bool]:
    return (SUBJECTS.c.gallery_key == gallery.key) & (SUBJECTS.c.id == subject_id)


def _update_subject(connection: Connection, which: sa.ColumnElement[bool], updates: Mapping[str, object]) -> None:
    connection.execute(sa.update(SUBJECTS).where(which).values({"updated_at": utc_now(), **updates}))


def _read_subject(connection: Connection, gallery: Gallery, subject_id: str) -> Subject:
    row = connection.execute(_SUBJECTS_COUNTED.where(_is_subject(gallery, subject_id))).one_or_none()
    if row is None:
        raise _subject_not_found(gallery, subject_id)
    return _subject(row)


def has_expired(subject: Subject, at: str) -> bool:
    return subject.expires_at is not None and subject.expires_at <= at


def _terms(terms: Terms) -> dict[str, object]:
    """The columns that they change. Raises InvalidInput ``invalid_expiry``, ``invalid_consent``."""
    columns: dict[str, object] = {}
    if terms.expires_at is not UNSET:
        if terms.expires_at is not None and terms.expires_at <= utc_now():
            raise InvalidInput("The subject would have expired already.", code="invalid_expiry")
        columns["expires_at"] = terms.expires_at
    if terms.consent is not UNSET:
        agreed = None if terms.consent is None else asdict(clean_consent(terms.consent))
        columns["consent"] = None if agreed is None else json.dumps(agreed, ensure_ascii=False)
    return columns


def _find_face(
    connection: Connection, gallery: Gallery, subject: Subject, face_id: str, *, lock: bool = False
) -> Row[Any]:
    row = None
    if _FACE_ID.fullmatch(face_id):
        query = _faces_named(gallery.embedder).where(
            (FACES.c.subject_key == subject.key) & (FACES.c.face_id == face_id)
        )
        row = connection.execute(query.with_for_update(of=FACES) if lock else query).one_or_none()
    if row is None:
        message = f"Subject {subject.id!r} has no face {face_id!r}."
        raise FaceNotFound(message, subject=subject.id, face_id=face_id)
    return row


def _forget_in_jobs(connection: Connection, gallery: Gallery) -> None:
    """Makes unreadable the files that jobs of the gallery have left, its exports, and drops their reports: anybody may
    be in them."""
    mine = JOBS.c.gallery_key == gallery.key
    connection.execute(sa.update(JOBS).where(mine & JOBS.c.result.is_not(None)).values(result=None, secret=None))
    connection.execute(sa.delete(JOB_REFUSALS).where(JOB_REFUSALS.c.job_key.in_(sa.select(JOBS.c.key).where(mine))))


def _fit_bulk(gallery: Gallery, faces: Sequence[BulkFace], plan: TemplatePlan) -> Sequence[BulkFace]:
    """Return the faces with exactly the templates that `plan` writes; ``template`` is of the gallery's own package.

    Raises Conflict ``package_mismatch``, ``two_packages``.
    """
    own, *others = plan.packages
    if faces and own != gallery.embedder:
        message = f"Gallery {gallery.id!r} takes templates of {own} now, not of {gallery.embedder}."
        raise PackageMismatch(message, expected=own, given=gallery.embedder)
    if not others:
        return [face if face.second is None else replace(face, second=None) for face in faces]
    if any(face.second is None or face.second.package != others[0] for face in faces):
        raise two_packages(gallery.id)
    return faces


def _subject(row: Row[Any]) -> Subject:
    metadata = json.loads(row.metadata)
    consent = None if row.consent is None else Consent(**json.loads(row.consent))
    return Subject(
        row.key,
        row.id,
        row.name,
        metadata,
        row.face_count,
        row.created_at,
        row.updated_at,
        expires_at=row.expires_at,
        consent=consent,
    )
